"""Half-open ranges of sequence numbers: the selective acks above the cumulative one.

Kept sorted, disjoint and merged, in two parallel lists, so that a lookup is a bisection.
There are never more ranges than un-acked tuples plus one, so the lists stay short.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    """A set of integers as half-open ranges ``[start, stop)``.  Not thread-safe.

    Adding costs O(log R) comparisons and one list insertion for R ranges.
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> tuple[int, int]:
        """Add ``[start, stop)``; return the merged range that now holds it."""
        if start >= stop:
            raise ValueError(f"empty range [{start}, {stop})")
        # Ranges that touch or overlap [start, stop): those between low and high.
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        if low < high:
            start = min(start, self._starts[low])
            stop = max(stop, self._stops[high - 1])
        self._starts[low:high] = [start]
        self._stops[low:high] = [stop]
        return start, stop

    def touching(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges that touch or overlap ``[start, stop)``, in order."""
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        return list(zip(self._starts[low:high], self._stops[low:high], strict=True))

    def pop_first(self) -> tuple[int, int]:
        """Remove and return the lowest range; IndexError when empty."""
        return self._starts.pop(0), self._stops.pop(0)

    def first(self) -> tuple[int, int] | None:
        """Return the lowest range, or None."""
        return (self._starts[0], self._stops[0]) if self._starts else None

    def covers(self, start: int, stop: int) -> bool:
        """Say whether every number of ``[start, stop)`` is in the set."""
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and self._stops[index] >= stop

    def __contains__(self, number: int) -> bool:
        return self.covers(number, number + 1)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._starts)

    def __repr__(self) -> str:
        return "RangeSet(" + " ".join(f"[{a},{b})" for a, b in self) + ")"
