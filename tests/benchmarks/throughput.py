"""Tuples and records a second through 12 real Spark bolts with full ack tracking, against pyzmq.

The yardstick is a bare ROUTER/DEALER pair with 12 processes, the same payload and as many in
flight, which answers with 40 bytes, as an ack has, without any tracking, in the same run.  The arms
alternate and the medians are compared: these ratios hold on a noisy machine.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from flowctl.config import Settings
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import MemoryProducer, Stopwatch
from tests.benchmarks.wire_bench import pyzmq_tuples_per_s

BOLTS = 12
SECONDS = 4.0  # of pyzmq; our own runs are sized to take as long
ROUNDS = 3
WINDOW = 64  # of both; the adaptive arm may not go beyond it


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

    def ours(records: int, size: int, **settings: str) -> Callable[[], float]:
        value = b"x" * size
        return lambda: flowctl_rates(spark, records=records, value=value, per_tuple=1, **settings)[
            0
        ]

    def pyzmq(size: int, window: int) -> Callable[[], float]:
        return lambda: pyzmq_tuples_per_s(b"x" * size, bolts=BOLTS, window=window, seconds=SECONDS)

    small, adaptive, bare = _medians(
        ours(200_000, 100, window__initial=str(WINDOW), **fixed),
        ours(200_000, 100, window__max=str(WINDOW)),
        pyzmq(100, WINDOW),
    )
    print(
        f"100 B, one record a tuple: {small:9,.0f} tuples/s with a window of {WINDOW},"
        f" {adaptive:9,.0f} with an adaptive one up to {WINDOW}; pyzmq {bare:9,.0f}/s;"
        f" ratios {small / bare:.2f}, {adaptive / bare:.2f}"
    )
    ok = max(small, adaptive) / bare >= 0.5
    large, bare = _medians(ours(60_000, 65_536, window__initial="16", **fixed), pyzmq(65_536, 16))
    print(
        f"64 KB, one record a tuple: {large * 65_536 / 1e6:9,.0f} MB/s;"
        f" pyzmq {bare * 65_536 / 1e6:9,.0f} MB/s; ratio {large / bare:.2f}"
    )
    ok = ok and large / bare >= 0.5
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


def _medians(*arms: Callable[[], float]) -> list[float]:
    """Of each arm, all in turn."""
    rounds = [[arm() for arm in arms] for _ in range(ROUNDS)]
    return [median(figures) for figures in zip(*rounds, strict=True)]
