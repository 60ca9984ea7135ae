"""Rows of Parquet files as a source."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, islice, product
from typing import Any, Final

from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import MissingExtraError, SourceError
from flowctl.ports import SourceChunk, SourceProgress
from flowctl_files._parquet_blocks import check_columns, listed_columns, no_parquet
from flowctl_files._paths import Found, check_folder, expand, find, found_as, listed_paths
from flowctl_files._spellings import check_names

# Turning this many rows of some columns into dicts takes some 10 ms: poll stays within its 100 ms.
_BATCH_ROWS: Final = 2_000
_ANOTHER: Final = "Bring the old file back, or give the job another name."


class ParquetRows:
    """Reads rows of Parquet files: a :class:`flowctl.ports.FlowProducer` that knows its progress.

    Needs pyarrow (``flowctl-spark[parquet]``).  ``paths`` is a path or pattern (``*``, ``**``,
    ``~``), or several.  A partition is a file, named as it was given (relative stays relative:
    start the job from the same directory).  Files are read one after the other, sorted by name.

    A record's value is the row as a dict; ``columns`` reads only those, which is faster.  Its
    position is the row's number in the file, from 0.  A resumed run skips row groups that are done
    without reading them.  A file of which rows are done must not change: size and modification
    time are saved with it, and a file for which they differ is refused.

    Raises :class:`SourceError` that names the file.  Calls come from one thread, except
    :meth:`progress`.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._patterns = listed_paths(paths)
        self._columns = listed_columns(columns)
        self._reset()

    def _reset(self) -> None:
        self._queue: Iterator[str] = iter(())
        self._first: dict[str, int] = {}  # the first row of each file that is not done
        self._name = ""  # of the file that is read
        self._file: Any = None
        self._rows: Iterator[Record] = iter(())
        self._found: dict[str, Found] = {}
        self._known: dict[str, Found] = {}  # of files of which rows are done, as they were then
        self._read: Found = (0, 0)  # the file that is read, as it is
        self._done_bytes = 0
        self._folder = ""  # the working directory, to which relative names belong
        self._error: SourceError | None = None

    def partitions(self) -> Sequence[str]:
        """The files, sorted."""
        return expand(self._patterns, may_be_missing=False)

    def open(self, checkpoint: Checkpoint) -> None:
        """Prepare to read on; fails early if a file or pyarrow is missing."""
        self.close()
        self._reset()
        self._folder = os.getcwd()
        _pyarrow()
        for name, saved in checkpoint.partitions.items():
            if saved.position is not None:
                self._first[name] = _row(name, saved.position) + 1
        self._found = find(self._patterns, may_be_missing=False)
        check_names(self._found, checkpoint)
        left = []
        for name, found in self._found.items():
            saved = checkpoint.partitions.get(name, PartitionCheckpoint())
            known = _known(saved)
            if known is not None:
                _check_same(name, known, found)
                self._known[name] = known
            if known is None or saved.end is None:
                left.append(name)
            else:
                self._done_bytes += found[0]
        self._queue = iter(left)

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next rows, all of one file; see :class:`flowctl.ports.FlowProducer`."""
        if self._error is not None:
            raise self._error
        try:
            if self._file is None and not self._next_file():
                return None
            records = list(islice(self._rows, min(max_records, _BATCH_ROWS)))
            if not records and max_records > 0:
                return self._end()
        except SourceError as error:
            self._error = error  # for the next call too: nothing after it may be read
            raise
        return SourceChunk(self._name, records, mark=self._read if records else None)

    def _end(self) -> SourceChunk:
        """Leave the file; :class:`SourceError` if it was written again while it was read."""
        with suppress(FileNotFoundError):  # removed: all of it was read
            _check_same(self._name, self._read, found_as(os.stat(self._name)))
        self._leave()
        return SourceChunk(self._name, (), end=self._read)

    def _next_file(self) -> bool:
        name = next(self._queue, None)
        if name is None:
            return False
        check_folder(name, self._folder)
        pyarrow, parquet = _pyarrow()
        try:
            self._read = found_as(os.stat(name))  # before: a later one is noticed
            # Opened here: pyarrow takes a name such as "10:30.parquet" for a URL.
            self._file = parquet.ParquetFile(pyarrow.OSFile(name), coerce_int96_timestamp_unit="us")
        except (pyarrow.ArrowException, OSError) as error:
            raise no_parquet(name, error) from error
        self._name = name
        if name in self._known:  # it may have been written again since the job began
            _check_same(name, self._known[name], self._read)
        check_columns(name, self._file.schema_arrow.names, self._columns)
        self._rows = self._read_rows(name, self._file, self._first.get(name, 0))
        return True

    def _read_rows(self, name: str, file: Any, first: int) -> Iterator[Record]:
        rows = file.metadata.num_rows
        if first > rows:
            raise SourceError(
                f"{name}: it has {rows} rows, but {first} were read before, so it is another file.",
                remedy=_ANOTHER,
            )
        groups, begin = _groups_from(file.metadata, first)
        try:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=self._columns):
                skipped = min(max(0, first - begin), batch.num_rows)
                values = _values(name, batch.slice(skipped), begin + skipped)
                yield from map(Record, count(begin + skipped), values)
                begin += batch.num_rows
        except (_pyarrow()[0].ArrowException, OSError) as error:
            raise no_parquet(name, error) from error

    def _leave(self) -> None:
        self._done_bytes += self._found[self._name][0]
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close(force=True)
            self._file = None
        self._rows = iter(())

    def close(self) -> None:
        """Close the open file; harmless when repeated."""
        self._close_file()
        self._queue = iter(())

    def progress(self) -> SourceProgress:
        """Bytes of files that were read, and of all; from any thread."""
        return SourceProgress(
            self._done_bytes, sum([size for size, _ in self._found.values()]), "bytes"
        )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError("producer", "pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet


def _values(name: str, batch: Any, first: int) -> list[Any]:
    """Return rows as dicts; :class:`SourceError` if Python has no such value."""
    try:
        values: list[Any] = batch.to_pylist()
    except Exception:  # of a date, a time zone, a text …: each has errors of its own
        for row, column in product(range(batch.num_rows), batch.schema.names):
            try:
                batch.column(column)[row].as_py()
            except Exception as error:
                raise SourceError(
                    f"{name}, row {first + row}: the value in column {column!r} can't be read:"
                    f" {type(error).__name__}: {error}.",
                    remedy="Correct it, or read the other columns: columns=[…].",
                ) from error
        raise
    return values


def _groups_from(metadata: Any, first: int) -> tuple[list[int], int]:
    """Return the row groups that hold row ``first`` and later ones, and the row they begin with."""
    begin = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if begin + rows > first:
            return list(range(group, metadata.num_row_groups)), begin
        begin += rows
    return [], begin


def _known(saved: PartitionCheckpoint) -> Found | None:
    """Size and modification time of the file of which rows are done; None: none are."""
    known = saved.mark if saved.end is None else saved.end
    if not saved.records_done and saved.end is None:
        return None
    match known:
        case (int(size), int(modified_ns)):
            return size, modified_ns
    return None  # of a version that did not save it


def _check_same(name: str, was: Found, now: Found) -> None:
    if was == now:
        return
    size = f" (it had {was[0]} bytes and has {now[0]})" if was[0] != now[0] else ""
    raise SourceError(
        f"{name}: the file was written again since rows of it were processed{size}, so their"
        " numbers may mean other rows now.",
        remedy="Bring the old file back with its modification time (cp -p). To process the new one"
        f" from its beginning: flowctl checkpoint rewind JOB --partition {shlex.quote(name)}"
        " --start --sink FILE.py:SINK (without --sink an SqlSink takes its rows for those of the"
        " old file and skips them; leave it out if there is no such sink). To process everything"
        " again, give the job another name.",
    )


def _row(name: str, position: object) -> int:
    if isinstance(position, int):
        return position
    raise SourceError(
        f"{name}: the checkpoint's position {position!r} is not a row number.",
        remedy="Another source used this job's name: choose another name or clear the checkpoint.",
    )
