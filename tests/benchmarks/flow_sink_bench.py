"""Rows of a DataFrame into nothing: what ``flow_sink`` costs beside Spark's own ways.

``python -m tests.benchmarks flow-sink``: a million rows of seven columns, in Spark's own settings.
The arms take turns, and medians count.  Each arm counts its rows, and the counts are checked.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from flowctl import Batch
from tests.benchmarks.parts import machine

ROWS = 1_000_000
ROUNDS = 5
SLOTS = 2
# Of the time of another arm.  That is 2.0 us a row where mapInArrow takes 1.5, and 4.0 where
# foreachPartition takes 3.5.
GATES = {"by columns": ("mapInArrow", 2.0 / 1.5), "by Rows": ("foreachPartition", 4.0 / 3.5)}
_COLUMNS = (
    "id", "CAST(id % 1000 AS INT) AS account", "id / 7 AS amount", "concat('name ', id) AS name",
    "concat('https://example.org/', id % 977) AS url",
    "timestamp_micros(1790000000000000 + id * 977) AS at", "id % 3 = 0 AS paid",
)  # fmt: skip


class Columns:
    """A sink that takes Arrow, and does nothing with it."""

    takes_arrow = True

    def write(self, rows: Any, *, batch: Batch) -> None:
        assert len(rows) == len(batch)


class Dicts:
    """A sink that gets dicts, and does nothing with them."""

    def write(self, rows: Any, *, batch: Batch) -> None:
        assert len(rows) == len(batch)


def rows(batch: Batch) -> None:
    """Read a field of each Row."""
    for record in batch:
        _ = record.value.id


def _written(given: Any) -> Callable[[Any], int]:
    from pyspark_flowctl import flow_sink

    return lambda df: flow_sink(given, target="nothing").write(df).written


def _map_in_arrow(df: Any) -> int:
    import pyarrow

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        yield pyarrow.RecordBatch.from_pydict({"rows": [sum(len(batch) for batch in batches)]})

    return sum(row.rows for row in df.mapInArrow(count, "rows long").collect())


def _for_each_partition(df: Any) -> int:
    total = df.sparkSession.sparkContext.accumulator(0)

    def count(found: Iterator[Any]) -> None:
        number = 0
        for row in found:
            _ = row.id
            number += 1
        total.add(number)

    df.foreachPartition(count)
    return int(total.value)


ARMS: dict[str, Callable[[Any], int]] = {
    "mapInArrow": _map_in_arrow,
    "by columns": _written(Columns()),
    "by Rows": _written(rows),
    "with sink=": _written(Dicts()),
    "foreachPartition": _for_each_partition,
}


def main(arguments: Sequence[str]) -> int:
    """Print the figures; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks flow-sink")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"default {ROWS:,}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    given = parser.parse_args(arguments)
    print(machine())
    spark = _session()
    df = spark.range(0, given.rows, 1, SLOTS).selectExpr(*_COLUMNS)
    taken: dict[str, list[float]] = {name: [] for name in ARMS}
    for number in range(given.rounds + 1):
        for name, arm in ARMS.items():
            began_s = time.perf_counter()
            assert arm(df) == given.rows, name
            if number:  # the first round starts Python and warms the JVM
                taken[name].append(time.perf_counter() - began_s)
    spark.stop()
    return _tell(taken, given.rows)


def _session() -> Any:
    """Return a session with Spark's own settings, but for its size."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    builder = SparkSession.builder.master(f"local[{SLOTS}]")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _tell(taken: dict[str, list[float]], rows: int) -> int:
    medians_s = {name: median(times) for name, times in taken.items()}
    ok = True
    for name, times in taken.items():
        each = " ".join(f"{1e6 * each_s / rows:.2f}" for each_s in sorted(times))
        beside = f"{medians_s[name] / medians_s['mapInArrow']:.2f} of mapInArrow"
        print(f"{name:17} {1e6 * medians_s[name] / rows:5.2f} us a row ({each}), {beside}")
    for name, (other, most) in GATES.items():
        ratio = medians_s[name] / medians_s[other]
        ok = ok and ratio <= most
        print(f"{name}: {ratio:.2f} of {other}, {most:.2f} at most")
    print("all gates hold" if ok else "A GATE IS MISSED")
    return 0 if ok else 1
