"""SpoutCore: the one class that runtimes see.  Time comes in, decisions go out.

After the driver contracts of quinn-proto and aioquic: whoever drives it owns the lock, calls in
what happened, and polls out what to do.  ``now_s`` is monotonic seconds and never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.dispatch import is_by_completion
from flowctl.core.emitter import Emitter
from flowctl.core.ending import Ending
from flowctl.core.events import FlowEvent, PeerDropped, TupleGaveUp
from flowctl.core.guard import SinkGuard
from flowctl.core.handover import Handover
from flowctl.core.intake import Intake
from flowctl.core.records import Ack, AckOutcome, Checkpoint, Emission, Record, RevokeOrder
from flowctl.core.recovery import DeadTuple, Recovery
from flowctl.core.roster import Roster
from flowctl.core.settings import CoreSettings
from flowctl.core.tuples import FlowTuple


class SpoutCore:
    """Decides which tuple goes to which bolt when, and what is done.  Pure; not thread-safe."""

    def __init__(
        self,
        settings: CoreSettings | None = None,
        *,
        checkpoint: Checkpoint | None = None,
        has_dead_letter: bool = False,
        chance: Callable[[], float] | None = None,
    ) -> None:
        """``has_dead_letter``: the driver keeps what ``poll_dead`` gives; ``chance``: of jitter."""
        self.settings = settings or CoreSettings()
        self.guarantee = self.settings.guarantee.processing
        checkpoint = checkpoint or Checkpoint()
        self.counters = Counters()
        self._events: deque[FlowEvent] = deque()
        self._orders: deque[RevokeOrder] = deque()
        self._roster = Roster(self.settings, checkpoint, self.counters, self._events)
        self.bolts = self._roster.bolts
        self.intake = Intake(self.settings.buffer, checkpoint, self._events, self.guarantee)
        self._pending: dict[int, FlowTuple] = {}  # sent at least once, not acked
        # Bolts that nobody should wait for: suspect, or full of tuples given up on.
        self._out: set[str] = set()
        self._recovery = Recovery(
            self.settings,
            self.counters,
            self._events,
            revoke=self._revoke,
            note_changed=self._note_room,
            let_go=self._let_go,
            has_dead_letter=has_dead_letter,
            chance=chance,
        )
        self._ending = Ending(
            self.settings,
            self.bolts,
            self._pending,
            self.counters,
            self._revoke,
            holds_back=is_by_completion(self.settings),
        )
        self._guard = SinkGuard(self._events) if self.settings.dispatch.sink_guard else None
        self.handover = self._make_handover()
        self._emitter = self._make_emitter()

    def _make_handover(self) -> Handover:
        return Handover(
            self.intake,
            self._recovery,
            pending=self._pending,
            bolts=self.bolts,
            counters=self.counters,
            events=self._events,
            guarantee=self.guarantee,
            revoke=self._revoke,
            note_changed=self._note_room,
            let_go=self._let_go,
        )

    def _make_emitter(self) -> Emitter:
        return Emitter(
            self.settings,
            self.counters,
            self._events,
            intake=self.intake,
            recovery=self._recovery,
            ending=self._ending,
            guard=self._guard,
            bolts=self.bolts,
            pending=self._pending,
            out=self._out,
            note_changed=self._note_room,
        )

    # -- bolts come and go ---------------------------------------------------------------

    def add_bolt(
        self, bolt: str, *, slots: int, epoch: int, now_s: float, in_order: bool = False
    ) -> None:
        """A bolt came, or came back with a new epoch: what it held before goes to others.

        ``in_order``: each slot takes tuples in the order of sending and messages come back in the
        order in which they left, so with one slot the ack of a later tuple proves an earlier lost.
        """
        if bolt in self.bolts:
            self.remove_bolt(bolt, now_s=now_s, reason="came back with a new epoch")
        consumer = self._roster.add(
            bolt, slots=slots, epoch=epoch, now_s=now_s, in_order=in_order, pool=self._emitter.pool
        )
        self._emitter.note_added()
        self._note_room(consumer)

    def remove_bolt(self, bolt: str, *, now_s: float, reason: str = "", lost: bool = True) -> None:
        """A bolt went.  What it held goes to others; a bolt that is not there is ignored.

        ``lost``: it died rather than left, so the tuples that it was working on (the oldest, one
        a slot) may be the cause, and count a fault.
        """
        if bolt not in self.bolts:
            return
        self._out.discard(bolt)
        self._ending.forget(bolt)
        self._roster.remove(
            bolt,
            now_s=now_s,
            reason=reason,
            lost=lost,
            dispatcher=self._emitter.dispatcher,
            recovery=self._recovery,
            guarantee=self.guarantee,
        )

    # -- records come in -----------------------------------------------------------------

    def offer(
        self,
        partition: str,
        records: Sequence[Record],
        *,
        now_s: float,
        sizes: Sequence[int] | None = None,
    ) -> int:
        """Take records of one partition; return how many.  Fewer: the producer has to wait.

        ``sizes``: as of :func:`flowctl.core.buffer.sizes_of`, where that was done before.
        Raises :class:`flowctl.errors.SourceError` only when positions do not rise.
        """
        return self.intake.offer(partition, records, now_s, sizes)

    def end_of_input(self, *, now_s: float) -> None:
        """The source is read to its end: drain what is left.

        Only then: what an earlier run had acked beyond the last record read counts as reached,
        so a reader that merely stops must not call this, or the records between are lost.
        """
        del now_s
        self._emitter.input_ended = True
        self.intake.end()

    def on_committed(self) -> None:
        """What was offered is saved: where that has to come first, it may be sent now (S88)."""
        self.intake.is_held = False

    # -- tuples go out -------------------------------------------------------------------

    def poll_emit(self, *, now_s: float) -> Emission | None:
        """Return the next tuple that a window allows, and to whom; None: nothing now."""
        return self._emitter.poll(now_s)

    def poll_order(self) -> RevokeOrder | None:
        """Return the next thing to ask of a bolt, or None."""
        return self._orders.popleft() if self._orders else None

    def _revoke(self, consumer: AdaptiveFlowConsumer, tuple_ids: list[int]) -> None:
        self._orders.append(RevokeOrder(consumer.bolt, tuple_ids))

    # -- bolts answer --------------------------------------------------------------------

    def on_ack(self, ack: Ack, *, now_s: float) -> AckOutcome:
        """A bolt processed a tuple.  The first ack wins; all others are counted and ignored."""
        consumer = self._speaker(ack.bolt, ack.epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        consumer.is_stalled = False
        flow_tuple = self._pending.get(ack.tuple_id)
        if flow_tuple is None:
            known = consumer.strays.pop(ack.tuple_id, None) is not None
            self._note_room(consumer)
            if not known and ack.tuple_id > self._emitter.last_id:
                return self._count_unknown()
            self.counters.duplicate += 1
            return AckOutcome.DUPLICATE
        # An earlier sending's ack says nothing of this one's round trip (Karn).
        if ack.tuple_id in consumer.flight and ack.attempt == flow_tuple.attempt:
            if consumer.is_fifo and next(iter(consumer.flight)) != ack.tuple_id:
                self._recovery.on_acked(consumer, flow_tuple, now_s)
            if self._guard is not None and (ack.sink_s is not None or self._guard.in_use):
                self._emitter.tell_guard(flow_tuple, ack, now_s)
            consumer.on_ack(flow_tuple, ack, now_s)
            self._recovery.watch(consumer)
            outcome = AckOutcome.ACKED
        else:
            self._take_late(flow_tuple, consumer, now_s)
            outcome = AckOutcome.LATE
        self._complete(flow_tuple)
        self._note_room(consumer)
        return outcome

    def _take_late(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> None:
        """An expired sending was processed after all: drop the replay, wherever it is."""
        self.counters.late += 1
        consumer.acked += 1
        consumer.records_acked += len(flow_tuple.cut.records)
        consumer.strays.pop(flow_tuple.tuple_id, None)
        if not flow_tuple.is_hedged:
            consumer.rtt.on_spurious(now_s)
        if self._recovery.retries.discard(flow_tuple.tuple_id):
            return
        holder = self.bolts.get(flow_tuple.held_by or "")
        if holder is not None and holder.take_out(flow_tuple.tuple_id) is not None:
            holder.strays[flow_tuple.tuple_id] = now_s
            self._note_room(holder)
            self._revoke(holder, [flow_tuple.tuple_id])

    def _complete(self, flow_tuple: FlowTuple) -> None:
        del self._pending[flow_tuple.tuple_id]
        self.intake.ack(flow_tuple.cut)
        records, counters = len(flow_tuple.cut.records), self.counters
        counters.acked += 1
        counters.records_acked += records
        counters.records_pending_now -= records

    def _let_go(self, flow_tuple: FlowTuple) -> None:
        del self._pending[flow_tuple.tuple_id]
        self.counters.records_pending_now -= len(flow_tuple.cut.records)

    def on_fail(
        self, bolt: str, epoch: int, tuple_id: int, *, reason: str, now_s: float
    ) -> AckOutcome:
        """``process`` raised: the tuple goes again after a back-off, or is given up (S109, S110).

        A fail of a tuple that this bolt does not hold any more is ignored.
        """
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        consumer.is_stalled = False
        flow_tuple = consumer.take_out(tuple_id)
        if flow_tuple is None:
            consumer.strays.pop(tuple_id, None)
        self._note_room(consumer)
        if flow_tuple is None:
            return AckOutcome.DUPLICATE
        return self._recovery.fault(flow_tuple, bolt, reason, now_s)

    def on_refused(
        self,
        bolt: str,
        epoch: int,
        tuple_id: int,
        *,
        reason: str,
        after_s: float | None,
        now_s: float,
    ) -> AckOutcome:
        """The target had no room or is away: the tuple goes again, and no attempt is counted.

        ``after_s``: how long it asked to be left alone.
        """
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        consumer.is_stalled = False
        flow_tuple = consumer.take_out(tuple_id)
        if flow_tuple is None:
            consumer.strays.pop(tuple_id, None)
        self._note_room(consumer)
        if flow_tuple is None:
            return AckOutcome.DUPLICATE
        return self._recovery.refuse(flow_tuple, bolt, reason, after_s, now_s)

    def poll_dead(self) -> DeadTuple | None:
        """Return the next tuple whose attempts ran out, to be kept elsewhere, or None.

        It counts as acked only after :meth:`on_dead_lettered` (S109).
        """
        return self._recovery.poll_dead(self._pending)

    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None:
        """What :meth:`poll_dead` gave is safe; one that was acked meanwhile is ignored."""
        flow_tuple = self._pending.get(tuple_id)
        if flow_tuple is None:
            return
        self._complete(flow_tuple)
        self._recovery.note_dead_lettered(flow_tuple, now_s)

    def on_revoked(self, bolt: str, epoch: int, tuple_ids: Iterable[int], *, now_s: float) -> None:
        """A bolt gave tuples back that it had not begun: they go to others, no fault counted."""
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return
        given = False
        for tuple_id in tuple_ids:
            given = True
            consumer.strays.pop(tuple_id, None)
            flow_tuple = consumer.take_out(tuple_id)
            if flow_tuple is not None:
                self.counters.revoked += 1
                self._recovery.send_elsewhere(flow_tuple, consumer, now_s)
        if not consumer.held:
            consumer.is_stalled = False  # it had begun nothing
        self._note_room(consumer)
        self._ending.on_answer(consumer, given=given)

    def on_heartbeat(
        self, bolt: str, epoch: int, *, busy_slots: int, queued: int, now_s: float
    ) -> None:
        """A sign of life from the bolt's own thread, and whether it has anything to do."""
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is not None:
            is_first = not consumer.sends_heartbeats
            may_change = bool(consumer.strays or consumer.is_stalled or self._out)
            consumer.on_heartbeat(busy_slots + queued, now_s)
            if is_first:
                self._recovery.watch(consumer)  # by its signs from now on: its timer is another
            if may_change:
                self._note_room(consumer)

    def _speaker(self, bolt: str, epoch: int, now_s: float) -> AdaptiveFlowConsumer | None:
        """The bolt that said something, now known to be alive; None if its epoch is over."""
        consumer = self.bolts.get(bolt)
        if consumer is None or consumer.epoch != epoch:
            return None
        consumer.heard_at_s = now_s
        if consumer.is_suspect:
            consumer.is_suspect = consumer.is_down = False
            consumer.armed_at_s = now_s
            self._recovery.on_spoke(consumer, self._pending, now_s)
            self._note_room(consumer)
        return consumer

    def may_speak_of(self, bolt: str, tuple_id: int) -> bool:
        """Whether ``bolt`` can have been sent this tuple; of one that is done, anybody may."""
        flow_tuple = self._pending.get(tuple_id)
        if flow_tuple is None:
            return 0 <= tuple_id <= self._emitter.last_id
        return flow_tuple.was_given(bolt)

    def attempts_of(self, bolt: str, tuple_id: int) -> int:
        """How often a tuple that is not acked was sent; 0: it is done.  ``bolt`` as below."""
        del bolt
        flow_tuple = self._pending.get(tuple_id)
        return flow_tuple.attempt if flow_tuple is not None else 0

    def drop_peer(self, bolt: str, *, now_s: float, reason: str) -> None:
        """What ``bolt`` said can't be: it is ended, and what it held goes to others.

        What it was working on counts a fault: a record that makes bolts talk nonsense must not go
        round for ever.
        """
        self.counters.peers_dropped += 1
        self._events.append(PeerDropped(at_s=now_s, bolt=bolt, reason=reason))
        self.remove_bolt(bolt, now_s=now_s, reason=f"broke the protocol: {reason}")

    def _note_room(self, consumer: AdaptiveFlowConsumer) -> None:
        """Something about ``consumer`` changed: it may have room now, be idle, or be out."""
        consumer.refresh()
        if consumer.has_room:
            self._emitter.dispatcher.note_room(consumer)
        # One with strays may be at work on those.
        if self._emitter.input_ended and not (consumer.flight or consumer.strays):
            self._ending.note_idle(consumer)
        if consumer.strays or self._out:
            if not consumer.flight:
                self._recovery.watch(consumer)  # strays, and nothing else that would be watched
            if consumer.is_out:
                self._out.add(consumer.bolt)
            else:
                self._out.discard(consumer.bolt)

    def _count_unknown(self) -> AckOutcome:
        self.counters.unknown += 1
        return AckOutcome.UNKNOWN

    # -- time passes ---------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """When :meth:`on_deadline` wants to be called; None: only after something happened."""
        due_s = self._recovery.next_s()
        hedge_s = self._ending.next_s()
        if due_s is None or hedge_s is None:
            return hedge_s if due_s is None else due_s
        return min(due_s, hedge_s)

    def on_deadline(self, *, now_s: float) -> None:
        """Expire what is overdue, suspect who is silent, make retries ready."""
        self._recovery.on_deadline(now_s)

    # -- what others read ----------------------------------------------------------------

    def poll_event(self) -> FlowEvent | None:
        """Return the next thing that happened and why, or None."""
        return self._events.popleft() if self._events else None

    def checkpoint(self) -> Checkpoint:
        """What a restart goes on from.  A pure read; O(partitions + ranges)."""
        return self.intake.checkpoint(self._roster.windows)

    @property
    def gave_up(self) -> TupleGaveUp | None:
        """The first tuple whose attempts ran out, if there is one: the run has to fail."""
        return self._recovery.gave_up

    def tuple_records(self, tuple_id: int, *, bolt: str = "") -> Sequence[Record]:
        """The records of a tuple that is not acked yet; empty if there is no such tuple.

        ``bolt``, which spoke of it, is for cores that number tuples per bolt.
        """
        del bolt
        flow_tuple = self._pending.get(tuple_id)
        return flow_tuple.cut.records if flow_tuple is not None else ()

    def abandon(self, tuple_id: int) -> Sequence[Record]:
        """Count a tuple that was given up as done; return its records, now the caller's."""
        flow_tuple = self._pending.get(tuple_id)
        if flow_tuple is None:
            return ()
        self._complete(flow_tuple)
        return flow_tuple.cut.records

    @property
    def is_served(self) -> bool:
        """Whether a bolt is connected and not silent."""
        return any(not consumer.is_suspect for consumer in list(self.bolts.values()))

    @property
    def is_at_limit(self) -> bool:
        """Whether a bound on what is pending, and no window, holds back new tuples."""
        return self._emitter.is_at_limit

    @property
    def is_drained(self) -> bool:
        """Nothing buffered, nothing in flight, nothing to send again."""
        return not self._pending and not self.intake.buffer
