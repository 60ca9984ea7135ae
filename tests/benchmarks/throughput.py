"""Tuples and records a second through 12 real Spark bolts with full ack tracking, against pyzmq.

The yardstick is a bare ROUTER/DEALER echo with 12 processes, the same payload and as many in
flight, without any tracking, in the same run: these ratios hold on a noisy machine.
"""

from __future__ import annotations

from typing import Any

from flowctl.config import Settings
from flowctl.runtime.spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import MemoryProducer, Stopwatch
from tests.benchmarks.wire_bench import pyzmq_tuples_per_s

BOLTS = 12
SECONDS = 4.0  # of the pyzmq echo; our own runs are sized to take as long


def _nothing(batch: Any) -> None:
    del batch


def flowctl_rates(
    spark: Any, *, records: int, value: bytes, per_tuple: int, **settings: str
) -> tuple[float, float]:
    """Tuples and records a second of one run."""
    watch = _run(spark, records=records, value=value, per_tuple=per_tuple, **settings)
    return watch.rates(BOLTS)


def _run(spark: Any, *, records: int, value: bytes, per_tuple: int, **settings: str) -> Stopwatch:
    overrides = {
        "tuple.records_max": per_tuple,
        "tuple.bytes_max": 8 << 20,
        "tuple.service_max_s": 10.0,
        **{name.replace("__", "."): text for name, text in settings.items()},
    }
    watch = Stopwatch()
    FlowControlSpout(
        name="bench",
        producer=MemoryProducer(records, value),
        bolts=SparkBolts(_nothing, count=BOLTS, spark=spark),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides(overrides),
    ).run(view=watch)
    return watch


def main(spark: Any) -> bool:
    """Print the figures; return whether the gates hold."""
    fixed = {"window__policy": "fixed"}
    _run(spark, records=20_000, value=b"x" * 100, per_tuple=1)  # warms the workers
    small, _ = flowctl_rates(
        spark, records=200_000, value=b"x" * 100, per_tuple=1, window__initial="64", **fixed
    )
    adaptive, _ = flowctl_rates(spark, records=200_000, value=b"x" * 100, per_tuple=1)
    echo = pyzmq_tuples_per_s(b"x" * 100, bolts=BOLTS, window=64, seconds=SECONDS)
    print(
        f"100 B, one record a tuple: {small:9,.0f} tuples/s with a window of 64,"
        f" {adaptive:9,.0f} adaptive; pyzmq echo {echo:9,.0f}/s;"
        f" ratios {small / echo:.2f}, {adaptive / echo:.2f}"
    )
    ok = max(small, adaptive) / echo >= 0.5
    large, _ = flowctl_rates(
        spark, records=60_000, value=b"x" * 65_536, per_tuple=1, window__initial="16", **fixed
    )
    echo = pyzmq_tuples_per_s(b"x" * 65_536, bolts=BOLTS, window=16, seconds=SECONDS)
    print(
        f"64 KB, one record a tuple: {large * 65_536 / 1e6:9,.0f} MB/s;"
        f" pyzmq echo {echo * 65_536 / 1e6:9,.0f} MB/s; ratio {large / echo:.2f}"
    )
    ok = ok and large / echo >= 0.5
    _, records = flowctl_rates(
        spark,
        records=6_000_000,
        value=b"x" * 100,
        per_tuple=2_000,
        buffer__records_max="100000",
        window__initial="4",
        **fixed,
    )
    print(f"100 B, 2,000 records a tuple: {records:9,.0f} records/s")
    return ok and records >= 1e6
