"""``SqlSink`` into one SQLite file beside plain ``executemany``: same rows, same pragmas.

Plain remembers nothing: a task that Spark runs again doubles its rows.  First without Spark, where
only the writing counts; then a whole job on Spark beside ``foreachPartition``.  Both arms have the
same number of rows in a transaction: 2,000, and then what the sink has if nobody sets it.  The arms
take turns, each begins every second round, and the figures are medians of the CPU time of all
processes and of the time that passed; most of the latter is the disk's.  At the end a job with a
worker killed in mid-run must be exact.
"""

from __future__ import annotations

import ctypes
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
from flowctl.config import Settings
from flowctl.core.records import Record, Span
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines
from flowctl_sql import SqlSink
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import Stopwatch

ROUNDS = 5
ROUNDS_ALONE = 15  # of half a second each: single ones differ by a tenth
PER_WRITE = 2_000  # rows of a transaction, of both arms
LINE = "x" * 92  # with its number, a row of 100 B
ALONE_ROWS = 200_000
JOB_ROWS = 1_000_000
BOLTS = 4
SCHEMA = "CREATE TABLE lines (line TEXT)"
GOAL = 0.9  # of the rows that plain writes with the same CPU time
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def write_plainly(path: str, rows: Iterable[tuple[str]], per_write: int = PER_WRITE) -> None:
    """What one writes without us, with the pragmas of ``SqlSink``."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    left = iter(rows)
    while some := list(islice(left, per_write)):
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


def sink_job(spark: Any, place: Path, watch: Stopwatch, settings: Settings | None = None) -> None:
    sink = SqlSink(f"sqlite:///{place}/out.db", table="lines")
    FlowControlSpout(
        name="bench",
        producer=TextLines(str(place / "in-*.log")),
        bolts=SparkBolts(Load(sink, place), count=BOLTS, spark=spark),
        checkpoint=MemoryCheckpointStore(),
        settings=settings,
    ).run(view=watch)


def plain_job(spark: Any, place: Path, per_write: int) -> None:
    path = str(place / "out.db")
    rows = spark.sparkContext.textFile(f"file://{place}/in-*.log", BOLTS)
    rows.foreachPartition(lambda lines: write_plainly(path, ((line,) for line in lines), per_write))


def _adopt_orphans() -> None:
    """Take the place of the parent of processes whose own parent ends before them.

    Nobody would ever count their time: Spark's workers end after the daemon that forked them.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _cpu_s() -> float:
    """Of this process, Spark's and the workers: those that live, and those that they waited for."""
    while True:
        mine = os.times()
        # Not psutil's ticks of 10 ms: one is a twentieth of a short run.
        total = time.process_time() + mine.children_user + mine.children_system
        try:
            for process in psutil.Process().children(recursive=True):
                total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # its time went to a parent that was read before
            continue
        return total


def _compare(
    what: str, rows: int, place: Path, arms: dict[str, Callable[[str], None]], rounds: int = ROUNDS
) -> float:
    """Print rows a second and CPU of both arms; return the sink's share of plain's rows per CPU."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for number in range(rounds):
        for name in list(arms)[:: 1 if number % 2 else -1]:
            path = _new_database(place)
            begun_s, cpu_s = time.monotonic(), _cpu_s()
            arms[name](path)
            took[name].append((time.monotonic() - begun_s, _cpu_s() - cpu_s))
            _assert_exact(path, rows)
    for name, runs in took.items():
        speed, cpu_s = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{what}, {name}: {rows * 100 / 1e6 / speed:.1f} MB/s,"
            f" {1e6 * cpu_s / rows:.2f} us of CPU a row"
        )
    pairs = list(zip(took["plain"], took["sink"], strict=True))
    in_time, of_cpu = (
        statistics.median(plain[at] / ours[at] for plain, ours in pairs) for at in (0, 1)
    )
    missed = "" if of_cpu >= GOAL else ": MISSED"
    print(
        f"  SqlSink beside plain: {of_cpu:.3f} of its rows with the same CPU time"
        f" (gate {GOAL}{missed}), {in_time:.2f} of its rows a second"
    )
    return of_cpu


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
    _adopt_orphans()
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
            ROUNDS_ALONE,
        )
        _write_input(place)
        sizes = [(PER_WRITE, Settings().with_overrides({"tuple.records_max": PER_WRITE}))]
        sizes.append((_rows_of_a_tuple(spark, place), Settings()))
        jobs = [_compare_jobs(spark, place, *size) for size in sizes]
        path = _new_database(place)
        watch = Killing(place)
        sink_job(spark, place, watch)
        _assert_exact(path, JOB_ROWS)
        print(f"a worker killed in mid-run: {bool(watch.killed)}; {JOB_ROWS:,} rows, exact")
    return min(alone, *jobs) >= GOAL


def _rows_of_a_tuple(spark: Any, place: Path) -> int:
    """Return how many rows a transaction of the sink has with default settings; warms up, too."""
    _new_database(place)
    watch = Stopwatch()
    sink_job(spark, place, watch)
    return JOB_ROWS // watch.samples[-1][1]


def _compare_jobs(spark: Any, place: Path, per_write: int, settings: Settings) -> float:
    return _compare(
        f"SQLite, a job on Spark, {BOLTS} writers, {per_write:,} rows a transaction",
        JOB_ROWS,
        place,
        {
            "plain": lambda _: plain_job(spark, place, per_write),
            "sink": lambda _: sink_job(spark, place, Stopwatch(), settings),
        },
    )
