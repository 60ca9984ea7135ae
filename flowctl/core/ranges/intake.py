"""The work of a source by reference: which ranges no bolt has yet, and which are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, islice

from flowctl.core.buffer import Cut, SendBuffer
from flowctl.core.lost import kept_nowhere, with_lost
from flowctl.core.ranges.extent import Extent, check_not_rewritten
from flowctl.core.ranges.pieces import Pieces, RangeCut, cut_of, measure, minus
from flowctl.core.rangeset import RangeSet
from flowctl.core.records import (
    AckedRange,
    Checkpoint,
    LostRange,
    PartitionCheckpoint,
    Position,
)
from flowctl.errors import SourceError

# -- What of one partition is done, by position: the checkpoint of ranges, in today's format ---
#
# A checkpoint's positions are inclusive and those here are half-open: done through 100 means that
# the last position done is 99.


class RangeLedger:
    """The positions of one partition that are done, and the number of records in them.

    Continues from ``restored``.  Not thread-safe.
    """

    __slots__ = ("_base", "_counts", "_done", "extent", "lost", "partition")

    def __init__(
        self, partition: str, extent: Extent, restored: PartitionCheckpoint | None = None
    ) -> None:
        restored = restored or PartitionCheckpoint()
        check_not_rewritten(partition, restored, extent)
        self.partition: str = partition
        self.extent: Extent = extent
        self._base = extent.start
        self.lost: tuple[LostRange, ...] = restored.lost
        self._done = RangeSet()
        self._counts: dict[int, int] = {}  # start of a range → its records
        if restored.position is not None:
            through = _integer(partition, restored.position) + 1
            self._base = min(extent.start, through - 1)
            # Positions before the extent, such as records that a log has deleted, need no work.
            self.ack(self._base, max(through, extent.start), restored.records)
        for span in restored.acked:
            first, last = _integer(partition, span.first), _integer(partition, span.last)
            self.ack(first, last + 1, span.records)

    def ack(self, start: int, stop: int, records: int) -> None:
        """Mark ``[start, stop)`` done, of which nothing, a part or all may be done already."""
        if start >= stop:
            return
        merged = sum(self._counts.pop(low) for low, _ in self._done.touching(start, stop))
        low, _ = self._done.add(start, stop)
        self._counts[low] = merged + records

    def grow(self, extent: Extent) -> Pieces:
        """Take the extent of another look at the source; return the new pieces to do."""
        before, self.extent = self.extent, extent
        return self.missing(before.stop, extent.stop)

    def missing(self, start: int, stop: int) -> Pieces:
        """Return the pieces of ``[start, stop)`` that are not done."""
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
        """The number of positions of the extent that are done."""
        extent = self.extent
        done = self._done.touching(extent.start, extent.stop)
        return sum(min(high, extent.stop) - max(low, extent.start) for low, high in done)

    @property
    def has_holes(self) -> bool:
        """Whether something is done above a position that is not."""
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
            return PartitionCheckpoint(position, records, acked, end=identity, lost=self.lost)
        # Before any of it is done, its identity may change between two runs.
        mark = identity if position is not None or acked else None
        return PartitionCheckpoint(position, records, acked, mark=mark, lost=self.lost)


def _integer(partition: str, position: Position) -> int:
    if isinstance(position, int):
        return position
    raise SourceError(
        f"partition {partition!r}: the checkpoint holds the position {position!r}, but a source"
        " that bolts read themselves has integers as positions.",
        remedy="Another kind of source wrote it: give this job a name of its own, or end the other"
        " job first and clear its checkpoint (flowctl checkpoint clear).",
    )


# -- What there is to do of a source by reference ----------------------------------------------


# The first range of a bolt of which nothing is known: one block, as readers read it at once.  At a
# millisecond a record that may be ten seconds of work, but reports of progress show that early, and
# a begun range can be split.
_FIRST_BYTES = 1 << 20
# The same if a source does not say how large it is: a small batch, as for records by value.
_FIRST_POSITIONS = 1_000


class RangeBacklog(SendBuffer):
    """Ranges that no bolt was given yet; ``records`` counts their positions.  Not thread-safe."""

    __slots__ = ("_extents", "_waiting")

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[tuple[str, int, int]] = deque()
        self._extents: dict[str, Extent] = {}

    def add(self, partition: str, extent: Extent, pieces: Pieces) -> None:
        """Add ``pieces`` of ``partition``, which are to be done."""
        self._extents[partition] = extent
        self._waiting.extend((partition, start, stop) for start, stop in pieces)
        self.records += measure(pieces)

    def put_back(self, partition: str, pieces: Pieces) -> None:
        """Put back ``pieces`` of ``partition`` that were given out and not begun; they are the next
        again.
        """
        self._waiting.extendleft((partition, *piece) for piece in reversed(pieces))
        self.records += measure(pieces)

    def of(self, partition: str) -> Pieces:
        """Return the pieces of ``partition`` that wait.  O(all)."""
        return tuple(sorted((a, b) for name, a, b in self._waiting if name == partition))

    def take_out(self, partition: str, pieces: Pieces) -> None:
        """Take out ``pieces`` of ``partition`` that a bolt had before and has done now.  O(all)."""
        kept: deque[tuple[str, int, int]] = deque()
        for name, start, stop in self._waiting:
            left = minus(((start, stop),), pieces) if name == partition else ((start, stop),)
            kept.extend((name, a, b) for a, b in left)
        self._waiting = kept
        self.records = sum(stop - start for _, start, stop in kept)

    @property
    def first_positions(self) -> int:
        """Return how many positions a bolt gets while nothing is known of it.  Not when empty."""
        extent = self._extents[self._waiting[0][0]]
        if not extent.size_bytes:
            return _FIRST_POSITIONS
        return max(1, _FIRST_BYTES * (extent.stop - extent.start) // extent.size_bytes)

    def cut(self, records_max: int, bytes_max: int) -> Cut:
        """Take up to ``records_max`` positions; a source that can't be split goes as a whole."""
        del bytes_max  # the driver holds none of the records
        partition, start, stop = self._waiting.popleft()
        extent = self._extents[partition]
        end = stop if not extent.is_splittable else min(stop, start + records_max)
        self.records -= end - start
        if end < stop and extent.is_final:
            self._waiting.appendleft((partition, end, stop))
        elif end < stop:  # partitions that grow take turns, or the last one would never get one
            self._waiting.append((partition, end, stop))
        return cut_of(
            partition, ((start, end),), extent.identity, is_splittable=extent.is_splittable
        )


class RangeIntake:
    """Ledgers and backlog of all partitions.  Not thread-safe; owned by ``RangeCore``.

    Drivers use it like :class:`flowctl.core.intake.Intake`; as no record is read here, there is
    always room, and nothing waits for a save.
    """

    def __init__(self, restored: Checkpoint) -> None:
        self.buffer: RangeBacklog = RangeBacklog()
        self.ledgers: dict[str, RangeLedger] = {}
        self.is_held = False
        self.holds_rest = False  # only the end of the source is known, and it is reported by a call
        self.has_room = True
        self.is_full = False
        self.skipped = 0
        self.uncommitted = 0
        self.positions_done: int = 0  # in this run
        self._restored = dict(restored.partitions)
        self._moved: set[str] = set()

    def offer(self, extents: Mapping[str, Extent]) -> None:
        """Take the extents of the source's partitions, as just looked up.

        Raises :class:`SourceError` if one has another identity than before, or has become shorter.
        """
        for partition, extent in extents.items():
            ledger = self.ledgers.get(partition)
            if ledger is None:
                ledger = RangeLedger(partition, extent, self._restored.pop(partition, None))
                self.ledgers[partition] = ledger
                pieces = ledger.missing(extent.start, extent.stop)
            elif extent != ledger.extent:
                _check_same(partition, ledger.extent, extent)
                pieces = ledger.grow(extent)
            else:
                continue
            self.buffer.add(partition, extent, pieces)

    @property
    def is_final(self) -> bool:
        """Whether no partition grows any more."""
        return all(ledger.extent.is_final for ledger in self.ledgers.values())

    def note_done(self, partition: str, pieces: Pieces, records: int) -> None:
        """Note that ``pieces``, none of which was done before, are done; they hold ``records``."""
        ledger = self.ledgers[partition]
        left, positions = records, measure(pieces)
        self.positions_done += positions
        for start, stop in pieces:
            # If there are several, only their sum is known: each gets its share by length.
            share = left * (stop - start) // positions if positions else 0
            ledger.ack(start, stop, share)
            left -= share
            positions -= stop - start
        self._moved.add(partition)

    def ack(self, cut: Cut) -> None:
        """Mark the rest of a tuple done; it counts as one record."""
        assert isinstance(cut, RangeCut)
        if cut.pieces:
            self.note_done(cut.partition, cut.pieces, 1)

    def acked_through(self, partition: str) -> Position | None:
        """Return the position up to which all of ``partition`` is done."""
        return self.ledgers[partition].cumulative

    def given_up(self, partition: str) -> Position | None:
        """Return the last position of ``partition`` that was given up or rejected; None: none
        was.
        """
        lost = self.ledgers[partition].lost
        return lost[-1].last if lost else None

    def note_lost(self, cut: Cut, *, is_kept: bool) -> None:
        """See :class:`flowctl.core.supply.Supply`; ``cut`` is one record."""
        assert isinstance(cut, RangeCut)
        ledger = self.ledgers[cut.partition]
        ledger.lost = with_lost(ledger.lost, cut.pieces[-1][1] - 1, is_kept=is_kept)
        self._moved.add(cut.partition)

    def end(self) -> None:
        """Note that no partition grows any more."""

    def note_mark(self, partition: str, mark: Position) -> None:
        """For sources by value."""

    def finish(self, partition: str, end: Position) -> None:
        """For sources by value."""

    def uncommitted_of(self, partition: str) -> int:
        """For sources by value."""
        del partition
        return 0

    @property
    def progress(self) -> tuple[int, int]:
        """Return what is done and the total: in bytes if all partitions know theirs, else in
        positions.
        """
        ledgers = list(self.ledgers.values())
        if all(ledger.extent.size_bytes is not None for ledger in ledgers):
            sizes = [_bytes_of(ledger) for ledger in ledgers]
        else:
            sizes = [(led.positions_done, led.extent.stop - led.extent.start) for led in ledgers]
        return sum(done for done, _ in sizes), sum(total for _, total in sizes)

    # -- the checkpoint ------------------------------------------------------------------

    def touch(self, partitions: Iterable[str]) -> None:
        """Have :meth:`take_moved` return ``partitions`` again."""
        self._moved.update(partitions)

    def take_moved(self) -> dict[str, PartitionCheckpoint]:
        """Return the state of the partitions that may have advanced since the last call."""
        moved, self._moved = self._moved, set()
        return {name: self.ledgers[name].checkpoint() for name in moved}

    @property
    def records_kept_nowhere(self) -> int:
        """Records that were rejected while the job had no dead letter, by any run of it."""
        of_ours = (ledger.lost for ledger in self.ledgers.values())
        return kept_nowhere(chain(of_ours, (state.lost for state in self._restored.values())))

    def overview(self, limit: int) -> dict[str, PartitionCheckpoint]:
        """Return up to ``limit`` partitions, those with acks above the cumulative ack first."""
        names = sorted(self.ledgers, key=lambda name: not self.ledgers[name].has_holes)
        return {name: self.ledgers[name].checkpoint() for name in islice(names, limit)}

    def checkpoint(self) -> Checkpoint:
        """Return what a restart needs, also of partitions that this run does not have."""
        partitions = dict(self._restored)
        for name, ledger in self.ledgers.items():
            partitions[name] = ledger.checkpoint()
        return Checkpoint(partitions)


def _bytes_of(ledger: RangeLedger) -> tuple[int, int]:
    extent = ledger.extent
    positions, size_bytes = extent.stop - extent.start, extent.size_bytes or 0
    return size_bytes * ledger.positions_done // positions if positions else 0, size_bytes


def _check_same(partition: str, before: Extent, extent: Extent) -> None:
    grew = extent.stop >= before.stop if not before.is_final else extent.stop == before.stop
    if grew and (extent.start, extent.identity) == (before.start, before.identity):
        return
    raise SourceError(
        f"partition {partition!r} has changed since the run began: it was {before}, and is now"
        f" {extent}.",
        remedy="A source must not change while it is read; put new data beside it.",
    )
