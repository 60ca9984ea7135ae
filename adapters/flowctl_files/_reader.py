"""One open file whose lines the driver reads, block by block from a given place.

How lines are found is :mod:`flowctl_files._text_blocks`.  Here is what only a file that may grow
needs: where a run goes on, and whether the bytes that were read before are still there.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple

from flowctl.core.records import Record
from flowctl.errors import SourceError
from flowctl_files._compressed import BEGINNING_BYTES, Unpacking, check_beginning, decompressed
from flowctl_files._lines import LineCodec
from flowctl_files._paths import End, found_as, open_regular, unreadable
from flowctl_files._stores import Stores
from flowctl_files._text_blocks import PIECE_BYTES, UNKNOWN_STOP, TextBlock, TextBlocks

# Decompressing this much takes some 20 ms: poll stays within its 100 ms.
_SKIP_BYTES: Final = 8 << 20
# The last bytes read are checked again after each read: are they still there? Long enough to hold
# the time stamp of a log line; half a microsecond per read (measured).
_TAIL_BYTES: Final = 64
# Of a digest of them: enough to tell two files apart, short enough to be saved of 200,000.
_MARK_BYTES: Final = 8
_NEWLINE: Final = 10


class Tail(NamedTuple):
    """The last bytes of a plain file that were read, and where they end.

    ``size`` is how many bytes the file had, compressed or not, when that was last looked at: if it
    ends before that, it was cut.
    """

    end: int = 0
    data: bytes = b""
    size: int = 0


class Place(NamedTuple):
    """Where to continue: byte and 1-based number of a line, and whether that line is done.

    ``done_bytes`` is its length in that case, if it had no newline: if it has grown, it is not
    done.  ``mark`` is its digest, if one was saved: of a compressed file that was read to its end.
    ``partly`` has the lengths of later lines that are done as they were, without a newline, by
    their first bytes: each is done unless it has grown.
    """

    offset: int = 0
    line: int = 1
    line_is_done: bool = False
    done_bytes: int | None = None
    mark: str = ""
    partly: Mapping[int, int] = MappingProxyType({})


class FileReader:
    """Reads lines of one file.  Not thread-safe; the owner calls :meth:`close`.

    ``place`` is where the next block begins.  ``growing``: a last line without newline is left for
    later.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        codec: LineCodec,
        *,
        max_line_bytes: int,
        growing: bool,
        tail: Tail | None = None,
    ) -> None:
        """``tail``: what an earlier reader knew about the same file."""
        self.name = name
        self.place = place
        self.tail = tail or Tail()
        self._growing = growing
        self._last_line = b""  # of a compressed file
        # The byte before the line must be a newline: this detects a file that has been replaced.
        self._check_newline = place.offset > 0
        self._skip = max(place.offset - 1, 0)
        self._open()
        lines = TextBlocks(name, codec, max_line_bytes, first_line=place.line)
        self._blocks = lines.blocks(
            self._read_into,
            place.offset,
            UNKNOWN_STOP,
            is_growing=growing,
            # One piece: the lines are made at once.  Less for the many small files of a job.
            buffer_bytes=min(PIECE_BYTES, self.tail.size or PIECE_BYTES),
        )

    def _open(self) -> None:
        try:
            self._file: Any = self._open_file()  # readinto is not part of IO
            unpacked = decompressed(self.name, self._file)
            self._unpacking: Unpacking | None = None
            if unpacked is not None:
                self._unpacking = Unpacking(self.name, unpacked, lambda: self.place.line)
            size = max(self.tail.size, self.size())
            if self._unpacking is None:
                self._check_tail()
                self.tail = Tail(self._file.seek(self._skip), size=size)
                self._skip = 0
            else:
                self.tail = Tail(size=size)
        except OSError as error:
            raise unreadable(self.name, error) from error

    def _open_file(self) -> IO[bytes]:
        return open_regular(self.name)

    def size(self) -> int:
        """Bytes of the open file as it lies on disk now."""
        return self.stat().st_size

    def done_bytes(self) -> int:
        """Bytes of the file as it lies on disk (compressed) that are read."""
        return int(self._file.tell())

    def stat(self) -> os.stat_result:
        """The open file's size and identity."""
        return os.fstat(self._file.fileno())

    def end(self) -> End | None:
        """What identifies the file, now that all of it is read; None if more has been appended.

        Appending to it later changes its size, overwriting it changes its time.  A plain file that
        has changed is identified by a digest of its last bytes, which appending leaves in place; a
        compressed file by a digest of its last line, because it may be compressed again.
        """
        status = self.stat()
        size, changed_ns = found_as(status)
        if size != self._file.tell():
            return None
        if self._unpacking is not None:
            return size, changed_ns, _digest(self._last_line)
        return size, changed_ns, _mark_before(self._file.fileno(), size)

    def is_replaced(self) -> bool:
        """Whether another file has taken the name; the open one is still read to its end."""
        try:
            now = os.stat(self.name)
        except OSError:  # removed: nothing is left to be read
            return False
        return not os.path.samestat(now, self.stat())

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        self._blocks.close()
        if self._unpacking is not None:
            self._unpacking.close()
        self._file.close()

    def next_block(self) -> Iterator[Record] | None:
        """Return the next records (perhaps none: call again), or None at the end of the file.

        The iterator is lazy and must be consumed once.  Raises :class:`SourceError`; what was
        returned before is good, and nothing follows.
        """
        if self._skip:
            self._skip_some()
            return iter(())
        for block in self._blocks:
            if len(block):
                return self._records(block)
        if self.place.line_is_done and not self._growing:
            raise shrank(self.name, self.place)  # the line that was done is not there
        return None

    def _records(self, block: TextBlock) -> Iterator[Record]:
        place = self.place
        self.place = Place(block.end, place.line + len(block), partly=place.partly)
        if self._unpacking is not None:
            self._last_line = block.line_at(block.position(len(block) - 1))
        records = block.records()
        if not block.is_ended:  # the last line of the file: it may yet grow
            sizes = {place.offset: len(block.line_at(place.offset))}
        else:
            done = [at for at in place.partly if block.begins(at)]
            sizes = {at: size for at in done if (size := len(block.line_at(at))) > place.partly[at]}
        if place.line_is_done:
            first = next(records)
            line = block.line_at(place.offset)
            has_grown = place.done_bytes is not None and len(line) > place.done_bytes
            if place.mark and not has_grown and place.mark != _digest(line):
                raise another_file(self.name, place.offset + len(line))
            if has_grown:
                sizes[place.offset] = len(line)
                records = chain([first], records)
        return map(_grown, records, repeat(sizes)) if sizes else records

    def _read_into(self, view: memoryview) -> int:
        """Fill ``view``, at least in part, unless the file ends; :class:`SourceError` if it was
        cut."""
        try:
            if self._unpacking is not None:
                got = self._unpacking.read_into(view)
                if not got and self.size() < self.tail.size:
                    raise self._truncated(self._file.tell())
            else:
                got = self._read_plain(view)
        except OSError as error:
            raise unreadable(self.name, error) from error
        if self._check_newline and got:
            self._check_newline = False
            if view[0] != _NEWLINE:
                raise changed(self.name, self.place)
        return got

    def _read_plain(self, view: memoryview) -> int:
        got: int = self._file.readinto(view)
        if not self.tail.end:
            check_beginning(self.name, bytes(view[: min(got, BEGINNING_BYTES)]))
        self._check_tail()
        if not got and self.tail.end < self.tail.size:
            raise self._truncated(self.tail.end)
        self._move_tail(bytes(view[max(0, got - _TAIL_BYTES) : got]), got)
        return got

    def _check_tail(self) -> None:
        """Check that what was read before is still there.  After each read, so that what it
        returned is right.

        A file that is truncated ends before the place that was read, and would look finished; one
        that is rewritten meanwhile would go on with other lines.
        """
        end, tail, _ = self.tail
        if tail and os.pread(self._file.fileno(), len(tail), end - len(tail)) != tail:
            raise self._truncated(end)

    def _move_tail(self, last: bytes, got: int) -> None:
        end, before, size = self.tail
        end += got
        self.tail = Tail(
            end, (before + last)[-_TAIL_BYTES:], size if end <= size else max(end, self.size())
        )

    def _truncated(self, end: int) -> SourceError:
        return truncated(self.name, self.place, end, had=self.tail.size, has=self.size())

    def _skip_some(self) -> None:
        assert self._unpacking is not None
        got = self._unpacking.read_into(memoryview(bytearray(min(self._skip, _SKIP_BYTES))))
        if not got:
            raise shrank(self.name, self.place)
        self._skip -= got


class RemoteReader(FileReader):
    """A :class:`FileReader` of a file behind a URL.

    Changes during reading are not noticed: object stores replace a file as a whole.
    """

    def __init__(self, stores: Stores, *given: Any, **options: Any) -> None:
        self.stores = stores
        super().__init__(*given, **options)

    def _open_file(self) -> IO[bytes]:
        return self.stores.open(self.name)

    def size(self) -> int:
        return self.done_bytes()  # everything was read: this is the end

    def end(self) -> None:
        """Unknown: a later run checks the file again."""

    def is_replaced(self) -> bool:
        return False

    def _check_tail(self) -> None:
        """Nothing to compare with."""


def _grown(record: Record, sizes: Mapping[int, int]) -> Record:
    """Return a line that may grow, or has grown, under a place behind that of its beginning."""
    position = record.position
    assert isinstance(position, tuple) and isinstance(position[0], int)
    size = sizes.get(position[0])
    return record if size is None else Record((*position[:2], size), record.value)


def check_end(name: str, end: object) -> None:
    """Raise :class:`SourceError` if other bytes than those that were read end at ``end``.

    ``name`` is a file that is there and that this user may read.
    """
    if not isinstance(end, tuple) or len(end) != 3 or not isinstance(end[0], int):
        return  # saved by a version that knew no digest
    with open(name, "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size < end[0]:
            return  # it shrank: whether the last line that is done is still there decides
        is_same = _mark_before(file.fileno(), end[0]) == end[2]
    if not is_same:
        raise another_file(name, end[0])


def _mark_before(descriptor: int, end: int) -> str:
    """A digest of the last bytes before ``end``."""
    length = min(end, _TAIL_BYTES)
    return _digest(os.pread(descriptor, length, end - length))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_MARK_BYTES).hexdigest()


def shrank(name: str, place: Place) -> SourceError:
    """The error for a file that ends before the checkpoint's position."""
    return SourceError(
        f"{name}: the file shrank; byte {place.offset} (line {place.line}) was read before and is "
        "gone. Was it rotated or rewritten?",
        remedy=_another_file(name),
    )


def truncated(name: str, place: Place, end: int, *, had: int, has: int) -> SourceError:
    """The error for a file that was cut while it was read, up to byte ``end``.

    ``had`` and ``has``: its bytes when it was looked at before, and now.
    """
    now = "its bytes there have changed"
    if has < end:
        now = f"it has {has} bytes now"
    elif has < had:
        now = f"it had {had} bytes and has {has} now"
    return SourceError(
        f"{name}: the file was truncated while it was read: byte {end} was reached (line "
        f"{place.line} is next), and {now}. Was it rotated by truncation (copytruncate)?",
        remedy="What was read before is kept. What was cut off before it was read may be in the"
        " copy "
        "that the rotation made: read that as a separate job. Rotate by renaming instead.",
    )


def changed(name: str, place: Place) -> SourceError:
    """The error for a file that is not the one that was read before."""
    return SourceError(
        f"{name}: no line begins at byte {place.offset} (line {place.line}) any more: this is not "
        "the file that was read before. Was it rotated or rewritten?",
        remedy=_another_file(name),
    )


def another_file(name: str, end: int) -> SourceError:
    """The error for a file in which other bytes end where those end that were read before."""
    return SourceError(
        f"{name}: the bytes before byte {end} are not those that were read: this is not the"
        " file that was read before. Was it rotated or rewritten?",
        remedy=_another_file(name),
    )


def _another_file(name: str) -> str:
    """What to do if the file is not the one that was read: its lines are elsewhere by now."""
    return (
        "Bring the old file back. If a new one took its name, read that from its beginning:"
        f" flowctl checkpoint rewind JOB --partition {shlex.quote(name)} --start"
        " --sink FILE.py:SINK (without --sink an SqlSink takes its lines for those of the old file"
        " and skips them; leave it out if there is no such sink)."
    )
