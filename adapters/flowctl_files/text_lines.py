"""Lines of text files as a source."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from flowctl.arguments import check_arguments
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.logs import ModuleLogger
from flowctl.ports import SourceChunk, SourceProgress
from flowctl_files._compressed import check_text, kind_of
from flowctl_files._lines import MAX_LINE_BYTES, LineCodec, checked_line_bytes
from flowctl_files._paths import (
    Found,
    check_folder,
    check_url,
    find,
    is_remote,
    listed_paths,
    unreadable,
)
from flowctl_files._reader import (
    FileReader,
    Place,
    RemoteReader,
    Tail,
    changed,
    check_end,
    shrank,
)
from flowctl_files._spellings import check_names
from flowctl_files._stores import Stores

# Seconds between checks of growing files: too short to notice, too long to cost anything.
_LOOK_AGAIN_S = 0.1
# Files opened per poll.  An open and a read cost some 30 µs, so that a poll takes far less than its
# 100 ms even if all files are empty.
_FILES_PER_POLL = 500


class TextLines:
    """Reads lines of files: a :class:`flowctl.ports.FlowProducer` that knows its progress.

    ``paths`` is a path or pattern (``*``, ``**``, ``~``), or several.  Files ending in ``.gz``,
    ``.bz2`` or ``.zst`` (``flowctl-spark[zstd]``) are decompressed.  A partition is a file, named
    as it was given (relative stays relative: start the job from the same directory).  Files are
    read one after the other, sorted by name.

    A record's position is ``(byte, line)``: where the line begins, in uncompressed bytes, and its
    1-based number.  A last line without newline has its length as a third part: if it has grown
    when the job is run again, the whole line is read again, as a separate record.

    A record's value is the line without ``\\n`` or ``\\r\\n``: a str, or bytes with
    ``encoding=None``.  A byte order mark of UTF-8 is left out.  ``errors`` is as in
    :func:`open`, without the handlers whose text can't be sent to a bolt.  ``max_line_bytes``
    bounds the memory that a line takes; a longer line is an error.

    A file that was read to its end is not opened again as long as its size and modification time
    are unchanged; otherwise it is read on from the last line that is done.

    A file that is truncated while it is read is an error.  One that is replaced (rotated by
    renaming) is read to its end, and a warning says that the new one is not.

    A path with a scheme (``s3://bucket/*.log``, ``https://…``) is read through fsspec
    (``flowctl-spark[remote]`` and what fsspec requires, such as s3fs); ``storage_options`` are
    fsspec's.  Such a file must not change between and during runs.

    ``follow=True`` reads files that grow: it waits for a line's newline, picks up files that appear
    later, and never ends by itself.  A followed file must not be rotated by truncation.

    Raises :class:`SourceError` that names file, line and byte; the records before it have been
    returned by then.  Calls come from one thread, except :meth:`progress`.
    """

    @check_arguments("encoding", "follow", "storage_options")
    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        encoding: str | None = "utf-8",
        errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        follow: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._patterns = listed_paths(paths)
        self._max_line_bytes = checked_line_bytes(max_line_bytes)
        self._stores = Stores(storage_options, None, travels=False)
        for pattern in filter(is_remote, self._patterns):
            check_url(pattern)
            if follow:
                raise ConfigError(
                    "follow", f"{pattern} can't be followed.", remedy="Follow local files only."
                )
        self._codec = LineCodec(encoding, errors)
        self._follow = follow
        self._reset()

    def _reset(self) -> None:
        self._places: dict[str, Place] = {}
        self._seen: dict[str, os.stat_result] = {}  # follow: state when last left
        self._tails: dict[str, Tail] = {}  # follow: last bytes read
        self._queue: Iterator[str] = iter(())
        self._reader: FileReader | None = None
        self._records: Iterator[Record] = iter(())
        self._error: SourceError | None = None
        self._look_at_s = 0.0
        self._folder = ""  # the working directory, to which relative names belong
        self._read_bytes: dict[str, int] = {}  # size of each file, for progress
        self._done_bytes = 0
        self._total_bytes = 0

    def partitions(self) -> Sequence[str]:
        """Return the files, sorted; with ``follow`` those that exist by now."""
        return list(self._find())

    def open(self, checkpoint: Checkpoint) -> None:
        """Prepare to read on; fails early if a file is missing or can't be read."""
        self.close()
        self._reset()
        self._folder = os.getcwd()
        found = self._look(time.monotonic())
        check_text(found)
        check_names(found, checkpoint)
        ended = {} if self._follow else _ended(checkpoint, found)
        for name, saved in checkpoint.partitions.items():
            if saved.position is not None and name not in ended:
                self._places[name] = _place(name, saved.position)
            if name not in ended and (partly := _partly(saved)):
                place = self._places.get(name, Place())
                self._places[name] = place._replace(partly=partly)
        left = [name for name in found if name not in ended]
        for name in left:
            self._check(name, found[name][0])
            if (before := checkpoint.partitions.get(name)) and not is_remote(name):
                self._check_end(name, before.end)
        self._queue = iter(left)
        # All bytes before the checkpoint are done; in a compressed file, their number is known only
        # when it is read.
        self._read_bytes = {n: p.offset for n, p in self._places.items() if not kind_of(n)}
        self._done_bytes = sum([end[0] for end in ended.values()])
        self._done_bytes += sum([self._read_bytes.get(name, 0) for name in left])

    def _look(self, now_s: float) -> dict[str, Found]:
        """Find the files (again), without opening them."""
        self._look_at_s = now_s + _LOOK_AGAIN_S
        found = self._find()
        self._total_bytes = sum([file[0] for file in found.values()])
        return found

    def _find(self) -> dict[str, Found]:
        local = [pattern for pattern in self._patterns if not is_remote(pattern)]
        found = find(local, may_be_missing=self._follow)
        if len(local) == len(self._patterns):
            return found
        urls = [url for url in self._patterns if is_remote(url)]
        try:
            there = self._stores.find(urls)
        except OSError as error:
            raise unreadable(", ".join(urls), error) from error
        # Not every server reports the modification time; no saved end has this value.
        found |= {name: (size, 0) for name, (size, _) in there.items()}
        return dict(sorted(found.items()))

    def _check(self, name: str, size: int) -> None:
        if self._follow and kind_of(name):
            raise SourceError(
                f"{name}: a compressed file can't be followed.",
                remedy="Narrow the pattern to plain files.",
            )
        if is_remote(name):
            return
        place = self._places.get(name, Place())
        needed = place.offset + place.line_is_done
        if size < needed and not kind_of(name):
            raise shrank(name, place)
        if not os.access(name, os.R_OK):
            is_there = os.path.lexists(name)
            if self._follow and not is_there:
                return  # the file was removed since it was listed
            error = (13, "permission denied") if is_there else (2, "no such file")
            raise unreadable(name, OSError(*error))

    def _check_end(self, name: str, end: object) -> None:
        if kind_of(name):  # its beginning is checked when it is read
            place = self._places.get(name)
            if place is not None and isinstance(end, tuple) and len(end) == 3:
                self._places[name] = place._replace(mark=str(end[2]))
            return
        try:
            check_end(name, end)
        except OSError as error:
            if not self._follow:  # the file disappeared since it was listed
                raise unreadable(name, error) from error

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next lines, all of one file; see :class:`flowctl.ports.FlowProducer`."""
        for _ in range(_FILES_PER_POLL if max_records > 0 else 0):
            records = list(islice(self._records, max_records))
            if records:
                assert self._reader is not None
                return SourceChunk(self._reader.name, records)
            if self._error is not None:
                raise self._error
            try:
                if self._reader is None and not self._next_file():
                    return SourceChunk("", ()) if self._follow else None
                ended = self._next_block()
            except SourceError as error:
                self._error = error  # also for the next call: nothing after it may be read
                raise
            if ended is not None:
                return ended
        return SourceChunk(self._reader.name if self._reader else "", (), is_busy=True)

    def _next_file(self) -> bool:
        for name in self._queue:
            if not is_remote(name):
                check_folder(name, self._folder)
            if not self._follow or self._has_grown(name):
                reader_of: Callable[..., FileReader] = (
                    partial(RemoteReader, self._stores) if is_remote(name) else FileReader
                )
                self._reader = reader_of(
                    name,
                    self._places.get(name, Place()),
                    self._codec,
                    max_line_bytes=self._max_line_bytes,
                    growing=self._follow,
                    tail=self._tails.get(name),
                )
                return True
        # A file is read again only after a whole round, so that files that grow steadily don't
        # starve the others.
        now_s = time.monotonic()
        if self._follow and now_s >= self._look_at_s:
            found = self._look(now_s)
            for name, file in found.items():
                self._check(name, file[0])
            self._queue = iter(found)
        return False

    def _has_grown(self, name: str) -> bool:
        try:
            now = os.stat(name)
        except FileNotFoundError:
            return False
        before = self._seen.get(name)
        if before is None:
            return True
        if now.st_ino != before.st_ino:
            raise changed(name, self._places[name])
        return now.st_size != before.st_size

    def _next_block(self) -> SourceChunk | None:
        """Return the next chunk; at the end of a file, an empty chunk that marks the end."""
        reader = self._reader
        assert reader is not None
        if self._follow:  # taken before reading, so that bytes appended meanwhile count as growth
            self._seen[reader.name] = reader.stat()
        records = reader.next_block()
        self._count(reader)
        if records is not None:
            self._records = records
            return None
        self._places[reader.name] = reader.place
        end = None
        if self._follow:
            if reader.tail.data:
                self._tails[reader.name] = reader.tail
        elif reader.is_replaced():
            ModuleLogger("flowctl.files").warning(
                "file_replaced_while_read",
                file=reader.name,
                detail="the old one was read to its end; the new one is not read by this run",
                remedy="use a pattern that matches old and new files",
            )
        else:
            end = reader.end()
        self._reader = None
        reader.close()
        return None if end is None else SourceChunk(reader.name, (), end=end)

    def _count(self, reader: FileReader) -> None:
        done = reader.done_bytes()
        self._done_bytes += done - self._read_bytes.get(reader.name, 0)
        self._read_bytes[reader.name] = done

    def close(self) -> None:
        """Close the open file; harmless when repeated."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._records = iter(())
        self._queue = iter(())

    def progress(self) -> SourceProgress:
        """Bytes read, and bytes of all files, as they lie on disk; callable from any thread."""
        done = self._done_bytes
        return SourceProgress(done, max(self._total_bytes, done), "bytes")


def _ended(checkpoint: Checkpoint, found: dict[str, Found]) -> dict[str, Found]:
    """Return the files that were read to their ends and have not changed since."""
    saved = checkpoint.partitions
    return {
        name: file
        for name, file in found.items()
        if (state := saved.get(name)) and isinstance(end := state.end, tuple) and end[:2] == file
    }


def _partly(saved: PartitionCheckpoint) -> dict[int, int]:
    """Return the lines above the position that are done without a newline: see :class:`Place`."""
    lasts = [acked.last for acked in saved.acked]
    return {last[0]: last[2] for last in lasts if isinstance(last, tuple) and len(last) == 3}  # type: ignore[misc]


def _place(name: str, position: object) -> Place:
    if (
        isinstance(position, tuple | list)
        and len(position) in (2, 3)
        and all(isinstance(part, int) for part in position)
    ):
        done_bytes = position[2] if len(position) == 3 else None
        return Place(position[0], position[1], line_is_done=True, done_bytes=done_bytes)
    raise SourceError(
        f"{name}: the checkpoint's position {position!r} is not (byte, line).",
        remedy="Another source used this job's name: choose another name or clear the checkpoint.",
    )
