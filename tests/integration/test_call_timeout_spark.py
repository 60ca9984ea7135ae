"""A call past ``call.timeout_s`` on Spark: its worker process ends, the record counts as a
fault."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowctl import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter, TextRanges

pytestmark = pytest.mark.spark

LINES = 300


def test_a_worker_whose_call_never_returns_is_ended_and_only_that_record_is_given_up(
    spark: Any, tmp_path: Path
) -> None:
    """Kind: a call without an end, by value and by reference; nothing else is given up or lost."""
    from pyspark_flowctl.bolts import SparkBolts

    (tmp_path / "in.txt").write_text("".join(f"{n}\n" for n in range(LINES)))

    def job(name: str, producer: Any) -> tuple[Any, list[str], set[str]]:
        done, pids = str(tmp_path / f"{name}.done"), str(tmp_path / f"{name}.pids")

        def process(batch: Any) -> None:
            values = [str(record.value).strip() for record in batch]
            if "50" in values:
                with open(pids, "a") as file:
                    file.write(f"{os.getpid()}\n")
            for value in values:
                while value == "50":
                    time.sleep(0.1)
            with open(done, "a") as file:
                file.write("".join(f"{value}\n" for value in values))

        spout = FlowControlSpout(
            name=name,
            producer=producer,
            bolts=SparkBolts(process, count=2, spark=spark),
            checkpoint=MemoryCheckpointStore(),
            dead_letter=FileDeadLetter(tmp_path / name),
            settings={"call.timeout_s": 1.0, "retry.attempts_max": 2, "hedge.enabled": False},
        )
        report = spout.run(view="off")
        return report, Path(done).read_text().split(), set(Path(pids).read_text().split())

    for name, producer in {
        "by_value": list(range(LINES)),
        "by_reference": TextRanges(str(tmp_path / "in.txt")),
    }.items():
        report, done, pids = job(name, producer)
        assert report.records_dead_lettered == 1, name
        assert sorted(map(int, set(done))) == [n for n in range(LINES) if n != 50], name
        assert report.calls_overdue >= 2, name
        assert len(pids) >= 2, name
        assert not report.long_calls, "the workers are gone"
        left = [pid for pid in map(int, pids) if psutil.pid_exists(pid)]
        assert len(left) < len(pids), "those whose calls took too long are ended"
