"""Drives a TopologyCore in virtual time, with the real code of bolts and no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.config import Settings
from flowctl.core.events import FlowEvent
from flowctl.core.messages import Emission, Fail, SettledAck
from flowctl.core.records import Checkpoint, Record, Span
from flowctl.core.trees.acker import AckerLedger
from flowctl.core.trees.settlement import Settlement
from flowctl.failure.classify import Meaning, refusal_of
from flowctl.runtime.launch import report_of_no_run
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Collector, Input
from flowctl_storm.figures import TopologyReport
from flowctl_storm.hub.core import TopologyCore
from flowctl_storm.hub.news import RootEnd, TaskWatched
from flowctl_storm.local_stages import LocalStages
from flowctl_storm.topology import Topology
from flowctl_storm.topology_job import random_ids
from tests.listener_parts import Letters
from tests.runtime_parts import ListProducer

RECORD_S = 0.001  # what each record takes


def topology(records: int = 0, **settings: Any) -> Topology:
    """A topology with a spout "s" of ``records`` records whose values are their positions."""
    made = Topology("test", **settings)
    made.spout("s", Numbers(records))
    return made


class Numbers(ListProducer):
    """Positions as values: 1, 2, 3 …"""

    def value(self, position: int) -> object:
        return position


class SpyLedger(AckerLedger):
    """Writes down what an acker is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []

    def on_init(self, root: int, value: int, spout: Any) -> Any:
        self.told.append(("init", value))
        return super().on_init(root, value, spout)

    def on_ack(self, root: int, value: int) -> Any:
        self.told.append(("ack", value))
        return super().on_ack(root, value)


class Hub:
    """A core with all its bolts connected; ``step`` lets each tuple be processed at once."""

    def __init__(
        self,
        made: Topology,
        *,
        next_id: Callable[[], int] | None = None,
        checkpoint: Checkpoint | None = None,
        overrides: dict[str, Any] | None = None,
        has_dead_letter: bool = False,
        listener: Any = None,
        in_order: bool = False,
        chance: Callable[[], float] | None = lambda: 0.0,
    ) -> None:
        """``chance`` is of the jitter of back-offs, none by default; None: as in a real run."""
        job = self.job = made.job(
            LocalStages(),
            checkpoint=MemoryCheckpointStore(),
            settings=Settings().with_overrides(overrides or {}),
            dead_letter=Letters() if has_dead_letter else None,
            listener=listener,
            next_id=next_id or random_ids(),
        )
        if chance is not None:
            job.chance = chance
        self._ends: list[RootEnd] = []
        self._watched: list[TaskWatched] = []
        core = job.make_core(job.settings, checkpoint or Checkpoint())
        assert isinstance(core, TopologyCore)
        self.core = core
        self.plans = {plan.name: plan for plan in job.plans}
        self.now_s = 0.0
        self.in_order = in_order
        self.epochs = count(1)
        self.epoch: dict[str, int] = {}
        self.process: dict[str, Any] = {}
        self.in_flight: deque[Emission] = deque()
        self.events: list[FlowEvent] = []
        for plan in job.plans:
            for bolt in plan.bolts:
                self.connect(bolt)

    @property
    def ends(self) -> list[RootEnd]:
        """The ends of roots so far."""
        self.take_news()
        return self._ends

    @property
    def watched(self) -> list[TaskWatched]:
        """What settlements of tasks brought so far."""
        self.take_news()
        return self._watched

    def take_news(self) -> None:
        """As the sender does, but ends and figures are kept and not told."""
        for news in self.core.take_news():
            if isinstance(news, RootEnd):
                self._ends.append(news)
            elif isinstance(news, TaskWatched):
                self._watched.append(news)
                self.job.tell(news)
            else:
                self.job.tell(news)

    @property
    def figures(self) -> Any:
        return self.core.tree_figures()

    def report(self, outcome: Any = "finished") -> TopologyReport:
        """What a run that ends now would report of the topology."""
        self.take_news()
        self.job.teller.start()
        made = report_of_no_run("test", KeyboardInterrupt())
        return self.job.extended(msgspec.structs.replace(made, outcome=outcome))

    def tell(self) -> None:
        """Let the listener hear all that was queued for it."""
        self.take_news()
        notifier = self.job.root_notifier
        assert notifier is not None
        notifier.start()
        notifier.close()

    def connect(self, bolt: str) -> None:
        self.epoch[bolt] = next(self.epochs)
        epoch = self.epoch[bolt]
        self.core.add_bolt(bolt, slots=1, epoch=epoch, now_s=self.now_s, in_order=self.in_order)
        code = self.plans[bolt.rpartition(".")[0]].code
        self.process[bolt] = code.for_connection(bolt)

    def kill(self, bolt: str, *, comes_back: bool = True) -> list[Emission]:
        """The worker dies; what it was given is lost.  Return that."""
        lost = [e for e in self.in_flight if e.bolt == bolt]
        self.in_flight = deque(e for e in self.in_flight if e.bolt != bolt)
        self.core.remove_bolt(bolt, now_s=self.now_s, reason="killed")
        if comes_back:
            self.connect(bolt)
        return lost

    def offer(self, values: Iterable[Any], *, start: int = 1, partition: str = "s:p") -> None:
        records = [Record(n, value) for n, value in enumerate(values, start)]
        assert self.core.offer(partition, records, now_s=self.now_s) == len(records)

    def emit(self) -> None:
        """Let the core give out all that it wants to."""
        self.core.on_deadline(now_s=self.now_s)
        while (emission := self.core.poll_emit(now_s=self.now_s)) is not None:
            self.in_flight.append(emission)

    def process_one(self, emission: Emission) -> Settlement:
        """Run the bolt's code on a tuple, without acking it."""
        span = Span("test", emission.partition, emission.records[0].position, 0, 1)
        batch = Batch(list(emission.records), span, bolt=emission.bolt, attempt=emission.attempt)
        settlement = self.process[emission.bolt](batch)
        assert isinstance(settlement, Settlement)
        return settlement

    def ack(self, emission: Emission, settlement: Settlement) -> Any:
        service_s = RECORD_S * (1 + len(emission.records))
        ack = SettledAck(
            emission.tuple_id, emission.attempt, 0.0, service_s, 0.0, settlement=settlement
        )
        bolt = emission.bolt
        return self.core.on_ack(bolt, self.epoch[bolt], ack, now_s=self.now_s)

    def fail(self, emission: Emission, error: str, **how: Any) -> Any:
        """The worker says that a whole tuple failed."""
        fail = Fail(emission.tuple_id, emission.attempt, error, **how)
        bolt = emission.bolt
        return self.core.on_fail(bolt, self.epoch[bolt], fail, now_s=self.now_s)

    def answer(self, emission: Emission) -> None:
        """Run the bolt's code on a tuple and ack it, or refuse it if nothing of it was done."""
        try:
            settlement = self.process_one(emission)
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            self.refuse(emission, refusal)
        else:
            self.ack(emission, settlement)

    def refuse(self, emission: Emission, refusal: Meaning) -> Any:
        """The worker says that a whole tuple was refused."""
        return self.fail(emission, refusal.reason, is_refused=True, after_s=refusal.after_s)

    def step(self) -> bool:
        """Emit, then process the oldest tuple; False if there was none."""
        self.emit()
        self.now_s += RECORD_S
        while (event := self.core.poll_event()) is not None:
            self.events.append(event)
        if not self.in_flight:
            return False
        emission = self.in_flight.popleft()
        self.now_s += RECORD_S * len(emission.records)
        self.answer(emission)
        return True

    def run(self, *, until_s: float = 60.0) -> None:
        """Go on until nothing is left, waiting for retries."""
        while not self.core.is_drained:
            if self.step():
                continue
            due_s = self.core.next_deadline_s()
            if self.in_flight or self.core.is_drained:
                continue
            assert due_s is not None and due_s < until_s, f"stuck: {self.figures}"
            self.now_s = max(self.now_s, due_s)


def passing(given: Input, out: Collector) -> None:
    out(given.value)


def nothing(given: Input, out: Collector) -> None:
    pass


class Sink:
    """Remembers which bolt got what."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []

    def __call__(self, given: Input, out: Collector) -> None:
        self.got.append((out.bolt, given.value))

    @property
    def values(self) -> list[Any]:
        return [value for _, value in self.got]
