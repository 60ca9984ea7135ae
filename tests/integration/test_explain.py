"""Runs with threads and sockets, explained from their event logs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import flowctl
from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.cli.explain import explain
from flowctl.instrumentation.event_log import read_lines
from flowctl.instrumentation.explained import runs_of, verdict_at
from flowctl.instrumentation.snapshot import Limit, Report

_KILLED = """
import sys, time, flowctl
flowctl.FlowControlSpout(
    name="orders", producer=range(1_000_000), settings={"tuple.records_max": 10},
    bolts=flowctl.LocalBolts(lambda batch: time.sleep(0.01), count=2),
).run(view="quiet")
"""


class Quota:
    """A target that takes ``per_s`` calls a second, 20 at once after a pause, and refuses more."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._lock = threading.Lock()
        self._left, self._at_s = 20.0, time.monotonic()

    def __call__(self, batch: Batch) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._left = min(20.0, self._left + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
            if self._left < 1.0:
                raise flowctl.RetryLater("429 too many requests")
            self._left -= 1.0
        time.sleep(0.01)


def nothing(batch: Batch) -> None:
    """Return at once."""


def run(
    process: Callable[[Batch], object], path: Path, *, records: int, records_max: int
) -> Report:
    return flowctl.FlowControlSpout(
        name="orders",
        producer=range(records),
        bolts=LocalBolts(process, count=8),
        settings={"tuple.records_max": records_max, "events.file": str(path)},
    ).run(view="quiet")


@pytest.mark.parametrize(
    ("process", "records", "records_max", "limit", "words"),
    [
        (Quota(60.0), 3_000, 10, Limit.TARGET_REFUSES, "the target refuses calls"),
        (nothing, 100_000, 1, Limit.DRIVER, "the driver is the limit"),
    ],
    ids=["refuses", "driver"],
)
def test_the_log_alone_says_what_the_limit_was(
    process: Callable[[Batch], object], records: int, records_max: int, limit: Limit, words: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = tmp_path / "e.jsonl"
    report = run(process, path, records=records, records_max=records_max)
    [logged] = runs_of(read_lines(str(path)))
    assert report.verdict.limit is verdict_at(logged).limit is limit
    assert words in CliRunner().invoke(explain, [str(path)]).output


def test_a_run_that_was_killed_says_what_runs_again_and_what_of_it_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(tmp_path))
    log = tmp_path / "orders.events.jsonl"
    job = subprocess.Popen([sys.executable, "-c", _KILLED])
    deadline_s = time.monotonic() + 60.0
    while '"progress"' not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    going = CliRunner().invoke(explain, ["orders"]).output
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert "· going on ·" in going
    assert "done and paid for, and not saved;" in " ".join(going.split())
    assert runs_of(read_lines(str(log)))[-1].finished is None
