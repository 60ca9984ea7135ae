"""One open file whose lines the driver reads, block by block from a given place.

:mod:`flowctl_files._text_blocks` finds the lines.  This module adds what only a file that may grow
needs: where a run goes on, and a check that the bytes read before are still there.
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

# Bytes skipped per poll: decompressing them takes some 20 ms of the 100 ms that a poll may take.
_SKIP_BYTES: Final = 8 << 20
# Length of the last bytes read, which are compared again after each read.  It covers the time stamp
# of a log line and costs half a microsecond per read (measured).
_TAIL_BYTES: Final = 64
# Length of a digest of these bytes: it distinguishes two files, and 200,000 of them can be saved.
_MARK_BYTES: Final = 8
_NEWLINE: Final = 10


class Tail(NamedTuple):
    """The last bytes of a plain file that were read, and where they end.

    ``size`` is the file's size [bytes, as it lies on disk] when last checked: a smaller file was
    truncated.
    """

    end: int = 0
    data: bytes = b""
    size: int = 0


class Place(NamedTuple):
    """Where to continue: byte and 1-based number of a line, and whether that line is done.

    ``done_bytes`` is the length of a done line without newline: if it has grown, it is not done.
    ``mark`` is the line's digest, saved for a compressed file that was read to its end.  ``partly``
    maps the first byte of later lines that are done but had no newline to their length then: each
    is done unless it has grown.
    """

    offset: int = 0
    line: int = 1
    line_is_done: bool = False
    done_bytes: int | None = None
    mark: str = ""
    partly: Mapping[int, int] = MappingProxyType({})


class FileReader:
    """Reads lines of one file.  Not thread-safe; the owner calls :meth:`close`.

    ``place`` is where the next block begins.  If ``growing``, a last line without newline is left
    for later.
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
        """Begin at ``place``; ``tail`` is from an earlier reader of the same file."""
        self.name = name
        self.place = place
        self.tail = tail or Tail()
        self._growing = growing
        self._last_line = b""  # of a compressed file
        # The byte before the line must be a newline; if not, the file has been replaced.
        self._check_newline = place.offset > 0
        self._skip = max(place.offset - 1, 0)
        self._open()
        lines = TextBlocks(name, codec, max_line_bytes, first_line=place.line)
        self._blocks = lines.blocks(
            self._read_into,
            place.offset,
            UNKNOWN_STOP,
            is_growing=growing,
            # One piece, so that all of its lines are made at once.  A smaller buffer for the many
            # small files of a job.
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
        """The size of the open file on disk now [bytes]."""
        return self.stat().st_size

    def done_bytes(self) -> int:
        """Bytes read so far, counted as the file lies on disk (compressed)."""
        return int(self._file.tell())

    def stat(self) -> os.stat_result:
        """The open file's status: size, modification time, inode."""
        return os.fstat(self._file.fileno())

    def end(self) -> End | None:
        """Return what identifies the file, which was read to its end; None if it has grown since.

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
        """Whether another file has this name now; the open one is still read to its end."""
        try:
            now = os.stat(self.name)
        except OSError:  # removed: there is no other file to read
            return False
        return not os.path.samestat(now, self.stat())

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        self._blocks.close()
        if self._unpacking is not None:
            self._unpacking.close()
        self._file.close()

    def next_block(self) -> Iterator[Record] | None:
        """Return the next records (if there are none, call again), or None at the end of the file.

        The iterator is lazy and must be consumed once.  Raises :class:`SourceError`; the records
        returned before are valid, and none follow.
        """
        if self._skip:
            self._skip_some()
            return iter(())
        for block in self._blocks:
            if len(block):
                return self._records(block)
        if self.place.line_is_done and not self._growing:
            raise shrank(self.name, self.place)  # the line that was done is not there any more
        return None

    def _records(self, block: TextBlock) -> Iterator[Record]:
        place = self.place
        self.place = Place(block.end, place.line + len(block), partly=place.partly)
        if self._unpacking is not None:
            self._last_line = block.line_at(block.position(len(block) - 1))
        records = block.records()
        if not block.is_ended:  # the last line of the file, which may still grow
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
        """Fill ``view``, or a part of it; return 0 at the end.  Raise if the file was truncated."""
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
        """Check that the bytes read before are still in the file.

        This is done after each read, so that its result can be trusted.  A truncated file ends
        before the place that was read and would look finished; a file rewritten meanwhile would go
        on with other lines.
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
        return self.done_bytes()  # everything was read: this is the end of the file

    def end(self) -> None:
        """Return an unknown end, so that a later run checks the file again."""

    def is_replaced(self) -> bool:
        return False

    def _check_tail(self) -> None:
        """Nothing to compare with."""


def _grown(record: Record, sizes: Mapping[int, int]) -> Record:
    """Return a line that may grow, or has grown, with its length as a part of the position."""
    position = record.position
    assert isinstance(position, tuple) and isinstance(position[0], int)
    size = sizes.get(position[0])
    return record if size is None else Record((*position[:2], size), record.value)


def check_end(name: str, end: object) -> None:
    """Raise :class:`SourceError` if the bytes before ``end`` are not those that were read.

    ``name`` is an existing file that this user may read.
    """
    if not isinstance(end, tuple) or len(end) != 3 or not isinstance(end[0], int):
        return  # saved by a version without digests
    with open(name, "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size < end[0]:
            return  # the file shrank: what counts is whether its last done line is still there
        is_same = _mark_before(file.fileno(), end[0]) == end[2]
    if not is_same:
        raise another_file(name, end[0])


def _mark_before(descriptor: int, end: int) -> str:
    """Return a digest of the last bytes before ``end``."""
    length = min(end, _TAIL_BYTES)
    return _digest(os.pread(descriptor, length, end - length))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_MARK_BYTES).hexdigest()


def shrank(name: str, place: Place) -> SourceError:
    """Return the error for a file that ends before the checkpoint's position."""
    return SourceError(
        f"{name}: the file shrank; byte {place.offset} (line {place.line}) was read before and is "
        "gone. Was it rotated or rewritten?",
        remedy=_another_file(name),
    )


def truncated(name: str, place: Place, end: int, *, had: int, has: int) -> SourceError:
    """Return the error for a file that was truncated while it was read, up to byte ``end``.

    ``had`` and ``has`` are its sizes [bytes] when it was checked before, and now.
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
    """Return the error for a file that is not the one that was read before."""
    return SourceError(
        f"{name}: no line begins at byte {place.offset} (line {place.line}) any more: this is not "
        "the file that was read before. Was it rotated or rewritten?",
        remedy=_another_file(name),
    )


def another_file(name: str, end: int) -> SourceError:
    """Return the error for a file whose bytes before ``end`` are not those that were read."""
    return SourceError(
        f"{name}: the bytes before byte {end} are not those that were read: this is not the"
        " file that was read before. Was it rotated or rewritten?",
        remedy=_another_file(name),
    )


def _another_file(name: str) -> str:
    """Return the remedy for a file that replaced the one read: that one has another name now."""
    return (
        "Bring the old file back. If a new one took its name, read that from its beginning:"
        f" flowctl checkpoint rewind JOB --partition {shlex.quote(name)} --start"
        " --sink FILE.py:SINK (without --sink an SqlSink takes its lines for those of the old file"
        " and skips them; leave it out if there is no such sink)."
    )
