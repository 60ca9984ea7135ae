"""Rows of Spark that come as columns: as Rows, and as the dicts that sinks get.

Values are those that Spark's own converter makes of each type.  What takes most of its time, the
making of timestamps one by one, is done here a column at a time; and the hour that comes twice when
clocks are set back is told apart (``fold``), as in the Rows of ``foreachPartition``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, Final

from pyspark.errors import PySparkException

from flowctl.core.records import DictRows
from flowctl.errors import UnrunnableError
from pyspark_flowctl.features import arrow_converter, arrow_of_rows

# Types whose values are those of Arrow: Spark converts nothing.
_AS_THEY_ARE: Final = frozenset({
    "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType",
    "DecimalType", "StringType", "CharType", "VarcharType", "DateType", "DayTimeIntervalType",
})  # fmt: skip
# The years that Python's datetimes have [µs].
_OLDEST: Final = -62_135_596_800_000_000
_NEWEST: Final = 253_402_300_799_999_999
_SECOND: Final = 1_000_000


class ArrowRows:
    """The rows of one partition, as ``batches`` of ``pyarrow.RecordBatch`` in Spark's order.

    ``schema`` is theirs, as Spark's JSON: columns are known by their place, as names of Spark may
    come twice.  For one thread at a time.
    """

    def __init__(self, batches: Iterable[Any], schema: str) -> None:
        from pyspark.sql.types import StructType, _parse_datatype_json_string

        self._batches = batches
        self._kind: Any = _parse_datatype_json_string(schema)
        assert isinstance(self._kind, StructType)
        self._names: list[str] = self._kind.names

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches, with the names of the schema."""
        import pyarrow

        for batch in self._batches:
            yield pyarrow.RecordBatch.from_arrays(batch.columns, names=self._names)

    def rows(self, columns: Any) -> list[Any]:
        """Return the Rows of ``columns``, a part of a batch."""
        from pyspark.sql.types import _create_row

        names = self._names
        return [_create_row(names, values) for values in zip(*self._values(columns), strict=True)]

    def columns(self, rows: Sequence[Any]) -> Any:
        """Return ``rows`` as a part of a batch; None if they are of other columns than these."""
        import pyarrow

        if any(list(getattr(row, "__fields__", ())) != self._names for row in rows):
            return None
        try:
            made = arrow_of_rows(list(rows), self._kind)
        except (AssertionError, ImportError, PySparkException, pyarrow.ArrowException):
            return None
        [batch] = made.combine_chunks().to_batches()
        # A number may have become a date. By text, as a NaN equals nothing.
        again, given = ([letter_row(row) for row in each] for each in (self.rows(batch), rows))
        return batch if repr(again) == repr(given) else None

    def dicts(self, columns: Any) -> DictRows:
        """Return what :func:`plain_row` makes of each of the Rows."""
        names = self._names
        check_names(names)
        values = [
            [plain_row(value) for value in made] if _has_rows(field.dataType) else made
            for field, made in zip(self._kind, self._values(columns), strict=True)
        ]
        return DictRows(names, values)

    def _values(self, columns: Any) -> Iterator[Sequence[Any]]:
        for field, column in zip(self._kind, columns.columns, strict=True):
            try:
                made = _made(field, column)
            except (ArithmeticError, ValueError, OSError) as error:  # a date in the year 20226
                raise UnrunnableError(
                    "df",
                    f"column {field.name!r} has a value that Python has not ({error}).",
                    remedy="Leave such rows out, or convert the column: CAST(… AS STRING). Or read"
                    " columns only: batch.to_arrow().",
                ) from error
            yield made


def _made(field: Any, column: Any) -> Sequence[Any]:
    kind = type(field.dataType).__name__
    made = None
    if kind in _AS_THEY_ARE:
        made = column.to_pylist()
    elif kind == "TimestampType":
        made = _local(column)
    elif kind == "TimestampNTZType":
        made = _datetimes(column)
    return _converted(field, column) if made is None else made


def _converted(field: Any, column: Any) -> list[Any]:
    """Return what Spark makes of a column."""
    import pyarrow
    from pyspark.sql.types import StructType

    table = pyarrow.Table.from_arrays([column], names=["value"])
    return [value for (value,) in arrow_converter().convert(table, StructType([field]))]


def _local(column: Any) -> list[Any] | None:
    """Return instants in this process's zone, as Spark's Rows have them; None: Spark has to."""
    if time.tzname == ("UTC", "UTC") and not time.timezone:
        return _datetimes(column)
    counts = _counts(column)
    if counts is None:
        return None
    of = datetime.fromtimestamp
    try:
        return [
            None if at is None else of(at // _SECOND).replace(microsecond=at % _SECOND)
            for at in counts.to_pylist()
        ]
    except (OSError, OverflowError, ValueError):  # the zone moves it into a year that is none
        return None


def _datetimes(column: Any) -> list[Any] | None:
    """Return a column's moments as datetimes without a zone; None: Spark has to."""
    counts = _counts(column)
    if counts is None:
        return None
    try:
        found: list[Any] = counts.cast("timestamp[us]").to_numpy(zero_copy_only=False).tolist()
    except ImportError:  # without numpy
        return None
    return found


def _counts(column: Any) -> Any:
    """Return microseconds, if all are in years that Python has; else None."""
    from pyarrow import compute, types

    if not (types.is_timestamp(column.type) and column.type.unit == "us"):
        return None
    counts = column.cast("timestamp[us]").cast("int64")
    ends = compute.min_max(counts)
    oldest, newest = ends["min"].as_py(), ends["max"].as_py()
    is_there = oldest is None or (oldest >= _OLDEST and newest <= _NEWEST)
    return counts if is_there else None


# -- What sinks get ----------------------------------------------------------------------------

_SCALARS: Final = frozenset(
    {bool, int, float, str, bytes, Decimal, date, datetime, timedelta, type(None)}
)


def plain_row(value: Any, *, pairs: bool = False) -> Any:
    """Return a Row as a dict, including Rows within it; anything else unchanged.

    With ``pairs`` a map becomes a tuple of its keys and values, in which keys may be Rows, and a
    bytearray is bytes, of which a letter has a form.  Raises :class:`UnrunnableError` if two
    columns have the same name, as one of them would be lost.
    """
    if hasattr(value, "asDict"):
        names = value.__fields__
        check_names(names)
        if _SCALARS.issuperset(map(type, value)):  # nearly always, and in a third of the time
            return dict(zip(names, value))  # noqa: B905 - strict= takes as long again
        return {name: plain_row(part, pairs=pairs) for name, part in zip(names, value, strict=True)}
    if isinstance(value, list):
        return [plain_row(part, pairs=pairs) for part in value]
    if isinstance(value, dict) and pairs:
        return tuple((letter_row(key), letter_row(part)) for key, part in value.items())
    if isinstance(value, dict):
        return {key: plain_row(part) for key, part in value.items()}
    if isinstance(value, bytearray) and pairs:  # so Spark has binary before 4.1
        return bytes(value)
    return value


def letter_row(value: Any) -> Any:
    """Return a Row as :func:`plain_row` does, but a map as pairs, which can't pass for a Row.

    No other value of Spark's is a tuple, and a tuple stays a tuple in a letter.
    """
    return plain_row(value, pairs=True)


def row_of(value: Any, kind: Any, *, zone: tzinfo | None = None) -> Any:
    """Return the Row from which :func:`letter_row` made ``value``, or a job that reads rows itself.

    ``kind`` is its type in Spark; None: unknown.  Letters of older versions have maps as dicts,
    which become Rows then.  A moment without a zone is one of ``zone``; None: of this process.
    """
    from pyspark.sql.types import ArrayType, DayTimeIntervalType, MapType, Row, StructType

    def part_of(part: Any, kind: Any) -> Any:
        return row_of(part, kind, zone=zone)

    if isinstance(kind, MapType) and isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else value
        return {part_of(key, kind.keyType): part_of(part, kind.valueType) for key, part in pairs}
    if isinstance(value, dict):
        types = {f.name: f.dataType for f in kind.fields} if isinstance(kind, StructType) else {}
        return Row(*value)(*(part_of(part, types.get(name)) for name, part in value.items()))
    if _is_map(value):
        return {part_of(key, None): part_of(part, None) for key, part in value}
    if isinstance(value, list):
        element = kind.elementType if isinstance(kind, ArrayType) else None
        return [part_of(part, element) for part in value]
    if isinstance(value, datetime):
        return _moment(value, kind, zone)
    if isinstance(kind, DayTimeIntervalType) and isinstance(value, int):
        return timedelta(microseconds=value)
    return value


def _moment(value: datetime, kind: Any, zone: tzinfo | None) -> datetime:
    from pyspark.sql.types import TimestampNTZType, TimestampType

    if isinstance(kind, TimestampNTZType):
        return value.replace(tzinfo=None)
    if isinstance(kind, TimestampType) and value.tzinfo is None and zone is not None:
        return value.replace(tzinfo=zone)
    return value


def _is_map(value: Any) -> bool:
    """Whether ``value`` may be a map from ``letter_row``; other jobs' letters hold any value."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    )


def check_names(names: Sequence[str]) -> None:
    """Raise :class:`UnrunnableError` if two columns have the same name: a dict has only one."""
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise UnrunnableError(
            "df",
            f"two columns are called {doubled!r}, so a row can't be a dict.",
            remedy="Rename one: df.toDF(…).",
        )


def _has_rows(kind: Any) -> bool:
    """Whether :func:`plain_row` changes values of this type."""
    return type(kind).__name__ not in _AS_THEY_ARE | {"TimestampType", "TimestampNTZType"}
