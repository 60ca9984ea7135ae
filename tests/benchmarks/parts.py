"""Parts that benchmarks share: a source in memory, a stopwatch for a run, a Spark session."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from flowctl.core.events import BoltAdded, FlowEvent
from flowctl.core.records import Checkpoint, Record
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.ports import BoltNotice, Endpoint, SourceChunk

_CHILDREN: Final = 2
_ROOT: Final = Path(__file__).parents[2]


class MemoryProducer:
    """One partition of ``count`` records, all with the same value; starts at the checkpoint."""

    def __init__(self, count: int, value: object) -> None:
        self._count = count
        self._value = value
        self._next = 0

    def partitions(self) -> Sequence[str]:
        return ["memory"]

    def open(self, checkpoint: Checkpoint) -> None:
        done = checkpoint.partitions.get("memory")
        self._next = 0 if done is None or done.position is None else int(str(done.position)) + 1

    def poll(self, max_records: int) -> SourceChunk | None:
        if self._next >= self._count:
            return None
        stop = min(self._count, self._next + max_records)
        value = self._value
        records = [Record(position, value) for position in range(self._next, stop)]
        self._next = stop
        return SourceChunk("memory", records)

    def close(self) -> None:
        pass


class ChildBolts:
    """A ``ports.Bolts`` in two other processes, started with ``command``.

    Each reads from stdin, up to its end, what ``told`` makes of the endpoint and its bolts' names.
    """

    def __init__(
        self,
        command: Sequence[str],
        told: Callable[[Endpoint, Sequence[str]], bytes],
        *,
        count: int,
    ) -> None:
        self.count = count
        self._command = command
        self._told = told
        self._children: list[subprocess.Popen[bytes]] = []

    def listen_host(self) -> str:
        return "127.0.0.1"

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        del notify
        names = [f"b{number}" for number in range(1, self.count + 1)]
        for place in range(_CHILDREN):
            command = [sys.executable, *self._command]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=_ROOT)
            assert child.stdin is not None
            child.stdin.write(self._told(endpoint, names[place::_CHILDREN]))
            child.stdin.close()
            self._children.append(child)

    def stop(self, *, timeout_s: float) -> None:
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout_s)
            child.kill()
            child.wait()


class Stopwatch:
    """A view that only takes times: of bolts, of the first and the last ack."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, int]] = []  # time, tuples acked, records acked
        self.joined_s: list[float] = []

    def start(self, job: str, headline: str) -> None:
        pass

    def update(self, snapshot: Snapshot) -> None:
        sample = (time.monotonic(), snapshot.tuples_acked, snapshot.records_acked)
        self.samples.append(sample)

    def event(self, event: FlowEvent) -> None:
        if isinstance(event, BoltAdded):
            self.joined_s.append(event.at_s)

    def message(self, text: str) -> None:
        pass

    def stop(self, report: Report) -> None:
        pass

    def rates(self, bolts: int) -> tuple[float, float]:
        """Tuples and records a second, from when all bolts were there to the last ack."""
        all_here_s = sorted(self.joined_s)[bolts - 1]
        running = (s for s in self.samples if s[0] > all_here_s and s[1] > 0)
        first = next(running)
        if first[1] == self.samples[-1][1]:
            raise RuntimeError("all was acked before the last bolt came: give it more records")
        last = next(s for s in self.samples if s[1] == self.samples[-1][1])
        passed_s = last[0] - first[0]
        return (last[1] - first[1]) / passed_s, (last[2] - first[2]) / passed_s


def machine() -> str:
    """What the figures were taken on."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}"
    )


def local_session(slots: int = 12) -> Any:
    """A local Spark with a slot per bolt, its workers warm."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    spark = (
        SparkSession.builder.master(f"local[{slots},8]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.parallelize(range(48), 48).foreach(lambda _: __import__("time").sleep(0.2))
    return spark
