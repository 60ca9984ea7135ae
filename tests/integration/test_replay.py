"""Runs that are recorded, also ones that are killed, and replayed by another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowctl
from flowctl.bolts.batch import Batch
from flowctl.core.buffer import SendBuffer
from flowctl.runtime.recording import OLDER, Recording, replayed
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextRanges
from flowctl_storm import LocalStages
from tests.topology_driver import topology

SECRET = "a secret of the records"

# Bolts that are slow, refused and fail, until the driver is killed with tuples in flight.
_KILLED = """
import itertools, time, flowctl
calls = itertools.count()
def process(batch):
    call = next(calls)
    time.sleep(0.03 if call % 17 == 3 else 0.005)
    if call % 11 == 5:
        raise flowctl.RetryLater("429 too many requests", after_s=0.01)
    if call % 13 == 5:
        raise OSError("no route to host")
flowctl.FlowControlSpout(
    name="orders", producer=[f"{n} " + "x" * (n % 50) for n in range(3_000)],
    bolts=flowctl.LocalBolts(process, count=3),
    settings={
        "record.file": "rec", "tuple.records_max": 10, "retry.backoff_first_s": 0.01,
        "checkpoint.interval_s": 0.05,
    },
).run(view="quiet")
"""


class Flaky:
    """Refuses some calls, fails some, and rejects some records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0

    def __call__(self, batch: Batch) -> None:
        with self._lock:
            self._calls += 1
            call = self._calls
        if call % 9 == 4:
            raise flowctl.RetryLater("429 too many requests", after_s=0.005)
        if call % 10 == 6:
            raise OSError("no route to host")
        if call % 12 == 8:
            batch.reject(batch[0], "not a number")


def record(place: Path, **parts: Any) -> Path:
    """Run a job with faults; return its recording."""
    settings = {"record.file": str(place / "rec"), "retry.backoff_first_s": 0.001}
    flowctl.FlowControlSpout(
        name="orders",
        bolts=flowctl.LocalBolts(Flaky(), count=3),
        settings=settings | parts.pop("settings", {}),
        dead_letter=str(place / "letters"),
        **parts,
    ).run(view="quiet")
    return place / "rec"


def of_records(place: Path) -> Path:
    return record(
        place,
        producer=[{"id": n, "name": SECRET} for n in range(3_000)],
        settings={"tuple.records_max": 20},
    )


def of_ranges(place: Path) -> Path:
    for number in range(3):
        (place / f"{number}.log").write_text(f"{SECRET} {'x' * number}\n" * 2_000)
    return record(place, producer=TextRanges(str(place / "*.log")))


@pytest.mark.parametrize("made", [of_records, of_ranges])
def test_another_process_decides_the_same(
    made: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = made(tmp_path)
    command = [sys.executable, "-m", "flowctl", "replay", str(recording), "--decisions", "out"]
    ended = subprocess.run(
        command,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the same as recorded, byte for byte" in ended.stdout
    text = (tmp_path / "out").read_text()
    assert text.count("TupleFailed"), "the faults are in it"
    assert SECRET not in text
    whole = b"".join(repr(call).encode() for call in Recording(str(recording)).calls())
    assert b"no route to host" in whole
    assert SECRET.encode() not in whole, "values of records are not recorded"


def test_a_driver_that_is_killed_leaves_what_it_decided_and_so_does_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = subprocess.Popen([sys.executable, "-c", _KILLED], cwd=tmp_path)
    recording = tmp_path / "rec"
    store = flowctl.FileCheckpointStore()
    while store.load("orders").records < 100 or recording.stat().st_size < 3_000:
        assert first.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    subprocess.run([sys.executable, "-c", _KILLED], cwd=tmp_path, check=True)
    killed, resumed = replayed(f"{recording}{OLDER}"), replayed(str(recording))
    assert killed.difference is None
    assert resumed.difference is None
    assert killed.decided["emit"] > 10
    restored = Recording(str(recording)).began.checkpoint
    assert restored.records, "the second run goes on where the first one was saved"
    assert not killed.core.is_drained
    assert resumed.core.is_drained
    assert resumed.core.checkpoint().records == 3_000


def test_what_is_decided_otherwise_is_told_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = of_records(tmp_path)
    cut = SendBuffer.cut

    def smaller(buffer: SendBuffer, records_max: int, *args: Any) -> Any:
        return cut(buffer, min(records_max, 7), *args)

    monkeypatch.setattr(SendBuffer, "cut", smaller)
    difference = replayed(str(recording)).difference
    assert difference is not None
    _, recorded, now = difference
    assert recorded.startswith("emit")
    assert now.startswith("emit")
    assert recorded != now


def test_a_topology_is_refused(tmp_path: Path) -> None:
    made = topology(1)
    made.bolt("sink", lambda given, out: None).shuffle("s")
    with pytest.raises(flowctl.ConfigError, match="a topology can't be recorded"):
        made.run(
            LocalStages(),
            checkpoint=MemoryCheckpointStore(),
            settings={"record.file": str(tmp_path / "rec")},
            view="quiet",
        )
    assert not (tmp_path / "rec").exists()
