"""Tuples and records a second through 12 real Spark bolts with full ack tracking, against pyzmq.

The yardstick is a bare ROUTER/DEALER pair with 12 processes, the same payload and as many in
flight, which answers with 40 bytes, as an ack has, without any tracking, in the same run.  The arms
alternate and the medians are compared: these ratios hold on a noisy machine.

The last line is one driver with large tuples: records a second, which others on the machine take
from, and the driver's own CPU time for a record, which they hardly do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from flowctl.config import Settings
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from pyspark_flowctl import SparkBolts
from tests.benchmarks.parts import MemoryProducer, Stopwatch
from tests.benchmarks.wire_bench import pyzmq_tuples_per_s

BOLTS = 12
SECONDS = 4.0  # of pyzmq; our own runs are sized to take as long
ROUNDS = 3
WINDOW = 64  # of both; the adaptive arm may not go beyond it
PYZMQ_SHARE_MIN = 0.5  # of pyzmq's rate, which tracks nothing
RECORDS_PER_S_MIN = 1_000_000


def _nothing(batch: Any) -> None:
    del batch


class _Watch(Stopwatch):
    """Takes the driver's CPU time as well."""

    def __init__(self) -> None:
        super().__init__()
        self._cpu: list[tuple[float, int]] = []  # CPU time, records acked

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        self._cpu.append((time.process_time(), snapshot.records_acked))

    def cpu_s(self) -> float:
        """Of a record, from the first ack to the last."""
        first = next(sample for sample in self._cpu if sample[1])
        last = next(sample for sample in self._cpu if sample[1] == self._cpu[-1][1])
        return (last[0] - first[0]) / (last[1] - first[1])


def flowctl_rates(
    spark: Any, *, records: int, value: bytes, per_tuple: int, **settings: str
) -> tuple[float, float]:
    """Tuples and records a second of one run."""
    watch = _run(spark, records=records, value=value, per_tuple=per_tuple, **settings)
    return watch.rates(BOLTS)


def _run(spark: Any, *, records: int, value: bytes, per_tuple: int, **settings: str) -> _Watch:
    overrides = {
        "tuple.records_max": per_tuple,
        "lab.tuple.bytes_max": 8 << 20,
        "tuple.service_max_s": 10.0,
        **{name.replace("__", "."): text for name, text in settings.items()},
    }
    watch = _Watch()
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
    fixed = {"lab__window__policy": "fixed"}
    _run(spark, records=20_000, value=b"x" * 100, per_tuple=1)  # warms the workers

    def ours(records: int, size: int, **settings: str) -> Callable[[], float]:
        value = b"x" * size
        return lambda: flowctl_rates(spark, records=records, value=value, per_tuple=1, **settings)[
            0
        ]

    def pyzmq(size: int, window: int) -> Callable[[], float]:
        return lambda: pyzmq_tuples_per_s(b"x" * size, bolts=BOLTS, window=window, seconds=SECONDS)

    small, adaptive, bare = _medians(
        ours(200_000, 100, lab__window__initial=str(WINDOW), **fixed),
        ours(200_000, 100, lab__window__max=str(WINDOW)),
        pyzmq(100, WINDOW),
    )
    print(
        f"100 B, one record a tuple: {small:9,.0f} tuples/s with a window of {WINDOW},"
        f" {adaptive:9,.0f} with an adaptive one up to {WINDOW}; pyzmq {bare:9,.0f}/s;"
        f" ratios {small / bare:.2f}, {adaptive / bare:.2f}"
        f" ({_gate('the better one at least', PYZMQ_SHARE_MIN, max(small, adaptive) / bare)})"
    )
    ok = max(small, adaptive) / bare >= PYZMQ_SHARE_MIN
    large, bare = _medians(
        ours(60_000, 65_536, lab__window__initial="16", **fixed), pyzmq(65_536, 16)
    )
    print(
        f"64 KB, one record a tuple: {large * 65_536 / 1e6:9,.0f} MB/s;"
        f" pyzmq {bare * 65_536 / 1e6:9,.0f} MB/s; ratio {large / bare:.2f}"
        f" ({_gate('at least', PYZMQ_SHARE_MIN, large / bare)})"
    )
    ok = ok and large / bare >= PYZMQ_SHARE_MIN
    watch = _run(
        spark,
        records=6_000_000,
        value=b"x" * 100,
        per_tuple=2_000,
        lab__buffer__records_max="100000",
        lab__window__initial="4",
        **fixed,
    )
    _, records = watch.rates(BOLTS)
    print(
        f"100 B, 2,000 records a tuple: {records:9,.0f} records/s"
        f" ({_gate('at least', RECORDS_PER_S_MIN, records)}),"
        f" {1e6 * watch.cpu_s():.2f} us of driver CPU a record"
    )
    return ok and records >= RECORDS_PER_S_MIN


def _gate(what: str, least: float, seen: float) -> str:
    return f"gate: {what} {least:,}{'' if seen >= least else ': MISSED'}"


def _medians(*arms: Callable[[], float]) -> list[float]:
    """Of each arm, all in turn."""
    rounds = [[arm() for arm in arms] for _ in range(ROUNDS)]
    return [median(figures) for figures in zip(*rounds, strict=True)]
