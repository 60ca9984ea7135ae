"""Which rows a delivery has read, and so whether a letter of another attempt still stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowctl.core.letters import LetterKind
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

    def left_out(self, first: Position, last: Position) -> None:
        """Of these, which went in one call, the target says that it had some."""
        self._left_out.append((first, last))

    def is_written(self, position: Position, kind: LetterKind) -> bool | None:
        """Whether the row at ``position``, of which this delivery made no letter, is written.

        None: it is none of this delivery's.  A target that remembers calls takes a rejected row for
        written if it has the others of its call.
        """
        if kind == "rejected" and _is_in(position, self._left_out):
            return False
        return True if _is_in(position, self._read) else None


def _is_in(position: Any, ranges: list[tuple[Any, Any]]) -> bool:
    try:
        return any(first <= position <= last for first, last in ranges)
    except TypeError:  # positions of another shape: of another job under this name
        return False
