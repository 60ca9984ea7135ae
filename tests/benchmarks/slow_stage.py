"""A stage of 10 ms a record beside instant ones: ``python -m tests.benchmarks slow-stage``.

Threads, settings as shipped.  A topology should take what its slow stage takes, wherever that
stands, and no tree should expire: by default 20,000 records, so 100 s.  Work is sleeping, so the
three orders run side by side.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Collector, Input, LocalStages, Topology, TopologyReport
from tests.benchmarks.parts import MemoryProducer, Stopwatch, machine

BOLTS = 2  # of each stage
RECORD_S = 0.01
ORDERS = (("quick", "slow"), ("slow", "quick"), ("first", "slow", "last"))
LONGER_MAX = 1.15  # times what the slow stage takes by itself


class Stages:
    """The code of all stages, which counts what it stores.  Thread-safe."""

    def __init__(self) -> None:
        self.took: Counter[str] = Counter()
        self._lock = threading.Lock()

    def made(self, names: Sequence[str], records: int) -> Topology:
        """Return a topology of stages with these names; the one that is called slow is."""
        made = Topology("-".join(names))
        made.spout("s", MemoryProducer(records, "x" * 100))
        for before, name in zip(("s", *names), names, strict=False):
            made.bolt(name, self._working(name), count=BOLTS).shuffle(before)
        return made

    def _working(self, name: str) -> Callable[[Input, Collector], None]:
        def work(given: Input, out: Collector) -> None:
            if name == "slow":
                time.sleep(RECORD_S)
            with self._lock:
                self.took[name] += 1
            out(given.value)

        return work


class Ran:
    """One order's run."""

    def __init__(self, names: Sequence[str], records: int) -> None:
        stages = Stages()
        self.names = names
        self.ideal_s: float = records * RECORD_S / BOLTS
        began_s = time.monotonic()
        self.report: TopologyReport = stages.made(names, records).run(
            LocalStages(), checkpoint=MemoryCheckpointStore(), view=Stopwatch()
        )
        self.lasted_s: float = time.monotonic() - began_s
        self.is_exact: bool = stages.took == dict.fromkeys(names, records)

    def tell(self) -> bool:
        """Print the figures; return whether the gates hold."""
        trees = self.report.trees
        assert trees is not None
        share = self.lasted_s / self.ideal_s
        print(
            f"{' -> '.join(self.names)}: {self.lasted_s:.1f} s, {share:.3f} of the ideal"
            f" {self.ideal_s:.0f} s; {trees.complete:,} trees complete, {trees.expired} expired;"
            f" each record {'once' if self.is_exact else 'NOT once'} in each stage"
        )
        return share <= LONGER_MAX and not trees.expired and self.is_exact


def main(arguments: Sequence[str]) -> int:
    """Run the three orders; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks slow-stage", description=__doc__
    )
    parser.add_argument("--records", type=int, default=20_000, help="default 20,000")
    options = parser.parse_args(arguments)
    print(machine())
    with ThreadPoolExecutor(len(ORDERS)) as pool:
        ran = list(pool.map(lambda names: Ran(names, options.records), ORDERS))
    held = [one.tell() for one in ran]
    return 0 if all(held) else 1
