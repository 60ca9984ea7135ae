"""Read the rows of a part of a Parquet file in columnar blocks; needs pyarrow."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import Any, Final, NamedTuple

from flowctl.core.records import ColumnRecords, Fields
from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl_files._layouts import Layout, with_column
from flowctl_files._stores import lasting

# -- Which columns of a Parquet file are wanted, which it must have, and may not have ----------


def listed_columns(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the wanted columns, None for all; raise :class:`ConfigError` if they aren't names."""
    given: Any = names
    if given is None:
        return None
    listed = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not listed or not all(isinstance(name, str) for name in listed):
        shown = listed if isinstance(given, Iterable) and not isinstance(given, str) else given
        raise ConfigError("columns", f"{shown!r} is not a list of names.", remedy="Give ['a'].")
    return listed


def check_columns(file: str, there: Sequence[str], wanted: Collection[str] | None) -> None:
    """Raise :class:`SourceError` if a wanted column is missing or occurs twice.

    ``wanted``: None for all.  A row is a dict, which would hold only one of two columns with the
    same name.
    """
    missing = [name for name in wanted or () if name not in there]
    if missing:
        raise SourceError(
            f"{file}: there is no column {missing[0]!r}.",
            remedy=f"Its columns are {', '.join(map(repr, there))}.",
        )
    for name, times in Counter(there).items():
        if times > 1 and (wanted is None or name in wanted):
            others = [other for other in there if other != name]
            raise SourceError(
                f"{file}: {times} columns are called {name!r}, of which a row would hold one.",
                remedy="Give the file's columns different names, or read others:"
                f" columns={others!r}.",
            )


# -- Rows of a part of a Parquet file, in blocks of columns; needs pyarrow ---------------------


# Bytes of columns that a bolt reads ahead, about.
_BLOCK_BYTES: Final = 1 << 20
# Limits of a block in rows.  Most: narrow rows take some 30 MB as dicts.  Fewest: for wide rows, a
# read of fewer costs more than the rows themselves.
_ROWS_MAX: Final = 1 << 15
_ROWS_MIN: Final = 64
_ROW = "__flowctl_row"


class RowsBlock:
    """Rows of one file: a :class:`flowctl.range_ports.Block` with columns.

    ``positions`` are the numbers of the rows in the file.
    """

    __slots__ = ("_batch", "_positions", "stop")

    def __init__(self, batch: Any, positions: Sequence[int], stop: int) -> None:
        self._batch = batch
        self._positions = positions
        self.stop = stop

    @property
    def size_bytes(self) -> int:
        """What the columns take."""
        return int(self._batch.nbytes)

    def __len__(self) -> int:
        return len(self._positions)

    def position(self, i: int) -> int:
        """See :class:`flowctl.range_ports.Block`."""
        return self._positions[i] if i < len(self._positions) else self.stop

    def batch_records(self, i: int, j: int) -> ColumnRecords:
        """See :class:`flowctl.range_ports.Block`."""
        return ColumnRecords(self._batch, range(i, j), self._positions.__getitem__, _rows)


def _rows(batch: Any) -> list[Fields]:
    return list(map(Fields, batch.to_pylist()))


def unreadable_value(name: str, batch: Any, positions: Sequence[int]) -> SourceError | None:
    """Return the error for the first value that Python can't represent, if there is one."""
    for row, column in product(range(batch.num_rows), batch.schema.names):
        try:
            batch.column(column)[row].as_py()
        except Exception as error:  # each type (date, time zone, text …) raises errors of its own
            return SourceError(
                f"{name}, row {positions[row]}: the value in column {column!r} can't be read:"
                f" {type(error).__name__}: {error}.",
                remedy="Correct it, or read the other columns: columns=[…].",
            )
    return None


class Columns(NamedTuple):
    """The choice of the columns and rows to read.

    ``names`` None: all.  ``filter`` is an expression of pyarrow; ``filter_names`` are its columns,
    None if unknown.
    """

    names: tuple[str, ...] | None = None
    filter: Any = None
    filter_names: frozenset[str] | None = frozenset()


class RowsReader:
    """Reads parts of one open file.  For one thread; the caller closes ``file``.

    ``layout`` returns, for the file's schema, the layout that makes rows of its columns.
    """

    def __init__(
        self, name: str, file: Any, columns: Columns, layout: Callable[[Any], Layout]
    ) -> None:
        pyarrow, parquet = load_pyarrow()
        self._name = name
        self._arrow = pyarrow
        self._is_on_disk = isinstance(file, io.FileIO)
        self._columns = columns
        try:
            # Spark's INT96 as datetimes: as nanoseconds they would be pandas' Timestamps, and
            # years after 2262 would be others.
            self._parquet = parquet.ParquetFile(
                file, pre_buffer=True, coerce_int96_timestamp_unit="us"
            )
        except (pyarrow.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        self.schema = self._parquet.schema_arrow
        self.layout = layout(self.schema)
        self._check_columns()

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return int(self._parquet.metadata.num_rows)

    def blocks(self, start: int, stop: int, groups: Container[int] | None) -> Iterator[RowsBlock]:
        """Yield rows ``start`` to ``stop - 1``, only of the row groups in ``groups``."""
        metadata = self._parquet.metadata
        counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        bounds = list(accumulate(counts, initial=0))
        for group, (begin, end) in enumerate(pairwise(bounds)):
            if begin < stop and end > start and (groups is None or group in groups):
                yield from self._group(group, begin, (max(begin, start), min(end, stop)))
        yield RowsBlock(self._empty(), (), stop)

    def _group(self, group: int, begin: int, wanted: tuple[int, int]) -> Iterator[RowsBlock]:
        size = self._parquet.metadata.row_group(group)
        row_bytes = max(1, size.total_byte_size // max(1, size.num_rows))
        rows = min(max(_BLOCK_BYTES // row_bytes, _ROWS_MIN), _ROWS_MAX)
        batches = self._parquet.iter_batches(
            rows, row_groups=[group], columns=self._file_columns(), use_threads=False
        )
        while True:
            try:
                batch = next(batches, None)
            except (self._arrow.ArrowException, OSError) as error:
                raise self._unreadable(error) from error
            if batch is None or begin >= wanted[1]:
                return
            end = begin + batch.num_rows
            first, last = max(begin, wanted[0]), min(end, wanted[1])
            if first < last:
                yield self._block(batch.slice(first - begin, last - first), first)
            begin = end

    def _block(self, batch: Any, first: int) -> RowsBlock:
        stop = first + batch.num_rows
        batch = self.layout.rows(batch)
        positions: Sequence[int] = range(first, stop)
        if self._columns.filter is not None:
            numbers = self._arrow.array(positions, self._arrow.int64())
            kept = self._filtered(with_column(batch, _ROW, numbers))
            positions = kept.column(_ROW).to_pylist()
            batch = kept.select(batch.schema.names)
        return RowsBlock(self._selected(batch), positions, stop)

    def _filtered(self, batch: Any) -> Any:
        try:
            kept = self._arrow.Table.from_batches([batch]).filter(self._columns.filter)
        except self._arrow.ArrowException as error:
            raise unfit_filter(self._name, error) from error
        batches = kept.combine_chunks().to_batches()
        return batches[0] if batches else batch.slice(0, 0)

    def _selected(self, batch: Any) -> Any:
        names = self._columns.names
        return batch if names is None else batch.select(list(names))

    def _file_columns(self) -> list[str] | None:
        """Return the columns to read: the wanted ones and those that the filter uses."""
        names, _, filter_names = self._columns
        if names is None or filter_names is None:
            return self.layout.in_file(None)
        return self.layout.in_file({*names, *filter_names})

    def _check_columns(self) -> None:
        names, filter_names = self._columns.names, self._columns.filter_names
        wanted = None if names is None else [*names, *sorted(filter_names or ())]
        check_columns(self._name, self.layout.names, wanted)
        if wanted is None and filter_names:
            check_columns(self._name, self.layout.names, filter_names)

    def _unreadable(self, error: Exception) -> Exception:
        # pyarrow raises OSError for damage too; from a disk, system calls' errors have a number.
        if isinstance(error, OSError) and not (self._is_on_disk and error.errno is None):
            return lasting(self._name, error)
        return no_parquet(self._name, error)

    def _empty(self) -> Any:
        return self._arrow.RecordBatch.from_pydict({})


def load_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its parquet module; :class:`MissingExtraError` if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError("producer", "pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet


def columns_of(names: Sequence[str] | None, wanted: Any) -> Columns:
    """Return what to read; ``wanted`` is an expression or a list of ``(column, op, value)``."""
    chosen = listed_columns(names)
    if wanted is None:
        return Columns(chosen)
    _, parquet = load_pyarrow()
    from pyarrow import compute

    if isinstance(wanted, compute.Expression):
        return Columns(chosen, wanted, None)
    try:
        if not isinstance(wanted, list):
            raise TypeError(f"it is a {type(wanted).__name__}")
        expression = parquet.filters_to_expression(wanted)
        terms = [term for each in wanted for term in (each if isinstance(each, list) else [each])]
        return Columns(chosen, expression, frozenset(name for name, _, _ in terms))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "filter",
            f"{wanted!r} can't be used: {_said(error)}.",
            remedy="Give [('column', '>', 3)], or an expression of pyarrow.compute.",
        ) from None


def unfit_filter(name: str, error: Exception) -> SourceError:
    """Return the error for a filter that compares a column with a value of another type."""
    return SourceError(
        f"{name}: the filter can't be applied: {_said(error)}.",
        remedy="Compare each column with a value of its own type.",
    )


def no_parquet(name: str, error: Exception) -> SourceError:
    """Return the error for a file that is damaged or not Parquet."""
    return SourceError(
        f"{name}: can't be read as Parquet: {_said(error)}.",
        remedy="Check that it is a complete Parquet file that this user may read.",
    )


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(". ")
