"""What goes again, and when: faults, loss, expiry, suspicion (S6, S7, S18, S48, S110).

A bolt is judged by its signs: a timer on its oldest tuple that each ack arms anew, heartbeats, and
the order of its acks.  One that is slow keeps what it has begun, gives back the rest and gets
nothing more until it acks; what it can't have is lost and goes again at once; one that is silent is
suspect and gets nothing until it speaks; one that stays silent is down, and all it held goes to
others.  A bolt without heartbeats, or ``timeout.rule = "clock"``: each tuple expires after its RTO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from flowctl.core.alarms import Alarms
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import (
    FlowEvent,
    TupleDeadLettered,
    TupleDropped,
    TupleExpired,
    TupleFailed,
    TupleGaveUp,
    TupleLost,
)
from flowctl.core.records import AckOutcome, Record
from flowctl.core.retry import RetryQueue
from flowctl.core.settings import CoreSettings
from flowctl.core.tuples import FlowTuple


class DeadTuple(msgspec.Struct, frozen=True, gc=False):
    """A tuple whose attempts ran out: what happened, and its records."""

    gave_up: TupleGaveUp
    records: Sequence[Record]


class Recovery:
    """Tuples that did not make it, and the timers that find them.

    Part of ``SpoutCore``, not thread-safe.  ``revoke`` asks a bolt for tuples back;
    ``note_changed`` is told of each bolt that was looked at; ``let_go`` forgets a tuple that does
    not go again.  ``chance`` gives the jitter of back-offs.
    """

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        events: deque[FlowEvent],
        *,
        revoke: Callable[[AdaptiveFlowConsumer, list[int]], None],
        note_changed: Callable[[AdaptiveFlowConsumer], None],
        let_go: Callable[[FlowTuple], None],
        has_dead_letter: bool = False,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.retries = RetryQueue(settings.retry, chance)
        # The first tuple whose attempts ran out, if there is nowhere to keep it.
        self.gave_up: TupleGaveUp | None = None
        # Tuples whose attempts ran out, and why, on their way to the dead letter.
        self.dead: deque[tuple[FlowTuple, TupleGaveUp]] = deque()
        self._has_dead_letter = has_dead_letter
        self._sends_again = settings.guarantee.processing.sends_again
        self._let_go = let_go
        self._settings = settings
        self._silence_max_s = settings.timeout.silence_max_s
        self._counters = counters
        self._events = events
        self._revoke = revoke
        self._note_changed = note_changed
        self._alarms = Alarms()

    # -- faults --------------------------------------------------------------------------

    def fault(self, flow_tuple: FlowTuple, bolt: str, reason: str, now_s: float) -> AckOutcome:
        """Count a fault of ``flow_tuple`` on ``bolt``; schedule it again or give it up."""
        flow_tuple.faults += 1
        flow_tuple.shun(bolt)
        self._counters.failed += 1
        if not self._sends_again:
            self.drop(flow_tuple, bolt, reason, now_s)
            return AckOutcome.DROPPED
        retry_at_s = self.retries.schedule(flow_tuple, now_s=now_s)
        if retry_at_s is None:
            self._give_up(flow_tuple, reason, now_s)
            return AckOutcome.GAVE_UP
        self._events.append(
            TupleFailed(
                at_s=now_s,
                bolt=bolt,
                tuple_id=flow_tuple.tuple_id,
                attempt=flow_tuple.attempt,
                partition=flow_tuple.cut.partition,
                first=flow_tuple.first,
                last=flow_tuple.last,
                reason=reason,
                retry_at_s=retry_at_s,
            )
        )
        return AckOutcome.FAILED

    def refuse(
        self, flow_tuple: FlowTuple, bolt: str, reason: str, after_s: float | None, now_s: float
    ) -> AckOutcome:
        """The target refused ``flow_tuple``: it goes again, without a fault."""
        self._counters.refused += 1
        if not self._sends_again:
            self.drop(flow_tuple, bolt, reason, now_s)
            return AckOutcome.DROPPED
        wait_s = self._settings.retry.backoff_first_s if after_s is None else after_s
        self.retries.add(flow_tuple, not_before_s=now_s + wait_s, now_s=now_s)
        return AckOutcome.REFUSED

    def _give_up(self, flow_tuple: FlowTuple, reason: str, now_s: float) -> None:
        event = TupleGaveUp(
            at_s=now_s,
            tuple_id=flow_tuple.tuple_id,
            partition=flow_tuple.cut.partition,
            first=flow_tuple.first,
            last=flow_tuple.last,
            attempts=flow_tuple.faults,
            bolts=tuple(sorted(flow_tuple.avoid or ())),
            reason=reason,
        )
        if self._has_dead_letter:
            self.dead.append((flow_tuple, event))
        else:
            self.gave_up = self.gave_up or event
        self._events.append(event)

    def poll_dead(self, pending: Container[int]) -> DeadTuple | None:
        """Return the next one on its way to the dead letter, if it is still ``pending``."""
        while self.dead:
            flow_tuple, gave_up = self.dead.popleft()
            if flow_tuple.tuple_id in pending:  # not acked late, not taken away
                return DeadTuple(gave_up, flow_tuple.cut.records)
        return None

    def note_dead_lettered(self, flow_tuple: FlowTuple, now_s: float) -> None:
        """Count and tell a tuple that is safe in the dead letter."""
        self._counters.dead_lettered += 1
        self._counters.records_dead_lettered += len(flow_tuple.cut.records)
        self._events.append(
            TupleDeadLettered(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                partition=flow_tuple.cut.partition,
                first=flow_tuple.first,
                last=flow_tuple.last,
                records=len(flow_tuple.cut.records),
            )
        )

    def drop(self, flow_tuple: FlowTuple, bolt: str, reason: str, now_s: float) -> None:
        """Nothing is sent again in this mode: count it, tell it, forget it (S88)."""
        records = len(flow_tuple.cut.records)
        self._counters.dropped += 1
        self._counters.records_dropped += records
        self._let_go(flow_tuple)
        self._events.append(
            TupleDropped(
                at_s=now_s,
                bolt=bolt,
                tuple_id=flow_tuple.tuple_id,
                partition=flow_tuple.cut.partition,
                first=flow_tuple.first,
                last=flow_tuple.last,
                records=records,
                reason=reason,
            )
        )

    # -- signs ---------------------------------------------------------------------------

    def on_acked(self, consumer: AdaptiveFlowConsumer, acked: FlowTuple, now_s: float) -> None:
        """``acked`` is about to leave the flight: what was sent before it on a FIFO is lost.

        RACK's rule (RFC 8985) without its reordering window: a bolt with one slot acks in the
        order in which tuples reach it.
        """
        overtaken: list[FlowTuple] = []
        for flow_tuple in consumer.flight.values():
            if flow_tuple is acked:
                break
            overtaken.append(flow_tuple)
        self._lose(consumer, overtaken, now_s)

    def on_spoke(
        self, consumer: AdaptiveFlowConsumer, pending: Mapping[int, FlowTuple], now_s: float
    ) -> None:
        """A suspect bolt spoke: what it held and nobody else has got yet is its own again."""
        restored: list[FlowTuple] = []
        for tuple_id in consumer.strays:
            flow_tuple = pending.get(tuple_id)
            if flow_tuple is None or flow_tuple.held_by != consumer.bolt:
                continue
            if self.retries.discard(tuple_id):
                flow_tuple.trust(consumer.bolt)
                restored.append(flow_tuple)
        if restored:
            consumer.restore(restored, now_s)
            consumer.moved_away -= len(restored)
        self.watch(consumer)

    # -- time passes ---------------------------------------------------------------------

    def watch(self, consumer: AdaptiveFlowConsumer) -> None:
        """A tuple was sent to ``consumer``, or its RTO changed: see that its alarm is set."""
        alarm_s = consumer.alarm_s
        if not consumer.flight:
            if consumer.strays:
                self._alarms.set(consumer, consumer.strays_due_s())
        elif consumer.armed_at_s + consumer.rtt.rto_s < alarm_s or (
            # An alarm of a time-out that was backed off may be far away.
            consumer.heard_at_s + self._silence_max_s < alarm_s and consumer.watches_signs
        ):
            self._alarms.set(consumer, self.due_s(consumer))

    def next_s(self) -> float | None:
        """When :meth:`on_deadline` wants to be called, or None."""
        alarm_s, due_s = self._alarms.next_s(), self.retries.next_due_s()
        if alarm_s is None or due_s is None:
            return due_s if alarm_s is None else alarm_s
        return min(alarm_s, due_s)

    def on_deadline(self, now_s: float) -> None:
        """Expire what is overdue, suspect who is silent, make retries ready."""
        self.retries.ripen(now_s)
        for consumer in self._alarms.ring(now_s, self.due_s):
            self._on_alarm(consumer, now_s)

    def due_s(self, consumer: AdaptiveFlowConsumer) -> float:
        """When ``consumer`` has to be looked at: its oldest tuple's time-out, or its silence."""
        flight = consumer.flight
        if not flight:
            return consumer.strays_due_s()
        timeout = self._settings.timeout
        if consumer.is_suspect:
            return consumer.suspect_since_s + timeout.suspect_s
        if not consumer.watches_signs:
            # Not always the oldest's: new ones become shorter.
            return min(flow_tuple.deadline_s for flow_tuple in flight.values())
        silence_s = timeout.silence_max_s
        if consumer.is_stalled:
            silence_s = min(silence_s, timeout.silence_s)
        due_s = min(consumer.armed_at_s + consumer.rtt.rto_s, consumer.heard_at_s + silence_s)
        # A bolt of several slots may go on acking and never be through with one tuple (S48).
        return min(due_s, next(iter(flight.values())).sent_at_s + timeout.rto_max_s)

    def _on_alarm(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        if not consumer.flight:
            consumer.drop_old_strays(now_s)
        elif consumer.is_suspect:  # still silent: down, all it held goes to others
            consumer.is_down = True
            self._expire(consumer, list(consumer.flight.values()), now_s)
        elif not consumer.watches_signs:
            overdue = [t for t in consumer.flight.values() if t.deadline_s <= now_s]
            consumer.on_expired(overdue, now_s, silent=False)
            self._expire(consumer, overdue, now_s)
        elif self._is_silent(consumer, now_s):
            head = next(iter(consumer.flight.values()))
            consumer.on_expired([head], now_s, silent=True)
            consumer.suspect(now_s)
            self._expire(consumer, [head], now_s)
        else:
            self._on_overdue(consumer, now_s)
        self._note_changed(consumer)

    def _is_silent(self, consumer: AdaptiveFlowConsumer, now_s: float) -> bool:
        timeout = self._settings.timeout
        # The same sum as in due_s: an alarm that finds nothing to do would ring for ever.
        return consumer.heard_at_s + min(timeout.silence_s, timeout.silence_max_s) <= now_s

    def _on_overdue(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Alive, and its oldest tuple has no ack: lost, or slow, or waited for long enough."""
        flight = list(consumer.flight.values())
        wait_s = self._settings.timeout.rto_max_s
        hopeless = [t for t in flight if t.sent_at_s + wait_s <= now_s]
        if hopeless:  # it may be at work on them
            consumer.on_expired(hopeless, now_s, silent=False)
            self._expire(consumer, hopeless, now_s)
        lost = [t for t in flight if consumer.has_lost(t) and t not in hopeless]
        self._lose(consumer, lost, now_s)
        if consumer.armed_at_s + consumer.rtt.rto_s <= now_s:
            if consumer.flight:
                consumer.on_overdue(now_s)
                self._revoke(consumer, list(consumer.flight))
            consumer.armed_at_s = now_s

    def _lose(
        self, consumer: AdaptiveFlowConsumer, lost: Sequence[FlowTuple], now_s: float
    ) -> None:
        for flow_tuple in lost:
            self._counters.lost += 1
            self._events.append(
                TupleLost(
                    at_s=now_s,
                    bolt=consumer.bolt,
                    tuple_id=flow_tuple.tuple_id,
                    attempt=flow_tuple.attempt,
                )
            )
            consumer.take_out(flow_tuple.tuple_id)
            self._send_again(flow_tuple, consumer, "it never arrived", now_s)

    def _expire(
        self, consumer: AdaptiveFlowConsumer, overdue: Sequence[FlowTuple], now_s: float
    ) -> None:
        for flow_tuple in overdue:
            self._counters.expired += 1
            self._events.append(
                TupleExpired(
                    at_s=now_s,
                    bolt=consumer.bolt,
                    tuple_id=flow_tuple.tuple_id,
                    attempt=flow_tuple.attempt,
                    rto_s=now_s - flow_tuple.sent_at_s,
                )
            )
            consumer.take_out(flow_tuple.tuple_id)
            consumer.strays[flow_tuple.tuple_id] = now_s
            self._send_again(flow_tuple, consumer, "no ack in time", now_s)
        if overdue and consumer.watches_signs:
            # If it comes back to life, it need not begin them: others have them.
            self._revoke(consumer, [flow_tuple.tuple_id for flow_tuple in overdue])

    def _send_again(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, why: str, now_s: float
    ) -> None:
        """To another bolt, or, where nothing is sent twice, nowhere."""
        if self._sends_again:
            self.send_elsewhere(flow_tuple, consumer, now_s)
        else:
            self.drop(flow_tuple, consumer.bolt, why, now_s)

    def send_elsewhere(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> None:
        """Schedule what ``consumer`` held for another bolt, at once and without a fault."""
        flow_tuple.shun(consumer.bolt)
        consumer.moved_away += 1
        self.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)
