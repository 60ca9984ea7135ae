"""TopologyCore: the driver contract for several stages.  Pure: time in, decisions out.

Every tuple passes through this hub: a bolt's emits come with its ack, are routed to the next
stages' cores, and are sent when windows allow.  A stage gets no input while a stage that it feeds
is full, so a slow stage slows down the first one, and no queue grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowctl.config import Settings
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, PeerDropped, TargetWentDown, TupleGaveUp
from flowctl.core.failures import DeadTuple
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.handover import Handover
from flowctl.core.intake import Intake
from flowctl.core.messages import Ack, Emission, Fail, Heartbeat, Order, Revoked, SettledAck
from flowctl.core.records import AckOutcome, Checkpoint, Record
from flowctl.core.trees.settlement import Settlement
from flowctl.core.tuple_core import TupleCore
from flowctl.errors import InternalError
from flowctl_storm.figures import StageFigures, TreeFigures
from flowctl_storm.hub.blame import FailedAt
from flowctl_storm.hub.calls import CALLS_FROM, Calls, HeldUp
from flowctl_storm.hub.news import News, TaskWatched, Wanted
from flowctl_storm.hub.roots import PLANT_RECORDS, Roots, TreeRules
from flowctl_storm.hub.routing import Router, Translate
from flowctl_storm.hub.stage import Stage
from flowctl_storm.plan import StagePlan

# -- Events of a topology for others to read; what a stage gave up fails its roots instead -----


class TopologyEvents:
    """Returns the topology's own ``events``, then the events of its cores.

    Part of ``TopologyCore``, not thread-safe.
    """

    def __init__(
        self, events: deque[FlowEvent], stages: Sequence[Stage], roots: Roots, router: Router
    ) -> None:
        self._events = events
        self._stages = stages
        self._roots = roots
        self._router = router

    def poll(self) -> FlowEvent | None:
        """Return the next event and its reason, or None."""
        if self._roots.drops:
            self._events.extend(self._roots.drops.take())
        if self._events:
            return self._events.popleft()
        for stage in self._stages:
            for core in stage.cores:
                event = core.poll_event()
                if event is not None:
                    return event
        return None

    def collect(self, stage: Stage, core: TupleCore, now_s: float) -> None:
        """Take a core's events; tuples that it gave up or dropped fail the roots of their inputs.

        The consequence is reported for each root, since a report about a tuple of inputs would mean
        nothing to a user.
        """
        while (event := core.poll_event()) is not None:
            self._events.append(event)
        while (lost := core.poll_lost()) is not None:
            ids: list[Any] = [record.position for record in lost.records]
            at = FailedAt(stage, lost.bolt)
            self._router.fail_inputs(stage, lost.bolt, ids, lost.reason, now_s, at=at)


# -- When trees begin, and what delays them: absent bolts, full stages, ``max_pending`` --------


class Planter:
    """Plants roots in the first stages.  Part of ``TopologyCore``, not thread-safe.

    ``max_pending`` bounds the roots that are planted and not done (None: no limit).
    """

    def __init__(
        self, stages: Sequence[Stage], roots: Roots, router: Router, max_pending: int | None
    ) -> None:
        self._stages = stages
        self._first = [stage for stage in stages if stage.is_first]
        self._roots = roots
        self._router = router
        self._max_pending = max_pending

    def plant(self, now_s: float) -> None:
        """Begin trees while the first stages have room."""
        if not self.was_served:
            return  # else a tree's timer would run while Spark starts
        roots, blame = self._roots, self._roots.blame
        while not any(stage.is_full for stage in self._first) and blame.may_plant(now_s):
            batch = roots.take(1 if blame.down is not None else self._room())
            if not batch:
                break
            for root in batch:
                self._router.plant(root, now_s)
            for stage in self._first:
                stage.flush()
            blame.note_planted(now_s)

    @property
    def was_served(self) -> bool:
        """Whether every stage has had a bolt."""
        return all(stage.was_served for stage in self._stages)

    @property
    def is_at_limit(self) -> bool:
        """Whether the limit of pending roots is reached, so no new one may be planted."""
        return self._room() <= 0

    def _room(self) -> int:
        """The number of new roots that may be planted now."""
        most = self._max_pending
        return PLANT_RECORDS if most is None else min(PLANT_RECORDS, most - self._roots.left)

    def pass_end_on(self, now_s: float) -> None:
        """Tell each stage, once everything is planted, when no inputs are left before it."""
        for stage in self._stages:
            if not stage.is_ended and all(f.is_ended and f.is_drained for f in stage.fed_by):
                stage.end_of_input(now_s)


# -- The state of a topology, summed over its stages, roots and routes: pure reads -------------


def counters_of(stages: Sequence[Stage], roots: Roots, router: Router) -> Counters:
    """Return the counters: tuples over all stages, and roots as records."""
    total = Counters()
    for stage in stages:
        for core in stage.cores:
            total.add(core.counters)
    total.calls_refused += router.refused
    total.target_down_total_s += roots.blame.down_s
    total.records_acked = roots.acked + roots.intake.empty
    total.tuples_dead_lettered = total.records_dead_lettered = roots.dead_lettered
    total.tuples_handed_over = roots.handed_over
    total.records_dropped = roots.dropped + router.untracked_failed
    total.records_pending_now = roots.pending
    total.max_in_flight_records = roots.pending_max
    return total


def stage_figures_of(stage: Stage) -> StageFigures:
    """How one stage stands."""
    return StageFigures(
        stage=stage.name,
        records=sum(core.counters.records_acked for core in stage.cores),
        waiting_now=stage.waiting,
        waiting_max=stage.waiting_max,
        at_bolts_max=sum(core.counters.max_in_flight_records for core in stage.cores),
        held_now=sum(map(len, stage.held.values())),
    )


def tree_figures_of(roots: Roots, router: Router) -> TreeFigures:
    """How the trees stand."""
    return TreeFigures(
        complete=roots.acked - roots.dead_lettered,  # these count as acked, too
        failed=roots.failed,
        expired=roots.expired,
        replayed=roots.replayed,
        pending_now=roots.pending,
        ledger_now=sum(map(len, roots.ledgers)),
        orphans=sum(ledger.orphans for ledger in roots.ledgers),
        dropped_emits=router.dropped,
        undelivered_emits=router.undelivered.emits,
    )


# -- TopologyCore ------------------------------------------------------------------------------


_DONE: Final = Settlement()
_NOTHING: Final = Wanted()
_SETTLES: Final = (AckOutcome.ACKED, AckOutcome.LATE)


class HubPlan(NamedTuple):
    """The parts of a hub: ``stages`` in the order of the flow, and settings of trees.

    ``translate`` has a spout's function for the value to emit; without one, the source's value is
    emitted.
    """

    stages: Sequence[StagePlan]
    trees: TreeRules
    translate: Mapping[str, Translate] = {}


class TopologyCore:
    """Stages, trees and roots behind :class:`flowctl.core.driver.DriverCore`.  Not thread-safe.

    Bolts are named ``stage.number``.  ``stages`` are by name, in the plan's order.  ``roots`` are
    the pending records of the sources, with their trees.  ``has_dead_letter`` tells that the driver
    polls ``poll_dead_letter``.  ``wanted`` are the news that :meth:`take_news` returns.
    """

    def __init__(
        self,
        plan: HubPlan,
        settings: Settings,
        *,
        checkpoint: Checkpoint | None = None,
        wanted: Wanted = _NOTHING,
        has_dead_letter: bool = False,
    ) -> None:
        self.settings = settings
        self.guarantee: ProcessingGuarantee = settings.guarantee.processing
        rules = plan.trees
        self.bolts: dict[str, AdaptiveFlowConsumer] = {}
        self._events: deque[FlowEvent] = deque()
        self.roots: Roots = Roots(
            settings, checkpoint or Checkpoint(), self._events,
            rules=rules, wanted=wanted, has_dead_letter=has_dead_letter,
        )  # fmt: skip
        self.is_active = True  # otherwise nothing is planted; any thread may set it
        self.handover: Handover = Handover(self.roots.intake, self.roots, self._events)
        self._input_ended = False
        self.stages: dict[str, Stage] = {
            stage.name: Stage(stage, settings, rules.next_id, rules.chance) for stage in plan.stages
        }
        self._router = Router(
            self.stages, self.roots, plan.translate, self._events,
            retry=settings.retry, chance=rules.chance,
        )  # fmt: skip
        stages = list(self.stages.values())
        self._cores = [core for stage in stages for core in stage.cores]
        self._planter = Planter(stages, self.roots, self._router, rules.max_pending)
        self._told = TopologyEvents(self._events, stages, self.roots, self._router)
        self._calls = Calls(stages, self.roots, self._router, settings.retry, rules.chance)
        self._held_up = HeldUp(stages, self.roots, self._events)
        self._last_first = stages[::-1]  # stages that empty buffers go first

    # -- bolts come and go ---------------------------------------------------------------

    def add_bolt(
        self, bolt: str, *, slots: int, epoch: int, now_s: float, in_order: bool = False
    ) -> None:
        """As in ``SpoutCore``; inputs held by an earlier bolt of this name are queued again."""
        stage, core = self._place(bolt)
        if bolt in self.bolts:
            self.remove_bolt(bolt, now_s=now_s, reason="came back with a new epoch")
        core.add_bolt(bolt, slots=slots, epoch=epoch, now_s=now_s, in_order=in_order)
        self.bolts[bolt] = core.bolts[bolt]
        self._calls.came(stage, bolt, now_s)

    def remove_bolt(self, bolt: str, *, now_s: float, reason: str = "", lost: bool = True) -> None:
        """Remove a bolt; its tuples and held inputs go to other bolts of its stage.

        If nothing may be sent again, both are dropped.
        """
        if self.bolts.pop(bolt, None) is None:
            return
        self._calls.left(bolt)
        stage, core = self._place(bolt)
        core.remove_bolt(bolt, now_s=now_s, reason=reason, lost=lost)
        if self.guarantee.sends_again:
            self._router.put_again(stage, stage.take_held(bolt))
        else:
            why = f"bolt {bolt}, which held it, is gone: {reason}"
            self._router.fail_inputs(stage, bolt, list(stage.held.pop(bolt, ())), why, now_s)
        self._told.collect(stage, core, now_s)

    def _place(self, bolt: str) -> tuple[Stage, TupleCore]:
        if (stage := self.stages.get(bolt.rpartition(".")[0])) is None:
            raise InternalError(f"bolt {bolt!r} belongs to no stage.")
        return stage, stage.cores[stage.core_of(bolt)]

    # -- records come in, tuples go out --------------------------------------------------

    @property
    def intake(self) -> Intake:
        """The records that were read from the sources and are not done."""
        return self.roots.intake

    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        *,
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int:
        """As in ``SpoutCore``."""
        return self.roots.intake.offer(partition, records, now_s, sizes)

    def set_aside(self, partition: str, record: Record, *, reason: str, now_s: float) -> bool:
        """As in ``SpoutCore``."""
        return self.roots.set_aside(partition, record, reason, now_s)

    def end_of_input(self, *, now_s: float) -> None:
        """As in ``SpoutCore``; each stage is told when no inputs are left before it."""
        self._input_ended = True
        self.roots.intake.end()

    def poll_emit(self, *, now_s: float) -> Emission | None:
        """Return the next tuple that a window and the stages after it allow, and its bolt."""
        if self.roots.has_next and self.is_active:
            self._planter.plant(now_s)
        for stage in self._last_first:
            emission = stage.poll_emit(now_s)
            if emission is not None:
                if self._calls.is_used:
                    self._calls.sent(emission.bolt)
                return emission
        is_input_done = self._input_ended and not self.roots.has_next
        if is_input_done:
            self._planter.pass_end_on(now_s)
        if self._calls.is_used and self.is_active:
            return self._calls.poll(now_s, is_input_done=is_input_done)
        return None

    def on_committed(self) -> None:
        """As in ``SpoutCore``; where the commit has to come first, trees may be planted now."""
        self.roots.intake.is_held = False

    def poll_dead_letter(self) -> DeadTuple | None:
        """As in ``SpoutCore``, but for roots."""
        return self.roots.poll_dead_letter()

    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None:
        """As in ``SpoutCore``; ``tuple_id`` is the number of a root."""
        self.roots.on_dead_lettered(tuple_id, now_s)

    def poll_order(self) -> Order | None:
        """As in ``SpoutCore``."""
        for core in self._cores:
            if (order := core.poll_order()) is not None:
                return order
        return None

    # -- bolts answer --------------------------------------------------------------------

    def on_ack(self, bolt: str, epoch: int, ack: Ack, *, now_s: float) -> AckOutcome:
        """As in ``SpoutCore``; emits of the first ack are routed, of later acks dropped."""
        stage, core = self._place(bolt)
        said = ack.settlement if isinstance(ack, SettledAck) else _DONE
        if self.roots.wanted.tasks and said.watched:
            # Also for copies, since they were worked on.
            self.roots.news.append(TaskWatched(bolt, said.watched))
        if ack.tuple_id > CALLS_FROM:
            return self._calls.on_ack(bolt, epoch, ack.tuple_id, said, now_s)
        records = core.tuple_records(bolt, ack.tuple_id)
        sent_at_s = stage.sent_at_s(bolt, ack.tuple_id)
        outcome = core.on_ack(bolt, epoch, ack, now_s=now_s)
        if outcome in _SETTLES:
            self._router.settle(stage, bolt, records, said, now_s, sent_at_s=sent_at_s)
        if core.has_lost:  # this ack proved that other tuples are lost
            self._told.collect(stage, core, now_s)
        return outcome

    def on_fail(self, bolt: str, epoch: int, fail: Fail, *, now_s: float) -> AckOutcome:
        """As in ``SpoutCore``; a tuple that is given up fails the roots of its inputs."""
        if fail.tuple_id > CALLS_FROM:
            return self._calls.on_fail(bolt, epoch, fail, now_s)
        stage, core = self._place(bolt)
        records = core.tuple_records(bolt, fail.tuple_id)
        outcome = core.on_fail(bolt, epoch, fail, now_s=now_s)
        if outcome is AckOutcome.REFUSED:  # its trees wait for inputs in flight
            for record in records:
                self._router.prolong(stage, record.position, now_s)  # type: ignore[arg-type]
        self._told.collect(stage, core, now_s)
        return outcome

    def on_revoked(self, bolt: str, epoch: int, given: Revoked, *, now_s: float) -> None:
        """As in ``SpoutCore``."""
        self._place(bolt)[1].on_revoked(bolt, epoch, given, now_s=now_s)

    def on_heartbeat(self, bolt: str, epoch: int, beat: Heartbeat, *, now_s: float) -> None:
        """As in ``SpoutCore``; the trees' timers restart for inputs that take longer."""
        stage, core = self._place(bolt)
        core.on_heartbeat(bolt, epoch, beat, now_s=now_s)
        consumer = self.bolts.get(bolt)
        if consumer is not None and consumer.epoch == epoch:
            for input_id in beat.prolonged:
                self._router.prolong(stage, input_id, now_s)

    def may_speak_of(self, bolt: str, tuple_id: int) -> bool:
        """As in ``SpoutCore``; tuples are numbered by stage."""
        is_sent = self._place(bolt)[1].may_speak_of(bolt, tuple_id)
        return is_sent or self._calls.is_open(bolt, tuple_id)

    def attempts_of(self, bolt: str, tuple_id: int) -> int:
        """As in ``SpoutCore``; tuples are numbered by stage."""
        return self._place(bolt)[1].attempts_of(bolt, tuple_id)

    def drop_peer(self, bolt: str, *, now_s: float, reason: str) -> None:
        """As in ``SpoutCore``; inputs held beyond their tuples are queued again as well."""
        core = self._place(bolt)[1]
        core.counters.peers_dropped += 1
        self._events.append(PeerDropped(at_s=now_s, bolt=bolt, reason=reason))
        self.remove_bolt(bolt, now_s=now_s, reason=f"broke the protocol: {reason}")

    # -- time passes ---------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """As in ``SpoutCore``."""
        due = [self.roots.next_s(), self._router.retries.next_due_s(), self._held_up.next_s()]
        due.append(self._calls.next_s())
        due += [core.next_deadline_s() for core in self._cores]
        return min((at_s for at_s in due if at_s is not None), default=None)

    def on_deadline(self, *, now_s: float) -> None:
        """As in ``SpoutCore``, and trees expire."""
        for stage in self._last_first:
            for core in stage.cores:
                core.on_deadline(now_s=now_s)
                if core.has_lost:
                    self._told.collect(stage, core, now_s)
            stage.refresh_rate()
        self._router.on_time(now_s)
        self._calls.on_time(now_s)
        if self.roots.on_time(now_s):
            for stage in self.stages.values():
                self._router.on_tick(stage, now_s)
                self._router.renew(stage, now_s - self.roots.tree_timeout_s, now_s)
            self._router.renew_refused(now_s)
            self._calls.renew_held(now_s)
        is_idle = not self.is_active or self.is_drained or not self._planter.was_served
        self._held_up.look(is_idle=is_idle, is_at_limit=self.is_at_limit, now_s=now_s)

    def held_up(self) -> tuple[str, ...]:
        """The holders of pending inputs if no root was done for long, otherwise empty."""
        return self._held_up.held() if self._held_up.is_stuck else ()

    # -- what others read ----------------------------------------------------------------

    def poll_event(self) -> FlowEvent | None:
        """As in ``SpoutCore``."""
        return self._told.poll()

    def take_news(self) -> Sequence[News]:
        """Return the wanted news since the last call, in order."""
        return self.roots.take_news()

    def checkpoint(self) -> Checkpoint:
        """As in ``SpoutCore``: positions of records whose whole trees are acked."""
        return self.roots.intake.checkpoint()

    @property
    def gave_up(self) -> TupleGaveUp | None:
        """The first root whose attempts ran out, if any: the run has to fail."""
        return self.roots.gave_up or self._calls.gave_up

    @property
    def target_down(self) -> TargetWentDown | None:
        """As in ``SpoutCore``, for the stage that found it first."""
        down = [self.roots.blame.down, *(core.target_down for core in self._cores)]
        return min((d for d in down if d is not None), key=lambda d: d.at_s, default=None)

    @property
    def is_target_lost(self) -> bool:
        """As in ``SpoutCore``, for any of the stages."""
        return self.roots.blame.is_lost or any(core.is_target_lost for core in self._cores)

    def tuple_records(self, bolt: str, tuple_id: int) -> Sequence[Record]:
        """As in ``SpoutCore``; tuples are numbered by stage."""
        return self._place(bolt)[1].tuple_records(bolt, tuple_id)

    @property
    def is_at_limit(self) -> bool:
        """As in ``SpoutCore``: too many roots are pending, or the spouts are inactive."""
        return not self.is_active or self._planter.is_at_limit

    @property
    def collects(self) -> bool:
        """Whether some bolts collect inputs until the end of the input."""
        return bool(self._calls.ending)

    @property
    def is_served(self) -> bool:
        """Whether every stage has a bolt that is not silent."""
        return all(stage.is_served for stage in self.stages.values())

    @property
    def is_drained(self) -> bool:
        """Whether all roots and all inputs outside trees are done, and ``on_end`` was called."""
        is_drained = self.roots.is_drained and all(
            stage.is_drained for stage in self.stages.values()
        )
        return is_drained and self._calls.are_done(is_input_done=self._input_ended)

    @property
    def counters(self) -> Counters:
        """Return the counters: tuples over all stages, and roots as records."""
        return counters_of(list(self.stages.values()), self.roots, self._router)

    def stage_figures(self) -> list[StageFigures]:
        """Return the figures of each stage, in the order of the flow."""
        return [stage_figures_of(stage) for stage in self.stages.values()]

    def tree_figures(self) -> TreeFigures:
        """How the trees stand."""
        return tree_figures_of(self.roots, self._router)
