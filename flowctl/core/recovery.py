"""Bolts that are late, silent or lose tuples: who is judged when, and by what (S6, S7, S18, S48).

A bolt is judged by its signs: a timer on its oldest tuple that each ack arms again, heartbeats, and
the order of its acks.  One that is slow keeps what it has begun, gives back the rest and gets
nothing more until it acks; what it can't have is lost and goes again at once; one that is silent is
suspect and gets nothing until it speaks; one that stays silent is down, and all it held goes to
others.  A bolt without heartbeats, or ``timeout.rule = "clock"``: each tuple expires after its RTO.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.events import TupleExpired, TupleLost
from flowctl.core.failures import Failures
from flowctl.core.state import Liveness
from flowctl.core.tuples import FlowTuple


class Recovery:
    """The timers that find tuples which went astray.  Part of ``TupleCore``, not thread-safe."""

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._failures = failures
        self._alarms = book.alarms
        self._timeout = book.settings.timeout
        self._sends_again = book.guarantee.sends_again

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

    def on_spoke(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """A suspect bolt spoke: what it held and nobody else has got yet is its own again."""
        restored: list[FlowTuple] = []
        for tuple_id in consumer.strays:
            flow_tuple = self._book.pending.get(tuple_id)
            if flow_tuple is None or flow_tuple.held_by != consumer.bolt:
                continue
            if self._failures.retries.discard(tuple_id):
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
            consumer.heard_at_s + self._timeout.silence_max_s < alarm_s and consumer.watches_signs
        ):
            self._alarms.set(consumer, self.due_s(consumer))

    def next_s(self) -> float | None:
        """When :meth:`on_deadline` wants to be called, or None."""
        return self._alarms.next_s()

    def on_deadline(self, now_s: float) -> None:
        """Expire what is overdue, suspect who is silent."""
        for consumer in self._alarms.ring(now_s, self.due_s):
            self._on_alarm(consumer, now_s)

    def due_s(self, consumer: AdaptiveFlowConsumer) -> float:
        """When ``consumer`` has to be looked at: its oldest tuple's time-out, its silence, rest."""
        if consumer.liveness is Liveness.RESTING:
            return min(consumer.rests_until_s, self._overdue_s(consumer))
        return self._overdue_s(consumer)

    def _overdue_s(self, consumer: AdaptiveFlowConsumer) -> float:
        flight = consumer.flight
        if not flight:
            return consumer.strays_due_s()
        timeout = self._timeout
        if consumer.is_suspect:
            return consumer.suspect_since_s + timeout.suspect_s
        if not consumer.watches_signs:
            # Not always the oldest's: new ones become shorter.
            return min(flow_tuple.deadline_s for flow_tuple in flight.values())
        silence_s = timeout.silence_max_s
        if consumer.liveness is Liveness.STALLED:
            silence_s = min(silence_s, timeout.silence_s)
        due_s = min(consumer.armed_at_s + consumer.rtt.rto_s, consumer.heard_at_s + silence_s)
        # A bolt of several slots may go on acking and never be through with one tuple (S48).
        return min(due_s, next(iter(flight.values())).sent_at_s + timeout.rto_max_s)

    def _on_alarm(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        if consumer.liveness is Liveness.RESTING and consumer.rests_until_s <= now_s:
            consumer.on_rested()
            if self.due_s(consumer) > now_s:
                self._book.changed(consumer)
                return
        if not consumer.flight:
            consumer.drop_old_strays(now_s)
        elif consumer.is_suspect:  # still silent: down, all it held goes to others
            consumer.on_silent(now_s)
            self._expire(consumer, list(consumer.flight.values()), now_s)
        elif not consumer.watches_signs:
            overdue = [t for t in consumer.flight.values() if t.deadline_s <= now_s]
            consumer.on_expired(overdue, now_s, silent=False)
            self._expire(consumer, overdue, now_s)
        elif self._is_silent(consumer, now_s):
            head = next(iter(consumer.flight.values()))
            consumer.on_expired([head], now_s, silent=True)
            consumer.on_silent(now_s)
            self._expire(consumer, [head], now_s)
        else:
            self._on_overdue(consumer, now_s)
        self._book.changed(consumer)

    def _is_silent(self, consumer: AdaptiveFlowConsumer, now_s: float) -> bool:
        timeout = self._timeout
        # The same sum as in due_s: an alarm that finds nothing to do would ring for ever.
        return consumer.heard_at_s + min(timeout.silence_s, timeout.silence_max_s) <= now_s

    def _on_overdue(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Alive, and its oldest tuple has no ack: lost, or slow, or waited for long enough."""
        flight = list(consumer.flight.values())
        wait_s = self._timeout.rto_max_s
        hopeless = [t for t in flight if t.sent_at_s + wait_s <= now_s]
        if hopeless:  # it may be at work on them
            consumer.on_expired(hopeless, now_s, silent=False)
            self._expire(consumer, hopeless, now_s)
        lost = [t for t in flight if consumer.has_lost(t) and t not in hopeless]
        self._lose(consumer, lost, now_s)
        if consumer.armed_at_s + consumer.rtt.rto_s <= now_s:
            if consumer.flight:
                consumer.on_overdue(now_s)
                self._book.revoke(consumer, list(consumer.flight))
            consumer.armed_at_s = now_s

    def _lose(
        self, consumer: AdaptiveFlowConsumer, lost: Sequence[FlowTuple], now_s: float
    ) -> None:
        for flow_tuple in lost:
            self._book.counters.lost += 1
            self._book.events.append(
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
            self._book.counters.expired += 1
            self._book.events.append(
                TupleExpired(
                    at_s=now_s,
                    bolt=consumer.bolt,
                    tuple_id=flow_tuple.tuple_id,
                    attempt=flow_tuple.attempt,
                    rto_s=now_s - flow_tuple.sent_at_s,
                )
            )
            consumer.let_stray(flow_tuple.tuple_id, now_s)
            self._send_again(flow_tuple, consumer, "no ack in time", now_s)
        if overdue and consumer.watches_signs:
            # If it comes back to life, it need not begin them: others have them.
            self._book.revoke(consumer, [flow_tuple.tuple_id for flow_tuple in overdue])

    def _send_again(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, why: str, now_s: float
    ) -> None:
        """To another bolt, or, where nothing is sent twice, nowhere."""
        if self._sends_again:
            self._failures.send_elsewhere(flow_tuple, consumer, now_s)
        else:
            self._failures.drop(flow_tuple, consumer.bolt, why, now_s)
