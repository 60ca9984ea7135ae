"""What a bolt of ranges costs the driver: ``python -m tests.benchmarks range-driver``.

Peers in two other processes (crowd_peers) that take .01 s a record, with the settings as shipped:
ranges, batches, reports, heartbeats.  Printed: how long all took to join, the driver's CPU a second
and bolt, and from it how many bolts fill one core; and what a range costs that is done at once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from flowctl import DeadlineError, FlowControlSpout
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.testing.stores import MemoryCheckpointStore
from tests.benchmarks.crowd import crowd_bolts, raise_file_limit
from tests.benchmarks.parts import Stopwatch

_RECORD_S: Final = 0.01
_BEFORE_S: Final = 12.0  # until all have joined and ranges have their size
_LONGER: Final = 10
_RECORD_BYTES: Final = 10_000  # so a bolt's first range is a second of work


class _Reader:
    """Reads nothing: the peers only play."""

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[Any]:
        raise NotImplementedError


class _Source:
    """``partitions`` of ``records`` each."""

    def __init__(self, partitions: int, records: int) -> None:
        extent = Extent(0, records, size_bytes=_RECORD_BYTES * records)
        self._extents = {f"p{n}": extent for n in range(partitions)}

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        return self._extents

    def reader(self) -> _Reader:
        return _Reader()

    def close(self) -> None: ...


class _Watch(Stopwatch):
    """Takes the driver's CPU time as well."""

    def __init__(self) -> None:
        super().__init__()
        # Time, the driver's CPU time, ranges and records done.
        self.cpu: list[tuple[float, float, int, int]] = []

    def update(self, snapshot: Any) -> None:
        super().update(snapshot)
        now_s, cpu_s = time.monotonic(), time.process_time()
        self.cpu.append((now_s, cpu_s, snapshot.tuples_acked, snapshot.records_acked))


def run(source: _Source, bolts: int, record_s: float, deadline_s: float | None = None) -> _Watch:
    """One job, to its end or for so long."""
    watch = _Watch()
    with contextlib.suppress(DeadlineError):
        FlowControlSpout(
            name="range-driver",
            producer=source,
            bolts=crowd_bolts(bolts, record_s=record_s),
            checkpoint=MemoryCheckpointStore(),
        ).run(view=watch, deadline_s=deadline_s)
    return watch


def measure(bolts: int, seconds: float) -> None:
    """Print what a bolt costs while there is work for all: after the beginning, when ranges are
    small, and long before the end.
    """
    records = int(_LONGER * bolts * seconds / _RECORD_S)
    watch = run(_Source(1, records), bolts, _RECORD_S, _BEFORE_S + seconds)
    first_s, last_s = min(watch.joined_s), max(watch.joined_s)
    steady = [s for s in watch.cpu if s[0] >= first_s + _BEFORE_S]
    first, last = steady[0], steady[-1]
    passed_s, cpu_s, ranges, done = (b - a for a, b in zip(first, last, strict=True))
    each_s = cpu_s / passed_s / bolts
    print(
        f"{bolts:6,} bolts, joined in {last_s - first_s:.1f} s, {ranges / passed_s:.0f} ranges/s,"
        f" busy {done * _RECORD_S / passed_s / bolts:.0%}:"
        f" {1e6 * each_s:.0f} us of driver CPU a second and bolt;"
        f" {1 / each_s:,.0f} bolts fill one core",
        flush=True,
    )


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks range-driver", description=__doc__
    )
    parser.add_argument("--bolts", type=int, nargs="*", default=[12, 100, 1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--ranges", type=int, default=20_000)
    options = parser.parse_args(arguments)
    raise_file_limit(max(options.bolts))
    for bolts in options.bolts:
        measure(bolts, options.seconds)
    watch = run(_Source(options.ranges, 1), 12, 0.0)
    first, last = next(s for s in watch.cpu if s[2]), watch.cpu[-1]
    cost_s = (last[1] - first[1]) / max(1, last[2] - first[2])
    print(f"a range that is done at once: {1e6 * cost_s:.0f} us of driver CPU, with its report")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
