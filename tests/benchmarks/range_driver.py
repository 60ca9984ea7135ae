"""What a bolt of ranges costs the driver: ``python -m tests.benchmarks range-driver``.

Bolts that sleep through their records, as threads of two other processes, with the settings as
shipped: ranges of 2 s, batches of .15 s, reports, heartbeats.  Printed: the driver's CPU a second
and bolt, and from it how many bolts fill one core; and what a range costs that is done at once.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from flowctl import FlowControlSpout
from flowctl.bolts.batch import Batch
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Record
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.parts import ChildBolts, Stopwatch

_RECORD_S: Final = 0.01
_BLOCK: Final = 1_000


class _Numbers:
    """Consecutive numbers."""

    size_bytes = 8 * _BLOCK

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def position(self, i: int) -> int:
        return self.start + i

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        return [Record(number, None) for number in range(self.start + i, self.start + j)]


class _Reader:
    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[_Numbers]:
        for begin in range(start, stop, _BLOCK):
            yield _Numbers(begin, min(stop, begin + _BLOCK))


class _Source:
    """``partitions`` of ``records`` each."""

    def __init__(self, partitions: int, records: int) -> None:
        self._extents = {f"p{n}": Extent(0, records) for n in range(partitions)}

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        return self._extents

    def reader(self) -> _Reader:
        return _Reader()

    def close(self) -> None: ...


def sleep_through(record_s: float, batch: Batch) -> None:
    """What a bolt does."""
    if record_s:
        time.sleep(record_s * len(batch))


def _bolts(process: Callable[[Batch], None], count: int) -> ChildBolts:
    return ChildBolts(
        ["-c", "import tests.benchmarks.range_driver as b; b.be_bolts()"],
        lambda endpoint, names: pickle.dumps((endpoint, names, process)),
        count=count,
    )


def be_bolts() -> None:
    """Run the bolts that stdin names."""
    from flowctl.bolts.worker import run_bolt

    endpoint, names, process = pickle.loads(sys.stdin.buffer.read())

    def run(name: str) -> None:
        with contextlib.suppress(Exception):  # the run is over
            run_bolt(endpoint, name, process)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Watch(Stopwatch):
    """Takes the driver's CPU time as well."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu: list[tuple[float, float, int]] = []

    def update(self, snapshot: Any) -> None:
        super().update(snapshot)
        self.cpu.append((time.monotonic(), time.process_time(), snapshot.tuples_acked))


def run(source: _Source, bolts: int, record_s: float) -> _Watch:
    """One job."""
    watch = _Watch()
    report = FlowControlSpout(
        name="range-driver",
        producer=source,
        bolts=_bolts(partial(sleep_through, record_s), bolts),
        checkpoint=MemoryCheckpointStore(),
    ).run(view=watch)
    assert report.outcome == "finished", report.error
    return watch


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks range-driver", description=__doc__
    )
    parser.add_argument("--bolts", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ranges", type=int, default=20_000)
    options = parser.parse_args(arguments)
    records = int(options.bolts * options.seconds / _RECORD_S)
    watch = run(_Source(1, records), options.bolts, _RECORD_S)
    began_s = max(watch.joined_s)
    # Without the beginning, when ranges are small, and the end.
    steady = [s for s in watch.cpu if began_s + 5 <= s[0] <= began_s + options.seconds - 2]
    first, last = steady[0], steady[-1]
    seconds, cpu_s, ranges = (b - a for a, b in zip(first, last, strict=True))
    each_s = cpu_s / seconds / options.bolts
    print(
        f"{options.bolts} bolts, {ranges / seconds:.0f} ranges/s: {1e6 * each_s:.0f} us of driver"
        f" CPU a second and bolt; {1 / each_s:,.0f} bolts fill one core"
    )
    watch = run(_Source(options.ranges, 1), 12, 0.0)
    first, last = next(s for s in watch.cpu if s[2]), watch.cpu[-1]
    cost_s = (last[1] - first[1]) / max(1, last[2] - first[2])
    print(f"a range that is done at once: {1e6 * cost_s:.0f} us of driver CPU, with its report")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
