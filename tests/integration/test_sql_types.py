"""Each type of a DataFrame into each type of column of PostgreSQL, and back: equal, or refused.

In a column of another kind PostgreSQL's own INSERT stores other values in silence (2 for 2.5, a day
for a moment): SqlSink refuses them.  How precise a column is, is its own affair: those pairs are
listed, so that a new one is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from test_sql_copy import TYPES, batch_for, sql, uri  # noqa: F401  (fixtures)

from flowctl.errors import JobError
from flowctl_sql import SqlSink

pytestmark = [pytest.mark.slow, pytest.mark.on_change("sql")]

UTC = timezone.utc
# What Spark's columns are in Arrow, with values that another type may not hold.
ARROW: Final[dict[str, tuple[Any, list[Any], str]]] = {
    "byte": (pa.int8(), [-7, 100], "int"),
    "short": (pa.int16(), [-300, 30_000], "int"),
    "int": (pa.int32(), [7, 2**31 - 1], "int"),
    "long": (pa.int64(), [7, 2**62 + 1], "bigint"),
    "float": (pa.float32(), [1.5, 16777216.0], "float8"),
    "double": (pa.float64(), [0.1 + 0.2, 2.5, 1e300], "float8"),
    "decimal": (
        pa.decimal128(38, 10), [Decimal("1.1000000001"), Decimal("2.5000000000")], "numeric",
    ),
    "boolean": (pa.bool_(), [True, False], "boolean"),
    "string": (pa.string(), ["ok", "línea 😀 of more than five", "7"], "text"),
    "binary": (pa.binary(), [b"\x00\xff", b"ok"], "bytea"),
    "date": (pa.date32(), [date(2024, 2, 29), date(1, 1, 1)], "date"),
    "timestamp": (
        pa.timestamp("us", "UTC"), [datetime(2024, 3, 31, 1, 2, 3, 456789, UTC)], "timestamptz",
    ),
    "timestamp_ntz": (
        pa.timestamp("us"), [datetime(2024, 3, 31, 2, 30, 3, 456789)], "timestamp",
    ),
    "interval": (pa.duration("us"), [timedelta(3, 5, 7)], "interval"),
    "ints": (pa.list_(pa.int32()), [[1, None, 3], []], "int[]"),
    "doubles": (pa.list_(pa.float64()), [[0.1 + 0.2, 2.5]], "float8[]"),
    "strings": (pa.list_(pa.string()), [["a", None, "long text"]], "text[]"),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 2**60, "b": "é"}], "json",
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)]], "json"),
}  # fmt: skip
# Where the column's own precision says what is kept, in silence: digits, parts of a second.
CAST: Final[dict[str, set[str]]] = {
    "numeric": {"double"},  # 15 digits
    "numeric(10,2)": {"double", "decimal"},
    "real": {"int", "long", "double", "decimal"},
    "double precision": {"long"},
    "timestamp(0)": {"timestamp", "timestamp_ntz"},
    "numeric[]": {"doubles"},
    "money": {"decimal"},  # cents
}


def same(given: Any, found: Any) -> bool:
    """Whether nothing of a value was lost."""
    if isinstance(given, bool) or isinstance(found, bool):
        return given is found
    if isinstance(given, int | float | Decimal) and isinstance(found, int | float | Decimal):
        shortest = Decimal(repr(found)) if isinstance(found, float) else found
        return given in (found, shortest) or (isinstance(given, float) and float(found) == given)
    if isinstance(given, datetime) and isinstance(found, datetime):
        return given.replace(tzinfo=given.tzinfo or UTC) == found.replace(
            tzinfo=found.tzinfo or UTC
        )
    if isinstance(given, date) and isinstance(found, datetime):
        return found.replace(tzinfo=None) == datetime.combine(given, time())
    if isinstance(given, list) and isinstance(found, list):
        pairs = zip(given, found, strict=False)
        return len(given) == len(found) and all(x is y or same(x, y) for x, y in pairs)
    if isinstance(given, int | float) and isinstance(found, str):
        return str(given) == found  # in an array of texts
    if isinstance(given, str) and not isinstance(found, str):
        return True  # the column's type has read the text
    return type(given) is type(found) and bool(given == found)


def is_refusal(error: Exception) -> bool:
    """Whether it is of the value or its type, not of the connection."""
    values = psycopg.errors.DataError, psycopg.errors.IntegrityError
    return isinstance(error, (*values, psycopg.errors.DatatypeMismatch, JobError))


def outcome(sink: SqlSink, read: Callable[..., list[Any]], name: str, value: Any) -> str:
    """ "" if the value is there, or was refused; else what became of it."""
    kind, _, in_sql = ARROW[name]
    read("TRUNCATE t")
    column = pa.array([value], kind)
    try:
        sink.write(pa.record_batch([column], names=["v"]), batch=batch_for(1))
    except Exception as error:
        return "" if is_refusal(error) else repr(error)
    [(found,)] = read("SELECT v FROM t")
    if isinstance(found, str) and found.startswith("$"):  # money
        found = Decimal(found[1:].replace(",", ""))
    given = column.to_pylist()[0]
    given = dict(given) if pa.types.is_map(kind) else given
    if same(given, found):
        return ""
    if isinstance(found, str):  # a text of it, by which PostgreSQL has the value again
        try:
            text = found.rstrip() if isinstance(given, str) else found.replace("'", "''")
            [(again,)] = [(text,)] if isinstance(given, str) else read(f"SELECT '{text}'::{in_sql}")
        except psycopg.Error:
            return f"{given!r} became {found!r}"
        if same(given, again):
            return ""
    return f"{given!r} became {found!r}"


@pytest.mark.parametrize("column", TYPES)
def test_a_value_is_there_as_it_was_or_refused(
    uri: str,  # noqa: F811
    sql: Callable[..., list[Any]],  # noqa: F811
    column: str,
) -> None:
    sql(
        "DROP TABLE IF EXISTS t",
        "DROP DOMAIN IF EXISTS posint CASCADE",
        "DROP TYPE IF EXISTS mood CASCADE",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN posint AS integer CHECK (value > 0)",
        f"CREATE TABLE t (v {column})",
    )
    sink = SqlSink(connect=lambda: psycopg.connect(uri, options="-c TimeZone=UTC"), table="t")
    lost = {}
    for name, (_, values, _) in ARROW.items():
        for value in values:
            if said := outcome(sink, sql, name, value):
                lost[name] = said
    sink.close()
    assert lost.keys() == CAST.get(column, set()), lost
