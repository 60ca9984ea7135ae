"""``Topology``: spouts and bolts in several stages, put together and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from flowctl.arguments import check_arguments
from flowctl.config import GivenSettings, Settings, settings_of
from flowctl.core.trees.anchors import NextId
from flowctl.core.trees.settlement import DEFAULT_STREAM
from flowctl.errors import ConfigError
from flowctl.failure.callables import check_plain
from flowctl.instrumentation.hooks import HookLike, check_hooks, make_hooks
from flowctl.instrumentation.snapshot import View
from flowctl.ports import CheckpointStore, DeadLetter, FlowProducer, SpoutListener
from flowctl.runtime.parts import producer_of, store_of
from flowctl_storm.callbacks import SpoutCallbacks
from flowctl_storm.figures import TopologyReport
from flowctl_storm.hub.news import RootEnd
from flowctl_storm.hub.routing import Translate
from flowctl_storm.local_stages import Stages
from flowctl_storm.metrics import Consumer
from flowctl_storm.plan import (
    Emits,
    GroupingKind,
    StagePlan,
    Subscription,
    check_name,
    declared_emits,
    in_order,
)
from flowctl_storm.topology_job import TopologyJob
from flowctl_storm.worker.tasks import StageCode, check_code, check_ticks, has_call, is_manual
from flowctl_storm.worker.watch import WatchPlan

# Storm's topology.message.timeout.secs.
TREE_TIMEOUT_S = 30.0


class BoltDeclarer:
    """Declares the sources of a bolt's inputs, and how its tasks share them."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan: StagePlan = plan

    def shuffle(self, component: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Share inputs out in turn to the tasks that have room in their windows."""
        return self._add(component, "shuffle", stream)

    def least_loaded(self, component: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give each input to the task that is expected to finish it first."""
        return self._add(component, "least_loaded", stream)

    def fields(
        self, component: str, *fields: str | int, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Give values with equal ``fields`` (keys of dicts, indices of lists) to one task."""
        if not fields:
            raise ConfigError(self.plan.name, "fields: none given.", remedy="Name one or more.")
        for field in fields:
            if not isinstance(field, str | int):
                raise ConfigError(
                    self.plan.name,
                    f"fields: {field!r} is neither a key nor an index.",
                    remedy="Give text for keys of dicts, numbers for indices of lists.",
                )
        return self._add(component, "fields", stream, fields)

    def direct(self, component: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Give each input to the task that ``component`` names in its emit."""
        return self._add(component, "direct", stream)

    def all(self, component: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """To every task."""
        return self._add(component, "all", stream)

    def _add(
        self, component: str, kind: GroupingKind, stream: str, fields: tuple[str | int, ...] = ()
    ) -> BoltDeclarer:
        added = Subscription(component=component, kind=kind, stream=stream, fields=fields)
        self.plan = msgspec.structs.replace(
            self.plan, subscriptions=(*self.plan.subscriptions, added)
        )
        return self


def _is_above_0(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and seconds > 0


class Topology:
    """Spouts, bolts and their subscriptions.  ``name`` is the checkpoint's key.

    A root is a record of a source; it counts as done, and its position is saved, when the whole
    tree of values emitted from it is acked.  A tree that is not complete after one to two times
    ``tree_timeout_s`` expires, and its root is sent again.  ``max_pending`` bounds the roots that
    are not done (None: only windows do).  With ``ackers`` 0 nothing is tracked, and a root is done
    when it is emitted; more than one ackers only share the ledger.  ``is_debug`` logs each ack and
    fail of a root, at level debug.
    """

    #: The remedy that ``flowctl run`` shows for a topology without a place to run.
    how_to_run: Final = (
        "Say where it runs: job = topology.job(SparkStages(), checkpoint=…), and name that."
    )

    @check_arguments("name", "max_pending", "ackers", "is_debug")
    def __init__(
        self,
        name: str,
        *,
        tree_timeout_s: float = TREE_TIMEOUT_S,
        max_pending: int | None = None,
        ackers: int = 1,
        is_debug: bool = False,
    ) -> None:
        if not _is_above_0(tree_timeout_s):
            raise ConfigError(
                "tree_timeout_s",
                f"must be greater than 0, got {tree_timeout_s!r}.",
                remedy="Give seconds.",
            )
        if ackers < 0:
            raise ConfigError(
                "ackers", f"must be 0 or more, got {ackers}.", remedy="Give 0 or more."
            )
        if max_pending is not None and max_pending < 1:
            raise ConfigError(
                "max_pending",
                f"must be 1 or more, got {max_pending}.",
                remedy="Give 1 or more, or None.",
            )
        self.name = name
        self.tree_timeout_s = tree_timeout_s
        self.max_pending = max_pending
        self.ackers = ackers
        self.is_debug = is_debug
        # Declared spouts and bolts, by name.
        self.producers: dict[str, FlowProducer] = {}
        self.translations: dict[str, Translate] = {}
        self.callbacks: dict[str, SpoutCallbacks] = {}
        self.bolts: dict[str, BoltDeclarer] = {}
        self._hooks: dict[str, Sequence[HookLike]] = {}
        self.consumers: list[Consumer] = []

    def spout(
        self,
        name: str,
        producer: FlowProducer | Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        translate: Translate | None = None,
        on_ack: Callable[[RootEnd], None] | None = None,
        on_fail: Callable[[RootEnd], None] | None = None,
        hooks: Sequence[HookLike] = (),
    ) -> None:
        """Add a spout that emits the values of ``producer``'s records.

        ``producer`` may also be a list or another iterable (:class:`flowctl.Records`).
        ``translate(partition, record)`` returns the value to emit instead; for None nothing is
        emitted and the record is done.  It runs in the hub, so it must be quick; an exception fails
        the root.  ``on_ack`` and ``on_fail`` are called at the ends of roots, from a separate
        thread, and after them the ``hooks`` (:class:`flowctl.instrumentation.hooks.TaskHook`).
        """
        check_name("spout", name, [*self.producers, *self.bolts])
        producer = producer_of(producer, name)
        for field, call in (("translate", translate), ("on_ack", on_ack), ("on_fail", on_fail)):
            check_plain(call, f"{name}: {field}")
        self.producers[name] = producer
        if translate is not None:
            self.translations[name] = translate
        check_hooks(name, hooks)
        self.callbacks[name] = SpoutCallbacks(on_ack, on_fail, make_hooks(hooks))

    def metrics(self, consumer: Consumer) -> None:
        """Call ``consumer(info, points)`` with each task's figures, every ``metrics.interval_s``.

        Called from the thread of the spouts' callbacks; exceptions are logged.
        """
        check_plain(consumer, "metrics")
        self.consumers.append(consumer)

    def bolt(
        self,
        name: str,
        code: Any,
        *,
        count: int = 1,
        slots: int = 1,
        hooks: Sequence[HookLike] = (),
        emits: Emits | None = None,
        tick_s: float | None = None,
    ) -> BoltDeclarer:
        """Add a bolt of ``count`` tasks; declare its inputs on the result: ``.shuffle("lines")``.

        ``code`` is a function of an input and a collector (auto-ack: returning acks the input,
        raising fails it), the same in :class:`Batched` for whole tuples, or a class with
        ``execute(input, collector)`` that acks by itself.  ``hooks`` run around it, on the worker:
        each a :class:`flowctl.instrumentation.hooks.TaskHook`, shared by the tasks of a process, or
        a class or function that makes one for each process thread.  ``emits`` names the streams
        that it emits on, with the fields of their values if they are to be checked: ``{"default":
        ("client", "path"), "bad": None}``.  Subscriptions are checked against it before the run,
        and emitted values during the run; without it nothing is checked.  A class may also have
        ``on_end(collector)``, called when all input of its stage is done, and
        ``on_tick(collector)``, called every ``tick_s`` seconds.
        """
        check_name("bolt", name, [*self.producers, *self.bolts])
        for field, value in (("count", count), ("slots", slots)):
            if value < 1:
                raise ConfigError(
                    field, f"must be 1 or more, got {value!r}.", remedy="Give 1 or more."
                )
        check_code(name, code, slots)
        check_ticks(name, code, tick_s)
        check_hooks(name, hooks)
        self._hooks[name] = list(hooks)
        plan = StagePlan(
            name=name,
            count=count,
            slots=slots,
            is_manual=is_manual(code),
            code=code,
            subscriptions=(),
            emits=declared_emits(name, emits),
            has_end=has_call(code, "on_end"),
            tick_s=tick_s,
        )
        declarer = self.bolts[name] = BoltDeclarer(plan)
        return declarer

    def plans(self, settings: Settings | None = None) -> list[StagePlan]:
        """Return the stages in the order of the flow; :class:`ConfigError` if it can't run."""
        settings = settings or Settings()
        if not self.producers:
            raise ConfigError("topology", "has no spout.", remedy='Add one: .spout("lines", …).')
        plans = in_order(list(self.producers), [d.plan for d in self.bolts.values()])
        replace = msgspec.structs.replace
        return [replace(plan, code=self._code_of(plan, settings)) for plan in plans]

    def _code_of(self, plan: StagePlan, settings: Settings) -> StageCode:
        metrics = settings.metrics
        watch = WatchPlan(
            hooks=self._hooks[plan.name],
            is_counting=metrics.interval_s is not None,
            one_in=metrics.sample_one_in,
        )
        isolates = settings.guarantee.processing.sends_again  # else no input may run twice
        return StageCode(plan.code, plan.sources, watch, isolates=isolates)

    def job(
        self,
        stages: Stages,
        *,
        checkpoint: CheckpointStore | str | None = None,
        settings: GivenSettings = None,
        dead_letter: DeadLetter | str | Path | None = None,
        listener: SpoutListener | None = None,
        next_id: NextId | None = None,
    ) -> TopologyJob:
        """Return a job that can be run once, also by ``flowctl run``.

        ``checkpoint`` may be the URL of a Redis server; without one a new process starts over.
        ``dead_letter`` keeps the records whose trees failed too often; without one the run fails at
        such a record.  ``listener`` is notified of events of roots: an emission is one record, and
        its bolt is the spout.  ``next_id`` gives ids of trees, for tests; by default they are
        random.
        """
        job = TopologyJob(
            self,
            stages,
            store_of(checkpoint),
            settings_of(settings),
            dead_letter=dead_letter,
            listener=listener,
        )
        if next_id is not None:
            job.next_id = next_id
        return job

    def run(
        self,
        stages: Stages,
        *,
        checkpoint: CheckpointStore | str | None = None,
        settings: GivenSettings = None,
        dead_letter: DeadLetter | str | Path | None = None,
        listener: SpoutListener | None = None,
        view: View | Literal["auto", "live", "plain", "quiet", "off"] = "auto",
        resume_hint: str | None = None,
        report_path: str | Path | None = None,
        deadline_s: float | None = None,
    ) -> TopologyReport:
        """Run to the end of the sources, as :meth:`flowctl.FlowControlSpout.run` does.

        ``checkpoint``, ``dead_letter`` and ``listener`` are as in :meth:`job`.
        """
        job = self.job(
            stages,
            checkpoint=checkpoint,
            settings=settings,
            dead_letter=dead_letter,
            listener=listener,
        )
        return job.run(
            view=view, resume_hint=resume_hint, report_path=report_path, deadline_s=deadline_s
        )
