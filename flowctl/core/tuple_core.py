"""TupleCore: which tuple goes to which bolt when.  Time comes in, decisions go out.

Its driver owns the lock, reports by calls what happened, and polls what to do
(:mod:`flowctl.core.driver`).  ``now_s`` is monotonic seconds and never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from flowctl.core.book import Book, Lost
from flowctl.core.buffer import SendBuffer
from flowctl.core.completion import Completion
from flowctl.core.consumer import AdaptiveFlowConsumer, NewBolt
from flowctl.core.counters import Counters
from flowctl.core.emitter import Emitter
from flowctl.core.end_of_input.phase import EndOfInput
from flowctl.core.events import (
    BoltAdded,
    BoltRemoved,
    FlowEvent,
    PeerDropped,
    TargetWentDown,
    TupleGaveUp,
)
from flowctl.core.failures import DeadTuple, Failures, Keeper
from flowctl.core.first_guess import Learned
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Emission,
    End,
    Fail,
    Heartbeat,
    Order,
    Revoked,
)
from flowctl.core.records import AckOutcome, Record
from flowctl.core.recovery import Recovery
from flowctl.core.settings import CoreSettings
from flowctl.core.sink_guard.guard import SinkGuard
from flowctl.core.state import Liveness
from flowctl.core.supply import Supply
from flowctl.core.target import Refused
from flowctl.core.tuples import FlowTuple

# -- Bolts come and go; what one held when it went goes to others, or is dropped ---------------


class BoltRegistry:
    """Adds bolts to the book and removes them; remembers the windows and counts of bolts that went.

    Part of ``TupleCore``; not thread-safe.
    """

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._failures = failures
        self._windows: dict[str, float] = {}  # windows of bolts that went
        # What a bolt had done before it went, as in NewBolt.
        self._counts: dict[str, tuple[int, int, int]] = {}

    def add(self, new: NewBolt) -> AdaptiveFlowConsumer:
        """Add a bolt that connected."""
        bolt, slots, epoch, now_s, *_ = new
        consumer = self._book.consumer_type(
            new._replace(counts=self._counts.get(bolt, new.counts)),
            _settings_of(self._book.settings, slots),
            self._book.events,
            pool=self._book.pool,
            learned=self._windows.get(bolt),
        )
        self._book.add_bolt(consumer)
        self._book.events.append(BoltAdded(at_s=now_s, bolt=bolt, epoch=epoch, slots=slots))
        return consumer

    def remove(self, bolt: str, *, now_s: float, reason: str, lost: bool) -> None:
        """Remove a bolt that went; ``lost`` as in ``TupleCore.remove_bolt``."""
        book, failures = self._book, self._failures
        consumer = book.remove_bolt(bolt)
        self._windows[bolt] = consumer.policy.window
        self._counts[bolt] = (consumer.acked, consumer.records_acked, consumer.moved_away)
        held = consumer.take_all()
        failures.stop_doubting(bolt, now_s)
        book.counters.bolts_lost += lost
        book.events.append(
            BoltRemoved(at_s=now_s, bolt=bolt, epoch=consumer.epoch, moved=len(held), reason=reason)
        )
        for index, flow_tuple in enumerate(held):
            if not book.guarantee.sends_again:
                failures.drop(flow_tuple, bolt, f"bolt {bolt} went: {reason}", now_s)
            elif lost and index < consumer.slots:
                why = f"bolt {bolt} died: {reason}"
                failures.fault(flow_tuple, bolt, why, now_s, may_be_target=False)
            else:
                failures.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)


def _settings_of(settings: CoreSettings, slots: int) -> CoreSettings:
    """Return the settings of a bolt: with ``lab.window.advertised``, its reported slots bound its
    window (S28).

    A window of min(window, slots) leaves room only while a slot is free: the spout counts what the
    bolt holds, so no message has to report free slots.
    """
    window = settings.window
    if not window.advertised:
        return settings
    bounded = msgspec.structs.replace(window, max=min(window.max, slots))
    return msgspec.structs.replace(settings, window=bounded)


# -- TupleCore ---------------------------------------------------------------------------------


_ALIVE: Final = Liveness.ALIVE  # names, as a member of an enum costs .2 us for each tuple
_ACKED: Final = AckOutcome.ACKED


class TupleCore:
    """Bolts, windows, dispatch, recovery and the end of the input.  Pure; not thread-safe.

    Tuples are cut from ``supply``, which may also track what is done.  ``keeper`` gets the tuples
    whose attempts ran out; ``chance`` gives numbers from 0 to 1 for the jitter of back-offs (None:
    none); ``events``: where to put what happens.
    """

    def __init__(
        self,
        settings: CoreSettings,
        supply: Supply,
        *,
        keeper: Keeper = Keeper.CALLER,
        chance: Callable[[], float] | None = None,
        events: deque[FlowEvent] | None = None,
    ) -> None:
        self.settings = settings
        self.guarantee: ProcessingGuarantee = settings.guarantee.processing
        self.book: Book = Book(settings, supply, events)
        book = self.book
        self.bolts: dict[str, AdaptiveFlowConsumer] = book.bolts
        self.counters: Counters = book.counters
        self._pending = book.pending
        self.buffer: SendBuffer = supply.buffer  # what no bolt was given yet
        self._failures = Failures(book, keeper, chance)
        self._target = self._failures.target
        self._completion = Completion(book, self._failures)
        self._recovery = Recovery(book, self._failures)
        self._registry = BoltRegistry(book, self._failures)
        self._end_phase = EndOfInput(book)
        self.guard: SinkGuard | None = (
            SinkGuard(book.events) if settings.dispatch.sink_guard else None
        )
        self._emitter = Emitter(
            book, self._failures, recovery=self._recovery, end_phase=self._end_phase,
            guard=self.guard,
        )  # fmt: skip

    # -- bolts come and go ---------------------------------------------------------------

    def add_bolt(
        self, bolt: str, *, slots: int, epoch: int, now_s: float, in_order: bool = False
    ) -> None:
        """Add a bolt that connected.  If it came back with a new epoch, what it held before goes to
        others.

        ``in_order``: each slot takes tuples in the order of sending and messages come back in the
        order in which they left, so with one slot the ack of a later tuple proves that an earlier
        one is lost.
        """
        if bolt in self.bolts:
            self.remove_bolt(bolt, now_s=now_s, reason="came back with a new epoch")
        consumer = self._registry.add(NewBolt(bolt, slots, epoch, now_s, in_order))
        self.book.changed(consumer)

    def remove_bolt(self, bolt: str, *, now_s: float, reason: str = "", lost: bool = True) -> None:
        """Remove a bolt that went.

        What it held goes to others; an unknown bolt is ignored.  ``lost``: it died rather than
        left, so the tuples that it was working on (the oldest, one for each slot) may be the cause,
        and get a fault each.
        """
        if bolt in self.bolts:
            self._end_phase.forget(bolt)
            self._registry.remove(bolt, now_s=now_s, reason=reason, lost=lost)

    def retire(self, bolt: str, *, now_s: float) -> None:
        """Send ``bolt``, which is about to lose its place, nothing more; ask it for the tuples that
        it has not begun.

        Those that it has begun are waited for, so none runs twice: see :meth:`dismiss`.
        """
        del now_s
        consumer = self.bolts[bolt]
        consumer.stop_sending()
        self.book.out.add(bolt)
        if consumer.flight:
            self.book.revoke(consumer, list(consumer.flight))
        self.book.changed(consumer)

    def dismiss(self, bolt: str, *, now_s: float, reason: str) -> bool:
        """End a bolt that was retired, if it holds no tuple that is waited for; False: not yet."""
        if self.bolts[bolt].flight:
            return False
        self.remove_bolt(bolt, now_s=now_s, reason=reason, lost=False)
        self.book.orders.append(End(bolt))
        return True

    # -- tuples go out -------------------------------------------------------------------

    def end_of_input(self, *, now_s: float) -> None:
        """Note that no more records will come: share out, take back and copy what is left.

        Call this only if the source was read to its end: acks of an earlier run beyond the last
        record read count as reached, so if a reader merely stopped, the records between would be
        lost.
        """
        del now_s
        self.book.input_ended = True
        self.book.supply.end()

    def poll_emit(self, *, now_s: float) -> Emission | None:
        """Return the next tuple that a window allows, and its bolt; None: nothing now."""
        return self._emitter.poll(now_s)

    def poll_order(self) -> Order | None:
        """Return the next order for a bolt (such as to give tuples back), or None."""
        return self.book.orders.popleft() if self.book.orders else None

    # -- bolts answer --------------------------------------------------------------------

    def on_ack(self, bolt: str, epoch: int, ack: Ack, *, now_s: float) -> AckOutcome:
        """Take the ack of a tuple.  The first ack wins; all others are counted and ignored."""
        consumer = self.bolts.get(bolt)
        if consumer is None or consumer.epoch != epoch:
            return self._count_unknown()
        if consumer.on_heard(now_s):  # as _speaker does, without its call for each tuple
            self._on_speaks_again(consumer, now_s)
        if consumer.liveness is not _ALIVE:
            consumer.on_answered()
        tuple_id = ack.tuple_id
        flow_tuple = self._pending.get(tuple_id)
        if flow_tuple is None:
            return self._take_needless(tuple_id, consumer)
        target = self._target
        target.proven_at_s = max(target.proven_at_s, flow_tuple.sent_at_s)  # acks overtake
        if target.is_troubled:
            target.on_success(flow_tuple.sent_at_s, now_s)
        # The ack of an earlier sending says nothing about this one's round trip (Karn).
        if tuple_id in consumer.flight and ack.attempt == flow_tuple.attempt:
            if consumer.is_fifo and next(iter(consumer.flight)) != tuple_id:
                self._recovery.on_acked(consumer, flow_tuple, now_s)
            guard = self.guard
            if guard is not None and (ack.sink_s is not None or guard.in_use):
                self._emitter.tell_guard(flow_tuple, ack, now_s)
            consumer.on_ack(flow_tuple, ack, now_s)
            self._recovery.watch(consumer)
            outcome = _ACKED
        else:
            self._failures.take_late(flow_tuple, consumer, now_s)
            outcome = AckOutcome.LATE
        if ack.__class__ is not Ack and isinstance(ack, DetailedAck):
            self._completion.settle(flow_tuple, bolt, ack, now_s)
        else:
            self._completion.complete(flow_tuple, now_s)
        self.book.changed(consumer)
        return outcome

    def _take_needless(self, tuple_id: int, consumer: AdaptiveFlowConsumer) -> AckOutcome:
        """Take the ack of a tuple that is done already, or was never sent."""
        known = consumer.strays.end(tuple_id)
        self.book.changed(consumer)
        if not known and tuple_id > self.book.ids.last:
            return self._count_unknown()
        self.counters.acks_duplicate += 1
        return AckOutcome.DUPLICATE

    def on_fail(self, bolt: str, epoch: int, fail: Fail, *, now_s: float) -> AckOutcome:
        """Take a failure: ``process`` raised, or the target had no room or is away.

        If it raised, the tuple is sent again, perhaps in pieces, or given up (S109, S110).  If the
        target refused, it is sent again, and no attempt is counted.  A bolt's failure counts even
        if another bolt was given the tuple meanwhile, and the tuple may end by it: otherwise a
        record whose calls always raise after the time-out would go round for ever.
        """
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return self._count_unknown()
        in_flight = self._emitter.in_flight
        flow_tuple = self._hand_back(consumer, fail, now_s)
        if flow_tuple is None:
            return AckOutcome.DUPLICATE
        records, at = flow_tuple.cut.records, fail.record_index
        if at is not None and not 0 <= at < len(records):
            at = None
        reason = fail.reason(records[at].position if at is not None else None)
        if fail.is_refused:  # earlier records were taken
            refusal = Refused(reason, fail.after_s, in_flight, at or 0)
            outcome = self._failures.refuse(flow_tuple, consumer, refusal, now_s)
            self.book.changed(consumer)
            return outcome
        return self._failures.fault(
            flow_tuple, bolt, reason, now_s,
            record_index=at, may_be_target=not fail.is_data_error, is_content=fail.is_content,
        )  # fmt: skip

    def _hand_back(
        self, consumer: AdaptiveFlowConsumer, fail: Fail, now_s: float
    ) -> FlowTuple | None:
        """Take from ``consumer`` a tuple that it did not process; None: its failure changes
        nothing.
        """
        consumer.on_answered()
        flow_tuple = consumer.take_out(fail.tuple_id)
        if flow_tuple is None:
            consumer.strays.end(fail.tuple_id)
            late = self._pending.get(fail.tuple_id)
            if late is not None and self._reclaim(late, consumer, fail, now_s):
                flow_tuple = late
        self.book.changed(consumer)
        return flow_tuple

    def _reclaim(
        self, late: FlowTuple, consumer: AdaptiveFlowConsumer, fail: Fail, now_s: float
    ) -> bool:
        """Return whether the failure of a tuple that ``consumer`` no longer holds counts.

        If so, no bolt holds the tuple afterwards.
        """
        if fail.is_refused or not late.was_given(consumer.bolt):
            return False
        return self._failures.reclaim(late, now_s)

    @property
    def has_lost(self) -> bool:
        """Whether :meth:`poll_lost` gives something."""
        return bool(self.book.lost)

    def poll_lost(self) -> Lost | None:
        """Return the next tuple that was given up or dropped; this core forgets it, the caller has
        it.
        """
        return self.book.lost.popleft() if self.book.lost else None

    def on_revoked(self, bolt: str, epoch: int, given: Revoked, *, now_s: float) -> None:
        """Take tuples that a bolt gave back unbegun: they go to others, no fault counted."""
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is None:
            return
        for tuple_id in given.tuple_ids:
            consumer.strays.end(tuple_id)
            flow_tuple = consumer.take_out(tuple_id)
            if flow_tuple is not None:
                self.counters.tuples_revoked += 1
                self._failures.move(flow_tuple, consumer, now_s)
        if not consumer.held:
            consumer.on_answered()  # it had begun none of them
        self.book.changed(consumer)
        self._end_phase.on_answer(consumer, given=bool(given.tuple_ids))

    def on_heartbeat(self, bolt: str, epoch: int, beat: Heartbeat, *, now_s: float) -> None:
        """Take a bolt's heartbeat: a sign of life, and what the bolt holds."""
        consumer = self._speaker(bolt, epoch, now_s)
        if consumer is not None and self._recovery.on_heartbeat(consumer, beat, now_s):
            self.book.changed(consumer)

    def _speaker(self, bolt: str, epoch: int, now_s: float) -> AdaptiveFlowConsumer | None:
        """Return the bolt that sent a message, and note that it is alive; None if its epoch is
        over.
        """
        consumer = self.bolts.get(bolt)
        if consumer is None or consumer.epoch != epoch:
            return None
        if consumer.on_heard(now_s):
            self._on_speaks_again(consumer, now_s)
        return consumer

    def _on_speaks_again(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Take back to work a bolt that was suspect."""
        self._recovery.on_spoke(consumer, now_s)
        self.book.changed(consumer)

    def may_speak_of(self, bolt: str, tuple_id: int) -> bool:
        """Whether ``bolt`` can have been sent this tuple; of one that is done, any bolt may
        report.
        """
        flow_tuple = self.book.pending.get(tuple_id)
        if flow_tuple is None:
            return 0 <= tuple_id <= self.book.ids.last
        return flow_tuple.was_given(bolt)

    def attempts_of(self, bolt: str, tuple_id: int) -> int:
        """Return how often a tuple that is not acked was sent; 0: it is done.  ``bolt`` as
        below.
        """
        del bolt
        flow_tuple = self.book.pending.get(tuple_id)
        return flow_tuple.attempt if flow_tuple is not None else 0

    def drop_peer(self, bolt: str, *, now_s: float, reason: str) -> None:
        """End ``bolt``, which sent something impossible; what it held goes to others.

        What it was working on gets a fault: a record that makes bolts send nonsense must not go
        round for ever.
        """
        self.counters.peers_dropped += 1
        self.book.events.append(PeerDropped(at_s=now_s, bolt=bolt, reason=reason))
        self.remove_bolt(bolt, now_s=now_s, reason=f"broke the protocol: {reason}")

    def _count_unknown(self) -> AckOutcome:
        self.counters.acks_unknown += 1
        return AckOutcome.UNKNOWN

    # -- time passes ---------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """Return when to call :meth:`on_deadline`; None: only after something happened."""
        due_s = self._recovery.next_s()
        for at_s in (self._failures.next_s(), self._end_phase.next_s()):
            if at_s is not None and (due_s is None or at_s < due_s):
                due_s = at_s
        return due_s

    def suspect(self, bolt: str, *, now_s: float) -> None:
        """Treat ``bolt`` as suspect, as it can't be reached, without waiting for its silence to
        show it.
        """
        self._recovery.suspect(self.bolts[bolt], now_s)

    def on_deadline(self, *, now_s: float) -> None:
        """Expire overdue tuples, suspect silent bolts, make retries ready."""
        self._failures.on_deadline(now_s)
        self._recovery.on_deadline(now_s)
        self._end_phase.on_deadline(now_s)

    # -- what others read ----------------------------------------------------------------

    def poll_event(self) -> FlowEvent | None:
        """Return the next thing that happened and why, or None."""
        return self.book.events.popleft() if self.book.events else None

    @property
    def target_down(self) -> TargetWentDown | None:
        """Since when and why (nearly) nothing succeeds; None: calls succeed, or it is unknown."""
        return self._failures.target.down

    @property
    def is_target_lost(self) -> bool:
        """Whether the target has been down for ``retry.give_up_after_s``: the run has to fail."""
        return self._failures.target.breaker.is_lost

    def tuple_records(self, bolt: str, tuple_id: int) -> Sequence[Record]:
        """Return the records of a tuple that is not acked yet; empty if there is no such tuple.

        ``bolt`` is the one that reported it: a core of several stages numbers tuples by stage.
        """
        del bolt
        flow_tuple = self.book.pending.get(tuple_id)
        return flow_tuple.cut.records if flow_tuple is not None else ()

    @property
    def is_served(self) -> bool:
        """Whether a bolt is connected and not silent."""
        return any(not consumer.is_suspect for consumer in list(self.bolts.values()))

    @property
    def idle_bolts(self) -> Sequence[str]:
        """Bolts that have nothing to do, the longest idle first; known once all is sent."""
        return self._end_phase.idle_bolts

    @property
    def to_go_again(self) -> Collection[FlowTuple]:
        """The tuples that wait to be sent again, ready or not; do not change it."""
        return self._failures.retries.scheduled

    def next_retry_s(self) -> float | None:
        """Return when the next tuple that backs off may go again, or None."""
        return self._failures.retries.next_due_s()

    def due_s(self, bolt: str) -> float:
        """Return when ``bolt`` has to be looked at if nothing happens until then."""
        return self._recovery.due_s(self.bolts[bolt])

    @property
    def in_flight(self) -> int:
        """Tuples at bolts whose acks are waited for."""
        return self._emitter.in_flight

    @property
    def is_at_limit(self) -> bool:
        """Whether new tuples are held back by a bound on pending tuples, not by a window."""
        return self._emitter.is_at_limit

    @property
    def is_drained(self) -> bool:
        """Whether nothing is buffered, in flight or waiting to be sent again."""
        return not self.book.pending and not self.buffer.records


# -- KeepingCore: a :class:`TupleCore` whose tuples may be given up for a dead letter ----------


class KeepingCore(TupleCore):
    """What the core of a run's one stage does with tuples whose attempts ran out.

    Pure; not thread-safe.
    """

    @property
    def gave_up(self) -> TupleGaveUp | None:
        """The first tuple whose attempts ran out, if there is one: the run has to fail."""
        return self._failures.gave_up

    @property
    def has_dead_letter(self) -> bool:
        """Whether what is given up waits for :meth:`poll_dead_letter`."""
        return self._failures.has_dead_letter

    def recall(self, learned: Learned) -> None:
        """Begin with what the job's last run learned; called before the first bolt comes."""
        self.book.pool.recall(learned)

    def learn(self) -> Learned | None:
        """Return what the job's next run may begin with; None while too little is known."""
        return self.book.pool.learn(self.counters.tuples_acked)

    def poll_dead_letter(self) -> DeadTuple | None:
        """Return the next tuple whose attempts ran out, to be kept elsewhere, or None.

        It counts as acked only after :meth:`on_dead_lettered` (S109).
        """
        return self._failures.poll_dead_letter()

    def on_dead_lettered(self, tuple_id: int, *, now_s: float) -> None:
        """Note that a tuple from :meth:`poll_dead_letter` is safe; if it was acked meanwhile,
        ignore it.
        """
        flow_tuple = self.book.pending.get(tuple_id)
        if flow_tuple is None:
            return
        self._completion.complete(flow_tuple, now_s)
        self._failures.note_dead_lettered(flow_tuple, now_s)
