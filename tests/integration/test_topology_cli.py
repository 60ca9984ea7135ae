"""A topology under ``flowctl run``: shown, saved, killed, interrupted and gone on with."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_parts import ROOT, until

from flowctl.errors import EXIT_FINISHED, EXIT_INTERRUPTED

LINES = 3_000
JOB = """
import os, time
from flowctl_storm import Topology
from flowctl_files import TextLines

PLACE = os.path.dirname(os.path.abspath(__file__))

def parse(line, out):
    time.sleep(COST_S)
    out({"n": int(line.value.split()[1])})

def store(row, out):
    with open(os.path.join(PLACE, "out.txt"), "a") as file:
        file.write(f"{row.value['n']}\\n")

def stages():
    if ON_SPARK:
        from flowctl_storm import SparkStages
        return SparkStages()
    from flowctl_storm import LocalStages
    return LocalStages()

topology = Topology("visits")
topology.spout("lines", TextLines(os.path.join(PLACE, "in.log")))
topology.bolt("parse", parse, count=2).shuffle("lines")
topology.bolt("store", store, count=2).fields("parse", "n")
job = topology.job(stages())
"""


class Place:
    """A directory with input, job and what a run leaves; runs ``flowctl run`` in it."""

    def __init__(self, path: Path, *, on_spark: bool = False) -> None:
        self.path = path
        self.on_spark = on_spark
        (path / "in.log").write_text("".join(f"line {n}\n" for n in range(1, LINES + 1)))

    def start(self, *arguments: str, cost_s: float = 0.0, job: str = "job.py:job") -> Any:
        text = JOB.replace("COST_S", str(cost_s)).replace("ON_SPARK", str(self.on_spark))
        (self.path / "job.py").write_text(text)
        path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
        return subprocess.Popen(
            [sys.executable, "-m", "flowctl.cli.main", "run", job, "--plain", *arguments],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, **how: Any) -> tuple[str, dict[str, Any]]:
        """Run to the end; return what it said and its report."""
        process = self.start("--report", "report.json", **how)
        said = process.communicate(timeout=120)[1]
        assert process.returncode == EXIT_FINISHED, said
        return said, json.loads((self.path / "report.json").read_text())

    def stored(self) -> Counter[int]:
        """How often each record has come to the last stage."""
        try:
            return Counter(int(n) for n in (self.path / "out.txt").read_text().splitlines() if n)
        except FileNotFoundError:
            return Counter()

    def assert_complete(self) -> None:
        assert set(self.stored()) == set(range(1, LINES + 1))


FINE = ("--set", "checkpoint.interval_s=0.05", "--set", "tuple.records_max=50")


def test_a_run_shows_its_progress_and_the_second_does_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    said, report = place.finish(cost_s=0.0005)
    assert "4 bolts · LocalStageBolts" in said
    assert f"finished · {LINES // 1000} 000 records in" in said
    assert "a kill repeats" in said
    assert (report["outcome"], report["records_acked"]) == ("finished", LINES)
    assert [stage["stage"] for stage in report["stages"]] == ["parse", "store"]
    assert report["trees"]["ledger_now"] == 0
    place.assert_complete()
    said, report = place.finish()
    assert "nothing to do: all 3 000 records were done before" in said
    assert report["records_acked"] == 0


def kill_and_resume(place: Path, *, on_spark: bool) -> None:
    made = Place(place, on_spark=on_spark)
    process = made.start(*FINE, cost_s=0.002)
    until(lambda: made.stored().total() > LINES / 4 or process.poll() is not None, "some records")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done_before = made.stored().total()
    assert LINES / 4 < done_before < LINES
    said, report = made.finish()
    assert report["resumed"] and 0 < report["resumed_records"] <= done_before
    assert report["records_acked"] == LINES - report["resumed_records"]
    assert "resumed at " in said
    made.assert_complete()
    assert made.stored().total() - LINES <= done_before - report["resumed_records"] + 2 * 2 * 50


@pytest.mark.req("S13", "S70")
def test_killed_it_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, on_spark=False)


@pytest.mark.on_change("spark", "topology")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.req("S13", "S70")
def test_the_same_on_spark(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, on_spark=True)


@pytest.mark.on_change("spark", "topology")
def test_interrupted_it_saves_and_its_command_resumes(tmp_path: Path) -> None:
    place = Place(tmp_path)
    arguments = [*FINE, "--report", "stopped.json"]
    process = place.start(*arguments, cost_s=0.002)
    until(lambda: place.stored().total() > LINES / 4 or process.poll() is not None, "some records")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == EXIT_INTERRUPTED, said
    assert "Traceback" not in said
    stopped = json.loads((tmp_path / "stopped.json").read_text())
    assert stopped["outcome"] == "interrupted"
    assert [stage["stage"] for stage in stopped["stages"]] == ["parse", "store"]
    done_before = place.stored()
    words = shlex.split(said.rpartition("resume with: ")[2].splitlines()[0])
    assert words == ["python", "-m", "flowctl", "run", "job.py:job", "--plain", *arguments]
    _, report = place.finish()
    assert report["resumed_records"] >= LINES / 5
    assert place.stored().total() - LINES <= done_before.total() - report["resumed_records"]
    place.assert_complete()


@pytest.mark.parametrize(
    ("job", "arguments", "said"),
    [
        ("job.py:topology", [], "job = topology.job(SparkStages(), checkpoint=…)"),
        ("job.py:job", ["--bolts", "2"], "--bolts: the stages of a topology have a count each."),
        ("job.py:job", ["--master", "local[2]"], "SparkStages in a topology"),
        ("job.py", [], "There is: job.py:job"),
    ],
)
def test_what_a_topology_can_not_be_asked_for(
    tmp_path: Path, job: str, arguments: list[str], said: str
) -> None:
    process = Place(tmp_path).start(*arguments, job=job)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 2, err
    assert said in err
    assert "Traceback" not in err
