"""A job's second run begins with what the first learned: ended, killed, told to forget."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_parts import until

from flowctl import Batch, FileCheckpointStore, FlowControlSpout, LocalBolts
from flowctl.runtime.last_run import last_run_of

RECORDS = 12_000
CALL_S = 0.03
JOB = f"""
import time
from flowctl import FileCheckpointStore, FlowControlSpout, LocalBolts

def process(batch):
    time.sleep({CALL_S} + 2e-5 * len(batch))

def endless():
    number = 0
    while True:
        yield (number := number + 1)

FlowControlSpout(
    name="daily", producer=endless(), bolts=LocalBolts(process, count=3),
    checkpoint=FileCheckpointStore("checkpoints"),
).run(view="off")
"""


def sizes_of_run(place: Path, **settings: object) -> list[int]:
    """Run the job from its beginning; return the sizes of its calls, in their order."""
    sizes: list[int] = []

    def process(batch: Batch) -> None:
        sizes.append(len(batch))
        time.sleep(CALL_S + 2e-5 * len(batch))

    store = FileCheckpointStore(place)
    for partition in store.load("daily").partitions:
        store.rewind("daily", partition, None)
    FlowControlSpout(
        name="daily", producer=list(range(RECORDS)), bolts=LocalBolts(process, count=3),
        checkpoint=store, settings=settings,
    ).run(view="off")  # fmt: skip
    assert sum(sizes) == RECORDS
    return sizes


def test_the_second_run_begins_with_the_sizes_that_the_first_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = sizes_of_run(tmp_path / "c")
    assert set(first[:3]) <= {25, 100}
    last = last_run_of(FileCheckpointStore(tmp_path / "c"), "daily")
    assert last is not None and last.learned.call_s >= CALL_S / 2
    second = sizes_of_run(tmp_path / "c")
    assert min(second[:3]) >= 200
    again = sizes_of_run(tmp_path / "c", **{"checkpoint.learned": "forget"})
    assert set(again[:3]) <= {25, 100}


def test_after_a_kill_the_next_run_knows_what_was_known_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    driver = subprocess.Popen([sys.executable, "-c", JOB], cwd=tmp_path)
    kept = tmp_path / "checkpoints" / "daily.learned"
    until(lambda: kept.exists() or driver.poll() is not None)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    told = subprocess.run(
        [sys.executable, "-m", "flowctl", "checkpoint", "show", "daily", "--json",
         "--dir", "checkpoints"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(told.stdout)["learned"]["learned"]["call_s"] >= CALL_S / 2
    second = sizes_of_run(tmp_path / "checkpoints")
    assert min(second[:3]) >= 200
