"""SQLite takes several rows in one statement, where that changes nothing but the time it takes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.errors import ConfigError
from flowctl_sql import SqlSink
from flowctl_sql._dialect import Dialect
from flowctl_sql._inserts import Inserts, RowCounts
from flowctl_sql._rows import Insert, prepare
from flowctl_sql._sqlite import takes_several
from tests.sql_parts import batch_of

VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3), st.binary())


def connected(*statements: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    return connection


def inserts(connection: sqlite3.Connection, *, joins: bool = True) -> Inserts:
    made = Inserts(connection.cursor(), Dialect(), "t", RowCounts("t", "SQLite"))
    made.joins = joins
    return made


@given(st.integers(1, 25), st.integers(1, 170), st.data())
def test_the_rows_are_those_of_one_statement_each(width: int, count: int, data: Any) -> None:
    row = st.tuples(*[VALUES] * width)
    some = data.draw(st.lists(row, min_size=1, max_size=3))
    rows = [some[number % len(some)] for number in range(count)]
    kept = []
    for joins in (False, True):
        columns = [f"c{at} {('', 'TEXT', 'INTEGER')[at % 3]}" for at in range(width)]
        connection = connected(f"CREATE TABLE t ({', '.join(columns)})")
        inserts(connection, joins=joins).insert(Insert(None, rows))
        kept.append(connection.execute("SELECT rowid, * FROM t ORDER BY rowid").fetchall())
    assert kept[0] == kept[1]
    assert len(kept[0]) == count


def test_fewer_statements_than_rows() -> None:
    connection = connected("CREATE TABLE t (a, b)")
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    inserts(connection).insert(Insert(None, [(n, "x") for n in range(2_000)]))
    assert len(seen) == 40
    # Otherwise SQLite keeps a copy of each page that one statement for several rows changes.
    assert all(statement.startswith("INSERT OR ROLLBACK INTO") for statement in seen)


def test_rows_with_keys_of_their_own_fill_no_memory() -> None:
    names = [f"c{number}" for number in range(300)]
    connection = connected(f"CREATE TABLE t ({', '.join(names)})")
    made = inserts(connection)
    for name in names:
        made.insert(Insert((name,), [(1,)]))
    assert len(made._statements) <= 128
    assert connection.execute("SELECT count(*), sum(c0), sum(c299) FROM t").fetchone() == (
        300,
        1,
        1,
    )


def test_a_table_of_very_many_columns_takes_row_by_row() -> None:
    width = 600  # two rows would be more values than SQLite takes before 3.32
    connection = connected(f"CREATE TABLE t ({', '.join([f'c{n}' for n in range(width)])})")
    inserts(connection).insert(Insert(None, [(n,) * width for n in range(3)]))
    assert connection.execute("SELECT c599 FROM t").fetchall() == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("statements", "several"),
    [
        (["CREATE TABLE t (n INTEGER PRIMARY KEY, b TEXT NOT NULL UNIQUE)"], True),
        (["CREATE TABLE T (n)", "CREATE INDEX i ON t (n)"], True),
        (["CREATE TABLE t (n UNIQUE ON CONFLICT IGNORE)"], False),
        (["CREATE TABLE t (n UNIQUE on\nconflict replace)"], False),
        (["CREATE TABLE t (n)", "CREATE TRIGGER g AFTER INSERT ON T BEGIN SELECT 1; END"], False),
        (["CREATE TABLE t (n)", "CREATE TEMP TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END"],
         False),
        (["CREATE TABLE u (n)", "CREATE VIEW t AS SELECT n FROM u"], False),
        (["CREATE TABLE t (n)", "CREATE TEMP TABLE t (n UNIQUE ON CONFLICT IGNORE)"], False),
        (["CREATE VIRTUAL TABLE t USING fts4 (n)"], False),
        (["CREATE TABLE other (n)"], False),
    ],
)  # fmt: skip
def test_only_where_nothing_else_has_a_say(statements: list[str], several: bool) -> None:
    assert takes_several(connected(*statements), "t") is several


def test_a_table_of_another_file(tmp_path: Path) -> None:
    connection = connected(f"ATTACH '{tmp_path}/b.db' AS b", "CREATE TABLE b.t (n)")
    assert takes_several(connection, "b.t")
    assert not takes_several(connection, "t")  # which of several files it is in, nobody asks
    connection.execute("CREATE TRIGGER b.g AFTER INSERT ON t BEGIN SELECT 1; END")
    assert not takes_several(connection, "b.t")


def test_one_row_that_is_refused_takes_all_back_and_the_next_write_works(tmp_path: Path) -> None:
    sink = SqlSink(f"sqlite:///{tmp_path}/t.db", table="t", schema="CREATE TABLE t (n UNIQUE)")
    sink.write([(n,) for n in range(100)], batch=batch_of(list(range(100))))
    twice = [(n,) for n in range(100, 199)] + [(120,)]
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: t\.n"):
        sink.write(twice, batch=batch_of(list(range(100, 200))))
    assert _count(tmp_path) == 100
    good = [(n,) for n in range(100, 200)]
    result = sink.write(good, batch=batch_of(list(range(100, 200))))
    assert result == (100, 0)
    assert _count(tmp_path) == 200


def test_a_row_of_another_width_is_not_shifted_into_the_next(tmp_path: Path) -> None:
    sink = SqlSink(f"sqlite:///{tmp_path}/t.db", table="t", schema="CREATE TABLE t (a, b)")
    rows: list[Any] = [(1, 2)] * 50
    rows[10], rows[11] = (1,), (1, 2, 3)  # together as many values as two rows
    with pytest.raises(Exception, match="position 10: a row of 1 values where 2 are expected"):
        sink.write(rows, batch=batch_of(list(range(50))))
    assert _count(tmp_path) == 0


def test_names_that_need_quotes(tmp_path: Path) -> None:
    schema = (
        'CREATE TABLE "order" ("group" INTEGER, "größe in m" TEXT, "a.b" INTEGER, "2 (€)" TEXT)'
    )
    sink = SqlSink(f"sqlite:///{tmp_path}/t.db", table="main.order", schema=schema)
    row = {"group": 1, "größe in m": "x", "a.b": 2, "2 (€)": "y"}
    sink.write([row] * 60, batch=batch_of(list(range(60))))
    connection = sqlite3.connect(tmp_path / "t.db")
    assert connection.execute('SELECT * FROM "order"').fetchall() == [(1, "x", 2, "y")] * 60
    connection.close()


@pytest.mark.parametrize(
    "name", ['a"b', "a'b", "a`b", "a]b", "a\\b", "100%", "who?", ":a", "a\nb", ""]
)
def test_names_that_could_break_out_of_quotes_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="is not a column name"):
        prepare([{name: 1}], batch_of([1]), None)


def _count(place: Path) -> int:
    connection = sqlite3.connect(place / "t.db")
    (count,) = connection.execute("SELECT count(*) FROM t").fetchone()
    connection.close()
    return int(count)
