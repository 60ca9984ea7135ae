"""Lines that were read but not looked at: each becomes a record when it is processed.

A block is half a MiB, as a read should be.  Its lines are decoded 64 KiB at a time, when
``process`` gets there: they fit into a core's cache together with the records made of them, which
is twice as fast as a block at once (measured).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, pairwise
from operator import add
from typing import Final, overload

from flowctl.core.records import Record
from flowctl_files._lines import LineCodec

PIECE_BYTES: Final = 64 << 10


class TextBlock:
    """Whole lines from byte ``at`` on: a :class:`flowctl.range_ports.Block`.  For one thread.

    ``data`` is text that ``codec`` can decode.
    """

    __slots__ = ("_at", "_codec", "_data", "_first", "_offsets", "_piece", "_records", "stop")

    def __init__(self, at: int, data: bytes, codec: LineCodec, stop: int) -> None:
        self.stop = stop
        self._at = at
        self._data = data
        self._codec = codec
        self._offsets = _pieces(data)  # where each piece begins, and the end
        lines = [data.count(b"\n", a, b) for a, b in pairwise(self._offsets)]
        if data and not data.endswith(b"\n"):
            lines[-1] += 1
        self._first = list(accumulate(lines, initial=0))  # the first line of each piece, and all
        self._piece = -1  # the one that was made last
        self._records: list[Record] = []

    @property
    def size_bytes(self) -> int:
        """What it takes until its records are made."""
        return len(self._data)

    def __len__(self) -> int:
        return self._first[-1]

    def position(self, i: int) -> int:
        """See :class:`flowctl.range_ports.Block`."""
        if i >= len(self):
            return self.stop
        # Without records: a batch asks for its ends before those between are made.
        piece = self.piece_of(i)
        begin, end = self._offsets[piece : piece + 2]
        before = i - self._first[piece]
        if before and i + 1 == self._first[piece + 1]:  # the last of its piece
            return self._at + self._data.rfind(b"\n", begin, end - 1) + 1
        for _ in range(before):
            begin = self._data.find(b"\n", begin) + 1
        return self._at + begin

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        """See :class:`flowctl.range_ports.Block`."""
        return TextRecords(self, i, j)

    def piece_of(self, i: int) -> int:
        """Return which piece holds line ``i``."""
        return bisect_right(self._first, i) - 1

    def first_of(self, piece: int) -> int:
        """Return the first line of a piece."""
        return self._first[piece]

    def is_made(self, piece: int) -> bool:
        """Whether :meth:`records_of` has the records of a piece at hand."""
        return piece == self._piece

    def records_of(self, piece: int) -> list[Record]:
        """Return the records of a piece; the same ones until those of another are made."""
        if piece != self._piece:
            begin, end = self._offsets[piece : piece + 2]
            begins = self._at + begin == 0
            values, sizes, _ = self._codec.split(self._data[begin:end], begins=begins)
            # add(…, count()): each line's newline is a byte too.
            positions = map(add, accumulate(sizes, initial=self._at + begin), count())
            self._records = list(map(Record, positions, values))
            self._piece = piece
        return self._records


class TextRecords(Sequence[Record]):
    """Lines ``i`` to ``j - 1`` of a block, made while they are iterated over."""

    __slots__ = ("_all", "_block", "_i", "_j")

    def __init__(self, block: TextBlock, i: int, j: int) -> None:
        self._block = block
        self._i = i
        self._j = j
        self._all: list[Record] | None = None  # once somebody wants them out of order

    def __len__(self) -> int:
        return self._j - self._i

    def __iter__(self) -> Iterator[Record]:
        if self._all is not None:
            yield from self._all
            return
        at = self._i
        while at < self._j:
            piece = self._block.piece_of(at)
            first = self._block.first_of(piece)
            records = self._block.records_of(piece)[at - first : self._j - first]
            yield from records
            at += len(records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if self._all is None and isinstance(index, int) and 0 <= index < len(self):
            piece = self._block.piece_of(self._i + index)
            if self._block.is_made(piece):
                first = self._block.first_of(piece)
                return self._block.records_of(piece)[self._i + index - first]
        if self._all is None:
            self._all = list(self)
        return self._all[index]


def _pieces(data: bytes) -> list[int]:
    """Return where the pieces begin, at the beginnings of lines, and the end."""
    offsets = [0]
    while len(data) - offsets[-1] > PIECE_BYTES:
        end = data.find(b"\n", offsets[-1] + PIECE_BYTES - 1) + 1
        if end == 0 or end == len(data):
            break
        offsets.append(end)
    return [*offsets, len(data)]
