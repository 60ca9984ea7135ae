"""A topology with the place where it runs: the job that ``flowctl run`` runs."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import msgspec

from flowctl.adapters import dead_letter_of
from flowctl.compat import add_note
from flowctl.config import Settings
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.core.trees.anchors import NextId
from flowctl.errors import FlowctlError, without_secrets
from flowctl.instrumentation.snapshot import Report
from flowctl.instrumentation.task_metrics import EvenSampler
from flowctl.ports import (
    BoltNotice,
    Bolts,
    CheckpointStore,
    DeadLetter,
    FlowProducer,
    MeasuredProducer,
    SharingProducer,
    SourceChunk,
    SourceHost,
    SourceProgress,
    SpoutListener,
)
from flowctl.runtime.launch import Interrupted, Launch, ViewChoice
from flowctl.runtime.notifier import Guarded
from flowctl.runtime.parts import RunnableJob, check_listener, check_name, check_parts
from flowctl.runtime.run_plan import RunPlan
from flowctl.threads import OnDeath, guarded
from flowctl_storm.callbacks import CallbackThread, SpoutCallbacks, Told, telling_slow
from flowctl_storm.figures import TopologyReport
from flowctl_storm.hub.core import HubPlan, TopologyCore
from flowctl_storm.hub.news import RootEmitted, RootEnd, RootStep, TaskWatched, Wanted
from flowctl_storm.hub.roots import TreeRules
from flowctl_storm.hub.routing import Translate
from flowctl_storm.local_stages import Stages
from flowctl_storm.metrics import Consumer
from flowctl_storm.plan import StagePlan

# -- Notifies a listener of what happens to a topology's roots, from a thread of its own -------


class RootNotifier:
    """Calls a :class:`flowctl.ports.SpoutListener`, for which a tuple is a root.

    The hub only queues events: it never waits for a listener.
    """

    def __init__(self, listener: SpoutListener, *, on_death: OnDeath = lambda error: None) -> None:
        self._listener = listener
        self._calls: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._tell = Guarded()
        name = "flowctl-listener"
        run = guarded(self._run, name=name, on_death=on_death)
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Wait until all queued events are delivered."""
        self._calls.put(None)
        self._thread.join()

    def opened(self, job: str, restored: Checkpoint) -> None:
        """A run begins."""
        self._calls.put(("on_open", lambda: self._listener.on_open(job, restored)))

    def took(self, step: RootStep) -> None:
        """Take an event of a root."""
        listener, (kind, emission, reason) = self._listener, step
        if kind == "emitted":
            self._calls.put(("on_emit", lambda: listener.on_emit(emission)))
        elif kind == "acked":
            self._calls.put(("on_ack", lambda: listener.on_ack(emission)))
        elif kind == "retried":
            self._calls.put(("on_retry", lambda: listener.on_retry(emission, reason)))
        else:
            call = listener.on_max_retry_reached
            self._calls.put(("on_max_retry_reached", lambda: call(emission, reason)))

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            self._tell(*item)


# -- Several producers as one: a topology may have several spouts, but a run has one reader ----


_NOTHING_YET = SourceChunk("", ())


def partition_of(spout: str, partition: str) -> str:
    """Return the name of a spout's partition in the topology's checkpoint."""
    return f"{spout}:{partition}"


def part_of(spout: str, checkpoint: Checkpoint) -> Checkpoint:
    """Return the spout's part of the topology's checkpoint, with the spout's own names."""
    prefix = partition_of(spout, "")
    return Checkpoint(
        {
            name.removeprefix(prefix): done
            for name, done in checkpoint.partitions.items()
            if name.startswith(prefix)
        }
    )


class SpoutHost:
    """The :class:`flowctl.ports.SourceHost` of one spout's producer.

    It is ``host`` with the spout's own partition names.  Its job name is the spout's own too, since
    two spouts of one topology count as two readers for those that share partitions with them.
    """

    def __init__(self, host: SourceHost, spout: str) -> None:
        self.job: str = partition_of(host.job, spout)
        self.guarantee: ProcessingGuarantee = host.guarantee
        self._host = host
        self._spout = spout

    def saved(self) -> Checkpoint:
        """See :class:`flowctl.ports.SourceHost`."""
        return part_of(self._spout, self._host.saved())

    def uncommitted(self, partition: str) -> int:
        """See :class:`flowctl.ports.SourceHost`."""
        return self._host.uncommitted(partition_of(self._spout, partition))

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        """See :class:`flowctl.ports.SourceHost`."""
        self._host.give(partition_of(self._spout, partition), state)

    def take_away(self, partitions: Sequence[str]) -> Checkpoint:
        """See :class:`flowctl.ports.SourceHost`."""
        named = [partition_of(self._spout, partition) for partition in partitions]
        return part_of(self._spout, self._host.take_away(named))


class Sources:
    """The producers of all spouts, polled in turn (:class:`flowctl.ports.FlowProducer`).

    Partitions are named ``spout:partition``, so that a spout may be added later.  Partitions of a
    producer that shares them come and go (:class:`flowctl.ports.SharingProducer`).
    """

    def __init__(self, producers: Mapping[str, FlowProducer]) -> None:
        self._producers = dict(producers)
        self._open: list[str] = []
        self._sharing = {n: p for n, p in producers.items() if isinstance(p, SharingProducer)}
        self._ended: list[str] = []  # producers that share and have finished their partitions
        self._polled = ""  # the producer polled last

    def prefix_of(self, partition: str) -> str | None:
        """See :class:`flowctl.ports.PrefixingProducer`: the name of the spout."""
        spout = partition.partition(":")[0]
        return partition_of(spout, "") if spout in self._producers else None

    def attach(self, host: SourceHost) -> None:
        """See :class:`flowctl.ports.SharingProducer`."""
        for spout, producer in self._sharing.items():
            producer.attach(SpoutHost(host, spout))

    def keep(self) -> bool:
        """See :class:`flowctl.ports.SharingProducer`; a loss of one spares the others' chunks."""
        kept = {
            spout: self._sharing[spout].keep() for spout in self._open if spout in self._sharing
        }
        return kept.get(self._polled, True)

    def partitions(self) -> Sequence[str]:
        """See :class:`flowctl.ports.FlowProducer`."""
        return [
            partition_of(spout, partition)
            for spout, producer in self._producers.items()
            for partition in producer.partitions()
        ]

    def open(self, checkpoint: Checkpoint) -> None:
        """See :class:`flowctl.ports.FlowProducer`; each producer gets its own part."""
        for spout, producer in self._producers.items():
            producer.open(part_of(spout, checkpoint))
            self._open.append(spout)

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next records of one producer; None when all are read to their ends."""
        self._serve_ended()
        for _ in range(len(self._open)):
            spout = self._open.pop(0)
            chunk = self._producers[spout].poll(max_records)
            if chunk is None:
                if spout in self._sharing:
                    self._ended.append(spout)
                continue
            self._open.append(spout)
            if chunk.records or chunk.end is not None or chunk.is_busy:
                self._polled = spout
                named = partition_of(spout, chunk.partition)
                return msgspec.structs.replace(chunk, partition=named)
        return _NOTHING_YET if self._open else None

    def _serve_ended(self) -> None:
        """Poll ended producers that share, or their whole group would wait at a rebalance."""
        for spout in self._ended[:] if self._open else ():
            if not self._sharing[spout].keep():  # it may have been assigned other partitions
                self._ended.remove(spout)
                self._open.append(spout)

    def close(self) -> None:
        """Close all producers, even if one raises."""
        producers = list(self._producers.values())
        while producers:
            try:
                producers.pop().close()
            except BaseException:
                Sources({str(n): p for n, p in enumerate(producers)}).close()
                raise


class MeasuredSources(Sources):
    """Like :class:`Sources`, if every producer knows how much there is to read."""

    def __init__(self, producers: Mapping[str, FlowProducer]) -> None:
        super().__init__(producers)
        self._measured = [p for p in producers.values() if isinstance(p, MeasuredProducer)]

    def progress(self) -> SourceProgress:
        """See :class:`flowctl.ports.MeasuredProducer`."""
        parts = [producer.progress() for producer in self._measured]
        done, total = sum(part.done for part in parts), sum(part.total for part in parts)
        return SourceProgress(done, total, parts[0].unit)


def sources_of(producers: Mapping[str, FlowProducer]) -> Sources:
    """Return the producers as one, with progress if all have it in the same unit."""
    parts = [p for p in producers.values() if isinstance(p, MeasuredProducer)]
    if len(parts) == len(producers) == 1:
        return MeasuredSources(producers)
    return Sources(producers)


# -- A topology and where it runs --------------------------------------------------------------


class Declared(Protocol):
    """The parts of a :class:`flowctl_storm.Topology` that a job needs; keys are spouts' names."""

    name: str
    tree_timeout_s: float
    max_pending: int | None
    ackers: int
    is_debug: bool
    producers: dict[str, FlowProducer]
    translations: dict[str, Translate]
    callbacks: dict[str, SpoutCallbacks]
    consumers: list[Consumer]

    def plans(self, settings: Settings | None = None) -> list[StagePlan]: ...


def random_ids() -> NextId:
    """Return a generator of random 64-bit ids, never 0, seeded by the system."""
    draw = random.Random(secrets.randbits(256)).getrandbits

    def next_id() -> int:
        while not (drawn := draw(64)):
            pass
        return drawn

    return next_id


class TopologyJob(RunnableJob):
    """A topology with the place where it runs.  :attr:`core` shows its state.

    It is active from the start; :meth:`deactivate` and :meth:`activate` may be called from any
    thread, even before :meth:`run`, which then opens nothing until it is active.  ``next_id`` gives
    the ids of trees; tests replace it.  An object runs once.
    """

    has_one_count = False

    def __init__(
        self,
        topology: Declared,
        stages: Stages,
        checkpoint: CheckpointStore,
        settings: Settings,
        *,
        dead_letter: DeadLetter | str | Path | None = None,
        listener: SpoutListener | None = None,
    ) -> None:
        check_name(topology.name)
        check_listener(listener)
        self.topology = topology
        self.plans: list[StagePlan] = topology.plans(settings)
        self.name: str = topology.name
        self.producer: Sources = sources_of(topology.producers)
        self.bolts: Bolts = stages.bolts(self.plans)
        self.checkpoint = checkpoint
        self.settings = settings
        self.dead_letter: DeadLetter | None = dead_letter_of(dead_letter)
        self.core: TopologyCore | None = None
        self.next_id: NextId = random_ids()
        self.chance: Callable[[], float] = random.random  # for the jitter of back-offs
        self.is_active: bool = True
        self._activated = threading.Event()
        self._activated.set()
        self._launch: Launch | None = None
        self.teller = CallbackThread(
            Told(topology.callbacks, topology.consumers, topology.is_debug),
            settings.metrics,
            on_death=self._thread_died,
        )
        # The run's own notifier reports tuples; this one reports roots to the listener.
        self.root_notifier = None
        if listener is not None:
            self.root_notifier = RootNotifier(listener, on_death=self._thread_died)
        check_parts(self)

    def run(
        self,
        *,
        view: ViewChoice = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
        deadline_s: float | None = None,
    ) -> TopologyReport:
        """Run like :meth:`flowctl.FlowControlSpout.run`; the report also has stages and trees."""
        self._activated.wait()
        check_parts(self)  # the bolts may have been replaced
        launch = self._launch = Launch(
            self._plan(),
            view=view,
            resume_hint=resume_hint,
            report_path=report_path,
            deadline_s=deadline_s,
        )
        tellers = [t for t in (self.teller, self.root_notifier) if t is not None]
        for teller in tellers:
            teller.start()
        try:
            report = launch.run()
        except Interrupted as interrupted:
            told = interrupted.report
            if isinstance(told, TopologyReport) and told.held_up:
                add_note(interrupted, f"It waited for: {'; '.join(told.held_up)}.")
            raise
        finally:
            for teller in tellers:
                teller.close()
        if launch.failure is not None:  # a thread died on the last items
            raise launch.failure
        assert isinstance(report, TopologyReport)
        return report

    def _plan(self) -> RunPlan:
        return RunPlan(
            job=self.name,
            producer=self.producer,
            bolts=self.bolts,
            store=self.checkpoint,
            settings=self.settings,
            make_core=self.make_core,
            dead_letter=self.dead_letter,
            on_notice=self._on_notice,
            on_news=self.tell,
            extend=self.extended,
        )

    def _thread_died(self, error: FlowctlError) -> None:
        """End the run because one of its helper threads died."""
        if self._launch is not None:
            self._launch.fail(error)

    def activate(self) -> None:
        """Let the spouts emit, within half a second; repeats are ignored."""
        self._set_active(True)

    def deactivate(self) -> None:
        """Stop emitting new roots and retries; those in flight are finished, acked and saved."""
        self._set_active(False)

    def _set_active(self, is_active: bool) -> None:
        self.is_active = is_active
        if self.core is not None:
            self.core.is_active = is_active
        if is_active:
            self._activated.set()
        else:
            self._activated.clear()

    def _on_notice(self, notice: BoltNotice) -> None:
        if notice.kind in ("restarting", "fatal"):
            self.teller.died(notice.bolt, without_secrets(notice.detail))

    def extended(self, report: Report) -> TopologyReport:
        core = self.core
        is_interrupted = report.outcome == "interrupted"
        self.teller.close()  # all error reports of tasks have arrived
        return TopologyReport(
            **msgspec.structs.asdict(report),
            stages=tuple(core.stage_figures()) if core is not None else (),
            trees=core.tree_figures() if core is not None else None,
            errors=tuple(self.teller.errors()),
            held_up=core.held_up() if core is not None and is_interrupted else (),
        )

    def make_core(
        self, settings: Settings, checkpoint: Checkpoint, chance: Callable[[], float] | None = None
    ) -> TopologyCore:
        del chance  # its back-offs have no jitter
        topology = self.topology
        if self.root_notifier is not None:
            self.root_notifier.opened(self.name, checkpoint)
        trees = TreeRules(
            self.next_id,
            ackers=topology.ackers,
            timeout_s=topology.tree_timeout_s,
            max_pending=topology.max_pending,
            chance=self.chance,
        )
        translate = {
            name: telling_slow(f"translate of {name}", call)
            for name, call in topology.translations.items()
        }
        self.core = TopologyCore(
            HubPlan(self.plans, trees, translate),
            settings,
            checkpoint=checkpoint,
            wanted=self._wanted(),
            has_dead_letter=self.dead_letter is not None,
        )
        self.core.is_active = self.is_active
        return self.core

    def _wanted(self) -> Wanted:
        """Return the kinds of news in use; unused sampling would cost the hub time."""
        callbacks = self.topology.callbacks.values()
        metrics = self.settings.metrics
        samples = None
        has_hooks = any(spout.hooks for spout in callbacks)
        if has_hooks or metrics.interval_s is not None:
            samples = EvenSampler(metrics.sample_one_in, chance=random.Random())
        return Wanted(
            ends=self.topology.is_debug or not all(spout.is_empty for spout in callbacks),
            emits=has_hooks,
            steps=self.root_notifier is not None,
            tasks=True,
            samples=samples,
        )

    def tell(self, news: object) -> None:
        """Queue the hub's news, without waiting."""
        if isinstance(news, RootEnd):
            self.teller.ended(news)
        elif isinstance(news, TaskWatched):
            self.teller.watched(news.bolt, news.watched)
        elif isinstance(news, RootEmitted):
            self.teller.emitted(news.spout, news.value)
        elif isinstance(news, RootStep) and self.root_notifier is not None:
            self.root_notifier.took(news)
