"""A table may drop rows without an error: the log of the worker says so, once per connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl_sql import SqlSink
from tests.sql_parts import batch_of

IGNORES = "CREATE TABLE t (n INTEGER UNIQUE ON CONFLICT IGNORE)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sink(*schema: str) -> SqlSink:
    return SqlSink("sqlite:///t.db", table="t", schema=schema)


def test_rows_that_the_table_drops_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    made = sink(IGNORES)
    made.write([{"n": 1}, {"n": 2}], batch=batch_of([1, 2]))
    assert not caplog.messages
    made.write([{"n": 2}, {"n": 3}], batch=batch_of([3, 4]))
    made.write([{"n": 3}], batch=batch_of([5]))
    [said] = caplog.messages
    assert said.startswith("rows_not_stored table='t'")
    assert "given=2 stored=1" in said


def test_a_view_that_hands_its_rows_on_counts_none_and_is_no_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = sink(
        "CREATE TABLE u (n)",
        "CREATE VIEW t AS SELECT n FROM u",
        "CREATE TRIGGER g INSTEAD OF INSERT ON t BEGIN INSERT INTO u VALUES (new.n); END",
    )
    made.write([{"n": 1}, {"n": 2}], batch=batch_of([1, 2]))
    assert not caplog.messages


def test_a_table_that_keeps_no_row_at_all_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    made = sink(
        "CREATE TABLE t (n)",
        "CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT RAISE(IGNORE); END",
    )
    made.write([{"n": 1}, {"n": 2}], batch=batch_of([1, 2]))
    made.write([{"n": 3}], batch=batch_of([3]))
    [said] = caplog.messages
    assert "given=2 stored=0" in said
    assert "kept none of the rows" in said


def test_all_rows_of_an_ordinary_table_are_stored(caplog: pytest.LogCaptureFixture) -> None:
    made = sink("CREATE TABLE t (n)")
    made.write([{"n": 1}, [{"n": 2}, {"n": 3}], None], batch=batch_of([1, 2, 3]))
    made.write([{"n": n} for n in range(130)], batch=batch_of(list(range(100, 230))))
    assert not caplog.messages
