"""Which rows a delivery has read, and so whether a letter of another attempt still stands."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.records import Position


class ReadRows:
    """Positions of one partition's rows, as few ranges.  Not thread-safe.

    ``section_of`` is that of :class:`flowctl.delivery.plan.Where`.
    """

    def __init__(self, section_of: Callable[[Any], Any] | None) -> None:
        self._section_of = section_of
        self._read: list[tuple[Any, Any]] = []
        self._left_out: list[tuple[Any, Any]] = []

    @property
    def first(self) -> Position:
        """The position of the first row of all; there must be one."""
        found: Position = self._read[0][0]
        return found

    def read(self, first: Position, last: Position) -> None:
        """These were read together, right behind those before; they are of one section."""
        section_of = self._section_of
        if self._read:
            begin, end = self._read[-1]
            if section_of is None or section_of(end) == section_of(first):
                self._read[-1] = begin, last
                return
        self._read.append((first, last))

    def left_out(self, batch: Batch) -> None:
        """The target says that it had some of these rows; if it does not say which, perhaps all."""
        indices = range(len(batch)) if batch.left_out_at is None else sorted(batch.left_out_at)
        # Neighbours have the same difference between their index and their rank.
        for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
            at = [index for _, index in run]
            self._left_out.append((batch[at[0]].position, batch[at[-1]].position))

    def is_written(self, position: Position) -> bool | None:
        """Whether the row at ``position``, of which this delivery made no letter, is written.

        False: the target took it for written, and left it out.  That is wrong of a row that has a
        letter: it was rejected in a call that was written, or lies between such calls.  None: it is
        none of this delivery's.
        """
        if _is_in(position, self._left_out):
            return False
        return True if _is_in(position, self._read) else None


def _is_in(position: Any, ranges: list[tuple[Any, Any]]) -> bool:
    try:
        return any(first <= position <= last for first, last in ranges)
    except TypeError:  # positions of another shape: of another job under this name
        return False
