"""What `make cluster` counts is so, and each of its scenarios is in docs/guarantees.md."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster import __main__ as command
from tests.cluster import cost, loopback
from tests.cluster.drive import Drive
from tests.cluster.parts import LONG, NEEDS, SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    """A drive that was: w1 began 1 to 4 and 7, was cut at 10 s; w2 began 3 again at 11.5 s."""
    made = Drive.__new__(Drive)
    made._notes = tmp_path
    (tmp_path / "w1").write_text("9.0 1 b1 w1 [1,2]\n9.9 1 b1 w1 [3,4]\n17.0 1 b1 w1 [7]\n")
    (tmp_path / "w2").write_text("9.5 1 b2 w2 [5]\n11.5 1 b2 w2 [3,6]\n12.0 1 b2 w2 [4]\n")
    return made


def test_each_repeat_of_a_record_counts(drive: Drive) -> None:
    assert drive.reruns() == 2


def test_elsewhere_is_the_first_repeat_on_another_host(drive: Drive) -> None:
    assert drive.elsewhere_s("w1", 10.0) == pytest.approx(1.5)
    assert drive.elsewhere_s("w2", 10.0) is None, "nothing that it held was begun again"


def test_a_stall_is_the_longest_time_in_which_nothing_began(drive: Drive) -> None:
    assert drive.stalled_s(10.0) == pytest.approx(5.0)
    assert drive.stalled_s(18.0) == 0.0


def test_each_scenario_is_a_guarantee_and_has_a_line_that_says_what_it_does() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
    named = re.findall(r"`tests/cluster/(\w+)\.py::(\w+)`", text)
    assert {name for _, name in named} == SCENARIOS.keys()
    for module, name in named:
        assert hasattr(importlib.import_module(f"tests.cluster.{module}"), name)
        assert (SCENARIOS[name].__doc__ or "").endswith(".")


def test_on_loopback_addresses_names_of_hosts_are_replaced_and_nothing_else(
    tmp_path: Path,
) -> None:
    host = loopback.LoopbackHost("d", 1, tmp_path)
    given = "--redis redis://redis:6379/0 --master spark://master:7077 --sink db.internal:5432"
    wanted = "--redis redis://127.77.0.5:6379/0 --master spark://127.77.0.2:7077"
    assert host.named(given) == f"{wanted} --sink 127.77.0.6:5432"
    for text in ("org.apache.spark.deploy.master.Master", "postgresql://postgres@db:5432/x"):
        assert host.named(text).partition("@")[0] == text.partition("@")[0]


def test_what_loopback_addresses_are_not_enough_for_is_skipped_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert NEEDS.keys() < SCENARIOS.keys()
    assert command._possible(["no_fault", "worker_cut_for_5_s", "clocks_differ"]) == ["no_fault"]
    said = capsys.readouterr().out
    assert "worker_cut_for_5_s" in said and "skipped: it needs links that can be cut" in said
    assert "clocks_differ" in said and "skipped: it needs hosts with a Python of their own" in said


def test_what_takes_longest_begins_first(tmp_path: Path) -> None:
    rows = command._Rows(["no_fault", "worker_cut_for_60_s"], tmp_path, 1, has_links=True)
    assert list(rows._left) == ["worker_cut_for_60_s", "no_fault"]
    assert SCENARIOS.keys() >= LONG


def test_two_lanes_share_the_rows_and_each_fails_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    met = threading.Barrier(2, timeout=60)
    done: list[str] = []

    def row(name: str, parts: Any) -> None:
        if name in ("a", "b"):
            met.wait()  # both lanes are at work
        done.append(name)
        if name == "c":
            rows._failed.append(name)

    rows = command._Rows(["a", "b", "c", "d"], tmp_path, 1, has_links=True)
    monkeypatch.setattr(command, "wheel", lambda folder: folder / "wheel")
    hosts = {"d": SimpleNamespace(sessions=[])}
    lane = contextlib.nullcontext(SimpleNamespace(hosts=hosts))
    monkeypatch.setattr(command, "cluster", lambda *_, **__: lane)
    monkeypatch.setattr(rows, "_row", row)
    assert rows.run(2) == 1
    assert sorted(done) == ["a", "b", "c", "d"]
    assert "3 passed, 1 failed" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_cost_of_a_session_is_the_cpu_time_of_all_in_it() -> None:
    busy = "import os\nwhile os.times().user < 0.2: pass\nprint(flush=True); input()"
    command_line = [sys.executable, "-c", busy]
    with subprocess.Popen(
        command_line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cost.living_s([process.pid]) >= 0.2
        assert cost.living_s([]) == 0.0
        before_s = cost.ended_s()
        process.communicate(b"\n")
    assert cost.ended_s() - before_s >= 0.2


class FakeContext:
    """What the programs ask of a SparkContext; the executors can be listed once."""

    def __init__(self) -> None:
        lists = iter([SimpleNamespace(size=lambda: 3)])
        store = SimpleNamespace(executorList=lambda is_active: next(lists))
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store))

    def setLocalProperty(self, name: str, value: str) -> None: ...

    def parallelize(self, values: range, slices: int) -> Any:
        return SimpleNamespace(count=lambda: len(values))


@pytest.mark.parametrize("program", ["beside_jobs", "follow_executors"])
def test_an_error_in_a_thread_ends_a_scenarios_program_with_a_failure(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: an error that nobody sees.  ``beside_jobs`` ended with exit code 0."""
    for name, value in {
        "NOTES": str(tmp_path), "RECORD_S": "0", "JOB": "j", "BOLTS": "1", "LINES": "a.txt",
        "SINK": "sqlite:///a.db", "REDIS": "redis://localhost:1", "TOLD": str(tmp_path / "told"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "tests.cluster.job", raising=False)
    job = importlib.import_module("tests.cluster.job")
    monkeypatch.setattr(job.time, "sleep", lambda seconds: None)
    # As in a program of its own: a session that ended here before left its gateway.
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)

    def run(**how: object) -> None:
        if program == "beside_jobs":
            raise RuntimeError("the run failed")

    monkeypatch.setattr(job.spout, "run", run)
    with pytest.raises((RuntimeError, StopIteration)):
        getattr(job, program)(SimpleNamespace(sparkContext=FakeContext()))
    assert not (tmp_path / "told").exists()
