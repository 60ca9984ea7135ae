"""Blocks of the lines that begin in a range of bytes.

A line belongs to the range in which it begins.  So a range that starts in the middle of a line
skips to the next one, and the last line of a range is read to its end, however far that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import accumulate, chain, count, pairwise
from operator import add
from typing import Any, Final, NamedTuple, TypeVar, overload

from flowctl.core.records import Position, Record
from flowctl.errors import SourceError
from flowctl_files._lines import LineCodec

T = TypeVar("T")

# -- Lines that were read but not looked at: each becomes a record when it is processed --------
#
# A block is half a MiB, as a read should be. Its lines are decoded 64 KiB at a time, when
# ``process`` gets there: they fit into a core's cache together with the records made of them,
# which is twice as fast as a block at once (measured).


PIECE_BYTES: Final = 64 << 10


class TextBlock:
    """Whole lines from byte ``at`` on: a :class:`flowctl.range_ports.Block`.  For one thread.

    ``data`` is text that ``codec`` can decode.  A position is the byte where a line begins; if
    ``line``, the number of the first line, is known, it is ``(byte, line)``.
    """

    __slots__ = (
        "_at", "_codec", "_data", "_first", "_line", "_offsets", "_piece", "_piece_of_values",
        "_records", "_values", "stop",
    )  # fmt: skip

    def __init__(
        self, at: int, data: bytes, codec: LineCodec, stop: int, line: int | None = None
    ) -> None:
        self.stop = stop
        self._line = line
        self._at = at
        self._data = data
        self._codec = codec
        self._offsets = _pieces(data)  # first byte of each piece, and the end
        lines = [data.count(b"\n", a, b) for a, b in pairwise(self._offsets)]
        if data and not data.endswith(b"\n"):
            lines[-1] += 1
        # The index of the first line of each piece, and the number of lines.
        self._first = list(accumulate(lines, initial=0))
        self._piece = -1  # the piece whose records were made last
        self._records: list[Record] = []
        self._piece_of_values = -1
        self._values: list[Any] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that the block takes before its records are made."""
        return len(self._data)

    def __len__(self) -> int:
        return self._first[-1]

    def position(self, i: int) -> int:
        """See :class:`flowctl.range_ports.Block`."""
        if i >= len(self):
            return self.stop
        # Computed without making records: a batch asks for its first and last position early.
        piece = self.piece_of(i)
        begin, end = self._offsets[piece : piece + 2]
        before = i - self._first[piece]
        if before and i + 1 == self._first[piece + 1]:  # the last line of its piece
            return self._at + self._data.rfind(b"\n", begin, end - 1) + 1
        for _ in range(before):
            begin = self._data.find(b"\n", begin) + 1
        return self._at + begin

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        """See :class:`flowctl.range_ports.Block`."""
        return TextRecords(self, i, j)

    @property
    def end(self) -> int:
        """The byte behind the last line."""
        return self._at + len(self._data)

    @property
    def is_ended(self) -> bool:
        """Whether the last line ends with a newline."""
        return self._data.endswith(b"\n")

    def begins(self, at: int) -> bool:
        """Whether a line of the block begins at byte ``at`` of the file."""
        place = at - self._at
        return place == 0 or (0 < place < len(self._data) and self._data[place - 1] == _NEWLINE)

    def line_at(self, at: int) -> bytes:
        """Return the line that begins at byte ``at`` of the file, without its newline."""
        begin = at - self._at
        end = self._data.find(b"\n", begin)
        return self._data[begin:] if end < 0 else self._data[begin:end]

    def piece_of(self, i: int) -> int:
        """Return the index of the piece that holds line ``i``."""
        return bisect_right(self._first, i) - 1

    def first_of(self, piece: int) -> int:
        """Return the index of the first line of a piece."""
        return self._first[piece]

    def is_made(self, piece: int) -> bool:
        """Whether the records of a piece are already made."""
        return piece == self._piece

    def records_of(self, piece: int) -> list[Record]:
        """Return the records of a piece; they are kept until another piece's records are made."""
        if piece != self._piece:
            self._records = list(self._made(piece))
            self._piece = piece
        return self._records

    def values_of(self, piece: int) -> list[Any]:
        """Return the lines of a piece, without records; they are kept as the records are."""
        if piece != self._piece_of_values:
            self._values, _ = self._split(piece)
            self._piece_of_values = piece
        return self._values

    def records(self) -> Iterator[Record]:
        """Iterate over all records; each is made when it is reached, and not kept."""
        return chain.from_iterable(map(self._made, range(len(self._offsets) - 1)))

    def _made(self, piece: int) -> Iterator[Record]:
        values, sizes = self._split(piece)
        # add(…, count()): each line's newline is a byte too.
        offsets = map(add, accumulate(sizes, initial=self._at + self._offsets[piece]), count())
        positions: Iterable[Position] = offsets
        if self._line is not None:
            positions = zip(offsets, count(self._line + self._first[piece]), strict=False)
        return map(Record, positions, values)

    def _split(self, piece: int) -> tuple[list[Any], Iterable[int]]:
        begin, end = self._offsets[piece : piece + 2]
        begins = self._at + begin == 0
        values, sizes, _ = self._codec.split(self._data[begin:end], begins=begins)
        return values, sizes


class TextRecords(Sequence[Record]):
    """Lines ``i`` to ``j - 1`` of a block, made while they are iterated over."""

    __slots__ = ("_all", "_block", "_i", "_j")

    def __init__(self, block: TextBlock, i: int, j: int) -> None:
        self._block = block
        self._i = i
        self._j = j
        self._all: list[Record] | None = None  # made when records are accessed out of order

    def __len__(self) -> int:
        return self._j - self._i

    def __iter__(self) -> Iterator[Record]:
        if self._all is not None:
            return iter(self._all)
        return self._in_pieces(self._block.records_of)

    @property
    def values(self) -> list[Any]:
        """The lines, without records around them."""
        return list(self._in_pieces(self._block.values_of))

    def _in_pieces(self, made: Callable[[int], list[T]]) -> Iterator[T]:
        at = self._i
        while at < self._j:
            piece = self._block.piece_of(at)
            first = self._block.first_of(piece)
            parts = made(piece)[at - first : self._j - first]
            yield from parts
            at += len(parts)

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
    """Return the first byte of each piece, which begins with a line, and the end."""
    offsets = [0]
    while len(data) - offsets[-1] > PIECE_BYTES:
        end = data.find(b"\n", offsets[-1] + PIECE_BYTES - 1) + 1
        if end == 0 or end == len(data):
            break
        offsets.append(end)
    return [*offsets, len(data)]


# -- The lines that begin in a range of bytes, in blocks ---------------------------------------


# Stands for the unknown end of a file.  It is larger than any file and an int of 64 bits.
UNKNOWN_STOP: Final = 1 << 62
_NEWLINE: Final = 10
# Size of a block [bytes].  A block costs some 50 us besides its lines, 4 % of its work.
BLOCK_BYTES: Final = 512 << 10
_REST_BYTES: Final = 64 << 10  # most lines are shorter


class Cut(NamedTuple):
    """Whole lines, the first at byte ``at``.  ``is_last``: no more lines begin in the range."""

    at: int
    data: bytes
    is_last: bool


def cuts(
    read_into: Callable[[memoryview], int],
    start: int,
    stop: int,
    too_long: Callable[[int, int], None],
    buffer_bytes: int | None = None,
) -> Iterator[Cut]:
    """Cut the bytes from ``max(start - 1, 0)`` on into whole lines.

    ``read_into`` fills a buffer and returns the number of bytes, 0 at the end of the file.
    ``too_long(at, size)`` is called with each line that is not complete yet; it raises if ``size``
    is too large for a line.  ``buffer_bytes`` bounds the buffer, for small files.
    """
    # One buffer for all reads: a new one each time makes reading five times as dear (measured).
    buffer = bytearray(BLOCK_BYTES if buffer_bytes is None else min(BLOCK_BYTES, buffer_bytes))
    view = memoryview(buffer)
    at = max(start - 1, 0)  # position of kept[0], or of the next byte read if kept is empty
    kept = bytearray()  # beginning of a line; bytes would be copied each time
    is_aligned = start == 0
    while True:
        wanted = stop - at - len(kept)
        # Beyond the range, only the rest of the last line is needed.
        size = read_into(view[: max(wanted, 0) + _REST_BYTES])
        begin = 0
        if not is_aligned:
            begin = buffer.find(b"\n", 0, size) + 1
            is_aligned = begin > 0
            at += begin or size
        if at >= stop or not (size and is_aligned):
            if at < stop and size:
                continue
            yield Cut(at, bytes(kept), is_last=True)
            return
        end, is_last = _end_of(buffer, begin, size, stop - at - len(kept))
        if end > begin:
            lines = b"".join((kept, view[begin:end]))
            yield Cut(at, lines, is_last)
            if is_last:
                return
            at += len(lines)
            kept.clear()
        kept += view[max(begin, end) : size]
        too_long(at, len(kept))


def _end_of(buffer: bytearray, begin: int, size: int, length: int) -> tuple[int, bool]:
    """Return the end of the last line to take from ``buffer[begin:size]``; whether none follow.

    ``length`` bytes from ``begin`` belong to the range; a line has begun before ``begin``.  The end
    is 0 if no line ends there.
    """
    if length <= size - begin:
        last = buffer.find(b"\n", begin + max(length - 1, 0), size) + 1
        if last:
            return last, True
    return buffer.rfind(b"\n", begin, size) + 1, False


class TextBlocks:
    """Makes blocks of one file's lines; for one thread.  ``name`` appears in errors.

    ``first_line`` is the number of the first line, if known: then positions include line numbers.
    """

    def __init__(
        self, name: str, codec: LineCodec, max_line_bytes: int, *, first_line: int | None = None
    ) -> None:
        self._name = name
        self._codec = codec
        self._max_line_bytes = max_line_bytes
        self._line = first_line

    def blocks(
        self,
        read_into: Callable[[memoryview], int],
        start: int,
        stop: int,
        *,
        is_growing: bool = False,
        buffer_bytes: int | None = None,
    ) -> Generator[TextBlock]:
        """Yield the lines that begin in ``[start, stop)``; see :func:`cuts`.

        If ``is_growing``, a last line without newline is incomplete and left out.
        """
        for cut in cuts(read_into, start, stop, self._check_length, buffer_bytes):
            if is_growing and not cut.data.endswith(b"\n"):
                return
            if not cut.data and self._line is not None:
                return  # the file's end, which is not needed here
            yield from self._blocks(cut, stop if cut.is_last else cut.at + len(cut.data))

    def _blocks(self, cut: Cut, stop: int) -> Iterator[TextBlock]:
        data, at = cut.data, cut.at
        too_long = self._first_too_long(data) if len(data) > self._max_line_bytes else None
        if too_long is not None:
            data, stop = data[:too_long], at + too_long
        bad = self._codec.first_bad(data) if data else None
        if bad is not None:
            good = sum([len(line) + 1 for line in data.split(b"\n", bad.index)[: bad.index]])
            data, stop = data[:good], at + good
        yield self._block(at, data, stop)
        if bad is not None:
            raise SourceError(
                f"{self._name}, {self._where(stop + bad.at)}: {bad.why}.",
                remedy="Set the right encoding, or errors='replace', or encoding=None for bytes.",
            )
        if too_long is not None:
            self._check_length(stop, self._max_line_bytes + 1)

    def _first_too_long(self, data: bytes) -> int | None:
        at = 0
        for line in data.removesuffix(b"\n").split(b"\n"):
            if len(line) > self._max_line_bytes:
                return at
            at += len(line) + 1
        return None

    def _block(self, at: int, data: bytes, stop: int) -> TextBlock:
        block = TextBlock(at, data, self._codec, stop, self._line)
        if self._line is not None:
            self._line += len(block)
        return block

    def _where(self, at: int) -> str:
        """Return "file, line or byte" of the next line for an error at byte ``at``."""
        return f"byte {at}" if self._line is None else f"line {self._line} (byte {at})"

    def _check_length(self, at: int, size: int) -> None:
        if size > self._max_line_bytes:
            raise SourceError(
                f"{self._name}, {self._where(at)}: longer than {self._max_line_bytes} bytes.",
                remedy="Raise max_line_bytes, or fix the file.",
            )
