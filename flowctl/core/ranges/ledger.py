"""What of one partition is done, by position: the checkpoint of ranges, in today's format.

A checkpoint's positions are inclusive and those here are half-open: done through 100 means that the
last position done is 99.
"""

from __future__ import annotations

from flowctl.core.ranges.extent import Extent, check_not_rewritten
from flowctl.core.ranges.pieces import Pieces
from flowctl.core.rangeset import RangeSet
from flowctl.core.records import AckedRange, PartitionCheckpoint, Position
from flowctl.errors import SourceError


class RangeLedger:
    """The positions of one partition that are done, and how many records those are.

    Goes on from ``restored``.  Not thread-safe.
    """

    __slots__ = ("_base", "_counts", "_done", "extent", "partition")

    def __init__(
        self, partition: str, extent: Extent, restored: PartitionCheckpoint | None = None
    ) -> None:
        restored = restored or PartitionCheckpoint()
        check_not_rewritten(partition, restored, extent)
        self.partition: str = partition
        self.extent: Extent = extent
        self._base = extent.start
        self._done = RangeSet()
        self._counts: dict[int, int] = {}  # start of a range → its records
        if restored.position is not None:
            through = _integer(partition, restored.position) + 1
            self._base = min(extent.start, through - 1)
            # What lies before the extent, such as what a log has thrown away, needs no doing.
            self.ack(self._base, max(through, extent.start), restored.records)
        for span in restored.acked:
            first, last = _integer(partition, span.first), _integer(partition, span.last)
            self.ack(first, last + 1, span.records)

    def ack(self, start: int, stop: int, records: int) -> None:
        """``[start, stop)``, of which nothing or all may be done already, is done."""
        if start >= stop:
            return
        merged = sum(self._counts.pop(low) for low, _ in self._done.touching(start, stop))
        low, _ = self._done.add(start, stop)
        self._counts[low] = merged + records

    def grow(self, extent: Extent) -> Pieces:
        """The source is looked at again; return what there is to do that was not there before."""
        before, self.extent = self.extent, extent
        return self.missing(before.stop, extent.stop)

    def missing(self, start: int, stop: int) -> Pieces:
        """What of ``[start, stop)`` is not done."""
        left: list[tuple[int, int]] = []
        at = start
        for low, high in self._done.touching(start, stop) if start < stop else ():
            if at < low:
                left.append((at, low))
            at = max(at, high)
        if at < stop:
            left.append((at, stop))
        return tuple(left)

    @property
    def done_through(self) -> int:
        """Everything below is done."""
        first = self._done.first()
        return first[1] if first is not None and first[0] <= self._base else self._base

    @property
    def cumulative(self) -> Position | None:
        """The last position up to which all is done, or None."""
        through = self.done_through
        return through - 1 if through > self._base else None

    @property
    def positions_done(self) -> int:
        """How many positions of the extent are done."""
        extent = self.extent
        done = self._done.touching(extent.start, extent.stop)
        return sum(min(high, extent.stop) - max(low, extent.start) for low, high in done)

    @property
    def has_holes(self) -> bool:
        """Whether something is done above what is not."""
        return len(self._done) > (self.cumulative is not None)

    def checkpoint(self) -> PartitionCheckpoint:
        """Return what a restart needs; a pure read, O(ranges)."""
        ranges = list(self._done)
        position = self.cumulative
        records = 0
        if position is not None:
            records = self._counts[ranges.pop(0)[0]]
        acked = tuple(AckedRange(start, stop - 1, self._counts[start]) for start, stop in ranges)
        identity = self.extent.identity or None
        if self.extent.is_final and self.done_through >= self.extent.stop:
            return PartitionCheckpoint(position, records, acked, end=identity)
        # Before anything of it is done, it may become another between two runs.
        mark = identity if position is not None or acked else None
        return PartitionCheckpoint(position, records, acked, mark=mark)


def _integer(partition: str, position: Position) -> int:
    if isinstance(position, int):
        return position
    raise SourceError(
        f"partition {partition!r}: the checkpoint holds the position {position!r}, but a source"
        " that bolts read themselves has integers as positions.",
        remedy="Another kind of source wrote it: give this job a name of its own, or end the other"
        " job first and clear its checkpoint (flowctl checkpoint clear).",
    )
