"""Three stages on Spark, the third ten times slower: ``python -m tests.benchmarks stages``.

Work is sleeping.  The slow stage should never wait, no queue should grow, and neither should any
process: ``--for-s 300`` is the long run of the two.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowctl.config import Settings
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Batched, Collector, Input, LocalStages, Topology, TopologyReport
from tests.benchmarks.parts import MemoryProducer, Stopwatch, local_session, machine

BOLTS = 2  # of each stage, one per core
RECORD_S = 0.0004  # a quick stage's work on a record
SLOWNESS = 10
USED_MIN = 0.95  # of what the third stage can do
# The third quarter of the run against the second: by then all caches and pools have their size.
GROWTH_MAX = 1.05
# A stage may hold what it and those after it do in about a second, and one tuple's emits: .25 s of
# a quick stage, which is what the slow one does in 2.5 s.
HELD_MAX_S = 4.0


class MemoryWatch(Stopwatch):
    """Also samples the resident memory of this process and all below it."""

    def __init__(self) -> None:
        super().__init__()
        self.resident: list[tuple[float, int]] = []  # time, bytes

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        self.resident.append((time.monotonic(), resident_bytes()))

    def quarter_bytes(self, number: int) -> float:
        """Mean resident bytes in one quarter of the run, 0 to 3."""
        first_s, last_s = self.resident[0][0], self.resident[-1][0]
        from_s = first_s + (last_s - first_s) * number / 4
        until_s = from_s + (last_s - first_s) / 4
        inside = [size for at_s, size in self.resident if from_s <= at_s < until_s]
        return sum(inside) / len(inside)


def resident_bytes() -> int:
    """Return the resident memory of the Python processes from this one down.

    Not Java's: the JVM grows its heap up to a limit of its own.
    """
    below = {os.getpid()}
    total = 0
    stats = sorted(_stat_lines(), key=lambda stat: stat[0])
    for pid, parent, name, pages in stats:  # children have, nearly always, higher pids
        if pid in below or parent in below:
            below.add(pid)
            if name.startswith("python"):
                total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def _stat_lines() -> list[tuple[int, int, str, int]]:
    """Return pid, parent, name and resident pages of each process (proc(5), stat)."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = place.read_text()
        except OSError:  # it ended
            continue
        pid, _, rest = text.partition(" (")
        name, _, rest = rest.rpartition(") ")
        fields = rest.split()
        found.append((int(pid), int(fields[1]), name, int(fields[21])))
    return found


def _working(record_s: float, emits: bool) -> Batched:
    def work(inputs: Sequence[Input], out: Collector) -> None:
        time.sleep(record_s * len(inputs))
        if emits:
            for given in inputs:
                out(given.value, anchors=given)

    return Batched(work)


def three_stages(records: int) -> Topology:
    """Return the topology of ``records`` roots."""
    made = Topology("stages")
    made.spout("s", MemoryProducer(records, "x" * 100))
    made.bolt("a", _working(RECORD_S, True), count=BOLTS).shuffle("s")
    made.bolt("b", _working(RECORD_S, True), count=BOLTS).shuffle("a")
    made.bolt("c", _working(SLOWNESS * RECORD_S, False), count=BOLTS).least_loaded("b")
    return made


def run(stages: Any, for_s: float) -> tuple[TopologyReport, MemoryWatch]:
    """Run so many records that the third stage needs ``for_s``."""
    watch = MemoryWatch()
    records = int(for_s * capacity())
    report = three_stages(records).run(
        stages, checkpoint=MemoryCheckpointStore(), settings=Settings(), view=watch
    )
    assert report.records_acked == records
    return report, watch


def capacity() -> float:
    """Records a second that the third stage can do."""
    return BOLTS / (SLOWNESS * RECORD_S)


def tell(report: TopologyReport, watch: MemoryWatch) -> bool:
    """Print the figures; return whether the gates hold."""
    rate = watch.rates(3 * BOLTS)[1]
    used = rate / capacity()
    print(
        f"three stages, the third {SLOWNESS}x slower: {report.records_acked:,} roots,"
        f" {rate:.0f} records/s, {used:.3f} of what the third stage can do"
    )
    ok = used >= USED_MIN
    for stage in report.stages:
        held = stage.waiting_max + stage.at_bolts_max
        print(
            f"  {stage.stage}: at most {stage.waiting_max} records waiting,"
            f" {stage.at_bolts_max} at its bolts: {held / capacity():.1f} s of the third stage"
        )
        ok = ok and max(stage.waiting_max, stage.at_bolts_max) <= HELD_MAX_S * capacity()
    second, third = watch.quarter_bytes(1), watch.quarter_bytes(2)
    grown = third / second
    print(f"  resident, Python: {second / 1e6:.1f} MB, later {third / 1e6:.1f} ({grown:.3f})")
    trees = report.trees
    assert trees is not None
    print(f"  trees: {trees.complete:,} complete, {trees.ledger_now} left in the ledger")
    return ok and grown <= GROWTH_MAX and trees.ledger_now == 0


def main(arguments: Sequence[str]) -> int:
    """Run for the given time on Spark; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks stages", description=__doc__)
    parser.add_argument("--for-s", type=float, default=30.0, help="how long [s]; default 30")
    parser.add_argument("--local", action="store_true", help="threads instead of Spark")
    options = parser.parse_args(arguments)
    print(machine())
    if options.local:
        return 0 if tell(*run(LocalStages(), options.for_s)) else 1
    from flowctl_storm import SparkStages

    spark = local_session()
    try:
        return 0 if tell(*run(SparkStages(spark=spark), options.for_s)) else 1
    finally:
        spark.stop()
