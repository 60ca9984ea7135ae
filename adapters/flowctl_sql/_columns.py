"""Rows as columns of Arrow: what ``SqlSink`` gets from a DataFrame.  Imports pyarrow only then."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence, Set
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Final

from flowctl.bolts.batch import Batch
from flowctl.errors import RowError, UnrunnableError
from flowctl_sql._casts import TableColumns
from flowctl_sql._dialect import checked_columns
from flowctl_sql._rows import Insert, Prepared, row_error
from flowctl_sql._values import as_json

# Kinds whose values in Python all drivers know, or refuse by themselves.
_PLAIN: Final = frozenset(
    {"int", "float", "decimal", "bool", "text", "bytes", "date", "timestamp", "time", "null"}
)
# In this order: is_integer and the others are disjoint.  A date or time of 64 bits may be finer
# than Python's.
_KINDS: Final = (
    ("is_null", "null"),
    ("is_boolean", "bool"),
    ("is_integer", "int"),
    ("is_floating", "float"),
    ("is_decimal", "decimal"),
    ("is_string", "text"),
    ("is_large_string", "text"),
    ("is_string_view", "text"),
    ("is_binary", "bytes"),
    ("is_large_binary", "bytes"),
    ("is_fixed_size_binary", "bytes"),
    ("is_date32", "date"),
    ("is_duration", "interval"),
)
# The years that Python's dates have; the database has others, and CSV writes them in other ways.
_DAY_MIN, _DAY_MAX = -719162, 2932896  # days since 1970: year 1, year 9999
_DAY_US: Final = 86_400_000_000
_SECOND_US: Final = 1_000_000


# What pyarrow raises for a value that Python can't hold; a map may have keys that no dict has.
_NO_PYTHON: Final = (ValueError, ArithmeticError, KeyError, TypeError)


class NotAsText(Exception):
    """A column has a value that can't be written as the text that the database reads."""


def is_record_batch(rows: object) -> bool:
    """Whether ``rows`` is a ``pyarrow.RecordBatch``; does not import pyarrow."""
    return type(rows).__name__ == "RecordBatch" and type(rows).__module__.startswith("pyarrow")


class Columns:
    """The rows of a batch as a ``pyarrow.RecordBatch``.

    ``records``: the indices of the records that have a row, in order; None: each has one.  It is
    used like :class:`.Prepared`.  Not thread-safe.
    """

    shapes = None

    def __init__(
        self, table: Any, columns: tuple[str, ...], records: Sequence[int] | None = None
    ) -> None:
        self.table = table
        self.columns = columns
        self._records = records
        self._with_row = None if records is None else frozenset(records)
        self._prepared: Prepared | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        return self.table is other.table or bool(self.table.equals(other.table))

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def kinds(self) -> tuple[str | None, ...]:
        """The kind of each column, see :func:`kind_of`."""
        return tuple([kind_of(column.type) for column in self.table.columns])

    def local(self, zoned: Set[str]) -> Columns:
        """Return a copy whose instants are times of this process's zone, except in ``zoned``.

        That is what Spark puts into a Row, and its JDBC writer into a column without a zone.
        """
        if "timestamptz" not in self.kinds:
            return self
        arrays = [
            _local(column) if kind == "timestamptz" and name not in zoned else column
            for name, kind, column in zip(self.columns, self.kinds, self.table.columns, strict=True)
        ]
        table = _pyarrow().RecordBatch.from_arrays(arrays, list(self.columns))
        return Columns(table, self.columns, self._records)

    def rows_of(self, record: int) -> int:
        """Return the number of rows that belong to a record."""
        return 1 if self._with_row is None or record in self._with_row else 0

    def inserts(
        self,
        wanted: Sequence[bool] | None = None,
        key: Sequence[str] | None = None,
        plain_text: Set[str] = frozenset(),
    ) -> list[Insert]:
        """Return the rows of records ``i`` with ``wanted[i]`` true; the database sorts them."""
        del key, plain_text
        table = self.table
        if wanted is not None:
            chosen = wanted if self._records is None else [wanted[at] for at in self._records]
            table = table.filter(_pyarrow().array(chosen, "bool"))
        return [Insert(self.columns, table)] if len(table) else []

    def has_null(self, columns: Sequence[str]) -> bool:
        """Whether one of ``columns`` is missing, or has no value in some row."""
        return any(
            name not in self.columns or self.table.column(self.columns.index(name)).null_count
            for name in columns
        )

    def changed_by(self, table: TableColumns) -> bool:
        """Whether a column of ``table`` would make another value of one of these."""
        for name, kind, column in zip(self.columns, self.kinds, self.table.columns, strict=True):
            cast = table.cast_of(name)
            if cast is not None and kind in cast.arrow:
                try:
                    if cast.changes(_pylist(column)):
                        return True
                except _NO_PYTHON:  # as rows, it is named
                    return True
        return False

    def as_rows(self, batch: Batch) -> Prepared:
        """Return the rows as tuples; :class:`RowError` for a value that Python can't hold."""
        if self._prepared is None:
            values = [
                _as_python(column, partial(self._no_python, batch, name))
                for name, column in zip(self.columns, self.table.columns, strict=True)
            ]
            is_plain = _PLAIN.issuperset(self.kinds) and not any(
                str(column.type).endswith("[ns]") for column in self.table.columns
            )
            rows = list(zip(*values, strict=True))
            counts = None if self._records is None else list(map(self.rows_of, range(len(batch))))
            self._prepared = Prepared(rows, self.columns, counts, is_plain=is_plain)
        return self._prepared

    def _no_python(self, batch: Batch, column: str, row: int, why: Exception) -> RowError:
        return row_error(
            batch,
            row if self._records is None else self._records[row],
            f"column {column} has a value that Python can't hold ({' '.join(str(why).split())}).",
            "Convert it before, or leave the record out: batch.reject(…).",
        )


def columns_of(table: Any, batch: Batch, columns: tuple[str, ...] | None) -> Columns:
    """Return a ``pyarrow.RecordBatch`` as :class:`Columns`; ``columns`` None: all that it has.

    Rows of records that were rejected are left out: in columns a record can't be without a row.
    Raises :class:`UnrunnableError` if the number of rows isn't that of the records, or if a column
    is none of ``columns``: that is the program's fault, not a record's.
    """
    if len(table) != len(batch):
        raise UnrunnableError(
            "rows",
            f"{len(table)} rows for a batch of {len(batch)} records.",
            remedy="Pass a RecordBatch with one row for each record, in order.",
        )
    names = checked_columns(table.schema.names, "the RecordBatch")
    records = None
    if batch.rejected:
        records = [at for at in range(len(batch)) if at not in batch.rejected]
        table = table.take(_pyarrow().array(records, "int64"))
    if columns is None:
        return Columns(table, names, records)
    if extra := sorted(set(names) - set(columns)):
        raise UnrunnableError(
            "rows",
            f"the RecordBatch has the column {extra[0]!r}, which is none of {sorted(columns)}.",
            remedy="Name it in columns=, or leave it out.",
        )
    chosen = tuple([name for name in columns if name in names])
    return Columns(table.select(list(chosen)), chosen, records)


def kind_of(arrow: Any) -> str | None:
    """Return which kind of values an Arrow type has; None for a type that is not supported.

    A list of values of a kind is ``int[]``; what is nested otherwise is ``nested``.
    """
    types = _pyarrow().types
    if types.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    for test, kind in _KINDS:
        if getattr(types, test, lambda _: False)(arrow):
            return kind
    if types.is_timestamp(arrow):
        return "timestamp" if arrow.tz is None else "timestamptz"
    if types.is_time64(arrow) or types.is_time32(arrow):
        return "time"
    if types.is_list(arrow) or types.is_large_list(arrow):
        of = kind_of(arrow.value_type)
        return f"{of}[]" if of in _PLAIN else "nested"
    return "nested" if types.is_struct(arrow) or types.is_map(arrow) else None


def csv_of(columns: Sequence[Any]) -> memoryview:
    """Return arrays, as :func:`as_text` made them, as CSV; a NULL is empty, '' has quotes."""
    pyarrow, csv = _pyarrow(), importlib.import_module("pyarrow.csv")
    names = [str(number) for number in range(len(columns))]
    out = pyarrow.BufferOutputStream()
    options = csv.WriteOptions(include_header=False)
    csv.write_csv(pyarrow.RecordBatch.from_arrays(list(columns), names), out, options)
    return memoryview(out.getvalue())


def as_text(column: Any, kind: str, dump: Callable[[Any], str] | None) -> Any:
    """Return ``column`` such that :func:`csv_of` writes each value as PostgreSQL reads it.

    ``dump``: the text of a value that Arrow can't write.  Raises :class:`NotAsText`.
    """
    pyarrow = _pyarrow()
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if dump is not None:
            values = _pylist(column)
            texts = [None if value is None else dump(value) for value in values]
            return pyarrow.array(texts, pyarrow.string())
        if kind == "bytes":
            hexed = [None if value is None else "\\x" + value.hex() for value in _pylist(column)]
            return pyarrow.array(hexed, pyarrow.string())
        cast = {
            "float": pyarrow.float64(),  # as the text of .1 with 32 bits is another number
            "timestamp": pyarrow.timestamp("us"),
            "timestamptz": pyarrow.timestamp("us", "UTC"),
            "time": pyarrow.time64("us"),
            "text": pyarrow.large_string() if "large" in str(column.type) else pyarrow.string(),
        }.get(kind)
        column = column if cast is None or column.type == cast else column.cast(cast)
    except (pyarrow.ArrowException, ArithmeticError, ValueError, TypeError, KeyError) as error:
        raise NotAsText(str(error)) from error
    _refuse_years(column, kind)
    if kind != "timestamptz":
        return column
    # The CSV of times with a zone takes 1 µs each, for its look into the database of zones.
    local = column.cast(pyarrow.timestamp("us")).cast(pyarrow.string())
    return importlib.import_module("pyarrow.compute").binary_join_element_wise(local, "Z", "")


def json_text(value: Any) -> str:
    """Return a dict or a list as JSON; :class:`NotAsText` if it holds what JSON has no form for."""
    text = as_json(value)
    if not isinstance(text, str):
        raise NotAsText(f"a {type(value).__name__} that is no JSON")
    return text


def _local(column: Any) -> Any:
    """Return instants as times without a zone; as they are if Python has no such time."""
    pyarrow = _pyarrow()
    kind = pyarrow.timestamp("us")
    try:
        counts = column.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.int64())
        if time.tzname == ("UTC", "UTC") and not time.timezone:
            return counts.cast(kind)
        made = [None if at is None else _datetime(at) for at in counts.to_pylist()]
        return pyarrow.array(made, kind)
    except (pyarrow.ArrowException, OSError, ArithmeticError, ValueError):
        return column


def _datetime(unix_us: int) -> datetime:
    seconds, micros = divmod(unix_us, _SECOND_US)
    return datetime.fromtimestamp(seconds).replace(microsecond=micros, fold=0)


def _refuse_years(column: Any, kind: str) -> None:
    if kind not in ("date", "timestamp", "timestamptz"):
        return
    pyarrow, compute = _pyarrow(), importlib.import_module("pyarrow.compute")
    is_date = kind == "date"
    counted = column.cast(pyarrow.int32() if is_date else pyarrow.int64())
    found = compute.min_max(counted).as_py()
    unit = 1 if is_date else _DAY_US
    if found["min"] is not None and not (
        _DAY_MIN * unit <= found["min"] and found["max"] < (_DAY_MAX + 1) * unit
    ):
        raise NotAsText("a date outside the years 1 to 9999")


def _as_python(column: Any, told: Callable[[int, Exception], RowError]) -> list[Any]:
    try:
        return _pylist(column)
    except _NO_PYTHON:
        for at in range(len(column)):
            try:
                _pylist(column[at : at + 1])
            except _NO_PYTHON as error:
                raise told(at, error) from error
        raise


def _pylist(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if "map<" in str(column.type):  # pairs; a Row of Spark has dicts
        return [_as_dicts(value, column.type) for value in values]
    return values


def _as_dicts(value: Any, arrow: Any) -> Any:
    """Return ``value`` with its maps as dicts; KeyError if a map has one key twice."""
    types = _pyarrow().types
    if value is None:
        return None
    if types.is_map(arrow):
        made = {key: _as_dicts(item, arrow.item_type) for key, item in value}
        if len(made) < len(value):
            raise KeyError("a map has one key twice")
        return made
    if types.is_struct(arrow):
        return {field.name: _as_dicts(value[field.name], field.type) for field in arrow}
    if types.is_list(arrow) or types.is_large_list(arrow):
        return [_as_dicts(item, arrow.value_type) for item in value]
    return value


def _pyarrow() -> Any:
    return importlib.import_module("pyarrow")
