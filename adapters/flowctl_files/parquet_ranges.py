"""Rows of Parquet files as a source by reference: the bolts read them where they run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError
from flowctl_files._hive import int_columns, keys_of, typed
from flowctl_files._parquet_blocks import Columns, RowsBlock, RowsReader, columns_of, load_pyarrow
from flowctl_files._paths import listed_paths
from flowctl_files._stores import Stores
from flowctl_files._tables import delta_files, iceberg
from flowctl_files.text_ranges import check_place

_PATTERN: Final = "**/*.parquet"
# Files whose ends are read at once: each takes some requests of 50 ms to an object store.
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
    an expression) skips row groups by their statistics and files by their directories' names.  A
    row group is the least that is read: a range that is cut within one reads it twice.

    Of a Delta table the files of its newest version are read, if ``deltalake`` is installed on the
    driver.  The directory of an Iceberg table is refused, as it holds files that are no longer part
    of the table; give the files of a snapshot.

    Files must stay as they are: a worker refuses one that changed.  Raises :class:`ConfigError` and
    :class:`SourceError`.  Calls come from one thread.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        filesystem: Callable[[], Any] | None = None,
    ) -> None:
        self._paths = listed_paths(paths, other="a directory")
        self._columns = columns_of(columns, filter)
        self._stores = Stores(storage_options, filesystem)
        self._reader: ParquetReader | None = None

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        """The files with their numbers of rows: reads the end of each file."""
        load_pyarrow()
        found: dict[str, str] = {}  # file: the directory that it was found in
        for path in self._paths:
            found |= self._files_of(path)
        keys = {name: keys_of(name, base) for name, base in found.items()}
        reader = ParquetReader(self._stores, self._columns, found, int_columns(keys.values()))
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            each = threads.map(reader.extent, sorted(found))
            extents = {name: extent for name, extent in each if extent is not None}
        for name in extents.keys() & checkpoint.partitions.keys():
            check_place(name, extents[name], checkpoint.partitions[name].position)
        self._reader = reader
        return extents

    def reader(self) -> ParquetReader:
        """What the bolts read with."""
        if self._reader is None:
            self.extents(Checkpoint())
        assert self._reader is not None
        return self._reader

    def close(self) -> None:
        """Nothing is open."""

    def _files_of(self, path: str) -> dict[str, str]:
        if not self._stores.is_folder(path):
            base = path.partition("*")[0].rpartition("/")[0] if "*" in path else ""
            return dict.fromkeys(self._stores.find([path]), base)
        folder = path.rstrip("/")
        if self._stores.is_folder(f"{folder}/_delta_log"):
            return dict.fromkeys(delta_files(path), folder)
        if self._stores.is_folder(f"{folder}/metadata"):
            raise iceberg(path)
        names = self._stores.find([f"{folder}/{_PATTERN}"])
        return {name: folder for name in names if not _is_hidden(name, folder)}


class ParquetReader:
    """Reads rows on a worker: a :class:`flowctl.range_ports.RangeReader`.

    ``bases`` says of each file in which directory it was found, ``ints`` which columns of the
    directories' names are numbers.
    """

    def __init__(
        self, stores: Stores, columns: Columns, bases: Mapping[str, str], ints: frozenset[str]
    ) -> None:
        self._stores = stores
        self._columns = columns
        # By directory: there are few, and the reader travels.
        self._bases = (*sorted(set(bases.values()), key=len, reverse=True), "")
        self._ints = ints

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[RowsBlock]:
        """See :class:`flowctl.range_ports.RangeReader`."""
        self._stores.check(partition, identity)
        with closing(self._stores.open(partition)) as file:
            reader = self._rows_reader(partition, file)
            if stop > reader.rows:
                raise SourceError(
                    f"{partition}: it has {reader.rows} rows, and rows up to {stop} are wanted.",
                    remedy="Bring the old file back, or give the job another name.",
                )
            groups = self._groups(partition, file)
            for block in reader.blocks(start, stop, groups):
                if block.stop >= stop:  # before it is done: is it still the same file?
                    self._stores.check(partition, identity)
                yield block

    def extent(self, name: str) -> tuple[str, Extent | None]:
        """Return a file and what there is to read; None if the filter leaves no row group."""
        found = self._stores.stat(name)
        with closing(self._stores.open(name)) as file:
            rows = self._rows_reader(name, file).rows
            groups = self._groups(name, file)
        if rows and groups is not None and not groups:
            return name, None
        return name, Extent(0, rows, found.identity, size_bytes=found.size)

    def _rows_reader(self, name: str, file: Any) -> RowsReader:
        return RowsReader(name, file, self._columns, self._keys(name))

    def _keys(self, name: str) -> dict[str, Any]:
        base = next(each for each in self._bases if name.startswith(each))
        return typed(keys_of(name, base), self._ints)

    def _groups(self, name: str, file: Any) -> frozenset[int] | None:
        """Return the row groups that may hold rows that the filter lets through; None: all."""
        if self._columns.filter is None:
            return None
        import pyarrow.dataset as ds

        keys = self._keys(name)
        known = ds.scalar(True)
        for key, value in keys.items():
            field = ds.field(key)
            known = known & (field == value if value.is_valid else field.is_null())
        file.seek(0)
        fragment = ds.ParquetFileFormat().make_fragment(file, partition_expression=known)
        schema = fragment.physical_schema
        for key, value in keys.items():
            if key not in schema.names:
                schema = schema.append(load_pyarrow()[0].field(key, value.type))
        left = fragment.subset(self._columns.filter, schema=schema)
        return frozenset(group.id for group in left.row_groups)


def _is_hidden(name: str, folder: str) -> bool:
    """Whether Spark would pass over it: ``_temporary/``, ``.hidden``."""
    return any(part[:1] in ("_", ".") for part in name[len(folder) :].strip("/").split("/"))
