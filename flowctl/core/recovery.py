"""Bolts that are late, silent or lose tuples: when and how they are judged (S6, S7, S18, S48).

A bolt is judged by its signs: a timer on its oldest tuple that each ack restarts, its heartbeats,
and the order of its acks.

- A slow bolt keeps what it has begun, gives back the rest, and gets nothing more until it acks.
- A tuple that the bolt can't have is lost: it is sent again at once.
- A silent bolt is suspect and gets nothing until it speaks.
- A suspect bolt that stays silent is down: all that it held goes to others.

Without heartbeats, or with ``timeout.rule = "clock"``, each tuple expires after its RTO.  Where no
bolt sends any, that says nothing: long records and lost ones look alike.  So what expired goes
again to a bolt that has nothing else to do, and to any only after as long as a bolt gets that says
that it is busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import is_by_completion
from flowctl.core.events import TupleExpired, TupleLost
from flowctl.core.failures import Failures
from flowctl.core.messages import Heartbeat
from flowctl.core.state import Liveness
from flowctl.core.tuples import FlowTuple, Ids
from flowctl.core.verdict import Verdict, lost_by_beats, patience_s, verdict


class Recovery:
    """The timers that find tuples which went astray.  Part of ``TupleCore``, not thread-safe."""

    def __init__(self, book: Book, failures: Failures) -> None:
        self._book = book
        self._failures = failures
        self._alarms = book.alarms
        self._timeout = book.settings.timeout
        self._sends_again = book.guarantee.sends_again
        # Whether heartbeats tell what a time-out means, or policies that take it by the clock.
        by_clock = self._timeout.rule != "signs" or not is_by_completion(book.settings)
        self._has_signs = by_clock

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

    def on_heartbeat(self, consumer: AdaptiveFlowConsumer, beat: Heartbeat, now_s: float) -> bool:
        """Take what it said of itself; return whether it may have room now, or be out."""
        is_first = not consumer.sends_heartbeats
        self._has_signs = True
        may_change = bool(consumer.strays or self._book.out)
        may_change = may_change or consumer.liveness is Liveness.STALLED
        said_s, begun = consumer.idle_said_at_s, consumer.begun
        consumer.on_heartbeat(beat, now_s)
        lost: list[FlowTuple] = []
        if beat.begun and consumer.is_in_order:
            lost = _passed_over(consumer, beat.begun)
        if consumer.watches_signs and said_s < now_s <= consumer.idle_said_at_s:
            lost = lost or lost_by_beats(consumer, said_s, begun, self._timeout)
        self._lose(consumer, lost, now_s)
        may_change = may_change or bool(lost)
        if is_first:
            self.watch(consumer)  # from now on its signs drive its timer
        return may_change

    def on_spoke(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """A suspect bolt spoke: what it held and nobody else has got yet is its own again."""
        restored: list[FlowTuple] = []
        for tuple_id in consumer.strays:
            flow_tuple = self._book.pending.get(tuple_id)
            if flow_tuple is None or flow_tuple.held_by != consumer.bolt:
                continue
            if self._failures.retries.discard(flow_tuple):
                flow_tuple.allow(consumer.bolt)
                restored.append(flow_tuple)
        if restored:
            consumer.restore(restored, now_s)
        self.watch(consumer)

    # -- time passes ---------------------------------------------------------------------

    def watch(self, consumer: AdaptiveFlowConsumer) -> None:
        """A tuple was sent to ``consumer``, or its RTO changed: see that its alarm is set."""
        alarm_s = consumer.alarm_s
        if not consumer.flight:
            if consumer.strays:
                self._alarms.set(consumer, consumer.strays.due_s(consumer.rtt.rto_s))
        elif consumer.armed_at_s + consumer.rtt.rto_s < alarm_s or (
            # An alarm of a time-out that was backed off may be far away.
            consumer.heard_at_s + self._timeout.silence_max_s < alarm_s and consumer.watches_signs
        ):
            self._alarms.set(consumer, self.due_s(consumer))

    def next_s(self) -> float | None:
        """When :meth:`on_deadline` wants to be called, or None."""
        return self._alarms.next_s()

    def put_off_alarms(self) -> None:
        """See :meth:`Alarms.put_off`."""
        self._alarms.put_off(self.due_s)

    def on_deadline(self, now_s: float) -> None:
        """Expire what is overdue, suspect who is silent."""
        for consumer in self._alarms.ring(now_s, self.due_s):
            self._on_alarm(consumer, now_s)

    def due_s(self, consumer: AdaptiveFlowConsumer) -> float:
        """When ``consumer`` has to be looked at if nothing happens until then."""
        return verdict(consumer, self._timeout).next_s

    def _on_alarm(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        judged = verdict(consumer, self._timeout, now_s)
        if judged.is_rested:
            consumer.on_rested()
            judged = verdict(consumer, self._timeout, now_s)
        if judged.next_s <= now_s:
            self._act(consumer, judged, now_s)
        self._book.changed(consumer)

    def _act(self, consumer: AdaptiveFlowConsumer, judged: Verdict, now_s: float) -> None:
        if not consumer.flight:
            consumer.drop_old_strays(now_s, may_try=self._may_try(consumer))
        elif judged.is_down:  # still silent: all it held goes to others
            consumer.on_silent(now_s)
            self._expire(consumer, list(consumer.flight.values()), now_s)
        elif judged.is_silent:
            self._suspect(consumer, now_s)
        else:
            self._on_overdue(consumer, judged, now_s)

    def _may_try(self, consumer: AdaptiveFlowConsumer) -> bool:
        """Whether a bolt of which nothing is heard may get a tuple to see if it lives.

        With work for all there is little to lose.  At the end the run would wait for that tuple.
        """
        if self._book.supply.buffer.records > 0:
            return True
        return len(self._book.bolts) <= len(self._book.out - {consumer.bolt}) + 1

    def _suspect(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Silent: its oldest tuple, at least, goes to another."""
        head = next(iter(consumer.flight.values()))
        consumer.on_expired([head], now_s, silent=True)
        consumer.on_silent(now_s)
        self._expire(consumer, [head], now_s)

    def suspect(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """``consumer`` can't be reached: don't wait for as long as with mere silence.

        Where nothing is sent again that would lose tuples sooner: there silence decides.
        """
        if consumer.flight and not consumer.is_suspect and self._sends_again:
            self._suspect(consumer, now_s)
            self._alarms.set(consumer, self.due_s(consumer))
            self._book.changed(consumer)

    def _on_overdue(self, consumer: AdaptiveFlowConsumer, judged: Verdict, now_s: float) -> None:
        """Alive, and its oldest tuple has no ack: lost, or slow, or waited for long enough."""
        is_overdue = judged.is_overdue
        if judged.hopeless:  # it may be at work on them
            consumer.on_expired(judged.hopeless, now_s, silent=False)
            self._expire(consumer, judged.hopeless, now_s)
            # Its time-out backed off.
            is_overdue = is_overdue and consumer.armed_at_s + consumer.rtt.rto_s <= now_s
        self._lose(consumer, judged.lost, now_s)
        if is_overdue:
            if consumer.flight:
                consumer.on_overdue(now_s)
                self._take_back(consumer, now_s)
            consumer.wait_anew(now_s)

    def _take_back(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        """Ask for what a slow bolt has not begun; while there is work for all, not at once.

        It would stand idle for a round trip when it goes on: what bridges that stays for as long as
        a bolt may be silent.
        """
        keep_s = 0.0
        is_new = now_s - consumer.slow_since_s < self._timeout.silence_s
        if is_new and self._book.supply.buffer.records > 0:
            keep_s = consumer.service.path_peak_s
        unneeded = list(consumer.flight)[_kept(consumer, keep_s) :]
        if unneeded:
            self._book.revoke(consumer, unneeded)

    def _lose(
        self, consumer: AdaptiveFlowConsumer, lost: Sequence[FlowTuple], now_s: float
    ) -> None:
        for flow_tuple in lost:
            self._book.counters.tuples_lost += 1
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
            self._book.counters.tuples_expired += 1
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
            if self._sends_again and not self._has_signs:
                until_s = now_s + patience_s(consumer, self._timeout)
                self._failures.doubt(flow_tuple, consumer, until_s, now_s)
            else:
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


def _kept(consumer: AdaptiveFlowConsumer, keep_s: float) -> int:
    """How many of its oldest tuples stay: those in its slots, and what fits into ``keep_s`` more.

    None if that is 0: nobody knows which ones it has begun, so it is asked for all.
    """
    if keep_s <= 0:
        return 0
    left_s = keep_s * consumer.slots
    for place, flow_tuple in enumerate(consumer.flight.values()):
        if place >= consumer.slots:
            left_s -= consumer.service.of(len(flow_tuple.cut.records))
        if left_s < 0:
            return place
    return len(consumer.flight)


def _passed_over(consumer: AdaptiveFlowConsumer, begun: Ids) -> list[FlowTuple]:
    """What was sent before the newest of ``begun``, is not among them and has no ack: lost.

    The rule of :meth:`Recovery.on_acked` for several slots: they take tuples in the order of
    sending, and the acks that left before a heartbeat came before it.
    """
    passed: list[FlowTuple] = []
    overtaken = 0
    for flow_tuple in consumer.flight.values():
        if flow_tuple.tuple_id not in begun:
            passed.append(flow_tuple)
        elif flow_tuple.attempt == 1:  # of another it may have an earlier sending
            overtaken = len(passed)
    return passed[:overtaken]
