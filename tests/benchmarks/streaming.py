"""``python -m tests.benchmarks streaming``: batches of a stream on real Spark, some 10 min.

``slower``: the target becomes five times slower and recovers.  From the third batch after each
change on, batches must take the time wanted, give or take 30 %; a fixed number of rows is printed
beside it.  ``backlog``: five million records are there at the start.  The first batch must be as
small as was configured, memory flat, and after five batches 95 % of them within 1.5 times the time
wanted.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from flowctl import Batch
from tests.benchmarks.parts import machine

_PLACE = "FLOWCTL_BENCH_PLACE"  # a directory; "slow" in it makes the target slow
_TARGET_S = 8.0  # Spark's own work takes a second or two on a busy machine
_ROW_S, _SLOWER = 0.01, 5
_SLOTS = 4
_PHASE = 6  # batches
_FIXED_ROWS = int(_TARGET_S * _SLOTS / _ROW_S)  # what a person would set for the quick target
_BACKLOG_S, _BACKLOG_START = 5.0, 500


def costly(batch: Batch) -> list[tuple[int]]:
    """A target that takes its time for each row."""
    factor = _SLOWER if Path(os.environ[_PLACE], "slow").exists() else 1
    time.sleep(_ROW_S * factor * len(batch))
    return [(record.value,) for record in batch]


def quick(batch: Batch) -> list[tuple[int]]:
    """A target that takes whatever comes."""
    return [(record.value,) for record in batch]


class Took(NamedTuple):
    """One batch."""

    rows: int
    s: float


@functools.cache
def _session() -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take python3 on PATH
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    return (
        SparkSession.builder.master(f"local[{_SLOTS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        .getOrCreate()
    )


def start(place: Path, process: str, count: int, **options: object) -> Any:
    """Start a stream of ``count`` numbers through ``process``."""
    source = _session().readStream.format("flowctl").schema("n long")
    source = source.option("producer", "tests.stream_parts:Numbers")
    source = source.option("producer.count", count)
    source = source.option("process", f"tests.benchmarks.streaming:{process}")
    for name, value in options.items():
        source = source.option(name, str(value))
    written = source.load().writeStream.format("noop")
    return written.option("checkpointLocation", tempfile.mkdtemp(dir=place)).start()


def batches(query: Any) -> list[Took]:
    """What is over so far."""
    if query.exception() is not None:
        raise query.exception()
    return [
        Took(each.numInputRows, each.durationMs["triggerExecution"] / 1000)
        for each in query.recentProgress
        if each.numInputRows
    ]


def slower(place: Path) -> bool:
    """A target that changes, under flowctl's sizes and under a fixed one."""
    cap = {"target_batch_s": 3600, "start_rows": _FIXED_ROWS, "rows_max": _FIXED_ROWS}
    sized = phases(place, "sized by time", target_batch_s=_TARGET_S)
    phases(place, f"{_FIXED_ROWS} rows", **cap)
    late = [each.s for phase in sized[1:] for each in phase[3:]]
    return all(0.7 * _TARGET_S <= took_s <= 1.3 * _TARGET_S for took_s in late)


def phases(place: Path, name: str, **options: object) -> list[list[Took]]:
    """Run one query through three phases; the first of each is the batch of the change."""
    query = start(place, "costly", 10**9, **options)
    ends = []
    for is_slow in (False, True, False):
        if is_slow:
            (place / "slow").touch()
        else:
            (place / "slow").unlink(missing_ok=True)
        begun = len(batches(query))
        while len(batches(query)) < begun + _PHASE:
            time.sleep(0.1)
        ends.append(len(batches(query)))
    query.stop()
    all_of = batches(query)
    found = [all_of[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    for phase, took in zip(("quick", "5x slower", "quick again"), found, strict=True):
        print(f"{name:15} {phase:12} {' '.join(f'{each.s:.1f}' for each in took)} s", flush=True)
    return found


def backlog(place: Path, records: int) -> bool:
    """All records are there at the start."""
    query = start(place, "quick", records, target_batch_s=_BACKLOG_S, start_rows=_BACKLOG_START)
    sizes: list[dict[str, int]] = []
    began_s = time.monotonic()
    while sum(each.rows for each in batches(query)) < records:
        if len(batches(query)) > 5:
            sizes.append(dict(_memory()))
        time.sleep(1)
    took_s = time.monotonic() - began_s
    query.stop()
    found = batches(query)
    late = sorted(each.s for each in found[5:])
    p95 = late[int(0.95 * len(late))]
    print(f"{records:,} records in {took_s:.0f} s and {len(found)} batches, {found[0].rows} first,")
    print(f"  {max(each.rows for each in found):,} most; after five p95 {p95:.1f} s", end="")
    print(f" of {_BACKLOG_S:g} wanted")
    half = len(sizes) // 2
    flat = True
    for name in sizes[0]:
        early, later = (
            max(each.get(name, 0) for each in part) for part in (sizes[:half], sizes[half:])
        )
        print(
            f"  {name}: at most {early >> 20} MB in the first half, {later >> 20} MB in the second"
        )
        flat = flat and later <= 1.2 * early
    return found[0].rows <= _BACKLOG_START and p95 <= 1.5 * _BACKLOG_S and flat


def _memory() -> Iterator[tuple[str, int]]:
    """Of this process, the JVM, and the process that plans: resident bytes."""
    me = psutil.Process()
    yield "program", me.memory_info().rss
    for child in me.children(recursive=True):
        try:
            if "source_runner" in " ".join(child.cmdline()):
                yield "planner", child.memory_info().rss
            elif child.name() == "java":
                yield "JVM", child.memory_info().rss
        except psutil.Error:
            continue  # it has just ended


def main(arguments: Sequence[str]) -> int:
    """Run the named parts; exit 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks streaming")
    parser.add_argument("parts", nargs="*", default=["slower", "backlog"])
    parser.add_argument("--records", type=int, default=5_000_000, help="of the backlog")
    options = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ[_PLACE] = folder
        parts: dict[str, Callable[[], bool]] = {
            "slower": lambda: slower(place),
            "backlog": lambda: backlog(place, options.records),
        }
        missed = [name for name in options.parts if not parts[name]()]
        _session().stop()
    print(f"GATES MISSED: {', '.join(missed)}" if missed else "all gates hold")
    return 1 if missed else 0
