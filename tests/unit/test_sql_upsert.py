"""SqlSink updates or keeps the row that is there: by its key, in order, each record once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.errors import ConfigError, JobError, UnrunnableError
from flowctl_sql import SqlSink
from flowctl_sql._dialect import Dialect
from flowctl_sql._upsert import on_conflict
from tests.sql_parts import batch_of, query

SCHEMA = "CREATE TABLE t (k INTEGER, part TEXT DEFAULT '', a TEXT, b TEXT, PRIMARY KEY (k, part))"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def a_sink(**options: Any) -> SqlSink:
    given = {"table": "t", "schema": SCHEMA, "mode": "upsert", "key": ["k", "part"]}
    given["synchronous"] = "NORMAL"  # nobody cuts the power
    return SqlSink("sqlite:///t.db", **{**given, **options})


def write(sink: SqlSink, first: int, rows: list[Any], **options: Any) -> Any:
    batch = batch_of(range(first, first + len(rows)), **options)
    return sink.write(rows, batch=batch)


def row(key: int, **values: str) -> dict[str, Any]:
    return {"k": key, "part": "p", **values}


def test_a_second_load_of_the_same_rows_changes_them_and_fails_nobody() -> None:
    sink = a_sink()
    assert write(sink, 0, [row(n, a="1", b="1") for n in range(120)]) == (120, 0)
    again = [row(n, a="2", b="2") for n in range(120)]
    assert write(sink, 0, again, job="next day") == (120, 0)
    assert query("SELECT count(*), min(a), max(b) FROM t") == [(120, "2", "2")]


def test_a_record_that_comes_again_does_not_undo_what_came_later() -> None:
    sink = a_sink()
    write(sink, 0, [row(1, a="old")])
    write(sink, 1, [row(1, a="new")])
    assert write(sink, 0, [row(1, a="old")]) == (0, 1)
    assert query("SELECT a FROM t") == [("new",)]


def test_of_two_rows_with_one_key_in_a_batch_the_last_one_stays() -> None:
    write(a_sink(), 0, [row(n % 3, a=str(n), b="") for n in range(100)])
    assert query("SELECT k, a FROM t ORDER BY k") == [(0, "99"), (1, "97"), (2, "98")]


def test_of_two_keys_that_are_one_to_the_database_the_last_row_stays() -> None:
    """Kind: an order by what Python tells apart and the database does not."""
    for kind, first, last in [("TEXT COLLATE NOCASE", "a", "A"), ("INTEGER", "9", "09")]:
        schema = f"CREATE TABLE t (k {kind} PRIMARY KEY, v TEXT)"
        Path("t.db").unlink(missing_ok=True)
        for rows in (
            [{"k": first, "v": "first"}, {"k": last, "v": "last"}],
            [{"k": first}, {"k": first, "v": "first"}, {"k": last, "v": "last"}],
        ):
            sink = a_sink(schema=schema, key=["k"])
            write(sink, 0, rows, job=f"{len(rows)} rows")
            sink.close()
            assert query("SELECT v FROM t") == [("last",)]


def test_a_name_in_update_that_the_table_has_not_ends_the_run() -> None:
    """Kind: a name that fits nothing, so that nothing is done."""
    write(a_sink(), 0, [row(1, a="old")])
    with pytest.raises(UnrunnableError, match=r"update: 't' has no column 'aa'"):
        write(a_sink(update=["a", "aa"]), 1, [row(1, a="new")])
    write(a_sink(update=["A"]), 1, [row(1, a="new", b="x")])  # SQLite's names have no case
    assert query("SELECT a, b FROM t") == [("new", None)]


def test_rows_with_nothing_to_update_are_not_said_to_be_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for at in range(2):
        write(a_sink(), at, [row(1)])
    assert not caplog.records


def test_only_what_a_row_has_is_updated_and_of_that_what_update_names() -> None:
    sink = a_sink()
    write(sink, 0, [row(1, a="a", b="b")])
    write(sink, 1, [row(1, b="c")])
    assert query("SELECT a, b FROM t") == [("a", "c")]
    write(a_sink(update=["a"]), 2, [row(1, a="x", b="x")])
    assert query("SELECT a, b FROM t") == [("x", "c")]


def test_what_is_there_may_stay_and_is_not_counted_as_written() -> None:
    keep = a_sink(mode="ignore")
    assert write(keep, 0, [row(n, a="1") for n in range(10)]) == (10, 0)
    assert write(keep, 10, [row(n, a="2") for n in range(5, 15)]) == (5, 0)
    assert query("SELECT a, count(*) FROM t GROUP BY a") == [("1", 10), ("2", 5)]
    assert write(a_sink(mode="ignore", key=()), 20, [row(0, a="3")]) == (0, 0)
    mixed = [row(20, a="x"), row(21), row(21, a="late")]  # of several shapes
    assert write(a_sink(mode="ignore", key=()), 30, mixed) == (2, 0)
    assert query("SELECT a FROM t WHERE k = 21") == [(None,)]


_ROW = st.builds(
    lambda key, values: {"k": key, "part": "p", **values},
    st.integers(0, 4),
    st.dictionaries(st.sampled_from(["a", "b"]), st.text("xyz", max_size=2), max_size=2),
)


@given(st.lists(st.lists(_ROW, min_size=1, max_size=60), max_size=6), st.booleans())
def test_the_table_is_what_one_row_after_the_other_makes_of_it(
    batches: list[list[dict[str, Any]]], ignores: bool
) -> None:
    Path("t.db").unlink(missing_ok=True)
    sink = a_sink(mode="ignore" if ignores else "upsert")
    model: dict[int, dict[str, Any]] = {}
    at = 0
    for rows in batches:
        write(sink, at, rows)
        at += len(rows)
        for each in rows:
            if each["k"] not in model:
                model[each["k"]] = {"a": None, "b": None, **each}
            elif not ignores:
                model[each["k"]].update(each)
    sink.close()
    found = query("SELECT k, a, b FROM t ORDER BY k") if batches else []
    assert found == [(k, model[k]["a"], model[k]["b"]) for k in sorted(model)]


@pytest.mark.parametrize("bad", [{"part": "p", "a": "1"}, {"k": None, "part": "p", "a": "1"}])
def test_a_row_without_its_key_is_refused_by_name(bad: dict[str, Any]) -> None:
    """NULL is equal to nothing: SQLite would add such a row each time."""
    for rows in ([row(1, a="1"), bad], [bad]):
        with pytest.raises(JobError, match="column k of the key is missing or NULL"):
            write(a_sink(), 0, rows)


def test_tuples_need_their_columns() -> None:
    with pytest.raises(UnrunnableError, match=r"columns: is missing.*tuple"):
        write(a_sink(), 0, [(1, "p", "a", "b")])
    assert write(a_sink(columns=["k", "part", "a", "b"]), 0, [(1, "p", "a", "b")]) == (1, 0)


def test_a_key_that_is_not_unique_ends_the_run_at_once() -> None:
    with pytest.raises(UnrunnableError, match="does not match any PRIMARY KEY"):
        write(a_sink(key=["a"]), 0, [row(1, a="1")])


def test_another_unique_index_is_no_key() -> None:
    sink = a_sink(schema=[SCHEMA, "CREATE UNIQUE INDEX i ON t (a)"])
    write(sink, 0, [row(1, a="1")])
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: t\.a"):
        write(sink, 1, [row(2, a="1")])
    assert query("SELECT k FROM t") == [(1,)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ()}, "key: is missing"),
        ({"mode": "merge"}, "mode: is of type str. Give 'insert' or 'upsert' or 'ignore'"),
        ({"mode": "insert"}, "key: is not for mode='insert'"),
        ({"mode": "insert", "key": (), "update": ["a"]}, "update: is not for mode='insert'"),
        ({"mode": "ignore", "update": ["a"]}, "update: is not for mode='ignore'"),
        ({"update": ["k"]}, "update: 'k' is of the key"),
        ({"key": "k"}, "key: is of type str"),
        ({"key": ["k;'"]}, 'key: "k;\'" is not a column name (in key='),
    ],
)
def test_what_the_options_can_not_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_sink(**options)
    assert said in str(caught.value)


def test_a_dialect_whose_insert_has_no_such_clause_is_refused_by_name() -> None:
    conflict = on_conflict("upsert", ["k"], None)
    assert conflict is not None
    with pytest.raises(ConfigError, match="mode: 'upsert' is not known for oracle"):
        conflict.check_table(None, Dialect("oracle"), "t")


@pytest.mark.parametrize(
    ("columns", "is_refused"), [(["id", "mail"], True), (["mail", "a"], False), (["id"], False)]
)
def test_mysql_would_find_rows_by_another_index_too(columns: list[str], is_refused: bool) -> None:
    """It has no way to say which index is meant: a row of somebody else would be updated."""
    conflict = on_conflict("upsert", ["mail"], None)
    assert conflict is not None
    indexes = [{"id"}, {"mail"}] if "mail" in columns else [{"mail"}]
    if is_refused:
        with pytest.raises(JobError, match="id is unique as well"):
            conflict.check_others(columns, indexes)
    else:
        conflict.check_others(columns, indexes)
