"""Virtual time: a heap of coming events."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, TypeAlias

from flowctl.errors import InternalError

_TURN_S = 1e-6  # delay of a call wanted at once: virtual time must pass
# A function that gets the time, and two arguments given with it.
Handler: TypeAlias = Callable[[float, Any, Any], None]


class EventLoop:
    """Runs handlers in the order of their times; for equal times in the order of :meth:`at`."""

    __slots__ = ("_heap", "_order", "is_stopped", "now_s", "steps")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Handler, Any, Any]] = []
        self._order = 0
        self.now_s: float = 0.0
        self.steps: int = 0
        self.is_stopped: bool = False

    def at(self, at_s: float, handler: Handler, first: Any = None, second: Any = None) -> None:
        """Call ``handler(at_s, first, second)`` at ``at_s``, which must not be in the past."""
        self._order += 1
        heappush(self._heap, (at_s, self._order, handler, first, second))

    def is_next(self, handler: Handler) -> bool:
        """Whether the next event is now too, and is ``handler``'s."""
        heap = self._heap
        return bool(heap) and heap[0][0] == self.now_s and heap[0][2] is handler

    def run(self, until_s: float, steps_max: float = inf) -> None:
        """Run until stopped, ``until_s``, ``steps_max``, or the last event."""
        heap = self._heap
        while heap and not self.is_stopped and self.steps < steps_max:
            at_s, _, handler, first, second = heappop(heap)
            if at_s > until_s:
                self.now_s = until_s
                return
            if at_s < self.now_s:
                raise InternalError(f"virtual time went back from {self.now_s} to {at_s}.")
            self.now_s = at_s
            self.steps += 1
            handler(at_s, first, second)


class Alarm:
    """Calls ``ring(at_s)`` at the earliest of the times asked for since it last rang."""

    __slots__ = ("_handler", "_loop", "_next_s", "_ring")

    def __init__(self, loop: EventLoop, ring: Callable[[float], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._next_s = inf
        self._handler: Handler = self._on_time  # bound once: it is set in each turn

    def set(self, next_s: float | None, now_s: float) -> None:
        """Ring at ``next_s``, but after ``now_s``; None or a later time changes nothing."""
        if next_s is not None and next_s < self._next_s:
            self._next_s = max(next_s, now_s + _TURN_S)
            self._loop.at(self._next_s, self._handler)

    def _on_time(self, at_s: float, _: Any, __: Any) -> None:
        if at_s == self._next_s:  # otherwise an earlier time was set meanwhile
            self._next_s = inf
            self._ring(at_s)
