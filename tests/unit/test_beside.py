"""``make check`` runs commands beside the tests: what any of them says and how it ends counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "beside.py"


def beside(*commands: str) -> subprocess.CompletedProcess[str]:
    words = " -- ".join(commands).split(" ")
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=False
    )


def test_all_that_is_said_is_shown() -> None:
    done = beside("echo tests", "echo types", "echo rows")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["rows", "tests", "types"]
    assert done.stderr == ""


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_one_that_fails_is_named_and_stops_no_other(bad: int, tmp_path: Path) -> None:
    commands = [f"touch {tmp_path}/{number}" for number in range(3)]
    commands[bad] = "cat /not/there"
    done = beside(*commands)
    assert done.returncode == 1
    assert f"FAILED: {commands[bad]}\n" in done.stderr
    assert done.stderr.count("FAILED") == 1
    assert "/not/there" in (done.stdout if bad else done.stderr)  # the first has the terminal
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"} - {str(bad)}


def test_the_others_yield_to_the_command() -> None:
    done = beside("true", "nice")
    assert int(done.stdout) == min(19, os.nice(0) + 10), done.stderr


def test_interrupted_it_lets_the_command_end_and_begins_nothing_more(tmp_path: Path) -> None:
    """As Ctrl-C at a terminal does: all of them are told."""
    (tmp_path / "tests.sh").write_text(
        "trap 'touch tidied; exit 1' INT\n"
        "until [ -e others ]; do sleep 0.02; done\n"
        "echo up; while :; do sleep 0.02; done\n"
    )
    (tmp_path / "others.sh").write_text("touch others; exec sleep 60\n")
    process = subprocess.Popen(
        ["sh", "-c", f"exec {sys.executable} {PROGRAM} sh tests.sh -- sh others.sh -- touch begun"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert (tmp_path / "tidied").exists()
    assert not (tmp_path / "begun").exists()
