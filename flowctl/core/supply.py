"""Sources of tuples, which also learn when a tuple is done: an intake, or a plain queue."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

from flowctl.core.buffer import Cut, SendBuffer, sizes_of
from flowctl.core.records import Position, Record


class Supply(Protocol):
    """What a ``TupleCore`` needs of its source: :class:`flowctl.core.intake.Intake`, or
    :class:`Backlog`.

    ``is_held``: nothing new may be sent yet.  ``holds_rest``: as far as is known, it holds all the
    records that are still to come.
    """

    is_held: bool

    @property
    def buffer(self) -> SendBuffer:
        """The records that no bolt was given yet."""

    @property
    def holds_rest(self) -> bool:
        """Whether, as far as is known, no more records will come."""

    def ack(self, cut: Cut) -> None:
        """Mark the records of ``cut`` done."""

    def acked_through(self, partition: str) -> Position | None:
        """Return the position up to which all of ``partition`` is done, as far as that is known."""

    def given_up(self, partition: str) -> Position | None:
        """Return the last position of ``partition`` that was given up or rejected, if that is
        known.
        """

    def note_lost(self, cut: Cut, *, is_kept: bool) -> None:
        """Mark the records of ``cut`` done without their effect: given up or rejected.

        ``is_kept``: the dead letter has them; otherwise they are kept nowhere.
        """

    def end(self) -> None:
        """Note that no more records will come."""


class BacklogBuffer(SendBuffer):
    """A buffer that gives at most ``records_max`` records at once: as many as there is room for
    afterwards.
    """

    __slots__ = ("records_max",)

    def __init__(self) -> None:
        super().__init__()
        self.records_max: float = inf

    def cut(self, records_max: int, bytes_max: int) -> Cut:
        """See :meth:`SendBuffer.cut`."""
        return super().cut(int(min(records_max, self.records_max)), bytes_max)


class Backlog:
    """An unbounded queue of records for bolts, which does not track the done ones.

    For a stage of a topology: there the trees of its inputs do that.  Not thread-safe.
    """

    __slots__ = ("_next_seq", "buffer", "is_held")

    # More comes as long as the previous stage has something; the end is reported by a call.
    holds_rest = False

    def __init__(self) -> None:
        self.buffer: BacklogBuffer = BacklogBuffer()
        self.is_held: bool = False
        self._next_seq = 0

    def put(self, partition: str, records: Sequence[Record]) -> None:
        """Append ``records``, at least one; all calls name the same partition."""
        self.buffer.put(partition, self._next_seq, records, sizes_of(records))
        self._next_seq += len(records)

    def ack(self, cut: Cut) -> None:
        """See :class:`Supply`; not noted."""

    def acked_through(self, partition: str) -> Position | None:
        """See :class:`Supply`; not known."""
        del partition
        return None

    def given_up(self, partition: str) -> Position | None:
        """See :class:`Supply`; not known."""
        del partition
        return None

    def note_lost(self, cut: Cut, *, is_kept: bool) -> None:
        """See :class:`Supply`; not noted."""

    def end(self) -> None:
        """See :class:`Supply`; changes nothing."""
