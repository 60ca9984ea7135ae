"""Drivers that are killed again and again, and what their records' effects came to."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fault_parts import ROOT, until

_JOB_FILE = Path(__file__).parent / "jobs" / "effects.py"
_RECORD_S = 0.002  # some 1,000 records a second: a kill in mid-run is in mid-run


def files(place: Path, count: int) -> tuple[str, set[str]]:
    """Two files of numbered lines."""
    values = [str(n) for n in range(count)]
    for name, part in (("a.log", values[::2]), ("b.log", values[1::2])):
        (place / name).write_text("".join(f"{value}\n" for value in part))
    return f"files:{place}/*.log", set(values)


def ranges(place: Path, count: int) -> tuple[str, set[str]]:
    """The same files, read by the bolts."""
    where, values = files(place, count)
    return where.replace("files:", "ranges:", 1), values


def kafka(place: Path, count: int) -> tuple[str, set[str]]:
    """A topic of four partitions on the mock cluster, which lives as long as this process."""
    del place
    pytest.importorskip("confluent_kafka")
    from tests.kafka_parts import MockKafka

    cluster = MockKafka()
    _clusters.append(cluster)
    return f"kafka:{cluster.servers}/numbers/", set(cluster.fill("numbers", count))


_clusters: list[object] = []
SOURCES = {"files": files, "kafka": kafka}


class Effects:
    """One job over one source; its effects are lines of a file.  ``stages`` is 1 or 3."""

    def __init__(
        self, place: Path, redis_url: str, *, source: str, mode: str, stages: int = 1
    ) -> None:
        self._path = place / "effects"
        self._path.touch()
        self._place = place
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "adapters"), *sys.path]),
            "SOURCE": source,
            "MODE": mode,
            "STAGES": str(stages),
            "EFFECTS": str(self._path),
            "FLOWCTL_REDIS_URL": redis_url,
        }

    def start(self, job: str = "effects", *, record_s: float = _RECORD_S) -> subprocess.Popen[str]:
        """Start a driver."""
        with (self._place / f"{job}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(_JOB_FILE)],
                env={**self._environment, "JOB": job, "RECORD_S": str(record_s)},
                stdout=log,
                stderr=log,
                text=True,
            )

    def said(self, job: str = "effects") -> str:
        """What the drivers of ``job`` wrote to the terminal."""
        return (self._place / f"{job}.log").read_text()

    def count(self) -> int:
        """How many effects there are; quick, for polling."""
        return self._path.read_bytes().count(b"\n")

    def seen(self) -> Counter[str]:
        """How often each record had its effect."""
        return Counter(self._path.read_text().split())

    def kill_after(self, effects: int, driver: subprocess.Popen[str]) -> bool:
        """Kill -9 when so many more effects are there; False if the driver had ended."""
        wanted = self.count() + effects
        until(lambda: self.count() >= wanted or driver.poll() is not None, "effects")
        driver.kill()
        return driver.wait() == -9

    def finish(self, job: str = "effects") -> None:
        """Run to the end."""
        driver = self.start(job, record_s=0)
        assert driver.wait(timeout=120) == 0, self.said(job)[-2000:]

    def survive(self, kills: int, *, seed: int) -> int:
        """Kill and start ``kills`` times, or until the input ends; then run to the end.

        Return how often it was killed.
        """
        chance = random.Random(seed)
        for done in range(kills):
            if not self.kill_after(chance.randint(1, 200), self.start()):
                return done
        self.finish()
        return kills
