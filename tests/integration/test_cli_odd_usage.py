"""Odd ways to call the command: an exit code and a sentence, and never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_parts import flowctl_here

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import os
import shlex
from flowctl import FlowControlSpout, LocalBolts

def load(batch):
    os.write(1, b"from a bolt")  # a child or a library writes to the number, not to sys.stdout

spout = FlowControlSpout(name="x", producer=[1, 2, 3], bolts=LocalBolts(load, count=2))
"""


def shell(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run ``flowctl ...`` through a shell, which closes streams as it is told."""
    (place / "job.py").write_text(JOB)
    program = f"{sys.executable} -m flowctl.cli.main"
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    return subprocess.run(
        command.replace("flowctl", program, 1),
        shell=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("flowctl run job.py >&-", 0),
        ("flowctl run job.py 2>&-", 0),
        ("flowctl run job.py <&- >&- 2>&-", 0),
        ("flowctl run job.py --plain --log json <&- >&-", 0),
        ("flowctl run nothing.py >&- 2>&-", 2),
    ],
)
def test_streams_that_the_caller_closed(command: str, code: int, tmp_path: Path) -> None:
    done = shell(command, tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("flowctl run .", "neither a Python file nor the name of a module"),
        ('flowctl run ""', "neither a Python file nor the name of a module"),
        ("flowctl run job.py --report nowhere/report.json", "--report: no directory"),
        ("flowctl run job.py --report .", "--report: . is a directory"),
        ("flowctl run job.py --report /proc/report", "--report: /proc/report can't be written"),
        ("flowctl run job.py --set windw.policy=fixed", "Did you mean lab.window.policy?"),
        ("flowctl run job.py --set lab.window.policy=fixd", "one of aiad, aimd, arc, fixed"),
        ("flowctl demo --local --dir /proc/demo", "--dir: /proc/demo can't be used"),
        ("flowctl demo --kill --records 10", "--kill: 10 records would be done before"),
        ("flowctl demo --kill --svg a.svg", "--svg: can't be used with --kill"),
        ("flowctl demo --svg nowhere/a.svg", "--svg: there is no directory"),
    ],
)
def test_what_can_not_be_is_refused_at_once(command: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    done = flowctl_here(tmp_path, *shlex.split(command)[1:])
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert says in done.stderr
