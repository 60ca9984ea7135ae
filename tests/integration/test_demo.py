"""``flowctl demo``: exact, also when its driver is killed; resumed after Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flowctl.cli.main", "demo", "--plain", *arguments]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    return {**os.environ, "PYTHONPATH": path}


def demo(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip


SMALL = ("--local", "--records", "8000", "--seconds", "2", "--bolts", "4")


@pytest.mark.req("S70")
def test_local_demo_is_exact(tmp_path: Path) -> None:
    done = demo(*SMALL, "--seed", "11", "--dir", str(tmp_path / "d"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 11" in done.stdout
    assert "EXACT  lost 0 · doubled in the sink 0 (checked)" in done.stdout
    checksums = re.findall(r"checksum ([0-9a-f]{16})", done.stdout)
    assert len(checksums) == 2 and checksums[0] == checksums[1]
    assert re.search(r"b\d+ was 10x slower for", done.stdout)


@pytest.mark.on_change("cli", "core")
@pytest.mark.req("S13", "S117")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_driver_is_resumed_exactly(seed: int) -> None:
    done = demo(*SMALL, "--kill", "--seed", str(seed))
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(
        r"killed at (\d+) % · resumed at ([\d ]+), skipped ([\d ]+) already acked, "
        r"ran ([\d ]+) again \(at most ([\d ]+):",
        done.stdout,
    )
    assert found, done.stdout
    resumed, again, bound = (int(found[n].replace(" ", "")) for n in (2, 4, 5))
    assert 0 < resumed < 8000
    assert again <= bound
    assert "lost 0 · doubled in the sink 0 (checked)" in done.stdout


def test_a_sink_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    place = tmp_path / "d"
    assert demo(*SMALL, "--dir", str(place)).returncode == 0
    with sqlite3.connect(place / "access.db") as connection:
        connection.execute("DELETE FROM access WHERE line = 3 AND file = 'access-0.log'")
    connection.close()
    # Resumed: nothing is left to do, the check runs again.
    done = demo("--dir", str(place))
    assert done.returncode == 1
    assert "NOT EXACT  lost 1" in done.stdout


def test_ctrl_c_says_how_to_resume(tmp_path: Path) -> None:
    place = tmp_path / "d"
    arguments = ("--local", "--records", "8000", "--seconds", "6", "--bolts", "4")
    process = subprocess.Popen(
        command(*arguments, "--dir", str(place)), env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline_s = time.monotonic() + 60
    while not list(place.glob("journal/*.txt")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"flowctl demo --dir {place}" in err
    done = demo("--dir", str(place))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming the demo" in done.stdout
    assert "EXACT" in done.stdout


def test_a_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mine.log").touch()
    done = demo(*SMALL, "--dir", str(tmp_path))
    assert done.returncode == 2
    assert "holds other files" in done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.req("S118")
@pytest.mark.parametrize(
    "kill", [False, pytest.param(True, marks=pytest.mark.on_change("spark", "cli"))]
)
def test_the_demo_on_spark(kill: bool) -> None:
    options = ["--records", "20000", "--seconds", "4", *(["--kill"] if kill else [])]
    done = demo(*options, timeout_s=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 bolts on Spark local" in done.stderr
    assert "EXACT  lost 0 · doubled in the sink 0 (checked)" in done.stdout
    assert ("killed at" in done.stdout) == kill


def test_rows_in_and_rows_out_are_exact_though_the_driver_is_killed(tmp_path: Path) -> None:
    done = demo(*SMALL, "--ranges", "--seconds", "4", "--dir", str(tmp_path / "d"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EXACT  lost 0 · doubled or wrong 0 (checked)" in done.stdout
    kept = re.search(r"kept the results of ([\d ]+) rows, did the other ([\d ]+)", done.stdout)
    assert kept is not None
    before, after = (int(part.replace(" ", "")) for part in kept.groups())
    assert before >= 4_000 and before + after == 8_000
    again = demo(*SMALL, "--ranges", "--dir", str(tmp_path / "d"))
    assert again.returncode == 2 and "holds a demo" in again.stderr
