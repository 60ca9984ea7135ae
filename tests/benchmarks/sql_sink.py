"""``SqlSink`` into one SQLite file beside plain ``executemany``: same rows, same pragmas.

Plain remembers nothing: a task that Spark runs again doubles its rows.  First without Spark, where
only the writing counts; then a whole job on Spark beside ``foreachPartition``.  The arms take turns
and the figures are medians.  At the end a job with a worker killed in mid-run must be exact.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import Stopwatch

ROUNDS = 5
PER_WRITE = 2_000  # tuple.records_max: plain commits as often as the sink
LINE = "x" * 92  # with its number, a row of 100 B
ALONE_ROWS = 200_000
JOB_ROWS = 1_000_000
BOLTS = 4
SCHEMA = "CREATE TABLE lines (line TEXT)"
GOAL = 0.9


def write_plainly(path: str, rows: Iterable[tuple[str]]) -> None:
    """What one writes without us, with the pragmas of ``SqlSink``."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    left = iter(rows)
    while some := list(islice(left, PER_WRITE)):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO lines VALUES (?)", some)
        connection.execute("COMMIT")
    connection.close()


def _lines(count: int) -> Iterator[str]:
    return (f"{number:08}{LINE}" for number in range(count))


def _new_database(place: Path) -> str:
    for left in place.glob("out.db*"):
        left.unlink()
    path = str(place / "out.db")
    with sqlite3.connect(path) as connection:
        connection.execute(SCHEMA)
    connection.close()
    return path


def plain_alone(path: str, records: list[Record]) -> None:
    write_plainly(path, ((record.value,) for record in records))


def sink_alone(path: str, records: list[Record]) -> None:
    sink = SqlSink(f"sqlite:///{path}", table="lines")
    for begin in range(0, len(records), PER_WRITE):
        part = records[begin : begin + PER_WRITE]
        acked = begin - 1 if begin else None
        span = Span("bench", "p", part[0].position, part[-1].position, 1, acked)
        batch = Batch(part, span, bolt="b", attempt=1)
        sink.write([(record.value,) for record in batch], batch=batch)
    sink.close()


class Load:
    """``process``: lines into the sink; leaves its worker's number in ``place``."""

    def __init__(self, sink: SqlSink, place: Path) -> None:
        self._sink = sink
        self._place = place

    def __call__(self, batch: Batch) -> None:
        (self._place / f"{batch.bolt}.pid").write_text(str(os.getpid()))
        self._sink.write([(record.value,) for record in batch], batch=batch)


class Killing(Stopwatch):
    """Kills a worker when a third is done."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.killed = 0
        self._place = place

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if not self.killed and snapshot.records_acked > JOB_ROWS // 3:
            self.killed = int(next(self._place.glob("*.pid")).read_text() or 0)
            if self.killed:
                os.kill(self.killed, signal.SIGKILL)


def sink_job(spark: Any, place: Path, watch: Stopwatch) -> None:
    sink = SqlSink(f"sqlite:///{place}/out.db", table="lines")
    FlowControlSpout(
        name="bench",
        producer=TextLines(str(place / "in-*.log")),
        bolts=SparkBolts(Load(sink, place), count=BOLTS, spark=spark),
        checkpoint=MemoryCheckpointStore(),
    ).run(view=watch)


def plain_job(spark: Any, place: Path) -> None:
    path = str(place / "out.db")
    rows = spark.sparkContext.textFile(f"file://{place}/in-*.log", BOLTS)
    rows.foreachPartition(lambda lines: write_plainly(path, ((line,) for line in lines)))


def _cpu_s() -> float:
    """Of this process, Spark's and the workers: those that live."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def _compare(what: str, rows: int, place: Path, arms: dict[str, Callable[[str], None]]) -> float:
    """Print MB/s and CPU of both arms; return the sink's share of plain's speed."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in range(ROUNDS):
        for name, arm in arms.items():
            path = _new_database(place)
            begun_s, cpu_s = time.monotonic(), _cpu_s()
            arm(path)
            took[name].append((time.monotonic() - begun_s, _cpu_s() - cpu_s))
            _assert_exact(path, rows)
    megabytes = rows * 100 / 1e6
    speed = {name: megabytes / statistics.median(s for s, _ in runs) for name, runs in took.items()}
    cpu_s = {name: statistics.median(cpu for _, cpu in runs) for name, runs in took.items()}
    ratio = statistics.median(
        plain[0] / ours[0] for plain, ours in zip(took["plain"], took["sink"], strict=True)
    )
    print(
        f"{what}: SqlSink {speed['sink']:5.1f} MB/s, CPU {cpu_s['sink']:5.1f} s; executemany"
        f" {speed['plain']:5.1f} MB/s, CPU {cpu_s['plain']:5.1f} s; ratio {ratio:.2f}"
    )
    return ratio


def _assert_exact(path: str, rows: int) -> None:
    with sqlite3.connect(path) as connection:
        count, numbers, total = connection.execute(
            "SELECT count(*), count(DISTINCT line), sum(CAST(substr(line, 1, 8) AS INTEGER))"
            " FROM lines"
        ).fetchone()
    connection.close()
    if (count, numbers, total) != (rows, rows, rows * (rows - 1) // 2):
        raise RuntimeError(f"{count} rows, {numbers} different, for {rows}")


def _write_input(place: Path) -> None:
    each = JOB_ROWS // BOLTS
    lines = _lines(JOB_ROWS)
    for number in range(BOLTS):
        with (place / f"in-{number}.log").open("w") as file:
            file.writelines(f"{line}\n" for line in islice(lines, each))


def main(spark: Any) -> bool:
    """Print the figures; return whether the gates hold."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        records = [Record(number, line) for number, line in enumerate(_lines(ALONE_ROWS))]
        alone = _compare(
            "SQLite, one writer",
            ALONE_ROWS,
            place,
            {
                "plain": lambda path: plain_alone(path, records),
                "sink": lambda path: sink_alone(path, records),
            },
        )
        _write_input(place)
        job = _compare(
            f"SQLite, a job on Spark, {BOLTS} writers",
            JOB_ROWS,
            place,
            {
                "plain": lambda path: plain_job(spark, place),
                "sink": lambda path: sink_job(spark, place, Stopwatch()),
            },
        )
        path = _new_database(place)
        watch = Killing(place)
        sink_job(spark, place, watch)
        _assert_exact(path, JOB_ROWS)
        print(f"a worker killed in mid-run: {bool(watch.killed)}; {JOB_ROWS:,} rows, exact")
    return min(alone, job) >= GOAL
