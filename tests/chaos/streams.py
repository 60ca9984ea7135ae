"""Kill the driver of a stream again and again: ``python -m tests.chaos.streams --kills 10``.

A stream of flowctl's reads numbers, and ``flow_batch`` writes them into SQLite by ``SqlSink``.  The
driver is killed (SIGKILL, with its JVM and workers) at random moments and started again over the
same checkpoint.  In the end each number must be there once; exit code 1 if not.
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
from pathlib import Path

from flowctl import Batch
from flowctl_sql import SqlSink

ROWS = 6_000
ROW_S = 0.002  # what a row costs: some 15 batches of a second on four slots
ROOT = Path(__file__).parents[2]


def slow(batch: Batch) -> list[tuple[int]]:
    """What each record goes through."""
    time.sleep(ROW_S * len(batch))
    return [(record.value,) for record in batch]


def stream(place: Path) -> None:
    """Run the stream until nothing is left."""
    from pyspark.sql import SparkSession

    from pyspark_flowctl import flow_batch
    from pyspark_flowctl.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    table = "CREATE TABLE IF NOT EXISTS numbers (n INTEGER)"
    sink = SqlSink(f"sqlite:///{place}/out.db", table="numbers", schema=table)
    source = spark.readStream.format("flowctl").schema("n long")
    source = source.option("producer", "tests.stream_parts:Numbers")
    source = source.option("producer.count", ROWS).option("process", "tests.chaos.streams:slow")
    rows = source.option("target_batch_s", 2).load()
    query = (
        rows.writeStream.foreachBatch(flow_batch(sink=sink, target="numbers"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


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


def torment(place: Path, kills: int, chance: random.Random) -> bool:
    """Kill the stream ``kills`` times while it writes, then let it end; return if all is exact."""
    for number in range(kills):
        before, running = written(place)[0], start(place)
        while written(place)[0] <= before and running.poll() is None:
            time.sleep(0.05)  # it has begun to write, or has nothing left to do
        time.sleep(chance.uniform(0, 4))
        ended = running.poll() is not None
        if not ended:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        print(f"kill {number + 1}: {'was over' if ended else 'killed'}, {written(place)[0]} rows")
    code = start(place).wait()
    rows, different = written(place)
    print(f"exit code {code}; {rows} rows, {different} different, of {ROWS}")
    return code == 0 and rows == different == ROWS


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
        return not torment(Path(temporary), given.kills, random.Random(given.seed))


if __name__ == "__main__":
    sys.exit(main())
