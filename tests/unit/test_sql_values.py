"""Values as a DataFrame has them: stored as what they mean, or refused by name."""

from __future__ import annotations

import sqlite3
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.errors import JobError, UnrunnableError
from flowctl_sql import SqlSink
from flowctl_sql._values import UnfitError, as_python, unfit_of
from tests.sql_parts import batch_of, query

numpy = pytest.importorskip("numpy")
pandas = pytest.importorskip("pandas")

EAST = timezone(timedelta(hours=2))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(*values: Any) -> None:
    """Write a record for each of ``values``, into a column without a type."""
    batch = batch_of(list(range(1, len(values) + 1)))
    schema = "CREATE TABLE v (number INTEGER, value)"
    sink = SqlSink("sqlite:///t.db", table="v", schema=schema)
    try:
        rows = [{"number": n, "value": value} for n, value in enumerate(values, 1)]
        sink.write(rows, batch=batch)
    finally:
        sink.close()


@pytest.mark.req("S70")
@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (numpy.int64(5), 5),
        (numpy.int8(-5), -5),
        (numpy.float64(1.5), 1.5),
        (numpy.float32(1.5), 1.5),
        (numpy.bool_(True), 1),
        (numpy.str_("x"), "x"),
        (numpy.datetime64("2024-01-02T03:04:05.000000000"), "2024-01-02 03:04:05"),
        (numpy.datetime64("2024-01-02"), "2024-01-02"),
        (numpy.datetime64("NaT"), None),
        (pandas.Timestamp("2024-01-02 03:04:05.000006"), "2024-01-02 03:04:05.000006"),
        (pandas.Timestamp("2024-01-02", tz="UTC"), "2024-01-02 00:00:00+00:00"),
        (pandas.NaT, None),
        (pandas.NA, None),
        (datetime(2024, 1, 2, 3, tzinfo=EAST), "2024-01-02 03:00:00+02:00"),
        (date(2024, 1, 2), "2024-01-02"),
        (b"\0\1", b"\0\1"),
        ("a\0b", "a\0b"),
        (True, 1),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_what_a_dataframe_has_is_stored_as_what_it_means(value: Any, stored: Any) -> None:
    write(7, value)
    found = query("SELECT value FROM v ORDER BY number")
    assert found == [(7,), (stored,)]
    assert type(found[1][0]) is type(stored)


@pytest.mark.req("S70")
@pytest.mark.parametrize(
    ("value", "problem", "remedy"),
    [
        (Decimal("1.10"), "of the type Decimal", r"register_adapter\(Decimal"),
        (time(1, 2), "of the type time", r"value.isoformat\(\)"),
        (timedelta(seconds=3), "of the type timedelta", r"str\(value\)"),
        (uuid.UUID(int=1), "of the type UUID", r"str\(value\)"),
        ([1, 2], "a list", "json.dumps"),
        ({"a": 1}, "a dict", "json.dumps"),
        ({1}, "a set", "json.dumps"),
        (numpy.array([1, 2]), "a ndarray", "json.dumps"),
        (2**63, "more than 64 bits", r"str\(value\)"),
        ("a\ud800b", "half a surrogate pair", "'replace'"),
        (pandas.Timestamp(1), "nanoseconds", "floor"),
        (pandas.Timedelta(1), "nanoseconds", "floor"),
        (numpy.datetime64(1, "ns"), "nanoseconds", "floor"),
        (numpy.datetime64("12024-01-01T00:00:00"), "9999", "floor"),
        (numpy.longdouble(1), "longdouble", "float"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_record_and_column(
    value: Any, problem: str, remedy: str
) -> None:
    with pytest.raises(JobError, match=f"position 2: column value is .*{problem}.*{remedy}"):
        write(1, value)
    assert query("SELECT * FROM v") == []


@pytest.mark.parametrize(
    "value", [Decimal("1.10"), time(1, 2), timedelta(seconds=3), uuid.UUID(int=1)]
)
def test_a_type_that_sqlite_can_not_store_is_no_rows_fault(value: Any) -> None:
    """A DataFrame's column of decimals took 372 calls until a task failed, and "pass str(value)"
    is nothing that one can do there.  The kind: what is true of a column is not tried row by row.
    """
    with pytest.raises(UnrunnableError, match=r'Of a DataFrame.*\.cast\("string"\)'):
        write(1, value)
    with pytest.raises(JobError) as of_a_row:
        write(1, 2**63)
    assert not isinstance(of_a_row.value, UnrunnableError)


def test_the_jobs_own_adapter_is_used() -> None:
    before = dict(sqlite3.adapters)
    sqlite3.register_adapter(Decimal, str)
    sqlite3.register_adapter(pandas.Timestamp, lambda value: value.isoformat())
    sqlite3.register_adapter(numpy.ndarray, lambda value: value.tobytes())
    try:
        write(Decimal("1.10"), pandas.Timestamp("2024-01-02"), numpy.array([1, 2], "int8"))
    finally:
        sqlite3.adapters.clear()
        sqlite3.adapters.update(before)
    wanted = [("1.10",), ("2024-01-02T00:00:00",), (b"\1\2",)]
    assert query("SELECT value FROM v ORDER BY number") == wanted


def test_rows_that_drivers_know_are_not_copied() -> None:
    rows = [(1, "a", None, 1.5, b"", True, Decimal(1), date(2024, 1, 2))] * 2
    assert as_python(rows, "mysql") is rows


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    "value",
    [
        datetime(2024, 1, 2, tzinfo=timezone.utc),  # its zone would be dropped
        pandas.Timestamp("2024-01-02", tz="UTC"),
        ["x"],  # would be stored as its only value
        {1},
        (1, 2),
        numpy.array([1]),  # would be stored as "[1]"
    ],
)
def test_what_mysqls_drivers_would_change_is_refused(dialect: str, value: Any) -> None:
    with pytest.raises(UnfitError) as refused:
        as_python([(1, 2), (3, value)], dialect)
    assert refused.value.unfit[:2] == (1, 1)


def test_what_mysqls_drivers_would_write_as_their_repr_is_converted() -> None:
    rows = [(memoryview(b"ab"), numpy.bool_(True), pandas.NaT, pandas.NA, datetime(2024, 1, 2))]
    assert as_python(rows, "mysql") == [(b"ab", True, None, None, datetime(2024, 1, 2))]


def test_postgresql_gets_no_nat_but_zones_lists_and_arrays() -> None:
    zoned, array = datetime(2024, 1, 2, tzinfo=timezone.utc), numpy.array([1])
    rows = as_python([(pandas.NaT, zoned, [1], array)], "postgresql")
    assert rows == [(None, zoned, [1], array)]


class DataError(Exception):
    """As drivers have it."""


class IntegrityError(Exception):
    """As drivers have it."""


@pytest.mark.parametrize(
    ("value", "error", "found"),
    [
        ("a\0b", DataError("cannot contain NUL (0x00) bytes"), True),
        ({"a": 1}, TypeError("cannot adapt type 'dict'"), True),
        ({"a": 1}, DataError("numeric field overflow"), False),  # the job has a dumper for dicts
        ("a\0b", IntegrityError("duplicate key"), False),
    ],
)
def test_only_the_value_that_the_error_is_about_is_named(
    value: Any, error: Exception, found: bool
) -> None:
    assert (unfit_of([(1, 2), (3, value)], "postgresql", error) is not None) is found


def test_values_are_not_looked_at_where_nobody_has_numpy_or_pandas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowctl_sql._values.sys", SimpleNamespace(modules={}))
    rows = NotToBeRead()
    assert as_python(rows, "sqlite") is rows
    with pytest.raises(AssertionError, match="read"):
        as_python(rows, "mysql")


class NotToBeRead(list[tuple[object, ...]]):
    def __iter__(self) -> Any:
        raise AssertionError("read")
