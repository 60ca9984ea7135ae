"""Rows as parameters: one shape for all goes the short way, anything else record by record."""

from __future__ import annotations

import math
from collections import defaultdict, namedtuple
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from flowctl.errors import ConfigError, JobError, RowError, UnrunnableError
from flowctl_sql import SqlSink, _rows
from flowctl_sql._casts import LOST_NAN, POSTGRES, TableColumns, of_mysql
from tests.sql_parts import batch_of, new_sink, query

Point = namedtuple("Point", "number line")


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([(1, "a"), (2, "b")], None),
        ([(1, "a"), (2, "b")], ("number", "line")),
        ([Point(1, "a"), (2, "b")], None),
        ([{"number": 1, "line": "a"}, {"line": "b", "number": 2}], None),
        ([{"number": 1, "line": "a"}, {"line": "b", "number": 2}], ("number", "line")),
        ([defaultdict(str, number=1, line="a"), {"line": "b", "number": 2}], ("number", "line")),
        ([[(1, "a")], [(2, "b")]], None),
    ],
)
def test_both_ways_give_the_same(rows: list[Any], columns: tuple[str, ...] | None) -> None:
    batch = batch_of([1, 2])
    prepared = _rows.prepare(rows, batch, columns)
    assert prepared == _rows._of_any_shape(rows, batch, columns)
    assert list(prepared.rows) == [(1, "a"), (2, "b")]
    assert (prepared.counts, prepared.shapes) == (None, None)
    assert [insert.rows for insert in prepared.inserts([False, True])] == [[(2, "b")]]
    assert prepared.inserts([False, False]) == []


def test_rows_of_some_records() -> None:
    batch = batch_of([1, 2, 3])
    prepared = _rows.prepare([None, [(1, "a"), (2, "b")], (3, "c")], batch, None)
    assert prepared.inserts([True, False, True]) == [(None, [(3, "c")])]
    assert prepared.inserts([True, True, False]) == [(None, [(1, "a"), (2, "b")])]


def test_rows_with_other_keys_are_inserted_apart() -> None:
    rows = [{"number": 1}, [{"line": "b", "number": 2}, {"number": 3}], {"number": 4, "line": "d"}]
    prepared = _rows.prepare(rows, batch_of([1, 2, 3]), None)
    assert prepared.inserts() == [
        (("number",), [(1,), (3,)]),
        (("line", "number"), [("b", 2), ("d", 4)]),
    ]
    assert prepared.inserts([False, True, False]) == [
        (("line", "number"), [("b", 2)]),
        (("number",), [(3,)]),
    ]


def table_with(*numbers: str) -> TableColumns:
    return TableColumns(["n", "x"], casts=dict.fromkeys(numbers, LOST_NAN), any_case=True)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, "a"), (math.nan, "b")], "position 2: column n is NaN"),
        ([{"n": 1, "x": None}, {"n": math.nan, "x": None}], "position 2: column n is NaN"),
        ([{"n": 1}, {"n": 2, "X": math.nan}], "position 2: column X is NaN"),
        ([[(1, "a"), (2, math.nan)], None], "position 1: column x is NaN"),
        ([None, [(1, "a"), (2, math.nan)]], "position 2: column x is NaN"),
    ],
)
def test_a_value_that_a_column_would_change_is_found(rows: list[Any], said: str) -> None:
    batch = batch_of([1, 2])
    with pytest.raises(JobError, match=said):
        _rows.prepare(rows, batch, None).refuse_casts(batch, table_with("n", "x"))
    good = [(math.inf, math.nan), (None, "b")]
    _rows.prepare(good, batch, None).refuse_casts(batch, table_with("n"))


DAY, NOON = datetime(2024, 2, 29), datetime(2024, 2, 29, 12)


@pytest.mark.parametrize(
    ("kind", "kept", "changed"),
    [
        ("integer", [2, 2.0, Decimal("2.00"), True, None, "2"], [2.5, Decimal("2.5")]),
        ("bigint[]", [[1, None], [2.0], []], [[1, 2.5], [[0.5]]]),
        ("date", [DAY.date(), DAY], [NOON]),
        ("time without time zone", [NOON.time(), timedelta(hours=5)], [NOON, timedelta(1)]),
        ("bytea", [b"ab", "ab"], [["a"], ()]),
        ('"char"', ["a", "", b"a", 7], ["ab", "é", ["a"]]),
        ("oid", [0, 7], [-1]),
    ],
)
def test_what_a_column_of_another_kind_would_change_is_refused(
    kind: str, kept: list[Any], changed: list[Any]
) -> None:
    table = TableColumns(["n", "x"], casts={"x": POSTGRES[kind]})
    fine = _rows.prepare([(None, value) for value in kept], batch_of(range(len(kept))), None)
    fine.refuse_casts(batch_of(range(len(kept))), table)
    for value in changed:
        rows = [(value, kept[0]), (value, value)]  # n takes anything
        batch = batch_of([5, 6])
        with pytest.raises(JobError, match="position 6: column x is") as told:
            _rows.prepare(rows, batch, None).refuse_casts(batch, table)
        if isinstance(told.value, RowError):  # else the job ends
            assert batch.reading_index == 1, "nobody has to search for it"


def test_mysql_takes_names_in_any_case_and_times_of_days() -> None:
    table = of_mysql([("N", "INT"), ("x", "time"), ("y", "decimal")])
    batch = batch_of([5])
    _rows.prepare([(1, timedelta(3), 2.5)], batch, None).refuse_casts(batch, table)
    with pytest.raises(JobError, match="column n is no whole number"):
        _rows.prepare([{"n": 2.5}], batch, None).refuse_casts(batch, table)


def test_a_list_that_is_filled_again_is_seen_as_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink, batch = new_sink(), batch_of([1])
    rows = [(1, "a")]
    sink.write(rows, batch=batch)
    rows[0] = (1, "b")
    with pytest.raises(JobError, match="a second write of other rows"):
        sink.write(rows, batch=batch)
    assert query("SELECT line FROM t") == [("a",)]


@pytest.mark.parametrize(
    ("row", "what"),
    [({}, "a row is empty"), ({1: "a"}, "1 is not a column name .* a key of a row")],
)
def test_keys_that_are_no_columns_are_named(row: dict[Any, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        _rows.prepare([row], batch_of([1]), None)


def test_names_that_are_one_column_to_sqlite_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the statement, and keeps one of the two values."""
    monkeypatch.chdir(tmp_path)
    rows = [{"line": "a", "LINE": "b"}]
    with pytest.raises(UnrunnableError, match="'line' and 'LINE' are one column to SQLite"):
        new_sink().write(rows, batch=batch_of([1]))
    assert query("SELECT * FROM t") == []
    schema = "CREATE TABLE t (é TEXT, É TEXT)"  # two columns: it knows upper case of ASCII only
    both = SqlSink("sqlite:///other.db", table="t", schema=schema)
    both.write([{"é": "a", "É": "b"}], batch=batch_of([1]))
