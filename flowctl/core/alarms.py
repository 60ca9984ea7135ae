"""One timer per bolt, however many tuples it holds.

The heap has at most one live entry per bolt.  An ack does not touch it: an alarm that rings too
early is reset, which costs one wake-up per time-out instead of one heap operation per tuple; or
the driver puts it off before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final

from flowctl.core.consumer import NEVER, AdaptiveFlowConsumer
from flowctl.core.state import Liveness

_GONE: Final = Liveness.GONE  # asked for each turn: a member of an enum costs .2 us


class Alarms:
    """When to look at which bolt.  Not thread-safe."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, AdaptiveFlowConsumer]] = []
        self._order = 0  # breaks ties: consumers do not compare

    def set(self, consumer: AdaptiveFlowConsumer, at_s: float) -> None:
        """Ring for ``consumer`` at ``at_s``, or earlier if that is already set."""
        if at_s < consumer.alarm_s:
            consumer.alarm_s = at_s
            self._order += 1
            heappush(self._heap, (at_s, self._order, consumer))

    def next_s(self) -> float | None:
        """When the next alarm rings, or None."""
        heap = self._heap
        while heap and self._is_stale(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def put_off(self, due_s: Callable[[AdaptiveFlowConsumer], float]) -> None:
        """Reset the first alarms if they would ring too early, by ``due_s``.

        For drivers that hear of a bolt a few times a second: without it they wake up for alarms
        more often than for messages.  It costs a heap operation for each bolt that was heard of.
        """
        heap = self._heap
        while heap:
            at_s, _, consumer = heap[0]
            is_stale = self._is_stale(heap[0])
            if not is_stale and (later_s := due_s(consumer)) <= at_s:
                return
            heappop(heap)
            if not is_stale:
                consumer.alarm_s = NEVER
                self.set(consumer, later_s)

    def ring(
        self, now_s: float, due_s: Callable[[AdaptiveFlowConsumer], float]
    ) -> Iterator[AdaptiveFlowConsumer]:
        """Yield the bolts whose time has come by ``due_s``; set the others' alarms again."""
        heap = self._heap
        rung: list[AdaptiveFlowConsumer] = []
        while heap and heap[0][0] <= now_s:
            entry = heappop(heap)
            if not self._is_stale(entry):
                entry[2].alarm_s = NEVER
                rung.append(entry[2])
        for consumer in rung:  # each once, even if it is due again at once
            at_s = due_s(consumer)
            if at_s <= now_s:
                yield consumer
                at_s = due_s(consumer)
            self.set(consumer, at_s)

    @staticmethod
    def _is_stale(entry: tuple[float, int, AdaptiveFlowConsumer]) -> bool:
        at_s, _, consumer = entry
        return consumer.liveness is _GONE or consumer.alarm_s != at_s
