"""What goes out next: what has to go again, then new tuples, at the very end copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Set

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.counters import Counters
from flowctl.core.dispatch import EXACT_MAX, LeastCompletion, dispatcher_for, make_dispatcher
from flowctl.core.ending import Ending
from flowctl.core.events import FlowEvent, TupleHedged, TupleMoved
from flowctl.core.guard import SinkGuard
from flowctl.core.intake import Intake
from flowctl.core.records import Ack, Emission
from flowctl.core.recovery import Recovery
from flowctl.core.service import ServicePool
from flowctl.core.settings import CoreSettings
from flowctl.core.sizing import records_for
from flowctl.core.tuples import FlowTuple

# Ready retries looked at before new tuples get their turn: one whose other bolts are all full
# must not hold up the rest, and looking at each on every poll would cost O(retries).
_RETRIES_LOOKED_AT = 4
_NOBODY: frozenset[str] = frozenset()


class Emitter:
    """Chooses the tuple, its size and its bolt.  Part of ``SpoutCore``, not thread-safe.

    ``bolts`` and ``pending`` are the core's own.  ``out`` holds the bolts that nobody should wait
    for: suspect, or full of tuples given up on.  ``note_changed`` is told of each bolt that
    something changed about other than by being sent to.
    """

    def __init__(
        self,
        settings: CoreSettings,
        counters: Counters,
        events: deque[FlowEvent],
        *,
        intake: Intake,
        recovery: Recovery,
        ending: Ending,
        guard: SinkGuard | None,
        bolts: Mapping[str, AdaptiveFlowConsumer],
        pending: dict[int, FlowTuple],
        out: Set[str],
        note_changed: Callable[[AdaptiveFlowConsumer], None],
    ) -> None:
        self.dispatcher = make_dispatcher(settings)
        self.pool = ServicePool()
        self.last_id = 0
        self.input_ended = False
        self._settings = settings.tuple
        self._in_flight_max = settings.dispatch.in_flight_max
        self._counters = counters
        self._events = events
        self._intake = intake
        self._recovery = recovery
        self._ending = ending
        self._guard = guard
        self._bolts = bolts
        self._pending = pending
        self._out = out
        self._note_changed = note_changed
        # The last time that nothing could be sent, there was something to send: windows were the
        # limit, not the producer (RFC 7661: a window that is not used must not grow).  At the
        # start nobody knows.
        self._is_limited = True

    def note_added(self) -> None:
        """One more bolt is there: among very many the best is not looked for."""
        if len(self._bolts) > EXACT_MAX and isinstance(self.dispatcher, LeastCompletion):
            self.dispatcher = dispatcher_for(self._bolts.values())

    def poll(self, now_s: float) -> Emission | None:
        """Return the next tuple that a window allows, and to whom; None: nothing now."""
        guard = self._guard
        is_held = guard is not None and guard.in_use and not guard.has_room(self.in_flight)
        # Not by len() and bool() of our own classes: calls, and this is asked for each tuple.
        if self._recovery.retries.scheduled and not is_held:
            emission = self._emit_retry(now_s)
            if emission is not None:
                return emission
        if not self._intake.buffer.records:
            self._is_limited = False
            return self._emit_copy(now_s) if self.input_ended else None
        if self._intake.is_held:
            self._is_limited = False  # its position is not saved yet
            return None
        if is_held:
            self._is_limited = False  # by no bolt's window: none of them must grow from it
            return None
        is_at_limit = self._in_flight_max is not None and self.is_at_limit
        consumer = None if is_at_limit else self.dispatcher.pick()
        if consumer is None:
            self._is_limited = True
            return None
        return self._emit_new(consumer, now_s)

    def tell_guard(self, flow_tuple: FlowTuple, ack: Ack, now_s: float) -> None:
        """A tuple that is still in flight was acked, and sink times are told."""
        if self._guard is not None:
            self._guard.on_ack(
                now_s,
                sent_at_s=flow_tuple.sent_at_s,
                records=len(flow_tuple.cut.records),
                sink_s=ack.sink_s,
                wait_s=ack.wait_s,
                in_flight=self.in_flight,
                was_limited=flow_tuple.is_limited,
            )

    @property
    def is_at_limit(self) -> bool:
        """Whether as many tuples are pending as ``dispatch.in_flight_max`` allows."""
        most = self._in_flight_max
        return most is not None and len(self._pending) >= most

    @property
    def in_flight(self) -> int:
        """Tuples at bolts, as far as they are waited for."""
        return len(self._pending) - len(self._recovery.retries)

    def _emit_new(self, consumer: AdaptiveFlowConsumer, now_s: float) -> Emission | None:
        settings, buffer, counters = self._settings, self._intake.buffer, self._counters
        records_max = records_for(consumer, settings, len(self._bolts), self.pool)
        if self.input_ended:
            records_max = self._ending.size_of_next(consumer, records_max, buffer.records)
            if not records_max:
                self._is_limited = False  # its window is not what holds it back
                return None
        cut = buffer.cut(records_max, settings.bytes_max)
        self.last_id += 1
        flow_tuple = FlowTuple(self.last_id, cut)
        self._pending[flow_tuple.tuple_id] = flow_tuple
        counters.records_pending_now += len(cut.records)
        if counters.records_pending_now > counters.records_pending_max:
            counters.records_pending_max = counters.records_pending_now
        return self._send(flow_tuple, consumer, now_s)

    def _emit_copy(self, now_s: float) -> Emission | None:
        """An idle bolt gets what another has begun and is late with (hedging)."""
        picked = self._ending.pick_copy(self.pool, now_s)
        if picked is None:
            return None
        flow_tuple, consumer = picked
        holder = self._bolts[flow_tuple.held_by or ""]
        holder.take_out(flow_tuple.tuple_id)
        holder.strays[flow_tuple.tuple_id] = now_s
        self._note_changed(holder)
        self._counters.hedged += 1
        emission = self._send(flow_tuple, consumer, now_s)
        self._events.append(
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
        for flow_tuple in self._recovery.retries.take_ready():
            avoid = self._avoided(flow_tuple)
            consumer = self._ending.pick_idle(avoid) or self.dispatcher.pick(avoid)
            if consumer is not None:
                moved_from = flow_tuple.held_by or ""
                emission = self._send(flow_tuple, consumer, now_s)
                self._counters.moved += 1
                self._events.append(
                    TupleMoved(
                        at_s=now_s,
                        tuple_id=flow_tuple.tuple_id,
                        bolt=consumer.bolt,
                        moved_from=moved_from,
                        attempt=flow_tuple.attempt,
                    )
                )
                break
            blocked.append(flow_tuple)
            if len(blocked) >= _RETRIES_LOOKED_AT:
                break
        for flow_tuple in blocked:
            self._recovery.retries.put_back(flow_tuple)
        return emission

    def _avoided(self, flow_tuple: FlowTuple) -> Set[str]:
        """The bolts it must not go to; none once every bolt in use has had it (ruling 1.9-G)."""
        avoid = flow_tuple.avoid
        if not avoid:
            return _NOBODY
        usable = len(self._bolts) - len(self._out)
        avoided = sum(1 for bolt in avoid if bolt in self._bolts and bolt not in self._out)
        return avoid if usable > avoided else _NOBODY

    def _send(
        self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer, now_s: float
    ) -> Emission:
        self._counters.emitted += 1
        flow_tuple.is_limited = self._is_limited
        consumer.on_sent(flow_tuple, now_s)
        if self.input_ended:
            self._ending.note_sent(flow_tuple, consumer)
        self._recovery.watch(consumer)
        cut = flow_tuple.cut
        return Emission(
            flow_tuple.tuple_id,
            consumer.bolt,
            flow_tuple.attempt,
            cut.partition,
            cut.records,
            self._intake.acked_through(cut.partition),
            cut.size_bytes,
        )
