"""Makespan beside what a Spark user has today: repartition(12), repartition(240), the oracle.

Work is sleeping, so that two cores can stand for twelve.  Which worker is slow is decided by the
worker itself: the first process to take the token of an arm is, in every arm alike.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import MemoryProducer, Stopwatch

BOLTS = 12
RECORDS = 4_800
RECORD_S = 0.02  # 8 s of work for 12: long against a Spark job's start (0.3 s)
SLOWNESS = 10


def is_slow_worker(token: str) -> bool:
    """Whether this process holds ``token``; the first to ask takes it."""
    path = Path(token)
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return path.read_text() == str(os.getpid())
    os.write(handle, str(os.getpid()).encode())
    os.close(handle)
    return True


def worker(token: str | None) -> Callable[[Iterable[Any]], None]:
    """Return a function that works through records, at the speed of its worker."""

    def work(records: Iterable[Any]) -> None:
        slow = token is not None and is_slow_worker(token)
        for _ in records:
            time.sleep(RECORD_S * (SLOWNESS if slow else 1))

    return work


def oracle_s(slow: bool) -> float:
    """All capacity busy to the end: 12 workers, or 11 and a tenth."""
    capacity = BOLTS - 1 + 1 / SLOWNESS if slow else BOLTS
    return RECORDS * RECORD_S / capacity


def repartition_s(spark: Any, partitions: int, token: str | None) -> float:
    """Seconds of ``repartition(n).foreachPartition``, workers warm.

    Of a DataFrame: its rows are dealt out evenly, an RDD's in pickled batches.
    """
    data = spark.range(RECORDS).repartition(partitions)
    work = worker(token)
    begun_s = time.monotonic()
    data.foreachPartition(work)
    return time.monotonic() - begun_s


def flowctl_s(spark: Any, token: str | None) -> tuple[float, float, list[tuple[str, float]]]:
    """Seconds from the last bolt's coming to the last ack, of the whole run, and the shares."""
    watch = Stopwatch()
    spout = FlowControlSpout(
        name="makespan",
        producer=MemoryProducer(RECORDS, 0),
        bolts=SparkBolts(worker(token), count=BOLTS, spark=spark),
        checkpoint=MemoryCheckpointStore(),
    )
    begun_s = time.monotonic()
    report = spout.run(view=watch)
    whole_s = time.monotonic() - begun_s
    first_s = min(watch.joined_s)
    ended_s = next(s[0] for s in watch.samples if s[2] == RECORDS)
    return ended_s - first_s, whole_s, [(b.name, b.share) for b in report.bolts]


def main(spark: Any) -> bool:
    """Print all arms; return whether flowctl is ahead, and within 5 % where all are alike."""
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        for slow in (False, True):

            def token(arm: str, slow: bool = slow) -> str | None:
                return f"{folder}/{arm}" if slow else None

            ours_s, whole_s, shares = flowctl_s(spark, token("flowctl"))
            by_12_s = repartition_s(spark, 12, token("12"))
            by_240_s = repartition_s(spark, 240, token("240"))
            best_s = min(by_12_s, by_240_s)
            print(
                f"{'one of 12 bolts 10x slower' if slow else 'uniform':27}"
                f" flowctl {ours_s:5.1f} s ({whole_s:.1f} with start and end),"
                f" repartition(12) {by_12_s:5.1f}, repartition(240) {by_240_s:5.1f},"
                f" oracle {oracle_s(slow):5.1f}; {ours_s / best_s:.2f} of the better"
            )
            if slow:
                share = min(s for _, s in shares)
                fair = (1 / SLOWNESS) / (BOLTS - 1 + 1 / SLOWNESS)
                print(f"  slow bolt's share {100 * share:.2f} %, of capacity {100 * fair:.2f} %")
            ok = ok and ours_s < best_s * (1.0 if slow else 1.05)
    return ok
