"""Lines of text files as a source by reference: the bolts read them where they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import IO, Any

from flowctl.arguments import check_arguments
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError
from flowctl_files._compressed import (
    BEGINNING_BYTES,
    Unpacking,
    check_beginning,
    check_text,
    decompressed,
    kind_of,
)
from flowctl_files._lines import MAX_LINE_BYTES, LineCodec, checked_line_bytes
from flowctl_files._paths import listed_paths
from flowctl_files._spellings import check_names
from flowctl_files._stores import Stores, changed, check_unchanged, lasting
from flowctl_files._text_blocks import UNKNOWN_STOP, TextBlock, TextBlocks


class TextRanges:
    """Lines of files, read by the bolts: a :class:`flowctl.range_ports.RangeProducer`.

    ``paths`` is a path or pattern (``*``, ``**``, ``~``), or several; or URLs (``s3://``, ``gs://``
    …), which pyarrow or fsspec read.  The bolts must see the same files under the same names: paths
    need a shared disk, URLs need credentials on the workers, which never travel.  ``filesystem`` is
    a function that returns a file system of pyarrow or fsspec; it is called where files are read.
    ``storage_options`` are fsspec's and must not contain secrets.

    A partition is a file.  A record's value is the line without ``\\n`` or ``\\r\\n``, as for
    ``TextLines``; a byte order mark at the beginning of UTF-8 is left out.  Its position is the
    byte where it begins.  A file is cut at any byte; a line belongs to the range in which it
    begins.  ``.gz``, ``.bz2`` and ``.zst`` files are read from their beginning, one range per file.

    Files must be complete when the run begins and must not change: a worker refuses a file whose
    size, modification time or ETag differs.  Read files that grow with ``TextLines``.

    Raises :class:`ConfigError` and :class:`SourceError`.  Calls come from one thread.
    """

    @check_arguments("encoding", "storage_options")
    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        encoding: str | None = "utf-8",
        errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Callable[[], Any] | None = None,
    ) -> None:
        self._patterns = listed_paths(paths)
        most = checked_line_bytes(max_line_bytes)
        self.stores = Stores(storage_options, filesystem)
        self._reader = TextReader(self.stores, LineCodec(encoding, errors), most)

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        """Return the files with their sizes; raise :class:`SourceError` for a file that shrank."""
        extents = {
            name: Extent(
                0,
                UNKNOWN_STOP if kind_of(name) else found.size,
                found.identity,
                is_splittable=not kind_of(name),
                size_bytes=found.size,
            )
            for name, found in self.stores.find(self._patterns).items()
        }
        check_text(extents)
        check_names(extents, checkpoint)
        for name in extents.keys() & checkpoint.partitions.keys():
            check_place(name, extents[name], checkpoint.partitions[name].position)
        check_unchanged(extents, checkpoint)
        return extents

    def reader(self) -> TextReader:
        """Return the reader for the bolts."""
        return self._reader

    def close(self) -> None:
        """Nothing is open."""


class TextReader:
    """Reads lines on a worker: a :class:`flowctl.range_ports.RangeReader`."""

    def __init__(self, stores: Stores, codec: LineCodec, max_line_bytes: int) -> None:
        self.stores = stores
        self._codec = codec
        self._max_line_bytes = max_line_bytes

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[TextBlock]:
        """See :class:`flowctl.range_ports.RangeReader`."""
        found = self.stores.check(partition, identity)
        blocks = TextBlocks(partition, self._codec, self._max_line_bytes)
        with closing(self.stores.open(partition)) as file:
            read_into = _reading(partition, file, max(start - 1, 0), found.size)
            read = blocks.blocks(read_into, start, stop)
            yield from self.stores.verified(partition, identity, read)


def _reading(name: str, file: IO[bytes], start: int, size: int) -> Callable[[memoryview], int]:
    """Return a function that reads ``file``, decompressed, from ``start`` on into a buffer."""
    unpacked = decompressed(name, file)
    if unpacked is None:
        file.seek(start)
        return _Plain(name, file, start, size).read_into
    reading = Unpacking(name, unpacked)
    reading.skip(start)
    return reading.read_into


class _Plain:
    """Reads a file that has ``size`` bytes."""

    def __init__(self, name: str, file: IO[bytes], place: int, size: int) -> None:
        self._name = name
        self._file: Any = file  # readinto is not part of IO
        self._place = place
        self._size = size

    def read_into(self, view: memoryview) -> int:
        """Return the number of bytes read; raise :class:`SourceError` if the file has shrunk."""
        try:
            got: int = self._file.readinto(view)
        except OSError as error:
            raise lasting(self._name, error) from error
        if not self._place:
            check_beginning(self._name, bytes(view[: min(got, BEGINNING_BYTES)]))
        self._place += got
        if not got and self._place < self._size:
            raise changed(self._name, f"{self._size} bytes", f"{self._place} bytes")
        return got


def check_place(name: str, extent: Extent, position: object) -> None:
    """Raise :class:`SourceError` if a checkpoint's ``position`` can't be in ``extent``."""
    if position is None:
        return
    if not isinstance(position, int):
        raise SourceError(
            f"{name}: the checkpoint's position {position!r} is not one of this source.",
            remedy="Another source used this job's name: choose another name, or clear the"
            " checkpoint.",
        )
    if position >= extent.stop:
        raise SourceError(
            f"{name}: it was done through {position}, but ends at {extent.stop} now, so it is"
            " another file.",
            remedy="Bring the old file back, or give the job another name.",
        )
