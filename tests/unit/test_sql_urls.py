"""Which URL leads where, what SQLAlchemy is asked for, and what our tables hold elsewhere."""

from __future__ import annotations

import pickle
import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flowctl.core.positions import encode
from flowctl.errors import ConfigError, FencedError, JobError
from flowctl_sql import SqlSink
from flowctl_sql._database import Direct, Sqlite
from flowctl_sql._dialect import NAME_CHARS, PortableDialect, dialect_of
from flowctl_sql.sink import database_of
from tests.sql_parts import SCHEMA, Opened, batch_of, query, rows_of, write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _database(url: str | None, connect: Any = None) -> Any:
    return database_of(url, connect, timeout_s=None, synchronous="FULL")


@pytest.mark.parametrize(
    ("url", "kind", "label"),
    [
        ("sqlite:////dir/t.db", Sqlite, "/dir/t.db"),
        ("postgresql://me:secret@host/db", Direct, "postgresql://***@host/db"),
        ("postgres://host/db?password=secret", Direct, "postgres://host/db?password=***"),
    ],
)
def test_plain_urls_stay_light(url: str, kind: type, label: str) -> None:
    pytest.importorskip("psycopg")
    database = _database(url)
    assert type(database) is kind and database.label == label


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://me:secret@host/db",
        "mariadb+pymysql://me:secret@host/db",
        "postgresql+psycopg://me:secret@host/db",
        "sqlite+pysqlite:///t.db",
        "sqlite:///t.db?timeout=3",
    ],
)
def test_other_urls_go_through_sqlalchemy(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("pymysql")
    from flowctl_sql._engine import Engine

    database = _database(url)
    assert isinstance(database, Engine) and "secret" not in database.label
    copy = pickle.loads(pickle.dumps(SqlSink(url, table="t")))
    assert copy._database.label == database.label


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql+pymysql://me:secret@host:port/db", "its port is not a number"),
        ("nosuch://me:secret@host/db", "nosuch"),
        pytest.param(
            "mysql://me:secret@host/db",
            r"MySQLdb is not installed.*mysql\+pymysql://.*mysqlclient",
            marks=pytest.mark.skipif(find_spec("MySQLdb") is not None, reason="it is there"),
        ),
        ("postgresql+asyncpg://me:secret@host/db", "asynchronous"),
        ("sqlite+aiosqlite:///t.db", "asynchronous"),
        ("sqlite+pysqlite://", "in memory"),
        ("sqlite+pysqlite:///file:t.db?uri=true", "not a plain path"),
    ],
)
def test_urls_that_cannot_do(url: str, said: str) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(ConfigError, match=said) as caught:
        _database(url)
    assert caught.value.field == "url" and caught.value.remedy
    assert "secret" not in str(caught.value)


def _sqlalchemy_url() -> Any:
    return pytest.importorskip("sqlalchemy").make_url("sqlite:///a.db")


@pytest.mark.parametrize("make", [lambda: Path("visits.db"), lambda: 3, _sqlalchemy_url])
def test_what_is_no_text_is_not_a_url(make: Any) -> None:
    given = make()
    with pytest.raises(ConfigError, match=f"url: a {type(given).__name__} is not a URL"):
        SqlSink(given, table="t")


def test_a_url_that_libpq_cannot_read_is_not_quoted() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError, match="libpq can't read it") as caught:
        _database("postgresql://me:sec%zzret@host/db").connect()
    assert "zz" not in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite+pysqlite:///t.db", "sqlite:///t.db?timeout=3"])
def test_sqlite_through_sqlalchemy_has_the_same_ledger(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    sink = SqlSink(url, table="t", schema=SCHEMA)
    assert write(sink, 1, 2) == (2, 0)
    light = SqlSink("sqlite:///t.db", table="t")
    assert write(light, 2, 3, epoch=2) == (1, 1)
    with pytest.raises(FencedError):
        write(sink, 9)
    assert query("SELECT number FROM t ORDER BY 1") == [(1,), (2,), (3,)]
    connection = sink.session().connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (10_000,)


def test_connect_is_the_creator_of_a_url() -> None:
    pytest.importorskip("sqlalchemy")
    opened = Opened()
    sink = SqlSink("sqlite+pysqlite:///t.db", connect=opened, table="t", schema=SCHEMA)
    assert write(sink, 1, 2) == (2, 0)
    assert sink.session().connection is opened.all[-1]


def test_a_driver_whose_dialect_is_unknown_needs_a_url() -> None:
    class Connection:
        def close(self) -> None:
            pass

    with pytest.raises(ConfigError, match=r"Connection, whose dialect is not known.*URL too"):
        write(SqlSink(connect=Connection, table="t"), 1)


class OwnConnection(sqlite3.Connection):
    """What a test or a tracing library makes of it."""


def test_a_driver_is_known_by_its_base_class() -> None:
    assert dialect_of(sqlite3.connect(":memory:", factory=OwnConnection)).name == "sqlite"


# -- tables elsewhere ------------------------------------------------------------------------

PORTABLE = PortableDialect("x", ddl={})


def test_portable_names_differ_where_a_database_would_not_tell() -> None:
    names = ["p", "P", "p ", "é", "e", "x" * 300, "x" * 301, "p\x00", ""]
    stored = [PORTABLE.stored_name(name) for name in names]
    assert len({name.lower().rstrip() for name in stored}) == len(names)
    assert all(len(name) <= NAME_CHARS and name.isascii() for name in stored)


def test_portable_positions_sort_and_come_back() -> None:
    positions = [(-5, 0), (0, 1), (0, 2), (7, 0), (256, 1)]
    stored = [PORTABLE.stored_position(encode(position)) for position in positions]
    assert stored == sorted(stored)
    assert [PORTABLE.encoded_position(text) for text in stored] == list(map(encode, positions))
    with pytest.raises(JobError, match="is too long for a key of x"):
        PORTABLE.stored_position(b"x" * 201)


@pytest.mark.parametrize("name", ["mysql", "mariadb", "oracle", "mssql"])
def test_our_tables_in_other_dialects(name: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from flowctl_sql._tables import ddl

    statements = ddl(sqlalchemy.make_url(f"{name}://").get_dialect()())
    assert list(statements) == ["flowctl_epochs", "flowctl_partitions", "flowctl_spans"]
    assert all("PRIMARY KEY" in statement for statement in statements.values())
    if name in ("mysql", "mariadb"):
        assert all("ENGINE=InnoDB" in statement for statement in statements.values())
    assert not any("AUTO_INCREMENT" in s or "IDENTITY" in s for s in statements.values())


def test_the_ledger_over_portable_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """In SQLite, with a collation that takes p for P, as other servers have by default."""
    pytest.importorskip("sqlalchemy")
    monkeypatch.setattr("flowctl_sql._engine._dialect_of", _case_blind)
    sink = SqlSink("sqlite+pysqlite:///t.db", table="t", schema=SCHEMA)
    assert write(sink, 1, 2, 3, acked_through=1) == (3, 0)
    assert write(sink, 1, 2, partition="P") == (2, 0)
    assert write(sink, 3, 4, 5) == (2, 1)
    assert sink.forget("job", "p", above=2)
    assert write(sink, *range(1, 6)) == (3, 2)
    assert sink.newest_epoch("job") == 1 and sink.newest_epoch("JOB") is None
    assert sink.forget("job")
    batch = batch_of([1])
    assert sink.write(rows_of(batch), batch=batch) == (1, 0)


def _case_blind(dialect: Any) -> PortableDialect:
    from flowctl_sql._tables import ddl

    statements = {
        table: statement.replace("VARCHAR(97)", "VARCHAR(97) COLLATE NOCASE").replace(
            "VARCHAR(400)", "VARCHAR(400) COLLATE NOCASE"
        )
        for table, statement in ddl(dialect).items()
    }
    return PortableDialect(
        "other", "qmark", dialect.identifier_preparer.quote, False, ddl=statements
    )


def test_a_rollback_that_undoes_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.setattr("flowctl_sql._engine._dialect_of", _case_blind)
    sink = SqlSink("sqlite+pysqlite:///t.db", table="t", schema=SCHEMA)
    monkeypatch.setattr(sink._database, "begin", lambda connection: None)  # each commits by itself
    with pytest.raises(ConfigError, match="keeps what was rolled back"):
        write(sink, 1)
