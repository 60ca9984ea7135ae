"""Many small files: what a save and a snapshot cost, how large the checkpoint gets, an idle rerun.

``python -m tests.benchmarks partitions --files 200000``: a run over new files, then the same run
again with nothing to do, both with threads as bolts and a Redis server of our own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flowctl import CheckpointStore, FileCheckpointStore, FlowControlSpout, LocalBolts
from flowctl.bolts.batch import Batch
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.meter import Meter
from flowctl_files import TextLines
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer
from tests.benchmarks.parts import Stopwatch, machine

FILES = 200_000  # what the figures in docs/adr/0014 were taken with
LINES = 5
BOLTS = 4
JOB = "files"
# Saves and snapshots come at fixed intervals: together they must leave the run to the records.
SHARE_MAX = 0.10
# A name, position and end of file in a block take 9 bytes; with the 2,000 that have a field each,
# 16 with 20,000 files.  It was 135 when all had one.
KEY_BYTES_PER_FILE_MAX = 30
IDLE_CPU_S_PER_FILE_MAX = 3.0 / 200_000  # a person waits for 3 s


class Cost:
    """CPU and wall time spent in a method, while this is active.  For one thread at a time."""

    def __init__(self, kind: type, name: str) -> None:
        self.calls = 0
        self.cpu_s = self.wall_s = self.longest_s = 0.0
        self._kind, self._name = kind, name
        self._inner: Callable[..., Any] = getattr(kind, name)

    def __enter__(self) -> Cost:
        inner = self._inner

        def timed(*arguments: Any, **named: Any) -> Any:
            cpu_s, wall_s = time.thread_time(), time.perf_counter()
            try:
                return inner(*arguments, **named)
            finally:
                took_s = time.perf_counter() - wall_s
                self.calls += 1
                self.cpu_s += time.thread_time() - cpu_s
                self.wall_s += took_s
                self.longest_s = max(self.longest_s, took_s)

        setattr(self._kind, self._name, timed)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self._kind, self._name, self._inner)

    def text(self) -> str:
        calls = max(self.calls, 1)
        return (
            f"{self.calls} x {1e3 * self.cpu_s / calls:.1f} ms CPU"
            f" ({1e3 * self.wall_s / calls:.1f} ms, longest {1e3 * self.longest_s:.0f} ms)"
        )


def make_files(folder: Path, files: int) -> None:
    """Write ``files`` files of some lines, 1,000 to a folder."""
    for number in range(files):
        if number % 1000 == 0:
            (folder / f"{number // 1000:04}").mkdir()
        text = "".join(f"{number} line {line}\n" for line in range(LINES))
        (folder / f"{number // 1000:04}" / f"part-{number:06}.txt").write_text(text)


def nothing(batch: Batch) -> None:
    """Process a batch: nothing, so that what is left is flowctl's own cost."""


def run(folder: Path, store: CheckpointStore, what: str) -> tuple[float, float]:
    """Run the job; return its CPU time [s] and the share of it in saves and snapshots."""
    spout = FlowControlSpout(
        name=JOB,
        producer=TextLines(str(folder / "in" / "*" / "*.txt")),
        bolts=LocalBolts(nothing, count=BOLTS),
        checkpoint=store,
    )
    with Cost(Checkpointer, "save") as saves, Cost(Meter, "snapshot") as snapshots:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        report = spout.run(view=Stopwatch())
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    share = (saves.cpu_s + snapshots.cpu_s) / cpu_s
    print(
        f"{what}: {report.records_acked:,} records, {cpu_s:.1f} s CPU, {wall_s:.1f} s;"
        f" saves and snapshots {share:.3f} of the CPU,"
        f" {(saves.wall_s + snapshots.wall_s) / wall_s:.3f} of the time"
    )
    print(f"  save {saves.text()}\n  snapshot {snapshots.text()}")
    return cpu_s, share


def key_bytes(url: str) -> int:
    """Return what the job's key takes in the server's memory."""
    import redis

    with redis.Redis.from_url(url) as client:
        usage: int = client.memory_usage(f"flowctl:{{{JOB}}}", samples=0) or 0
    return usage


def main(arguments: Sequence[str]) -> int:
    """Print the figures; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks partitions")
    parser.add_argument("--files", type=int, default=FILES, help=f"default {FILES:,}")
    files = parser.parse_args(arguments).files
    print(machine())
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        make_files(folder / "in", files)
        server = EmbeddedServer(folder / "redis")
        store = RedisCheckpointStore(server.start())
        try:
            _, share = run(folder, store, f"{files:,} files of {LINES} lines")
            per_file = key_bytes(server.url) / files
            print(f"  the key takes {per_file * files / 1e6:.1f} MB, {per_file:.0f} bytes a file")
            idle_s, _ = run(folder, store, "once more, with nothing to do")
        finally:
            server.stop()
        run(folder, FileCheckpointStore(folder / "checkpoints"), "the same, checkpoint in a file")
    ok = share <= SHARE_MAX and per_file <= KEY_BYTES_PER_FILE_MAX
    return 0 if ok and idle_s <= files * IDLE_CPU_S_PER_FILE_MAX else 1
