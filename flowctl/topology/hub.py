"""TopologyCore: the driver contract for several stages.  Pure: time comes in, decisions go out.

It is the hub that every tuple passes: what a bolt emits rides on its ack, is routed here into the
next stages' cores, and goes out when a window of theirs allows.  A stage gets nothing while one
that it feeds is full: so a slow stage slows the first, and no queue grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from flowctl.config import Settings
from flowctl.core.acker import Verdict
from flowctl.core.anchors import NextId
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TupleGaveUp
from flowctl.core.intake import Intake
from flowctl.core.records import Ack, AckOutcome, Checkpoint, Emission, Record
from flowctl.core.settlement import Emitted, Settlement
from flowctl.core.spout import RevokeOrder, SpoutCore
from flowctl.errors import InternalError, JobError
from flowctl.topology.figures import StageFigures, TreeFigures
from flowctl.topology.groupings import Choose, make_choice
from flowctl.topology.plan import StagePlan, source_key
from flowctl.topology.roots import OnEnd, Root, Roots
from flowctl.topology.stage import Parcel, Stage

_DONE: Final = Settlement()
_SETTLES: Final = (AckOutcome.ACKED, AckOutcome.LATE)

# Of a spout's name and a record: what is emitted; None: nothing, the record is done (S107).
Translate = Callable[[str, Record], Any]


class Route(NamedTuple):
    """``stage`` gets from a source, as its ``source``-th, what ``choose`` gives to its tasks."""

    stage: Stage
    source: int
    choose: Choose


class TopologyCore:
    """Stages, trees and roots behind :class:`flowctl.core.driver.DriverCore`.  Not thread-safe.

    ``next_id`` gives random 64-bit ids.  ``max_pending`` bounds the roots whose trees are not
    complete (None: only the stages' windows do).  Bolts are named ``stage.number``.
    """

    def __init__(
        self,
        stages: Sequence[StagePlan],
        settings: Settings,
        *,
        next_id: NextId,
        checkpoint: Checkpoint | None = None,
        translate: dict[str, Translate] | None = None,
        ackers: int = 1,
        tree_timeout_s: float = 30.0,
        max_pending: int | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        restored = checkpoint or Checkpoint()
        self.bolts: dict[str, AdaptiveFlowConsumer] = {}
        self._events: deque[FlowEvent] = deque()
        self._windows = dict(restored.windows)
        self._roots = Roots(
            settings,
            restored,
            self._events,
            next_id=next_id,
            ackers=ackers,
            tree_timeout_s=tree_timeout_s,
            on_end=on_end,
        )
        self._translate = translate or {}
        self._max_pending = max_pending
        self._ids = count(1)
        self._input_ended = False
        self._dropped = 0  # emits of copies of inputs that were settled before
        self._stages = {p.name: Stage(p, settings, restored.windows, next_id) for p in stages}
        self._in_order = list(self._stages.values())
        self._last_first = self._in_order[::-1]  # who empties buffers goes before who fills them
        # Who gets what comes from a source.
        self._routes: dict[str, list[Route]] = {}
        self._wire_up(stages)
        sources = {sub.component for p in stages for sub in p.subscriptions}
        self._first = [
            s
            for s in self._in_order
            if any(sub.component in sources - set(self._stages) for sub in s.plan.subscriptions)
        ]

    def _wire_up(self, plans: Sequence[StagePlan]) -> None:
        for plan in plans:
            stage = self._stages[plan.name]
            for subscription in plan.subscriptions:
                choice = make_choice(subscription, stage.loads)
                index = plan.sources.index(subscription.source)
                route = Route(stage, index, choice)
                self._routes.setdefault(subscription.source, []).append(route)
                feeder = self._stages.get(subscription.component)
                if feeder is not None and stage not in feeder.feeds:
                    feeder.feeds += (stage,)
                    stage.fed_by += (feeder,)

    # -- bolts come and go ---------------------------------------------------------------

    def add_bolt(
        self, bolt: str, *, slots: int, epoch: int, now_s: float, in_order: bool = False
    ) -> None:
        """As in ``SpoutCore``; what it held, as far as a bolt before it did, is put again."""
        core = self._place(bolt)[1]
        if bolt in self.bolts:
            self.remove_bolt(bolt, now_s=now_s, reason="came back with a new epoch")
        core.add_bolt(bolt, slots=slots, epoch=epoch, now_s=now_s, in_order=in_order)
        self.bolts[bolt] = core.bolts[bolt]

    def remove_bolt(self, bolt: str, *, now_s: float, reason: str = "", lost: bool = True) -> None:
        """A bolt went: its tuples go to others of its stage, and so does what it held."""
        consumer = self.bolts.pop(bolt, None)
        if consumer is None:
            return
        self._windows[bolt] = consumer.policy.window
        stage, core = self._place(bolt)
        core.remove_bolt(bolt, now_s=now_s, reason=reason, lost=lost)
        for parcel in stage.take_held(bolt):
            stage.put(next(self._ids), parcel)
        stage.flush(now_s)
        self._collect(stage, core, now_s)

    def _place(self, bolt: str) -> tuple[Stage, SpoutCore]:
        stage = self._stages.get(bolt.rpartition(".")[0])
        if stage is None:
            raise InternalError(f"bolt {bolt!r} belongs to no stage.")
        return stage, stage.cores[stage.core_of(bolt)]

    # -- records come in, tuples go out --------------------------------------------------

    @property
    def intake(self) -> Intake:
        """What was read of the sources and is not done."""
        return self._roots.intake

    def offer(self, partition: str, records: Sequence[Record], *, now_s: float) -> int:
        """As in ``SpoutCore``."""
        return self._roots.intake.offer(partition, records, now_s)

    def end_of_input(self, *, now_s: float) -> None:
        """As in ``SpoutCore``; each stage hears of it when nothing is left before it."""
        del now_s
        self._input_ended = True
        self._roots.intake.end()

    def poll_emit(self, *, now_s: float) -> Emission | None:
        """Return the next tuple that a window and the stages after it allow, and to whom."""
        if self._roots.has_next:
            self._plant(now_s)
        for stage in self._last_first:
            if not stage.is_blocked:
                emission = stage.poll_emit(now_s)
                if emission is not None:
                    return emission
        if self._input_ended and not self._roots.has_next:
            self._pass_end_on(now_s)
        return None

    def _plant(self, now_s: float) -> None:
        """Begin trees, while the first stages have room."""
        if not all(stage.was_served for stage in self._in_order):
            return  # a tree's time would run while Spark starts
        most = self._max_pending
        roots = self._roots
        while not any(stage.is_full for stage in self._first):
            if most is not None and len(roots.trees) >= most:
                break
            batch = roots.take()
            if not batch:
                break
            for root in batch:
                self._plant_one(root, now_s)
            for stage in self._first:
                stage.flush(now_s)

    def _plant_one(self, root: Root, now_s: float) -> None:
        roots, spout = self._roots, root.spout
        translate = self._translate.get(spout)
        value = translate(root.partition, root.record) if translate else root.record.value
        reason = None
        targets: list[tuple[Stage, int, int]] = []
        try:
            if translate is None or value is not None:
                targets = self._targets(spout, value, None)
        except JobError as error:
            reason = error.problem
        planting = roots.trees.emit(spout, len(targets), values=value, message_id=root)
        for (stage, index, task), edges in zip(targets, planting.edges, strict=True):
            stage.put(next(self._ids), Parcel(edges, value, index, task))
        if planting.init is not None:
            init = planting.init
            verdict = roots.ledger_of(init.root).on_init(init.root, init.value, init.spout)
            self._judge(verdict, "", now_s)
        elif reason is None:  # nobody gets it, or nobody keeps account
            roots.done(root)
        else:
            roots.refuse(root, reason, now_s)

    def _targets(self, source: str, value: Any, task: int | None) -> list[tuple[Stage, int, int]]:
        """Return stage, index of the source there, and task of each receiver."""
        return [
            (stage, index, chosen)
            for stage, index, choose in self._routes.get(source, ())
            for chosen in choose(value, task)
        ]

    def _pass_end_on(self, now_s: float) -> None:
        for stage in self._in_order:
            if not stage.is_ended and all(f.is_ended and f.is_drained for f in stage.fed_by):
                stage.end_of_input(now_s)

    def poll_order(self) -> RevokeOrder | None:
        """As in ``SpoutCore``."""
        for stage in self._in_order:
            for core in stage.cores:
                order = core.poll_order()
                if order is not None:
                    return order
        return None

    # -- bolts answer --------------------------------------------------------------------

    def on_ack(self, ack: Ack, *, now_s: float) -> AckOutcome:
        """As in ``SpoutCore``; the first ack's emits are routed, those of others dropped."""
        stage, core = self._place(ack.bolt)
        records = core.tuple_records(ack.tuple_id)
        outcome = core.on_ack(ack, now_s=now_s)
        if outcome in _SETTLES:
            self._settle(stage, ack.bolt, records, ack.settlement or _DONE, now_s)
        return outcome

    def _settle(
        self, stage: Stage, bolt: str, records: Sequence[Record], said: Settlement, now_s: float
    ) -> None:
        """Emits first, as their edges ride on the acks of their anchors (S65)."""
        for emit in said.emits:
            self._route(stage, bolt, emit, now_s)
        for failed in said.failed:
            self._fail_input(stage, bolt, failed.input_id, failed.reason, now_s)
        if said.held:
            stage.hold(bolt, said.held)
        held = said.held and set(said.held)
        for record in records:
            if not held or record.position not in held:
                self._ack_input(stage, bolt, record.position, now_s)  # type: ignore[arg-type]
        for input_id in said.acked:
            self._ack_input(stage, bolt, input_id, now_s)
        for input_id in said.prolonged:
            self._prolong(stage, input_id, now_s)
        for fed in stage.feeds:
            fed.flush(now_s)

    def _route(self, stage: Stage, bolt: str, emit: Emitted, now_s: float) -> None:
        parcels = stage.parcels
        anchors = [parcels[i] for i in emit.anchors if i in parcels]
        if emit.anchors and not anchors:
            self._dropped += 1  # what it was made from was settled by another copy
            return
        source = source_key(stage.name, emit.stream)
        try:
            targets = self._targets(source, emit.value, emit.task)
        except JobError as error:
            for input_id in emit.anchors:
                self._fail_input(stage, bolt, input_id, error.problem, now_s)
            return
        edges_of = stage.acks.emit(anchors, len(targets))
        for (fed, index, task), edges in zip(targets, edges_of, strict=True):
            fed.put(next(self._ids), Parcel(edges, emit.value, index, task))

    def _ack_input(self, stage: Stage, bolt: str, input_id: int, now_s: float) -> None:
        parcel = stage.take(bolt, input_id)
        if parcel is not None:
            for root, value in stage.acks.ack(parcel):
                self._judge(self._roots.ledger_of(root).on_ack(root, value), "", now_s)

    def _fail_input(
        self, stage: Stage, bolt: str, input_id: int, reason: str, now_s: float
    ) -> None:
        parcel = stage.take(bolt, input_id)
        if parcel is not None:
            for root in stage.acks.fail(parcel):
                self._judge(self._roots.ledger_of(root).on_fail(root), reason, now_s)

    def _prolong(self, stage: Stage, input_id: int, now_s: float) -> None:
        parcel = stage.parcels.get(input_id)
        if parcel is not None:
            for root in stage.acks.reset_timeout(parcel):
                self._judge(self._roots.ledger_of(root).on_reset_timeout(root), "", now_s)

    def _judge(self, verdict: Verdict | None, reason: str, now_s: float) -> None:
        if verdict is not None:
            self._roots.on_verdict(verdict, reason, now_s)

    def on_fail(
        self, bolt: str, epoch: int, tuple_id: int, *, reason: str, now_s: float
    ) -> AckOutcome:
        """As in ``SpoutCore``; a tuple that is given up fails the roots of its inputs."""
        stage, core = self._place(bolt)
        outcome = core.on_fail(bolt, epoch, tuple_id, reason=reason, now_s=now_s)
        self._collect(stage, core, now_s)
        return outcome

    def on_revoked(self, bolt: str, epoch: int, tuple_ids: Iterable[int], *, now_s: float) -> None:
        """As in ``SpoutCore``."""
        self._place(bolt)[1].on_revoked(bolt, epoch, tuple_ids, now_s=now_s)

    def on_heartbeat(
        self, bolt: str, epoch: int, *, busy_slots: int, queued: int, now_s: float
    ) -> None:
        """As in ``SpoutCore``."""
        core = self._place(bolt)[1]
        core.on_heartbeat(bolt, epoch, busy_slots=busy_slots, queued=queued, now_s=now_s)

    # -- time passes ---------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """As in ``SpoutCore``."""
        due = [self._roots.next_s()]
        due += [core.next_deadline_s() for stage in self._in_order for core in stage.cores]
        return min((at_s for at_s in due if at_s is not None), default=None)

    def on_deadline(self, *, now_s: float) -> None:
        """As in ``SpoutCore``, and trees expire."""
        for stage in self._last_first:
            for core in stage.cores:
                core.on_deadline(now_s=now_s)
            stage.refresh_rate()
        if self._roots.on_time(now_s):
            for stage in self._in_order:
                for root in stage.acks.on_tick():
                    reason = f"an input was held for too long in {stage.name}"
                    self._judge(self._roots.ledger_of(root).on_fail(root), reason, now_s)
                stage.forget_held(self._roots.trees)

    # -- what others read ----------------------------------------------------------------

    def poll_event(self) -> FlowEvent | None:
        """As in ``SpoutCore``."""
        if self._events:
            return self._events.popleft()
        for stage in self._in_order:
            for core in stage.cores:
                event = core.poll_event()
                if event is not None:
                    return event
        return None

    def _collect(self, stage: Stage, core: SpoutCore, now_s: float) -> None:
        """Take a core's events; what it gave up on is not lost but fails its roots."""
        while (event := core.poll_event()) is not None:
            if isinstance(event, TupleGaveUp):
                for record in core.abandon(event.tuple_id):
                    input_id: Any = record.position
                    self._fail_input(stage, "", input_id, event.reason, now_s)
            else:
                self._events.append(event)

    def checkpoint(self) -> Checkpoint:
        """As in ``SpoutCore``: positions of records whose whole trees are acked."""
        windows = dict(self._windows)
        for stage in self._in_order:
            windows.update(stage.windows())
        return self._roots.intake.checkpoint(windows)

    @property
    def gave_up(self) -> TupleGaveUp | None:
        """The first root whose attempts ran out, if there is one: the run has to fail."""
        return self._roots.gave_up

    def tuple_records(self, tuple_id: int, *, bolt: str = "") -> Sequence[Record]:
        """As in ``SpoutCore``; tuples are numbered by stage."""
        return self._place(bolt)[1].tuple_records(tuple_id)

    @property
    def is_served(self) -> bool:
        """Whether every stage has a bolt that is not silent."""
        return all(stage.is_served for stage in self._in_order)

    @property
    def is_drained(self) -> bool:
        """Every root is done, and what belongs to no tree as well."""
        return self._roots.is_drained and all(stage.is_drained for stage in self._in_order)

    @property
    def counters(self) -> Counters:
        """Tuples of all stages; records are roots."""
        total, roots = Counters(), self._roots
        for stage in self._in_order:
            for core in stage.cores:
                for name in Counters.__struct_fields__:
                    setattr(total, name, getattr(total, name) + getattr(core.counters, name))
        total.records_acked = roots.acked
        total.records_pending_now = roots.pending
        total.records_pending_max = roots.pending_max
        return total

    def stage_figures(self) -> list[StageFigures]:
        """How each stage stands, in the order of the flow."""
        return [
            StageFigures(
                stage=stage.name,
                records=sum(core.counters.records_acked for core in stage.cores),
                waiting_now=stage.waiting,
                waiting_max=stage.waiting_max,
                at_bolts_max=sum(core.counters.records_pending_max for core in stage.cores),
                held_now=sum(map(len, stage.held.values())),
            )
            for stage in self._in_order
        ]

    def tree_figures(self) -> TreeFigures:
        """How the trees stand."""
        roots = self._roots
        return TreeFigures(
            complete=roots.acked,
            failed=roots.failed,
            expired=roots.expired,
            replayed=roots.replayed,
            pending_now=roots.pending,
            ledger_now=sum(map(len, roots.ledgers)),
            orphans=sum(ledger.orphans for ledger in roots.ledgers),
            dropped_emits=self._dropped,
        )
