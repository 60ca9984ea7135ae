"""At the end of the input an idle bolt runs what another has begun and would be late with.

After Dean & Barroso, The Tail at Scale (2013): hedged requests.  Unlike taking back what was not
begun it costs work twice, so it comes last, within budgets, and can be switched off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from itertools import chain, islice

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import EXACT_MAX
from flowctl.core.end_of_input.stealing import IDLE_LOOKED_AT
from flowctl.core.settings import HedgeSettings
from flowctl.core.tuples import FlowTuple

# The idle bolt must be done in half of the time that the other still needs: a copy that is only a
# little sooner is not worth its work.
_GAIN = 2.0
# Copies may take half of the time that bolts are idle for, beside their share of the work: nobody
# else wants that time, and half is left to what is yet to come.
_IDLE_PART = 0.5
# It must save so much at least [s]: a system holds up a thread, or an interpreter, for some slices
# of 5 ms, and who is late by less is not slow.
_SAVES_MIN_S = 0.02
# A time that was asked for must count as reached when it comes: far above the rounding of clocks.
_ROUNDING_S = 1e-6


class _Queue:
    """Tuples by a time, the earliest first: those of the start sorted once, later ones in a heap.

    Of 48,000 tuples (3,000 bolts, windows of 16) nearly all are acked before anybody asks for them:
    to push them to a heap and to pop them one by one took four times as long.
    """

    __slots__ = ("_later", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[tuple[float, int]] = []  # (time, tuple id), the first at the end
        self._later: list[tuple[float, int]] = []

    def begin(self, entries: Iterable[tuple[float, int]]) -> None:
        """Hold ``entries`` and nothing else."""
        self._sorted = sorted(entries, reverse=True)
        self._later.clear()

    def push(self, entry: tuple[float, int]) -> None:
        heappush(self._later, entry)

    def first(self) -> tuple[float, int] | None:
        """The earliest entry, or None."""
        if self._sorted and not (self._later and self._later[0] < self._sorted[-1]):
            return self._sorted[-1]
        return self._later[0] if self._later else None

    def drop(self, first: tuple[float, int]) -> None:
        """Take out ``first``, which :meth:`first` just returned."""
        if self._sorted and self._sorted[-1] is first:
            self._sorted.pop()
        else:
            heappop(self._later)


class Hedging:
    """Finds the tuple that will be last, and an idle bolt that would be sooner.

    A tuple whose time is over is expected to take as long again as it is late already, for nothing
    is known of it any more.  O(log n) a question.  Part of ``TupleCore``, not thread-safe.
    """

    def __init__(
        self,
        settings: HedgeSettings,
        bolts: Mapping[str, AdaptiveFlowConsumer],
        pending: Mapping[int, FlowTuple],
    ) -> None:
        self._settings = settings
        self._bolts = bolts
        self._pending = pending
        self._is_started = False
        self._latest = _Queue()  # (-due_s, tuple id)
        self._earliest = _Queue()  # (due_s, tuple id)
        self._left = 0  # tuples that may still be hedged
        self._work_left_s = 0.0  # and seconds of work, as of the last question
        self._asked_s = 0.0  # when that was
        self._were_idle = 0
        self._again_s: float | None = None

    def start(self, now_s: float, *, tuples: int, work_s: float) -> None:
        """Nothing is left to send; ``tuples`` and ``work_s`` is what there was in all.

        O(n log n).
        """
        self._is_started = True
        share = self._settings.share_max
        slots = sum(consumer.slots for consumer in self._bolts.values())
        self._left = max(slots, int(share * tuples))  # a bolt that hangs holds one in each slot
        self._work_left_s = share * work_s
        self._asked_s = now_s
        expected: list[tuple[float, int]] = []
        for consumer in self._bolts.values():
            service = consumer.service
            done_s = consumer.armed_at_s + service.path_s
            for flow_tuple in consumer.flight.values():
                done_s += service.of(len(flow_tuple.cut.records)) / consumer.slots
                flow_tuple.due_s = max(now_s, done_s)
                if not flow_tuple.is_hedged:
                    expected.append((flow_tuple.due_s, flow_tuple.tuple_id))
        self._latest.begin((-due_s, tuple_id) for due_s, tuple_id in expected)
        self._earliest.begin(expected)

    def note_sent(self, flow_tuple: FlowTuple, consumer: AdaptiveFlowConsumer) -> None:
        """``consumer`` was just sent ``flow_tuple``."""
        if self._is_started:
            ready_s = consumer.work_s() / consumer.slots + consumer.service.path_s
            due_s = flow_tuple.due_s = flow_tuple.sent_at_s + ready_s
            if not flow_tuple.is_hedged:
                self._latest.push((-due_s, flow_tuple.tuple_id))
                self._earliest.push((due_s, flow_tuple.tuple_id))

    def stop(self) -> None:
        """There is something to send again."""
        self._is_started = False
        self._again_s = None
        self._were_idle = 0
        self._latest.begin(())
        self._earliest.begin(())

    def next_s(self) -> float | None:
        """When to ask again although nothing has happened, or None."""
        return self._again_s

    def pick(
        self, idle: dict[str, None], now_s: float
    ) -> tuple[FlowTuple, AdaptiveFlowConsumer] | None:
        """Return a tuple and the idle bolt that shall have it as well, or None.

        ``idle``: the bolts that have nothing to do, the longest idle first.
        """
        self._again_s = None
        settings = self._settings
        if not (settings.enabled and settings.share_max and self._is_started and self._left > 0):
            return None
        self._work_left_s += _IDLE_PART * self._were_idle * (now_s - self._asked_s)
        self._asked_s, self._were_idle = now_s, len(idle)
        flow_tuple = self._worst(now_s)
        if flow_tuple is None:
            return None
        found = self._soonest(flow_tuple, idle)
        if found is None:
            return None
        consumer, needs_s = found
        sooner_s = self._another_is_sooner_s(flow_tuple, needs_s, now_s)
        if sooner_s is not None:
            self._again_s = sooner_s + _ROUNDING_S
            return None
        worth_s = max(_GAIN * needs_s, needs_s + _SAVES_MIN_S)
        if worth_s > _remaining_s(flow_tuple, now_s) + _ROUNDING_S:
            overdue = self._top(self._earliest, 1.0)
            if overdue is not None:
                self._again_s = overdue.due_s + worth_s
            return None
        if needs_s > self._work_left_s:
            lacks_s = needs_s - self._work_left_s
            self._again_s = now_s + lacks_s / (_IDLE_PART * len(idle)) + _ROUNDING_S
            return None
        self._left -= 1
        self._work_left_s -= needs_s
        flow_tuple.is_hedged = True
        return flow_tuple, consumer

    def _another_is_sooner_s(
        self, flow_tuple: FlowTuple, needs_s: float, now_s: float
    ) -> float | None:
        """When a bolt is free that is at work, not late, and would be done sooner; None: none."""
        if len(self._bolts) > EXACT_MAX:
            return None
        records, holder = len(flow_tuple.cut.records), flow_tuple.held_by
        for bolt, consumer in self._bolts.items():
            service = consumer.service
            if bolt == holder or not (consumer.flight and service.samples):
                continue
            free_s = consumer.armed_at_s + consumer.work_s() / consumer.slots - now_s
            if 0 < free_s < needs_s - service.of(records) - service.path_s:
                return now_s + free_s
        return None

    def _worst(self, now_s: float) -> FlowTuple | None:
        latest = self._top(self._latest, -1.0)
        earliest = self._top(self._earliest, 1.0)
        if latest is None or earliest is None:
            return None
        return max(latest, earliest, key=lambda t: _remaining_s(t, now_s))

    def _top(self, queue: _Queue, sign: float) -> FlowTuple | None:
        """The first tuple of ``queue`` that is still in flight where it was expected."""
        while (first := queue.first()) is not None:
            at_s, tuple_id = first
            flow_tuple = self._pending.get(tuple_id)
            if flow_tuple is not None and not flow_tuple.is_hedged:
                holder = self._bolts.get(flow_tuple.held_by or "")
                held = holder is not None and tuple_id in holder.flight
                if held and flow_tuple.due_s == sign * at_s:
                    return flow_tuple
            queue.drop(first)
        return None

    def _soonest(
        self, flow_tuple: FlowTuple, idle: dict[str, None]
    ) -> tuple[AdaptiveFlowConsumer, float] | None:
        best: tuple[AdaptiveFlowConsumer, float] | None = None
        records = len(flow_tuple.cut.records)
        # The longest idle may never have had anything, and of the others the last are known best.
        looked_at = IDLE_LOOKED_AT // 2
        for bolt in chain(islice(idle, looked_at), islice(reversed(idle), looked_at)):
            consumer = self._bolts[bolt]
            service = consumer.service
            if not (service.samples and consumer.has_room):
                continue
            if flow_tuple.avoided and bolt in flow_tuple.avoided:
                continue
            needs_s = service.of(records) + service.path_s
            if best is None or needs_s < best[1]:
                best = (consumer, needs_s)
        return best


def _remaining_s(flow_tuple: FlowTuple, now_s: float) -> float:
    return abs(flow_tuple.due_s - now_s)
