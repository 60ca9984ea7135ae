"""SqlSink over SQLite: what it can't write and says so, what it leaves out, what it knows."""

from __future__ import annotations

import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowctl.errors import ConfigError, FencedError, RetryLater, UnrunnableError
from flowctl_sql import SqlSink
from tests.sql_parts import SCHEMA, Opened, batch_of, new_sink, query, write
from tests.unit.test_delivery import Letters, deliver


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_autocommit_is_refused() -> None:
    sink = SqlSink(
        connect=lambda: sqlite3.connect("t.db", isolation_level=None), table="t", schema=SCHEMA
    )
    with pytest.raises(ConfigError, match="autocommit"):
        write(sink, 1)


def test_a_missing_table_is_named_with_its_remedy() -> None:
    with pytest.raises(ConfigError, match=r"'t'.*no such table.*schema=") as caught:
        write(new_sink(schema=()), 1)
    assert caught.value.field == "table"
    query("CREATE TABLE t (number, line)")
    assert write(new_sink(schema=()), 1) == (1, 0)


def test_a_missing_directory_is_named(here: Path) -> None:
    sink = SqlSink("sqlite:///no/such/t.db", table="t", schema=SCHEMA)
    with pytest.raises(UnrunnableError, match=str(here / "no/such/t.db")):
        write(sink, 1)


def test_a_file_that_is_no_database_is_named(here: Path) -> None:
    (here / "t.db").write_text("these are not the pages of a database " * 100)
    with pytest.raises(UnrunnableError, match=r"t\.db: file is not a database.*Check"):
        write(new_sink(), 1)


def test_a_file_that_becomes_read_only_is_a_refusal() -> None:
    opened = Opened()
    sink = SqlSink(connect=opened, table="t", schema=SCHEMA)
    write(sink, 1)
    opened.all[-1].execute("PRAGMA query_only = ON")
    with pytest.raises(RetryLater, match="readonly"):
        write(sink, 2)
    opened.all[-1].execute("PRAGMA query_only = OFF")
    assert write(sink, 2) == (1, 0)


def test_a_wrong_password_is_said_with_what_to_check() -> None:
    psycopg = pytest.importorskip("psycopg")

    def connect() -> Any:
        raise psycopg.OperationalError('FATAL:  password authentication failed for user "me"')

    sink = SqlSink(connect=connect, table="t")
    with pytest.raises(UnrunnableError, match=r"can't be opened: FATAL: password.*Check user"):
        write(sink, 1)


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  password authentication failed for user "me"',
        'FATAL:  role "me" does not exist',
        'FATAL:  database "nowhere" does not exist',
    ],
)
def test_a_wrong_role_database_or_password_ends_a_delivery_with_the_first_call(said: str) -> None:
    """The kind: what no record can succeed with costs attempts, and letters of good rows."""
    psycopg = pytest.importorskip("psycopg")
    letters, opened = Letters(), []

    def connect() -> Any:
        opened.append(1)
        raise psycopg.OperationalError(said)

    def put(batch: Any) -> None:
        sink.write([{"number": record.value} for record in batch], batch=batch)

    sink = SqlSink(connect=connect, table="t")
    with pytest.raises(UnrunnableError, match=r"SqlSink 't': .*Check user, password, database"):
        deliver(put, range(100), dead_letter=letters)
    assert (len(opened), letters.kept) == (1, [])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda batch: [(1, "a")] * (len(batch) - 1), "24 rows for a batch of 25 records"),
        (lambda batch: [(1, "a", "b")] * len(batch), "a row of 3 values where 2 are expected"),
    ],
)
def test_rows_of_the_wrong_length_end_a_delivery_with_the_first_call(rows: Any, said: str) -> None:
    letters, calls = Letters(), []

    def put(batch: Any) -> None:
        calls.append(1)
        sink.write(rows(batch), batch=batch)

    sink = new_sink(columns=("number", "line"))
    with pytest.raises(UnrunnableError, match=said):
        deliver(put, range(100), dead_letter=letters)
    assert (len(calls), letters.kept) == (1, [])


def test_one_row_of_another_length_is_a_letter_if_others_have_been_written() -> None:
    letters = Letters()

    def put(batch: Any) -> None:
        rows = [("a",) if record.value == 70 else (record.value, "a") for record in batch]
        sink.write(rows, batch=batch)

    sink = new_sink(columns=("number", "line"))
    tally = deliver(put, range(100), dead_letter=letters, attempts_max=2)
    assert (tally.written, [letter[3] for letter in letters.kept]) == (99, [70])


@pytest.mark.parametrize(
    "said",
    [
        'connection is bad: invalid sslmode value: "foo"',
        'connection is bad: invalid "ssl_min_protocol_version" value: "TLSv9"',
        'connection is bad: definition of service "nowhere" not found',
        "received invalid response to SSL negotiation: H",
        "expected authentication request from server, but received H",
        'authentication method requirement "scram-sha-256" failed',
        "channel binding required, but server authenticated client without channel binding",
        'FATAL:  role "me" is not permitted to log in',
        'FATAL:  pg_hba.conf rejects connection for host "10.0.0.7"',
        'FATAL:  invalid value for parameter "work_mem": "lots"',
        "failed to resolve host 'nowhere': [Errno -2] Name or service not known",
    ],
)
def test_what_waiting_can_not_mend_before_a_connection_is_no_refusal(said: str) -> None:
    psycopg = pytest.importorskip("psycopg")

    def connect() -> Any:
        raise psycopg.OperationalError(said)

    with pytest.raises(UnrunnableError, match="can't be opened"):
        write(SqlSink(connect=connect, table="t"), 1)


@pytest.mark.parametrize(
    "said",
    [
        "server does not support SSL, but SSL was required",
        "SSL error: certificate verify failed",
        'server certificate for "other" does not match host name "db"',
        'root certificate file "/ca.pem" does not exist',
        'connection is bad: invalid sslmode value: "foo"',
    ],
)
def test_what_is_wrong_with_tls_names_its_options(said: str) -> None:
    psycopg = pytest.importorskip("psycopg")

    def connect() -> Any:
        raise psycopg.OperationalError(said)

    with pytest.raises(UnrunnableError, match="sslmode, sslrootcert"):
        write(SqlSink(connect=connect, table="t"), 1)


def test_a_name_server_that_is_away_is_a_refusal() -> None:
    psycopg = pytest.importorskip("psycopg")

    def connect() -> Any:
        raise psycopg.OperationalError(
            "failed to resolve host 'db': [Errno -3] Temporary failure in name resolution"
        )

    with pytest.raises(RetryLater):
        write(SqlSink(connect=connect, table="t"), 1)


def test_a_lock_that_is_held_too_long_is_a_refusal_and_nothing_is_lost() -> None:
    sink = new_sink(timeout_s=0.05)
    write(sink, 1)
    holder = sqlite3.connect("t.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(RetryLater, match=r"write lock of .*t\.db could not be had for 0\.05 s"):
        write(sink, 2)
    holder.rollback()
    holder.close()
    assert write(sink, 2) == (1, 0)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells")
def test_who_holds_sqlites_lock_is_said() -> None:
    write(new_sink(), 1)
    code = (
        "import sqlite3; c = sqlite3.connect('t.db', isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(RetryLater, match=f"process {holder.pid} holds it"):
            write(new_sink(timeout_s=0.05), 2)
        holder.kill()
    assert write(new_sink(), 2) == (1, 0)


def test_a_full_disk_is_a_refusal() -> None:
    sink = new_sink()
    write(sink, 1)
    sink.session().cursor.execute("PRAGMA max_page_count = 1")
    batch = batch_of([2])
    with pytest.raises(RetryLater, match="full"):
        sink.write([(2, "x" * 100_000)], batch=batch)
    sink.session().cursor.execute("PRAGMA max_page_count = 1000000")
    assert write(sink, 2) == (1, 0)


def test_what_is_left_out_is_counted_in_records() -> None:
    sink = new_sink()
    write(sink, 2, 3)
    batch = batch_of([1, 2, 3, 4])
    rows = [[(n, "a"), (n, "b")] for n in (1, 2, 3, 4)]
    sink.write(rows, batch=batch)
    assert batch.left_out == 2
    sink.write(rows, batch=batch)  # a retry in process: it is its own
    assert batch.left_out == 2
    other = new_sink(name="other")
    other.write(rows, batch=batch_of([1, 2, 3, 4]))
    other.write(rows, batch=batch)  # two sinks: the same records count once at most
    assert batch.left_out == 4


def test_the_newest_epoch_is_told() -> None:
    sink = new_sink()
    assert sink.newest_epoch("job") is None
    write(sink, 1, epoch=7)
    assert sink.newest_epoch("job") == 7
    assert sink.newest_epoch("k") is None
    with pytest.raises(FencedError) as caught:
        write(sink, 2, epoch=6)
    assert caught.value.newest_epoch == 7
    travelled = pickle.loads(pickle.dumps(caught.value))
    assert (travelled.newest_epoch, str(travelled)) == (7, str(caught.value))
    assert travelled.remedy == caught.value.remedy


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": "sqlite:///:memory:"}, "url"),
        ({"url": "sqlite://"}, "url"),
        ({"url": "sqlite://host/t.db"}, "url"),
        ({"url": "t.db"}, "url"),
        ({"url": None}, "url"),
        ({"table": 't"; DROP TABLE x'}, "table"),
        ({"table": ""}, "table"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"timeout_s": float("nan")}, "timeout_s"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"timeout_s": True}, "timeout_s"),
        ({"columns": ['a"b']}, "columns"),
        ({"columns": ["a", "a"]}, "columns"),
        ({"columns": []}, "columns"),
        ({"synchronous": "OFF"}, "synchronous"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SqlSink(**{"url": "sqlite:///t.db", "table": "t", **options})
    assert caught.value.field == field and caught.value.remedy
    assert "secret" not in str(caught.value)
