"""One open file, read block by block from a given place."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain, count, repeat
from operator import add
from types import MappingProxyType
from typing import IO, NamedTuple

from flowctl.core.records import Record
from flowctl.errors import SourceError
from flowctl_files._compressed import check_beginning, decompressed, is_damage, kind_of
from flowctl_files._lines import BadLine, LineCodec
from flowctl_files._paths import End, found_as, open_regular, unreadable

# Fits into a core's cache together with the lines made of it: twice as fast as 128 KiB and more
# (measured).
_BLOCK_BYTES = 64 << 10
# Decompressing this much takes some 20 ms: poll stays within its 100 ms.
_SKIP_BYTES = 8 << 20
# The last bytes read are checked again after each block: are they still there? Long enough to hold
# the time stamp of a log line; half a microsecond per block (measured).
_TAIL_BYTES = 64
# Of a digest of them: enough to tell two files apart, short enough to be saved of 200,000.
_MARK_BYTES = 8


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
    later.  ``error`` is set when a bad line is found: what :meth:`next_block` returned before is
    good, and nothing follows.
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
        self.error: SourceError | None = None
        self._codec = codec
        self._max_line_bytes = max_line_bytes
        self._growing = growing
        self._last_line = b""  # of a compressed file
        self._carry = bytearray()  # the beginning of a line whose end is not read yet
        # The byte before the line must be a newline: this detects a file that has been replaced.
        self._check_newline = place.offset > 0
        self._skip = max(place.offset - 1, 0)
        self.tail = tail or Tail()
        self._open()

    def _open(self) -> None:
        try:
            self._file = self._open_file()
            self._decompressed = decompressed(self.name, self._file)
            size = max(self.tail.size, self.size())
            if self._decompressed is None:
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
        return self._file.tell()

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
        if self._decompressed is not None:
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
        if self._decompressed is not None:
            self._decompressed.close()
        self._file.close()

    def next_block(self) -> Iterator[Record] | None:
        """Return the next records (perhaps none: call again), or None at the end of the file.

        The iterator is lazy and must be consumed once.  Raises :class:`SourceError`.
        """
        if self._skip:
            self._skip_some()
            return iter(())
        while data := self._read():
            cut = data.rfind(b"\n") + 1
            if cut:
                block = bytes(self._carry) + data[:cut] if self._carry else data[:cut]
                self._carry = bytearray(data[cut:])
                return self._records(block)
            self._carry += data
            if len(self._carry) > self._max_line_bytes:
                raise self._too_long(self.place.line, self.place.offset)
        return self._at_end()

    def _at_end(self) -> Iterator[Record] | None:
        if self.place.line_is_done and not self._carry and not self._growing:
            raise shrank(self.name, self.place)  # the line that was done is not there
        if self._growing or not self._carry:
            return None
        last = bytes(self._carry)
        self._carry.clear()
        return self._records(last)

    def _read(self) -> bytes:
        data = self._read_raw(_BLOCK_BYTES)
        if self._check_newline and data:
            self._check_newline = False
            if data[:1] != b"\n":
                raise changed(self.name, self.place)
            data = data[1:] or self._read_raw(_BLOCK_BYTES)
        return data

    def _read_raw(self, size: int) -> bytes:
        try:
            if self._decompressed is not None:
                # Not read(): when it finds damage it drops the good bytes before it.
                data = self._decompressed.read1(size)
                if not data and self.size() < self.tail.size:
                    raise self._truncated(self._file.tell())
                return data
            data = self._file.read(size)
            if not self.tail.end:
                check_beginning(self.name, data)
            self._check_tail()
            if not data and self.tail.end < self.tail.size:
                raise self._truncated(self.tail.end)
            self._move_tail(data)
            return data
        except SourceError:
            raise
        except Exception as error:
            if self._decompressed is not None and is_damage(error):
                raise self._damaged(error) from error
            if isinstance(error, OSError):
                raise unreadable(self.name, error) from error
            raise

    def _damaged(self, error: Exception) -> SourceError:
        kind = kind_of(self.name)
        return SourceError(
            f"{self.name}: the {kind} data are damaged or truncated after line "
            f"{self.place.line - 1} ({error}).",
            remedy=f"Get the file again ({kind} -t checks it) and start again: "
            "what was read is kept.",
        )

    def _check_tail(self) -> None:
        """Check that what was read before is still there.  After each read, so that what it
        returned is right.

        A file that is truncated ends before the place that was read, and would look finished; one
        that is rewritten meanwhile would go on with other lines.
        """
        end, tail, _ = self.tail
        if tail and os.pread(self._file.fileno(), len(tail), end - len(tail)) != tail:
            raise self._truncated(end)

    def _move_tail(self, data: bytes) -> None:
        end, before, size = self.tail
        last = data if len(data) >= _TAIL_BYTES else before + data
        end += len(data)
        self.tail = Tail(end, last[-_TAIL_BYTES:], size if end <= size else max(end, self.size()))

    def _truncated(self, end: int) -> SourceError:
        return truncated(self.name, self.place, end, had=self.tail.size, has=self.size())

    def _skip_some(self) -> None:
        stop = max(self._skip - _SKIP_BYTES, 0)
        while self._skip > stop:
            data = self._read_raw(min(self._skip, _BLOCK_BYTES))
            if not data:
                raise shrank(self.name, self.place)
            self._skip -= len(data)

    def _records(self, block: bytes) -> Iterator[Record]:
        offset, line, first_is_done, done_bytes, mark, partly = self.place
        # A block no longer than the limit has no line beyond it, so usually there is nothing to
        # check.
        bad = self._first_too_long(block) if len(block) > self._max_line_bytes else None
        if bad:
            self.error = self._too_long(line + bad.index, offset + bad.at)
            block = block[: bad.at]
        lines = self._codec.split(block, begins=offset == 0) if block else None
        if lines is None:
            return iter(())
        if lines.bad:
            self.error = self._undecodable(block, lines.bad)
        self.place = Place(offset + len(block), line + len(lines.values), partly=partly)
        # add(…, count()): each line's newline is a byte too.
        sizes = list(lines.sizes) if partly else lines.sizes  # some of them can be read once only
        offsets = map(add, accumulate(sizes, initial=offset), count())
        records = map(Record, zip(offsets, count(line), strict=False), lines.values)
        size = block.find(b"\n")
        if size < 0:  # the last line has no newline, and may yet grow
            records = map(Record, [(offset, line, len(block))], lines.values)
            size = len(block)
        elif partly:
            records = map(_grown, records, sizes, repeat(partly))
        if self._decompressed is not None:
            self._last_line = block[block.rfind(b"\n", 0, -1) + 1 :].removesuffix(b"\n")
        if not first_is_done:
            return records
        if mark and (done_bytes is None or size <= done_bytes) and mark != _digest(block[:size]):
            raise another_file(self.name, offset + size)
        first = next(records, None)
        if first is not None and done_bytes is not None and size > done_bytes:
            return chain([Record((offset, line, size), first.value)], records)
        return records

    def _first_too_long(self, block: bytes) -> BadLine | None:
        at = 0
        for index, line in enumerate(block.split(b"\n")):
            if len(line) > self._max_line_bytes:
                return BadLine(index, at, "too long")
            at += len(line) + 1
        return None

    def _too_long(self, line: int, offset: int) -> SourceError:
        return SourceError(
            f"{self.name}, line {line} (byte {offset}): longer than {self._max_line_bytes} bytes.",
            remedy="Raise max_line_bytes, or fix the file.",
        )

    def _undecodable(self, block: bytes, bad: BadLine) -> SourceError:
        before = sum(len(line) + 1 for line in block.split(b"\n", bad.index)[: bad.index])
        offset = self.place.offset + before + bad.at
        return SourceError(
            f"{self.name}, line {self.place.line + bad.index} (byte {offset}): {bad.why}.",
            remedy="Set the right encoding, or errors='replace', or encoding=None for bytes.",
        )


def _grown(record: Record, size: int, partly: Mapping[int, int]) -> Record:
    """Return a line with a newline under a place behind that of its beginning, if that is done."""
    position = record.position
    assert isinstance(position, tuple) and isinstance(position[0], int)
    if partly.get(position[0], size) >= size:
        return record
    return Record((*position[:2], size), record.value)


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
