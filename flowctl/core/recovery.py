"""What goes again, and when: faults and back-off, expiry, suspicion (S6, S7, S18, S48, S110).

A bolt that is slow keeps what it has begun and gives back the rest; one that is silent is suspect
and gets nothing until it speaks; one that stays silent is down, and all it held goes to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowctl.core.alarms import Alarms
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TupleExpired, TupleFailed, TupleGaveUp
from flowctl.core.records import AckOutcome
from flowctl.core.retry import RetryQueue, backoff_s
from flowctl.core.settings import CoreSettings
from flowctl.core.tuples import FlowTuple


class Recovery:
    """Tuples that did not make it, and the timers that find them.

    Part of ``SpoutCore``, not thread-safe.  ``revoke`` asks a bolt for tuples back;
    ``note_changed`` is told of each bolt that was looked at.
    """

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        events: deque[FlowEvent],
        *,
        revoke: Callable[[AdaptiveFlowConsumer, list[int]], None],
        note_changed: Callable[[AdaptiveFlowConsumer], None],
    ) -> None:
        self.retries = RetryQueue()
        self.gave_up: TupleGaveUp | None = None  # the first tuple whose attempts ran out
        self._settings = settings
        self._counters = counters
        self._events = events
        self._revoke = revoke
        self._note_changed = note_changed
        self._alarms = Alarms()

    # -- faults --------------------------------------------------------------------------

    def fault(self, flow_tuple: FlowTuple, bolt: str, reason: str, now_s: float) -> AckOutcome:
        """Count a fault of ``flow_tuple`` on ``bolt``; schedule it again or give it up."""
        retry = self._settings.retry
        flow_tuple.faults += 1
        flow_tuple.shun(bolt)
        self._counters.failed += 1
        if flow_tuple.faults >= retry.attempts_max:
            self._give_up(flow_tuple, reason, now_s)
            return AckOutcome.GAVE_UP
        retry_at_s = now_s + backoff_s(flow_tuple.faults, retry)
        self.retries.add(flow_tuple, not_before_s=retry_at_s, now_s=now_s)
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
        self.gave_up = self.gave_up or event
        self._events.append(event)

    # -- time passes ---------------------------------------------------------------------

    def watch(self, consumer: AdaptiveFlowConsumer, deadline_s: float) -> None:
        """A tuple with ``deadline_s`` was sent to ``consumer``: see that its alarm is set."""
        if deadline_s < consumer.alarm_s:
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
        """When ``consumer`` has to be looked at: its next tuple's time-out, or its silence."""
        if not consumer.flight:
            return consumer.strays_due_s()
        timeout = self._settings.timeout
        if consumer.is_suspect:
            return consumer.suspect_since_s + timeout.suspect_s
        # Not always the oldest's: a time-out may be put off, and new ones become shorter.
        due_s = min(flow_tuple.deadline_s for flow_tuple in consumer.flight.values())
        if consumer.sends_heartbeats:
            due_s = min(due_s, consumer.heard_at_s + timeout.silence_max_s)
        return due_s

    def _on_alarm(self, consumer: AdaptiveFlowConsumer, now_s: float) -> None:
        if not consumer.flight:
            consumer.drop_old_strays(now_s)
        elif consumer.is_suspect:  # still silent: down, all it held goes to others
            consumer.is_down = True
            self._expire(consumer, list(consumer.flight.values()), now_s)
        elif self._is_silent(consumer, now_s):
            head = next(iter(consumer.flight.values()))
            consumer.on_expired([head], now_s, silent=True)
            consumer.suspect(now_s)
            self._expire(consumer, [head], now_s)
        else:
            overdue = [t for t in consumer.flight.values() if t.deadline_s <= now_s]
            consumer.on_expired(overdue, now_s, silent=False)
            if consumer.sends_heartbeats and not consumer.idle_reported:
                overdue = self._take_back(consumer, overdue, now_s)
            self._expire(consumer, overdue, now_s)
        self._note_changed(consumer)

    def _is_silent(self, consumer: AdaptiveFlowConsumer, now_s: float) -> bool:
        timeout = self._settings.timeout
        # The same sum as in _due_s: an alarm that finds nothing to do would ring for ever.
        silence_s = min(timeout.silence_s, timeout.silence_max_s)
        return consumer.sends_heartbeats and consumer.heard_at_s + silence_s <= now_s

    def _take_back(
        self, consumer: AdaptiveFlowConsumer, overdue: list[FlowTuple], now_s: float
    ) -> list[FlowTuple]:
        """Slow, not dead: ask for what it has not begun, wait on for what it has.

        Returns those that were waited for long enough: they go to others although this bolt may
        be at work on them.
        """
        wait_s = self._settings.timeout.rto_max_s
        # Compared as the deadlines below are set, so that no rounding asks for ever.
        hopeless = [t for t in overdue if t.sent_at_s + wait_s <= now_s]
        asked = [t for t in overdue if t.sent_at_s + wait_s > now_s]
        for flow_tuple in asked:
            self._note_expired(consumer, flow_tuple, now_s)
            flow_tuple.deadline_s = min(now_s + consumer.rtt.rto_s, flow_tuple.sent_at_s + wait_s)
        if asked:
            self._revoke(consumer, [t.tuple_id for t in asked])
        return hopeless

    def _expire(
        self, consumer: AdaptiveFlowConsumer, overdue: list[FlowTuple], now_s: float
    ) -> None:
        for flow_tuple in overdue:
            self._note_expired(consumer, flow_tuple, now_s)
            del consumer.flight[flow_tuple.tuple_id]
            consumer.strays[flow_tuple.tuple_id] = now_s
            self.send_elsewhere(flow_tuple, consumer, now_s)

    def _note_expired(
        self, consumer: AdaptiveFlowConsumer, flow_tuple: FlowTuple, now_s: float
    ) -> None:
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

    def send_elsewhere(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> None:
        """Schedule what ``consumer`` held for another bolt, at once and without a fault."""
        flow_tuple.shun(consumer.bolt)
        consumer.moved_away += 1
        self.retries.add(flow_tuple, not_before_s=now_s, now_s=now_s)
