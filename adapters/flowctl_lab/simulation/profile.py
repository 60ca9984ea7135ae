"""The speed of a machine over time, and conversions between time and work."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

INFINITE_S = float("inf")
Interval = tuple[float, float]


class Profile:
    """Speed as a step function of virtual time; work is measured in seconds at speed 1.

    Immutable after construction.  ``speed(t)`` must hold from each of ``times_s`` to the next;
    the last holds for ever.
    """

    __slots__ = ("_done", "_speeds", "_times")

    def __init__(self, times_s: Iterable[float], speed: Callable[[float], float]) -> None:
        self._times = sorted({0.0, *(t for t in times_s if 0.0 < t < INFINITE_S)})
        # Taken in the middle of each step, so that rounding at its ends doesn't matter.
        ends = [*self._times[1:], self._times[-1] + 2.0]
        self._speeds = [
            speed((begin + end) / 2) for begin, end in zip(self._times, ends, strict=True)
        ]
        self._done = [0.0]
        for index in range(1, len(self._times)):
            step_s = self._times[index] - self._times[index - 1]
            self._done.append(self._done[-1] + step_s * self._speeds[index - 1])

    def done(self, at_s: float) -> float:
        """Return the work that can be done from 0 to ``at_s``."""
        step = bisect_right(self._times, at_s) - 1
        return self._done[step] + (at_s - self._times[step]) * self._speeds[step]

    def finish(self, at_s: float, work: float) -> float:
        """Return when ``work`` begun at ``at_s`` is done; infinity if never."""
        if len(self._times) == 1:
            return at_s + work / self._speeds[0] if self._speeds[0] else INFINITE_S
        step = bisect_right(self._times, at_s) - 1
        target = self._done[step] + (at_s - self._times[step]) * self._speeds[step] + work
        step = max(step, bisect_left(self._done, target) - 1)
        speed = self._speeds[step]
        if speed == 0.0:
            return INFINITE_S if target > self._done[step] else at_s
        return max(at_s, self._times[step] + (target - self._done[step]) / speed)


class Spells:
    """Periods during which a condition holds, sorted and disjoint, as ``(begin, end)``."""

    __slots__ = ("_begins", "_ends")

    def __init__(self, spells: Iterable[Interval]) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []
        for begin, end in sorted(spells):
            if self._ends and begin <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __iter__(self) -> Iterator[Interval]:
        return iter(zip(self._begins, self._ends, strict=True))

    def over_at(self, at_s: float) -> float:
        """Return the end of the period at ``at_s``; ``at_s`` itself outside all periods."""
        index = bisect_right(self._begins, at_s) - 1
        return max(at_s, self._ends[index]) if index >= 0 else at_s
