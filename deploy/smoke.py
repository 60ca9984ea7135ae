"""Which doors of flowctl work on this platform?  Run it as any job of yours runs:

    spark-submit smoke.py s3://bucket/smoke        # or python, a notebook's %run, a task of a job

Each door takes some rows for some seconds, and the table says what came of it.  The argument is a
directory that the driver and all workers see (a mount or an object store), for the doors that read
or write files; without one it is a folder of this machine, which is right for a local Spark only.
``FLOWCTL_SMOKE_REMOTE=sc://host:15002`` connects to a Connect server.  Ends with 1 if a door fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

ROWS = 2_000  # so that a door takes some seconds
MINUTE_S = 60
CALL_S = 0.01
# A name of its own for each run: a second one would find everything done.
JOB = f"smoke-{time.time():.0f}"
# Several drivers must find different free ports behind a firewall; see platforms.md.
SETTINGS = {"listen.port": int(os.environ.get("FLOWCTL_LISTEN_PORT", "0"))}


def wait(batch: Any) -> None:
    """Stands for a call of a target."""
    time.sleep(CALL_S)


def double(batch: Any) -> Any:
    time.sleep(CALL_S)
    for record in batch:
        yield (record.value["id"] * 2,)


def by_value(spark: Any, place: str) -> int:
    from flowctl import FlowControlSpout
    from pyspark_flowctl import SparkBolts

    return FlowControlSpout(
        name=f"{JOB}-value", producer=[f"line {n}" for n in range(ROWS)],
        bolts=SparkBolts(wait, 2, spark=spark), settings=SETTINGS,
    ).run(view="off").records_acked  # fmt: skip


def by_ranges(spark: Any, place: str) -> int:
    from flowctl import FlowControlSpout
    from flowctl_files import ParquetRanges
    from pyspark_flowctl import SparkBolts

    spark.range(ROWS).write.mode("overwrite").parquet(f"{place}/in")
    return FlowControlSpout(
        name=f"{JOB}-ranges", producer=ParquetRanges(f"{place}/in"),
        bolts=SparkBolts(wait, 2, spark=spark), settings=SETTINGS,
    ).run(view="off").records_acked  # fmt: skip


def sink_write(spark: Any, place: str) -> int:
    from pyspark_flowctl import flow_sink

    return flow_sink(wait, target="smoke").write(spark.range(ROWS)).written


def sink_in_foreach_partition(spark: Any, place: str) -> int:
    from pyspark_flowctl import flow_sink

    spark.range(ROWS).foreachPartition(flow_sink(wait, target="smoke"))
    return ROWS  # or its task would have failed


def sink_of_a_stream(spark: Any, place: str) -> int:
    from pyspark_flowctl import flow_batch

    stream = spark.readStream.format("rate").option("rowsPerSecond", 500).load()
    write = flow_batch(wait, target="smoke", name=f"{JOB}-stream")
    query = stream.writeStream.foreachBatch(write).start()
    try:
        for _ in range(MINUTE_S):
            query.awaitTermination(1)
            # The first one is empty; a Connect server does not say how many rows the others had.
            if batches := [told for told in query.recentProgress if told["batchId"] > 0]:
                return len(batches)
        raise query.exception() or TimeoutError("no batch ended within a minute")
    finally:
        query.stop()


def rows_in_rows_out(spark: Any, place: str) -> int:
    from pyspark_flowctl import apply

    options: Any = {"schema": "id long", "name": f"{JOB}-apply", "view": "off"}
    return apply(
        spark.range(ROWS), double, out=f"{place}/out", bolts=2, settings=SETTINGS, **options
    ).count()


DOORS: dict[str, Callable[[Any, str], int]] = {
    "SparkBolts, by value": by_value,
    "SparkBolts, by ranges": by_ranges,
    "flow_sink(…).write(df)": sink_write,
    "foreachPartition(flow_sink(…))": sink_in_foreach_partition,
    "foreachBatch(flow_batch(…))": sink_of_a_stream,
    "apply": rows_in_rows_out,
}


def main(place: str) -> int:
    """Try each door; return how many failed."""
    from pyspark.sql import SparkSession

    from pyspark_flowctl import ensure_java

    ensure_java()  # only for machines without one
    builder = SparkSession.builder.appName("flowctl smoke")
    if remote := os.environ.get("FLOWCTL_SMOKE_REMOTE"):
        builder = builder.remote(remote)
    spark = builder.getOrCreate()
    print(f"Spark {spark.version}, Python {sys.version.split()[0]}, files in {place}", flush=True)
    failed = 0
    for name, door in DOORS.items():
        began_s = time.monotonic()
        try:
            done = door(spark, place)
            said = f"{done:,} {'batches' if door is sink_of_a_stream else 'rows'}"
            works = done > 0
        except Exception as error:
            if os.environ.get("FLOWCTL_DEBUG"):
                traceback.print_exc()
            said, works = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}", False
        failed += not works
        took_s = time.monotonic() - began_s
        print(f"{'works' if works else 'FAILS'}  {name:<32} {took_s:6.1f} s  {said}", flush=True)
    return failed


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(min(main(sys.argv[1]), 1))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(min(main(folder), 1))
