"""Tuples by a time: nearly all are known at once, some come later, and each is taken out once."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TypeAlias

Entry: TypeAlias = tuple[float, int]  # a time or its negative, and a tuple's id


class DueOrder:
    """The least entry first, as of a heap.  Not thread-safe.

    What is known at the start is sorted once and taken from the end: with 48,000 tuples a quarter
    of what it costs to fill and empty a heap.
    """

    __slots__ = ("_late", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[Entry] = []  # the least one last
        self._late: list[Entry] = []  # a heap

    def start(self, entries: Iterable[Entry]) -> None:
        """Hold ``entries``, and nothing else."""
        self._sorted = sorted(entries, reverse=True)
        self._late = []

    def add(self, entry: Entry) -> None:
        """Hold ``entry`` as well."""
        heappush(self._late, entry)

    def first(self) -> Entry | None:
        """Return the least entry, or None."""
        if self._is_late_first():
            return self._late[0]
        return self._sorted[-1] if self._sorted else None

    def drop_first(self) -> None:
        """Take out the least entry, which is there."""
        if self._is_late_first():
            heappop(self._late)
        else:
            self._sorted.pop()

    def _is_late_first(self) -> bool:
        late, known = self._late, self._sorted
        return bool(late) and (not known or late[0] < known[-1])
