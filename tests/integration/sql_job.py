"""A job of lines into a table of any database, in processes of its own that a test kills.

``python -c "import sql_job; sql_job.main()"`` is its driver.  ``URL`` is the database's, ``PLACE``
a directory of the test's own: the input lies there, and each bolt leaves its process id.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from fault_parts import PATIENCE_S, ROOT, until

from flowctl.bolts.batch import Batch
from flowctl_sql import SqlSink

BOLTS = 3
_LINES, _GROUP = ("file", "line", "content"), ("grp", "file", "line")
_TUPLE_S = 0.01  # a kill in mid-run is in mid-run
_SCHEMA = "CREATE TABLE flowctl_lines (file VARCHAR(40), line BIGINT, content VARCHAR(100))"
# One row for each group of lines, which bolts update at the same time.
_GROUPS = 7
_GROUPS_SCHEMA = (
    "CREATE TABLE flowctl_groups (grp BIGINT PRIMARY KEY, file VARCHAR(40), line BIGINT)"
)


class Load:
    """Writes lines, and the newest of each group; ``PLACE/NAME.pid`` is its process."""

    def __init__(self, sink: SqlSink, groups: SqlSink, place: Path) -> None:
        self._sink = sink
        self._groups = groups
        self._place = place

    def __call__(self, batch: Batch) -> None:
        (self._place / f"{batch.bolt}.new").write_text(str(os.getpid()))
        (self._place / f"{batch.bolt}.new").rename(self._place / f"{batch.bolt}.pid")
        if not (self._place / "hurry").exists():
            time.sleep(_TUPLE_S)
        file = Path(batch.span.partition).name
        rows: list[Any] = [(file, r.position[1], r.value) for r in batch]  # type: ignore[index]
        groups = [(line % _GROUPS, file, line) for file, line, _ in rows]
        if os.environ["IN_COLUMNS"] == "yes":
            mock.patch("flowctl_sql._copy.ROWS_MIN", 1).start()  # a kill comes after few rows
            _note_copies(self._place / "copied")
            self._sink.write(_columns(_LINES, rows), batch=batch)
            self._groups.write(_columns(_GROUP, groups), batch=batch)
        else:
            self._sink.write(rows, batch=batch)
            self._groups.write(groups, batch=batch)


def _note_copies(mark: Path) -> None:
    """Leave ``mark`` when this process copies rows."""
    import psycopg

    copy = psycopg.Cursor.copy

    def noted(cursor: Any, statement: Any) -> Any:
        mark.touch()
        return copy(cursor, statement)

    if copy.__name__ == "copy":
        psycopg.Cursor.copy = noted  # type: ignore[method-assign, assignment]


def _columns(names: Sequence[str], rows: list[Any]) -> Any:
    import pyarrow

    return pyarrow.RecordBatch.from_pydict(
        dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    )


def main() -> None:
    """Be the driver."""
    from sink_parts import ProcessBolts

    from flowctl import FlowControlSpout
    from flowctl.config import Settings
    from flowctl_files import TextLines

    place = Path(os.environ["PLACE"])
    sink = SqlSink(os.environ["URL"], table="flowctl_lines", schema=_SCHEMA, name="lines")
    groups = SqlSink(
        os.environ["URL"], table="flowctl_groups", schema=_GROUPS_SCHEMA,
        mode="upsert", key=["grp"], columns=_GROUP,
    )  # fmt: skip
    FlowControlSpout(
        name="lines",
        producer=TextLines(f"{place}/*.log"),
        bolts=ProcessBolts(Load(sink, groups, place), count=BOLTS),
        settings=Settings().with_overrides({"tuple.records_max": 20, "checkpoint.interval_s": 0.1}),
    ).run()


class Job:
    """The job from outside: started, killed, finished, compared with its input."""

    def __init__(
        self, place: Path, url: str, redis_url: str, *, lines: int, seed: int, columns: bool
    ) -> None:
        import sqlalchemy

        self._place = place
        self._chance = random.Random(seed)
        # One connection that sees each commit at once: a new one for each look would cost the
        # server a process, and the job the time.
        self._engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        self._wanted = set()
        for name in ("a", "b"):
            texts = [f"{name} {n} " + "x" * (n % 60) for n in range(1, lines // 2 + 1)]
            (place / f"{name}.log").write_text("".join(f"{text}\n" for text in texts))
            self._wanted |= {(f"{name}.log", n, text) for n, text in enumerate(texts, 1)}
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), str(ROOT / "adapters"), str(Path(__file__).parent), *sys.path]
            ),
            "URL": url,
            "IN_COLUMNS": "yes" if columns else "no",
            "PLACE": str(place),
            "FLOWCTL_REDIS_URL": redis_url,
        }
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        with (self._place / "said").open("ab") as said:
            self._driver = subprocess.Popen(
                [sys.executable, "-c", "import sql_job; sql_job.main()"],
                env=self._environment,
                stdout=said,
                stderr=said,
            )
        return self._driver

    def said(self) -> str:
        return (self._place / "said").read_text()[-3000:]

    def rows(self) -> list[tuple[str, int, str]]:
        return self._select("file, line, content")

    def groups(self) -> list[tuple[int, str, int]]:
        return self._select("grp, file, line", "flowctl_groups")

    def count(self) -> int:
        import sqlalchemy

        try:
            return int(self._select("count(*)")[0][0])
        except sqlalchemy.exc.DBAPIError:  # the table is not there yet
            return 0

    def _select(self, what: str, table: str = "flowctl_lines") -> list[Any]:
        import sqlalchemy

        statement = sqlalchemy.text(f"SELECT {what} FROM {table}")
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(statement)]

    def survive(self, kills: int) -> tuple[int, int]:
        """Kill the driver or a bolt at random moments; how often which was killed."""
        drivers = bolts = 0
        driver = self.start()
        for _ in range(kills):
            self._await_rows(driver, self._chance.randint(1, 150))
            time.sleep(self._chance.uniform(0, 0.02))
            assert driver.poll() is None, self.said()
            if self._chance.random() < 0.5:
                driver.kill()
                driver.wait()
                drivers += 1
                driver = self.start()
            else:
                until(self._kill_bolt, "a living bolt")
                bolts += 1
        return drivers, bolts

    def _await_rows(self, driver: subprocess.Popen[bytes], more: int) -> None:
        wanted = self.count() + more
        self._while_it_writes(lambda: self.count() >= wanted or driver.poll() is not None)

    def _while_it_writes(self, done: Callable[[], bool]) -> None:
        """Wait until ``done``; fail if no row is added for long, however long all of it takes."""
        written, since_s = -1, time.monotonic()
        while not done():
            if (now := self.count()) > written:
                written, since_s = now, time.monotonic()
            assert time.monotonic() < since_s + PATIENCE_S, f"{written} rows: {self.said()}"
            time.sleep(0.01)

    def _kill_bolt(self) -> bool:
        one = self._place / f"b{self._chance.randint(1, BOLTS)}.pid"
        # A bolt that has had no tuple yet has not written its file, and the number of one that is
        # gone may be another's by now: on a busy machine PostgreSQL's, which then kills all of its
        # connections.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            pid = int(one.read_text())
            handle = os.pidfd_open(pid)
            try:
                if f"PLACE={self._place}".encode() in _environment_of(pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    return True
            finally:
                os.close(handle)
        return False

    def finish(self) -> None:
        """Let it end, and compare."""
        (self._place / "hurry").touch()
        driver = self._driver
        assert driver is not None
        self._while_it_writes(
            lambda: self.count() >= len(self._wanted) or driver.poll() is not None
        )
        assert driver.wait(PATIENCE_S) == 0, self.said()
        rows = self.rows()
        assert len(rows) == len(self._wanted), f"{len(rows)} rows, {len(set(rows))} different"
        assert set(rows) == self._wanted
        groups, lines = self.groups(), {(file, line) for file, line, _ in rows}
        assert sorted(group for group, _, _ in groups) == list(range(_GROUPS)), "each once"
        assert all((file, n) in lines and n % _GROUPS == group for group, file, n in groups)

    def stop(self) -> None:
        self._engine.dispose()
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()


def _environment_of(pid: int) -> list[bytes]:
    """The variables of a process; none of one that has ended and is not yet waited for."""
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
