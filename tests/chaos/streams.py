"""Kill a stream's driver, planner and workers: ``python -m tests.chaos.streams --kills 10``.

A stream of flowctl's reads numbers, and ``flow_batch`` writes them into SQLite by ``SqlSink``.
Before each kill of the driver (SIGKILL, with its JVM) one worker is killed, and the process in
which Spark plans the batches: the program starts the query again, as a user's would.  In the end
each number must be there once; exit code 1 if not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from flowctl import Batch
from flowctl_sql import SqlSink

ROWS = 10_000
ROW_S = 0.01  # what a row costs: some 15 batches of two seconds on four slots
PAUSE_S = 3.0  # a kill comes within this after new rows: at any point of a batch
RUN_S = (
    300.0  # without a new row for so long, a run hangs; a start takes a minute on a busy machine
)
ROOT = Path(__file__).parents[2]


def slow(batch: Batch) -> list[tuple[int]]:
    """What each record goes through."""
    time.sleep(ROW_S * len(batch))
    return [(record.value,) for record in batch]


def stream(place: Path) -> None:
    """Run the stream until nothing is left; start the query again if it fails."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[4,4]")  # a task may fail four times, as on a cluster
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    while True:
        try:
            query(spark, place).awaitTermination()
            break
        except StreamingQueryException as error:
            print("the query failed:", str(error).partition("\n")[0], flush=True)


def query(spark: Any, place: Path) -> Any:
    """Start the stream over its checkpoint."""
    from pyspark_flowctl import flow_batch

    table = "CREATE TABLE IF NOT EXISTS numbers (n INTEGER)"
    sink = SqlSink(f"sqlite:///{place}/out.db", table="numbers", schema=table)
    source = spark.readStream.format("flowctl").schema("n long")
    source = source.option("producer", "tests.stream_parts:Numbers")
    source = source.option("producer.count", ROWS).option("process", "tests.chaos.streams:slow")
    rows = source.option("target_batch_s", 2).load()
    return (
        rows.writeStream.foreachBatch(flow_batch(sink=sink, target="numbers"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def written(place: Path) -> tuple[int, int]:
    """Return how many rows there are, and how many different ones."""
    try:
        with sqlite3.connect(f"file:{place}/out.db?mode=ro", uri=True) as database:
            found = database.execute("SELECT count(*), count(DISTINCT n) FROM numbers").fetchone()
    except sqlite3.OperationalError:  # not there yet
        return 0, 0
    return int(found[0]), int(found[1])


def start(place: Path) -> subprocess.Popen[bytes]:
    """Start the stream in a process group of its own."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters"), os.environ.get("PYTHONPATH", "")])
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.streams", "--place", str(place)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=log,
            cwd=place,
            start_new_session=True,
        )


def of_kind(kind: str, driver: int) -> Iterator[psutil.Process]:
    """Yield the workers of ``driver``, or the process that plans its batches."""
    for process in psutil.Process(driver).children(recursive=True):
        try:
            words, above = " ".join(process.cmdline()), " ".join(process.parent().cmdline())
        except (psutil.Error, AttributeError):
            continue  # it has just ended
        is_worker = "pyspark" in words and ".daemon" in words and ".daemon" in above
        if is_worker if kind == "worker" else "source_runner" in words:
            yield process


class Torment:
    """Kills one stream after the other; ``killed`` counts by kind."""

    def __init__(self, place: Path, chance: random.Random) -> None:
        self.place = place
        self.chance = chance
        self.killed: Counter[str] = Counter()

    def run(self, kills: int) -> bool:
        """Kill the driver ``kills`` times, let the stream end; return if all is exact."""
        for number in range(kills):
            running = start(self.place)
            for kind in ("worker", "planner", "driver"):
                if self.writes(running):
                    time.sleep(self.chance.uniform(0, PAUSE_S))
                    self.kill(kind, running)
            said = f"{self.killed.total()} kills, {written(self.place)[0]} rows"
            print(f"{number + 1}. {said}", flush=True)
            if running.poll() == 0:
                break
        running = start(self.place)
        while self.writes(running):
            pass
        code = running.wait()
        rows, different = written(self.place)
        print(f"killed: {dict(self.killed)}; exit code {code}")
        print(f"{rows} rows, {different} different, of {ROWS}")
        return code == 0 and rows == different == ROWS

    def writes(self, running: subprocess.Popen[bytes]) -> bool:
        """Wait for new rows; False: the run is over.  One that hangs is killed, and said so."""
        before, until_s = written(self.place)[0], time.monotonic() + RUN_S
        while running.poll() is None:
            if written(self.place)[0] > before:
                return True
            if time.monotonic() > until_s:
                print(f"no row for {RUN_S:.0f} s", flush=True)
                self.end(running)
            time.sleep(0.05)
        return False

    def kill(self, kind: str, running: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to one process of a kind, if there is one."""
        if running.poll() is not None:
            return
        if kind == "driver":
            self.end(running)
            self.killed[kind] += 1
        elif found := list(of_kind(kind, running.pid)):
            self.chance.choice(found).kill()
            self.killed[kind] += 1

    def end(self, running: subprocess.Popen[bytes]) -> None:
        """Kill a driver and its JVM; workers see that and end."""
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.place is not None:
        stream(given.place)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        return not Torment(Path(temporary), random.Random(given.seed)).run(given.kills)


if __name__ == "__main__":
    sys.exit(main())
