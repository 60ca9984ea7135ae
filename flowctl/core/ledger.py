"""Per source partition: out-of-order acks in, cumulative ack and selective acks out (S11–S14).

Records are numbered densely (``seq``) from the partition's beginning, so a seq is also a count.
Positions are kept only at the edges of ranges: memory grows with the holes, not with the acks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from flowctl.core.rangeset import RangeSet
from flowctl.core.records import AckedRange, LostRange, PartitionCheckpoint, Position, Record
from flowctl.errors import SourceError


class PartitionLedger:
    """What of one partition has been read and acked.  Not thread-safe.

    Starts from ``restored``, the checkpoint of an earlier run: records in its acked ranges are
    left out of what :meth:`admit` returns, and count as acked at once.
    """

    __slots__ = (
        "_above",
        "_read_position",
        "_restored",
        "_skip_through",
        "acked",
        "cumulative",
        "cumulative_seq",
        "end",
        "first_at",
        "last_at",
        "lost",
        "mark",
        "next_seq",
        "partition",
        "skipped",
    )

    def __init__(self, partition: str, restored: PartitionCheckpoint | None = None) -> None:
        restored = restored or PartitionCheckpoint()
        self.partition: str = partition
        self.cumulative: Position | None = restored.position
        self.cumulative_seq: int = restored.records  # all below are acked
        self.next_seq: int = restored.records
        self.skipped: int = 0  # records read again though an earlier run had acked them
        self.end: Position | None = None  # what the source gave with the end; None: not there yet
        self.mark: Position | None = restored.mark  # by which the source recognises it
        self.lost: tuple[LostRange, ...] = restored.lost
        self.acked: RangeSet = RangeSet()  # above the cumulative ack
        self._above = 0  # records in it
        self.first_at: dict[int, Position] = {}  # range start → its first position
        self.last_at: dict[int, Position] = {}  # range stop → its last position
        # Not reached yet by reading.  No deque for nothing: each of them takes 0.6 kB.
        self._restored: deque[AckedRange] | tuple[()] = deque(restored.acked) or ()
        self._skip_through: Position | None = restored.position
        self._read_position: Position | None = None

    @property
    def uncommitted(self) -> int:
        """Records read and not below the cumulative ack."""
        return self.next_seq - self.cumulative_seq

    @property
    def undone(self) -> int:
        """Records read and not acked."""
        return self.next_seq - self.cumulative_seq - self._above

    @property
    def holes(self) -> int:
        """Runs of un-acked records that have something acked above them."""
        return len(self.acked)

    @property
    def has_holes(self) -> bool:
        """Whether something is acked above the cumulative ack, in this run or an earlier one."""
        return bool(self.acked) or bool(self._restored)

    @property
    def is_settled(self) -> bool:
        """Whether all that was read is acked, and nothing above it."""
        return self.next_seq == self.cumulative_seq and not self._restored

    def admit(self, records: Sequence[Record]) -> list[tuple[int, Sequence[Record]]]:
        """Number ``records``; return the runs that still have to be processed, with their seqs.

        Raises :class:`SourceError` when positions do not rise from call to call.
        """
        if not records:
            return []
        self._check_order(records)
        self.end = None  # it has grown
        if not self._restored and self._skip_through is None:
            return [self._number(records)]
        return self._admit_slowly(records)

    def _check_order(self, records: Sequence[Record]) -> None:
        first, last = records[0].position, records[-1].position
        try:
            risen = self._read_position is None or self._read_position < first  # type: ignore[operator]
            risen = risen and (len(records) == 1 or first < last)  # type: ignore[operator]
        except TypeError:
            risen = False
        if not risen:
            raise SourceError(
                f"partition {self.partition!r}: position {first!r} came after"
                f" {self._read_position!r} (chunk ends at {last!r}).",
                remedy="A producer's positions must rise, and all must have the same shape.",
            )
        self._read_position = last

    def _number(self, records: Sequence[Record]) -> tuple[int, Sequence[Record]]:
        seq = self.next_seq
        self.next_seq += len(records)
        return seq, records

    def _admit_slowly(self, records: Sequence[Record]) -> list[tuple[int, Sequence[Record]]]:
        """As :meth:`admit`, record by record, while restored ranges lie ahead."""
        runs: list[tuple[int, Sequence[Record]]] = []
        run: list[Record] = []
        for index, record in enumerate(records):
            position = record.position
            if not self._restored and not self._is_skipped(position):
                run.extend(records[index:])  # nothing restored is left: the rest is new
                self._skip_through = None
                break
            if self._restored and not position < self._restored[0].first:  # type: ignore[operator]
                if run:
                    runs.append(self._number(run))
                    run = []
                self._enter_restored(position)
            if self._is_skipped(position):
                self.skipped += 1
            else:
                run.append(record)
        if run:
            runs.append(self._number(run))
        return runs

    def _is_skipped(self, position: Position) -> bool:
        return self._skip_through is not None and position <= self._skip_through  # type: ignore[operator]

    def _enter_restored(self, position: Position) -> None:
        """Ack, as blocks, the restored ranges that begin at or before ``position``."""
        while self._restored and not position < self._restored[0].first:  # type: ignore[operator]
            self._take_restored()

    def _take_restored(self) -> None:
        assert isinstance(self._restored, deque)
        span = self._restored.popleft()
        start = self.next_seq
        self.next_seq += span.records
        self._skip_through = span.last
        self.ack(start, self.next_seq, span.first, span.last)

    def end_of_input(self) -> None:
        """Nothing more will be read: restored ranges that were left out count as reached."""
        while self._restored:
            self._take_restored()

    def ack(self, start: int, stop: int, first: Position, last: Position) -> None:
        """Mark ``[start, stop)`` acked; ``first`` and ``last`` are its end positions.

        A range is acked once: the caller drops repeats.
        """
        # One entry a range: not by len() of our own class, a call for each tuple.
        if start == self.cumulative_seq and not self.first_at:
            self.cumulative_seq, self.cumulative = stop, last  # the common case: in order
            return
        self._above += stop - start
        self.first_at[start] = first
        self.last_at[stop] = last
        low, high = self.acked.add(start, stop)
        if low != start:  # grew onto a range below: their inner edges are edges no more
            del self.first_at[start], self.last_at[start]
        if high != stop:
            del self.first_at[stop], self.last_at[stop]
        if low == self.cumulative_seq:
            self.acked.pop_first()
            self._above -= high - low
            del self.first_at[low]
            self.cumulative_seq, self.cumulative = high, self.last_at.pop(high)

    def checkpoint(self) -> PartitionCheckpoint:
        """Return what a restart needs; a pure read, O(ranges)."""
        live = tuple(
            AckedRange(self.first_at[start], self.last_at[stop], stop - start)
            for start, stop in self.acked
        )
        end = self.end if self.is_settled else None
        mark = self.mark if end is None else None
        return PartitionCheckpoint(
            self.cumulative, self.cumulative_seq, live + tuple(self._restored), end, mark,
            self.lost,
        )  # fmt: skip
