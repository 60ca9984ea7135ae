"""The lines that begin in a range of bytes, in blocks.

A line belongs to where it begins.  So a range that starts in the middle of a line skips to the next
one, and the last line of a range is read to its end, however far that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from flowctl.errors import SourceError
from flowctl_files._lines import LineCodec
from flowctl_files._text_block import TextBlock

# A block costs some 50 us beside its lines, which is 4 % of its work.
BLOCK_BYTES: Final = 512 << 10
_REST_BYTES: Final = 64 << 10  # most lines are shorter


class Cut(NamedTuple):
    """Whole lines, the first of which begins at ``at``; ``is_last``: no more begin in the range."""

    at: int
    data: bytes
    is_last: bool


def cuts(
    read_into: Callable[[memoryview], int],
    start: int,
    stop: int,
    too_long: Callable[[int, int], None],
) -> Iterator[Cut]:
    """Cut what is read from byte ``max(start - 1, 0)`` on into whole lines.

    ``read_into`` fills a buffer, and returns how far: 0 at the end of the file.
    ``too_long(at, size)`` is called with each line that is not complete yet; it raises if that is
    more than a line may have.
    """
    # One buffer for all reads: a new one each time makes reading five times as dear (measured).
    buffer = bytearray(BLOCK_BYTES)
    view = memoryview(buffer)
    at = max(start - 1, 0)  # of kept[0], or of what is read next
    kept = bytearray()  # the beginning of a line; as bytes, a long one would be copied each time
    is_aligned = start == 0
    while True:
        wanted = stop - at - len(kept)
        # Behind the range only the rest of a line is wanted.
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
    """Return where the lines that end in ``buffer[begin:size]`` end, and whether they are all.

    ``length`` bytes from ``begin`` belong to the range; a line before it has begun.  0: none ends.
    """
    if length <= size - begin:
        last = buffer.find(b"\n", begin + max(length - 1, 0), size) + 1
        if last:
            return last, True
    return buffer.rfind(b"\n", begin, size) + 1, False


class TextBlocks:
    """Makes blocks of one file's lines.  ``name`` is for errors; for one thread."""

    def __init__(self, name: str, codec: LineCodec, max_line_bytes: int) -> None:
        self._name = name
        self._codec = codec
        self._max_line_bytes = max_line_bytes

    def blocks(
        self, read_into: Callable[[memoryview], int], start: int, stop: int
    ) -> Iterator[TextBlock]:
        """Yield the lines that begin in ``[start, stop)``; see :func:`cuts`."""
        for cut in cuts(read_into, start, stop, self._check_length):
            yield from self._blocks(cut, stop if cut.is_last else cut.at + len(cut.data))

    def _blocks(self, cut: Cut, stop: int) -> Iterator[TextBlock]:
        data, at = cut.data, cut.at
        if len(data) > self._max_line_bytes:
            for line in data.removesuffix(b"\n").split(b"\n"):
                self._check_length(at, len(line))
                at += len(line) + 1
        bad = self._codec.first_bad(data) if data else None
        if bad is None:
            yield TextBlock(cut.at, data, self._codec, stop)
            return
        good = sum([len(line) + 1 for line in data.split(b"\n", bad.index)[: bad.index]])
        at = cut.at + good
        yield TextBlock(cut.at, data[:good], self._codec, at)
        raise SourceError(
            f"{self._name}, byte {at + bad.at}: {bad.why}.",
            remedy="Set the right encoding, or errors='replace', or encoding=None for bytes.",
        )

    def _check_length(self, at: int, size: int) -> None:
        if size > self._max_line_bytes:
            raise SourceError(
                f"{self._name}, byte {at}: a line longer than {self._max_line_bytes} bytes.",
                remedy="Raise max_line_bytes, or fix the file.",
            )
