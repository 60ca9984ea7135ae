"""Which tuple is sent next: first retries, then new tuples, and copies at the very end."""

from __future__ import annotations

from collections.abc import Set

from flowctl.core.book import Book
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import EXACT_MAX, done_in_s
from flowctl.core.end_of_input.phase import EndOfInput
from flowctl.core.events import TupleHedged, TupleMoved
from flowctl.core.failures import Failures
from flowctl.core.messages import Ack, Emission
from flowctl.core.recovery import Recovery
from flowctl.core.sink_guard.guard import SinkGuard
from flowctl.core.sizing import records_for
from flowctl.core.tuples import FlowTuple

# Ready retries that are looked at before new tuples get their turn.  A retry whose other bolts are
# all full must not hold up the rest, and looking at every retry in each poll would cost O(retries).
_RETRIES_LOOKED_AT = 4
# The most bolts considered in turn, starting with the first to be done, until one should have more.
_BOLTS_ASKED = 4
_NOBODY: frozenset[str] = frozenset()


class Emitter:
    """Chooses the tuple, its size and its bolt.  Part of ``TupleCore``, not thread-safe."""

    def __init__(
        self,
        book: Book,
        failures: Failures,
        *,
        recovery: Recovery,
        end_phase: EndOfInput,
        guard: SinkGuard | None,
    ) -> None:
        self._book = book
        # Used for each tuple: direct references, as each attribute on the way would cost time.
        self._bolts = book.bolts
        self._pending = book.pending
        self._counters = book.counters
        self._ids = book.ids
        self._buffer = book.supply.buffer
        self._scheduled = failures.retries.scheduled
        self._settings = book.settings.tuple
        self._in_flight_max = book.settings.dispatch.in_flight_max
        self._bytes_max = book.settings.dispatch.bytes_max
        self._supply = book.supply
        self._failures = failures
        self._target = failures.target
        self._watch = recovery.watch
        self._end_phase = end_phase
        self._cuts_before = end_phase.cuts_before
        self._guard = guard
        self._pool = book.pool
        # Whether there was something to send when sending stopped last: windows were the limit, not
        # the producer (RFC 7661: a window that is not used must not grow).  Unknown at the start.
        self._window_limited = True

    def poll(self, now_s: float) -> Emission | None:
        """Return the next tuple that a window allows, and to whom; None: nothing now."""
        guard = self._guard
        # Asked for each tuple: most often neither has anything to send.
        is_held = self._target.is_troubled or (guard is not None and guard.in_use)
        is_held = is_held and self._is_held(now_s)
        # Not by len() and bool() of our own classes: those are calls, and this runs for each tuple.
        if self._scheduled and not is_held and not self._asks_with_new():
            emission = self._emit_retry(now_s)
            if emission is not None:
                return emission
        if not self._buffer.records:
            self._window_limited = False
            emission = None if is_held else self._emit_doubted(now_s)
            return emission or self._emit_copy(now_s)
        if self._supply.is_held:
            self._window_limited = False  # the next records must be saved first
            return None
        if is_held:
            self._window_limited = False  # no window holds it back: none must grow because of it
            return None
        if self._pool.bytes_held >= self._bytes_max:
            self._window_limited = False  # a larger window would not help
            return None
        is_at_limit = self._in_flight_max is not None and self.is_at_limit
        consumer = None if is_at_limit else self._book.dispatcher.pick()
        if consumer is None:
            self._window_limited = True
            return None
        records_max = self._size_for(consumer, now_s)
        if not records_max:
            consumer, records_max = self._next_to_have_more(consumer, now_s)
            if consumer is None:
                self._window_limited = False  # no window holds it back
                return None
        return self._emit_new(consumer, records_max, now_s)

    def _is_held(self, now_s: float) -> bool:
        """Whether the target, not a window, takes no more now."""
        guard, target = self._guard, self._target
        if guard is not None and guard.in_use and not guard.has_room(self.in_flight):
            return True
        return target.is_troubled and target.room(self.in_flight, now_s) < 1

    def _asks_with_new(self) -> bool:
        """Whether a target that is down is probed with tuples that never failed: the others may be
        bad.
        """
        return self._target.is_down and self._buffer.records > 0

    def tell_guard(self, flow_tuple: FlowTuple, ack: Ack, now_s: float) -> None:
        """Give the ack of a tuple in flight to the sink guard, if sink times are reported."""
        if self._guard is not None:
            self._guard.on_ack(
                now_s,
                sent_at_s=flow_tuple.sent_at_s,
                records=len(flow_tuple.cut.records),
                sink_s=ack.sink_s,
                wait_s=ack.wait_s,
                in_flight=self.in_flight,
                was_limited=flow_tuple.window_limited,
            )

    @property
    def is_at_limit(self) -> bool:
        """Whether as much is in flight as ``dispatch`` allows, in tuples or in bytes."""
        most = self._in_flight_max
        if most is not None and len(self._pending) >= most:
            return True
        return self._pool.bytes_held >= self._bytes_max

    @property
    def in_flight(self) -> int:
        """Tuples at bolts whose acks are waited for."""
        return len(self._pending) - len(self._scheduled) - self._failures.dying

    def _size_for(self, consumer: AdaptiveFlowConsumer, now_s: float) -> int:
        """Return how many records ``consumer`` should be given now; 0: none."""
        size_for = self._book.size_for
        if size_for is not None:
            records_max = size_for(consumer)
        else:
            records_max = records_for(consumer, self._settings, len(self._bolts), self._pool)
        if self._book.input_ended or (self._cuts_before and self._supply.holds_rest):
            left = self._buffer.records
            records_max = self._end_phase.size_of_next(consumer, records_max, left, now_s)
        if self._target.is_troubled and self._target.records_max < records_max:
            records_max = int(self._target.records_max)
        return records_max

    def _next_to_have_more(
        self, first: AdaptiveFlowConsumer, now_s: float
    ) -> tuple[AdaptiveFlowConsumer | None, int]:
        """Return the next bolt that should have more, as ``first`` should not."""
        avoid = {first.bolt}
        while len(avoid) < _BOLTS_ASKED:
            consumer = self._book.dispatcher.pick(avoid)
            if consumer is None:
                break
            records_max = self._size_for(consumer, now_s)
            if records_max:
                return consumer, records_max
            avoid.add(consumer.bolt)
        known = self._soonest_known(avoid) if len(self._bolts) <= EXACT_MAX else None
        records_max = self._size_for(known, now_s) if known is not None else 0
        return (known, records_max) if records_max else (None, 0)

    def _soonest_known(self, avoid: Set[str]) -> AdaptiveFlowConsumer | None:
        """Return the bolt with room that would be done first, of those that have acked something.

        All the new bolts that were asked before it may be too slow for what is left.
        """
        known = (c for c in self._bolts.values() if c.has_room and c.service.samples)
        others = (consumer for consumer in known if consumer.bolt not in avoid)
        return min(others, key=done_in_s, default=None)

    def _emit_new(self, consumer: AdaptiveFlowConsumer, records_max: int, now_s: float) -> Emission:
        if self._book.is_all_out:
            self._end_phase.on_more()
        counters = self._counters
        cut = self._buffer.cut(records_max, self._settings.bytes_max)
        ids = self._ids
        ids.last = tuple_id = ids.last + 1  # as next() does, without its call for each tuple
        flow_tuple = FlowTuple(tuple_id, cut)
        self._pending[tuple_id] = flow_tuple
        pending = counters.records_pending_now + len(cut.records)
        counters.records_pending_now = pending
        if pending > counters.max_in_flight_records:
            counters.max_in_flight_records = pending
        return self._send(flow_tuple, consumer, now_s)

    def _emit_copy(self, now_s: float) -> Emission | None:
        """Give an idle bolt a copy of a tuple that another bolt has begun and is late with
        (hedging).
        """
        if self._target.is_down:
            return None
        picked = self._end_phase.pick_copy(self._pool, now_s)
        if picked is None:
            return None
        flow_tuple, consumer = picked
        holder = self._book.bolts[flow_tuple.held_by or ""]
        holder.let_stray(flow_tuple.tuple_id, now_s)
        self._book.changed(holder)
        self._counters.tuples_hedged += 1
        emission = self._send(flow_tuple, consumer, now_s)
        self._book.events.append(
            TupleHedged(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                bolt=consumer.bolt,
                slow_bolt=holder.bolt,
                attempt=flow_tuple.attempt,
            )
        )
        return emission

    def _emit_retry(self, now_s: float) -> Emission | None:
        blocked: list[FlowTuple] = []
        emission = None
        retries = self._failures.retries
        looked_at = _RETRIES_LOOKED_AT
        if self._target.is_down:
            # One question in a second or two: it should be the one that is likeliest to succeed.
            if self._book.dispatcher.pick() is None:
                return None
            retries.start_over()
            looked_at = len(retries)
        while (flow_tuple := retries.take()) is not None:
            avoid = self._avoided(flow_tuple)
            consumer = self._end_phase.pick_idle(avoid)
            other = self._pick_for(flow_tuple, avoid)
            if consumer is None or (other and other.completion_s < consumer.completion_s):
                consumer = other
            if consumer is not None:
                emission = self._send_moved(flow_tuple, consumer, now_s)
                break
            blocked.append(flow_tuple)
            if len(blocked) >= looked_at:
                break
        for flow_tuple in blocked:
            retries.put_back(flow_tuple)
        return emission

    def _emit_doubted(self, now_s: float) -> Emission | None:
        """Give an idle bolt a tuple that another bolt may be working on: idle time costs nothing.

        Never to a bolt that had it before: that one would process it twice.
        """
        if not self._failures.retries.doubted:
            return None
        idle: list[AdaptiveFlowConsumer] = []
        asked: set[str] = set()
        while len(asked) < _BOLTS_ASKED:
            consumer = self._book.dispatcher.pick(asked)
            if consumer is None:
                break
            asked.add(consumer.bolt)
            if consumer.held < consumer.slots:
                idle.append(consumer)
        if not idle:
            return None
        for flow_tuple in self._failures.retries.doubted:
            for consumer in idle:
                if consumer.bolt not in (flow_tuple.avoided or _NOBODY):
                    self._failures.retries.discard(flow_tuple)
                    return self._send_moved(flow_tuple, consumer, now_s)
        return None

    def _send_moved(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> Emission:
        moved_from, sent_at_s = flow_tuple.held_by or "", flow_tuple.sent_at_s
        emission = self._send(flow_tuple, consumer, now_s)
        self._counters.tuples_moved += 1
        self._book.events.append(
            TupleMoved(
                at_s=now_s,
                tuple_id=flow_tuple.tuple_id,
                bolt=consumer.bolt,
                moved_from=moved_from,
                attempt=flow_tuple.attempt,
                sent_before_s=now_s - sent_at_s,
            )
        )
        return emission

    def _pick_for(self, flow_tuple: FlowTuple, avoid: Set[str]) -> AdaptiveFlowConsumer | None:
        """Return a bolt with room for a retry.  If possible not the bolt that just gave it back,
        unless that one has restarted since.
        """
        pick, last = self._book.dispatcher.pick, self._bolts.get(flow_tuple.held_by or "")
        if last is None or last.bolt in avoid or not last.sent:
            return pick(avoid)
        oldest = next(iter(last.flight.values()), flow_tuple)
        if oldest.sent_at_s > flow_tuple.sent_at_s:
            return pick(avoid)
        return pick({*avoid, last.bolt}) or pick(avoid)

    def _avoided(self, flow_tuple: FlowTuple) -> Set[str]:
        """Return the bolts that ``flow_tuple`` must not go to.

        Once every bolt has had it, only the last one: a bolt that loses all it gets may seem quick.
        """
        if not flow_tuple.avoided:
            return _NOBODY
        for avoid in (flow_tuple.avoided, {flow_tuple.held_by or ""}):
            if self._book.has_other(avoid, flow_tuple):
                return avoid
        return _NOBODY

    def _send(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> Emission:
        self._counters.tuples_emitted += 1
        consumer.on_sent(flow_tuple, now_s, self._window_limited)
        if self._book.is_all_out:
            self._end_phase.note_sent(flow_tuple, consumer)
        if self._target.is_troubled:
            self._target.note_sent(now_s)
        self._watch(consumer)
        cut = flow_tuple.cut
        partition = cut.partition
        return Emission(
            flow_tuple.tuple_id,
            consumer.bolt,
            flow_tuple.attempt,
            partition,
            cut.records,
            self._supply.acked_through(partition),
            cut.size_bytes,
            self._supply.given_up(partition),
        )
