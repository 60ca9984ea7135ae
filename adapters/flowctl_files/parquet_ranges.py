"""Rows of Parquet files as a source by reference: the bolts read them where they run."""

from __future__ import annotations

import glob
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flowctl.arguments import check_arguments
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.range_ports import Block
from flowctl_files._by_value import ByValue
from flowctl_files._iceberg import Snapshot, Wanted, is_loaded, is_metadata, load_table, snapshot_of
from flowctl_files._layouts import Directories, Fields, Layout, Layouts, int_columns, keys_of
from flowctl_files._parquet_blocks import (
    Columns,
    RowsBlock,
    RowsReader,
    columns_of,
    load_pyarrow,
    unfit_filter,
    unreadable_value,
)
from flowctl_files._paths import is_remote, listed_paths
from flowctl_files._spellings import check_names
from flowctl_files._stores import Stores, check_unchanged
from flowctl_files.text_ranges import check_place

if TYPE_CHECKING:
    from pyiceberg.table import Table


# -- Directories that are tables: which of their files belong to it is written elsewhere -------


# Delta features that aren't supported here: without them a reader would return deleted rows or
# wrong columns.
_UNREADABLE: Final = frozenset({"deletionVectors", "columnMapping", "typeWidening"})
_MAPPING: Final = "delta.columnMapping.mode"


def delta_files(path: str) -> list[str]:
    """Return the files of the newest version of the Delta table in the directory ``path``."""
    try:
        deltalake: Any = importlib.import_module("deltalake")
    except ModuleNotFoundError:
        raise ConfigError(
            "paths",
            f"{path} is a Delta table, and deltalake, which lists its files, is not installed.",
            remedy="Run: pip install deltalake (the driver alone needs it), or give the files.",
        ) from None
    try:
        table = deltalake.DeltaTable(path)
        needed = set(table.protocol().reader_features or ())
        if table.metadata().configuration.get(_MAPPING, "none") != "none":
            needed.add("columnMapping")  # tables of reader version 2 do not list this feature
        files: list[str] = table.file_uris()
    except Exception as error:  # deltalake's errors have no common base
        text = str(error).partition("\n")[0]
        raise SourceError(
            f"{path}: can't be read as a Delta table: {text}.",
            remedy="Check the table, and that this user may read it.",
        ) from error
    if needed & _UNREADABLE:
        raise ConfigError(
            "paths",
            f"{path} is a Delta table with {', '.join(sorted(needed & _UNREADABLE))}: its files"
            " hold rows or columns that are not the table's.",
            remedy="Write a snapshot of it as Parquet first.",
        )
    return files


def check_kept(path: str, files: Iterable[str], checkpoint: Checkpoint) -> None:
    """Raise :class:`SourceError` if a partly done file no longer belongs to the table.

    Its rows may be in other files now, where they would be processed again.
    """
    kept = set(files)
    # deltalake names files with the directory's links resolved.
    local = os.path.expanduser(path)
    folders = (path,) if "://" in path else (os.path.abspath(local), os.path.realpath(local))
    inside = tuple(f"{folder.rstrip('/')}/" for folder in folders)
    for name, done in checkpoint.partitions.items():
        if name in kept or not name.startswith(inside) or not done.records_done:
            continue
        raise SourceError(
            f"{path}: {name}, of which an earlier run of this job has done {done.records_done}"
            " rows, is no longer part of the Delta table; its rows may stand in other files now.",
            remedy="Give the job another name to do all rows of the newest version; or restore the"
            " version that the job began with.",
        )


# -- Rows of Parquet files as a source by reference --------------------------------------------


Check: TypeAlias = Callable[[str, int, RowsReader, Columns], None]

_PATTERN: Final = "**/*.parquet"
_MAGIC: Final = re.compile(r"[*?\[]")
# Files whose footers are read in parallel: each takes a few requests of 50 ms to an object store.
_AT_ONCE: Final = 16


class ParquetRanges:
    """Rows of Parquet files, read by the bolts: a :class:`flowctl.range_ports.RangeProducer`.

    ``paths`` is a file, a pattern, a directory, or several; or URLs, as for ``TextRanges``, which
    says what workers need to see them.  Of a directory all ``*.parquet`` files are read, at any
    depth; names such as ``year=2026/`` are columns.  Needs pyarrow on the driver and the workers
    (``flowctl-spark[parquet]``).

    A partition is a file, a record's position is the row's number in it, and its value the row as a
    dict.  ``batch.to_arrow()`` and ``batch.to_pandas()`` give the columns without making dicts.
    ``columns`` reads only those; ``filter`` (``[("price", ">", 3)]`` as in ``pyarrow.parquet``, or
    an expression) skips row groups by their statistics and files by their directories' names.
    Whole row groups are read, so a row group that is cut by two ranges is read twice.

    Of a Delta table the files of its newest version are read, if ``deltalake`` is installed on the
    driver.  A job that is started again also reads files that were added since; if a file that was
    partly done is no longer in the table (compacted, deleted from), the job is refused.

    Of an Iceberg table one snapshot is read: ``snapshot_id``, or the current one.  ``paths`` is
    then a ``Table`` of pyiceberg, its metadata file, or its directory if it has no catalogue; the
    driver needs pyiceberg (``flowctl-spark[iceberg]``).  A job that is started again reads the
    snapshot with which it began, whatever was committed since.  Columns go by field id; ``filter``
    leaves files out by the table's statistics too.  Files whose rows or columns differ from the
    table's, such as those with delete files, are refused by name.

    Files must not change: a worker refuses one that did.  Raises :class:`ConfigError` and
    :class:`SourceError`.  Calls come from one thread.
    """

    @check_arguments("storage_options")
    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Table,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Callable[[], Any] | None = None,
    ) -> None:
        self._table: Any = paths if is_loaded(paths) else None
        self._paths = [] if is_loaded(paths) else listed_paths(paths, other="a directory")
        self._wanted = Wanted(_checked_id(snapshot_id), filter)
        self._columns = columns_of(columns, filter)
        self.stores = Stores(storage_options, filesystem)
        self._reader: ParquetReader | None = None

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        """Return the files with their numbers of rows, read from the end of each file."""
        load_pyarrow()
        snapshot = self._snapshot(checkpoint)
        if snapshot is not None:
            layouts: Layouts = Fields(snapshot.fields)
            names, check = sorted(snapshot.files), snapshot.checks.check
            self._reader = ParquetReader(self.stores, self._columns, layouts, snapshot.mark)
        else:
            found: dict[str, str] = {}  # by file: the directory in which it was found
            for path in self._paths:
                found |= self._files_of(path, checkpoint)
            found = {name: found[name] for name in self.stores.once_each(found.keys())}
            keys = {name: keys_of(name, base) for name, base in found.items()}
            layouts = Directories(found, int_columns(keys.values()))
            names, check = sorted(found), None
            self._reader = ParquetReader(self.stores, self._columns, layouts)
        check_names(frozenset(names), checkpoint)
        extent_of = partial(self._reader.extent, check=check)
        saved = [checkpoint.partitions.get(name) for name in names]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            each = threads.map(extent_of, names, saved)
            extents = {name: extent for name, extent in each if extent is not None}
        for name in extents.keys() & checkpoint.partitions.keys():
            check_place(name, extents[name], checkpoint.partitions[name].position)
        check_unchanged(extents, checkpoint)
        return extents

    def reader(self) -> ParquetReader:
        """Return the reader for the bolts."""
        if self._reader is None:
            self.extents(Checkpoint())
        assert self._reader is not None
        return self._reader

    def close(self) -> None:
        """Nothing is open."""

    def _snapshot(self, checkpoint: Checkpoint) -> Snapshot | None:
        """Return the snapshot to read of an Iceberg table; None if the source is not one."""
        table: Any = self._table
        if table is None:
            tables = [path for path in self._paths if self._is_iceberg(path)]
            if not tables and self._wanted.snapshot_id is None:
                return None
            if not tables:
                raise ConfigError(
                    "snapshot_id",
                    f"{self._paths[0]} is not an Iceberg table.",
                    remedy="Leave snapshot_id out, or name the table's directory.",
                )
            if len(self._paths) > 1:
                raise ConfigError(
                    "paths",
                    f"{tables[0]} is an Iceberg table, and there are other paths.",
                    remedy="Read each table in a job of its own.",
                )
            [table] = tables
        table = load_table(table, self.stores)
        return snapshot_of(table, self._wanted, checkpoint, self._columns)

    def _is_iceberg(self, path: str) -> bool:
        folder = path.rstrip("/")
        return is_metadata(path) or (
            "*" not in path
            and self.stores.is_folder(f"{folder}/metadata")
            and not self.stores.is_folder(f"{folder}/_delta_log")
        )

    def _files_of(self, path: str, checkpoint: Checkpoint) -> dict[str, str]:
        if not self.stores.is_folder(path):
            magic = _MAGIC.search(path)
            base = path[: magic.start()].rpartition("/")[0] if magic else ""
            return dict.fromkeys(self.stores.find([path]), base)
        folder = path.rstrip("/")
        if self.stores.is_folder(f"{folder}/_delta_log"):
            files = delta_files(path)
            check_kept(path, files, checkpoint)
            return dict.fromkeys(files, folder)
        # The name of a directory on a disk may contain characters of a pattern.
        named = folder if is_remote(folder) else glob.escape(folder)
        names = self.stores.find([f"{named}/{_PATTERN}"])
        return {name: folder for name in names if not _is_hidden(name, folder)}


class ParquetRows(ByValue):
    """Rows of Parquet files, read by the driver: a :class:`flowctl.ports.FlowProducer` that knows
    its progress.

    Files are read one after the other, sorted by name.  Arguments, partitions, positions and values
    are those of :class:`ParquetRanges`, and changed files are reported in the same way: a job may
    change from one to the other.

    A resumed run skips row groups that are done without reading them.  Raises :class:`SourceError`
    that names the file.  Calls come from one thread, except :meth:`progress`.
    """

    @check_arguments("storage_options")
    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Callable[[], Any] | None = None,
    ) -> None:
        ranges = ParquetRanges(
            paths,
            columns=columns,
            filter=filter,
            storage_options=storage_options,
            filesystem=filesystem,
        )
        super().__init__(ranges)

    def records_of(self, block: Block, i: int, j: int) -> list[Record]:
        """See :class:`ByValue`; an error names the row and the column."""
        assert isinstance(block, RowsBlock)
        batch = block.batch_records(i, j).to_arrow()
        positions = [block.position(row) for row in range(i, j)]
        try:
            return list(map(Record, positions, batch.to_pylist()))
        except Exception as error:
            raise unreadable_value(self._name, batch, positions) or error from error


class ParquetReader:
    """Reads rows on a worker: a :class:`flowctl.range_ports.RangeReader`.

    ``layouts`` makes a file's rows from its columns.  ``mark`` ends each identity, after the part
    about the file.
    """

    def __init__(self, stores: Stores, columns: Columns, layouts: Layouts, mark: str = "") -> None:
        self.stores = stores
        self._columns = columns
        self._layouts = layouts
        self._mark = mark

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[RowsBlock]:
        """See :class:`flowctl.range_ports.RangeReader`."""
        identity = identity.removesuffix(self._mark)
        self.stores.check(partition, identity)
        with closing(self.stores.open(partition)) as file:
            reader = self._rows_reader(partition, file)
            if stop > reader.rows:
                raise SourceError(
                    f"{partition}: it has {reader.rows} rows, and rows up to {stop} are wanted.",
                    remedy="Bring the old file back, or give the job another name.",
                )
            groups = self._groups(partition, reader.layout, file)
            read = reader.blocks(start, stop, groups)
            yield from self.stores.verified(partition, identity, read)

    def extent(
        self, name: str, saved: PartitionCheckpoint | None = None, check: Check | None = None
    ) -> tuple[str, Extent | None]:
        """Return the extent of a file; None if the filter leaves no row group.

        A file that is done and unchanged is not opened.  ``check`` is called with its name, its
        size [bytes], its reader and the wanted columns.
        """
        found = self.stores.stat(name)
        if saved is not None and saved.end == found.identity and check is None:
            done = saved.position + 1 if isinstance(saved.position, int) else 0
            return name, Extent(0, done, found.identity, size_bytes=found.size)
        with closing(self.stores.open(name)) as file:
            reader = self._rows_reader(name, file)
            if check is not None:
                check(name, found.size, reader, self._columns)
            rows, groups = reader.rows, self._groups(name, reader.layout, file)
        if rows and groups is not None and not groups:
            return name, None
        return name, Extent(0, rows, found.identity + self._mark, size_bytes=found.size)

    def _rows_reader(self, name: str, file: Any) -> RowsReader:
        return RowsReader(name, file, self._columns, partial(self._layouts.of, name))

    def _groups(self, name: str, layout: Layout, file: Any) -> frozenset[int] | None:
        """Return the row groups that may hold rows that pass the filter; None for all."""
        needed = self._columns.filter_names
        if self._columns.filter is None:
            return None
        if not layout.is_plain(layout.names if needed is None else needed):
            return None  # the filter would be about other columns
        import pyarrow.dataset as ds

        keys = layout.keys
        known = ds.scalar(True)
        for key, value in keys.items():
            field = ds.field(key)
            known = known & (field == value if value.is_valid else field.is_null())
        file.seek(0)
        fragment = ds.ParquetFileFormat().make_fragment(file, partition_expression=known)
        schema = fragment.physical_schema
        for key, value in keys.items():
            schema = schema.append(load_pyarrow()[0].field(key, value.type))
        try:
            left = fragment.subset(self._columns.filter, schema=schema)
        except load_pyarrow()[0].ArrowException as error:
            raise unfit_filter(name, error) from error
        return frozenset(group.id for group in left.row_groups)


def _checked_id(snapshot_id: Any) -> int | None:
    if snapshot_id is None or (isinstance(snapshot_id, int) and not isinstance(snapshot_id, bool)):
        return snapshot_id
    raise ConfigError(
        "snapshot_id",
        f"{snapshot_id!r} is a {type(snapshot_id).__name__}, and the id of a snapshot is an int.",
        remedy="Give the number as the table's history has it.",
    )


def _is_hidden(name: str, folder: str) -> bool:
    """Whether Spark would skip the file: ``_temporary/``, ``.hidden``; not ``_year=2026/``."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in name[len(folder) :].strip("/").split("/")
    )
