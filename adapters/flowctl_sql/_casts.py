"""What columns make of values of another kind, without an error: such values are refused.  Pure.

A database casts a value to the type of its column.  How many digits, or parts of a second, it keeps
is what the column says, and the database's own affair.  But nobody who writes 2.5 or a moment means
2, 3 or a day: Spark's ``cast`` says so where it is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time, timedelta
from decimal import Decimal
from functools import partial
from operator import ne
from typing import Any, Final, NamedTuple

_IN_SPARK: Final = "Cast the column in Spark, .cast({!r}), or convert the value in process."


class Cast(NamedTuple):
    """What a kind of column does to some values.

    ``types``: those of the values to look at; ``arrow``: the same as kinds of Arrow's columns.
    ``loses``: whether it changes one of some values.  ``is_type``: it changes nearly all of them,
    so the column is wrong, not a row.
    """

    types: tuple[type, ...]
    arrow: frozenset[str]
    loses: Callable[[Sequence[Any]], bool]
    why: str
    remedy: str
    is_type: bool = False

    def changes(self, values: Sequence[Any]) -> bool:
        """Whether the column would change one of ``values``, which are of any types."""
        kinds = set(map(type, values))
        return any(issubclass(kind, self.types) for kind in kinds) and self.loses(values)


def _has_nan(values: Sequence[Any]) -> bool:
    try:
        return any(map(ne, values, values))  # only NaN differs from itself
    except (TypeError, ValueError):  # arrays, which compare value by value
        return any(math.isnan(value) for value in values if isinstance(value, float))


def _some(test: Callable[[Any], bool], values: Sequence[Any]) -> bool:
    return any(map(test, values))


def _is_broken(value: Any) -> bool:
    """Whether a number has a fraction.  Infinity and NaN are refused by the database."""
    if isinstance(value, float):
        return math.isfinite(value) and not value.is_integer()
    return isinstance(value, Decimal) and value.is_finite() and value % 1 != 0


def _has_broken(values: Any) -> bool:
    return isinstance(values, list | tuple) and any(
        _has_broken(value) or _is_broken(value) for value in values
    )


def _is_in_a_day(value: Any) -> bool:
    return isinstance(value, datetime) and value.time() != time()


def _is_no_clock(value: Any) -> bool:
    if isinstance(value, timedelta):
        return not timedelta(0) <= value < timedelta(1)
    return isinstance(value, datetime)


def _is_array(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_long(value: Any) -> bool:
    return _is_array(value) or (isinstance(value, str) and len(value.encode(errors="replace")) > 1)


def _is_below_0(value: Any) -> bool:
    return isinstance(value, int) and value < 0


_ARRAYS: Final = frozenset({"nested", "int[]", "float[]", "text[]", "decimal[]", "bool[]"})
_MOMENTS: Final = frozenset({"timestamp", "timestamptz"})
LOST_NAN: Final = Cast(
    (float,),
    frozenset({"float"}),
    _has_nan,
    "NaN, for which SQLite stores NULL",
    "Pass None for NULL, or leave the record out: batch.reject(record, reason).",
)
_WHOLE: Final = Cast(
    (float, Decimal),
    frozenset({"float", "decimal"}),
    partial(_some, _is_broken),
    "no whole number, and the database would round it for its type",
    _IN_SPARK.format("bigint"),
)
_WHOLES: Final = _WHOLE._replace(
    types=(list, tuple),
    arrow=frozenset({"float[]", "decimal[]", "nested"}),
    loses=partial(_some, _has_broken),
    why="an array with a fraction, and the database would round it for its type",
    remedy=_IN_SPARK.format("array<bigint>"),
)
_DAY: Final = Cast(
    (datetime,),
    _MOMENTS,
    partial(_some, _is_in_a_day),
    "a moment, of which the database would keep the day only",
    _IN_SPARK.format("date"),
    is_type=True,
)
_MOMENT_OF_DAY: Final = Cast(
    (datetime,),
    _MOMENTS,
    partial(_some, _is_no_clock),
    "a moment, of which the database would drop the day",
    "Pass its time: value.time(), or date_format(…, 'HH:mm:ss') in Spark.",
    is_type=True,
)
_CLOCK: Final = _MOMENT_OF_DAY._replace(
    types=(datetime, timedelta),
    arrow=_MOMENTS | {"interval"},
    why="no time of day, and the database would drop its days",
)
_BYTES: Final = Cast(
    (list, tuple),
    _ARRAYS,
    partial(_some, _is_array),
    "an array, of which the database would store the text as bytes",
    "Write it into a column of an array's type, or pass bytes.",
    is_type=True,
)
_ONE_BYTE: Final = _BYTES._replace(
    types=(list, tuple, str),
    arrow=_ARRAYS | {"text"},
    loses=partial(_some, _is_long),
    why="more than a byte, and the database would keep the first one only",
    remedy="Write it into a column of text.",
    is_type=False,
)
_NUMBER_OF_ROW: Final = _ONE_BYTE._replace(
    types=(int,),
    arrow=frozenset({"int"}),
    loses=partial(_some, _is_below_0),
    why="below 0, of which the database would make another number",
    remedy="Write it into a column of whole numbers.",
)

# By the name of a column's type: pg_catalog.format_type(…, NULL), information_schema.columns.
POSTGRES: Final[Mapping[str, Cast]] = {
    "smallint": _WHOLE,
    "integer": _WHOLE,
    "bigint": _WHOLE,
    "smallint[]": _WHOLES,
    "integer[]": _WHOLES,
    "bigint[]": _WHOLES,
    "date": _DAY,
    "time without time zone": _CLOCK,
    "time with time zone": _CLOCK,
    "bytea": _BYTES,
    '"char"': _ONE_BYTE,
    "oid": _NUMBER_OF_ROW,
}
_MYSQL: Final[Mapping[str, Cast]] = {
    "tinyint": _WHOLE,
    "smallint": _WHOLE,
    "mediumint": _WHOLE,
    "int": _WHOLE,
    "bigint": _WHOLE,
    "year": _WHOLE,
    "date": _DAY,
    "time": _MOMENT_OF_DAY,  # it holds 838 hours: a timedelta of days, too
}


class TableColumns(NamedTuple):
    """What a database says about the columns of a table.

    ``names``: in order; ``json``: those of json or jsonb; ``plain_text``: in which texts are equal
    only if they differ in nothing but spaces at the end; ``zoned``: which hold instants; ``casts``:
    which change values of another kind.  ``any_case``: names in ``casts`` are in lower case, as the
    database takes ``A`` and ``a`` for one.
    """

    names: Sequence[str] = ()
    json: frozenset[str] = frozenset()
    plain_text: frozenset[str] = frozenset()
    zoned: frozenset[str] = frozenset()
    casts: Mapping[str, Cast] = {}
    any_case: bool = False

    def cast_of(self, column: str) -> Cast | None:
        """Return what the column would do to values of another kind."""
        return self.casts.get(column.lower() if self.any_case else column)


KINDS_OF_MYSQL: Final = (
    "SELECT column_name, data_type FROM information_schema.columns"
    " WHERE table_schema = {schema} AND table_name = ? ORDER BY ordinal_position"
)


def of_mysql(found: Sequence[tuple[Any, Any]]) -> TableColumns:
    """Return what :data:`KINDS_OF_MYSQL` has found."""
    kinds = [(str(name), str(kind).lower()) for name, kind in found]
    casts = {name.lower(): _MYSQL[kind] for name, kind in kinds if kind in _MYSQL}
    return TableColumns([name for name, _ in kinds], casts=casts, any_case=True)
