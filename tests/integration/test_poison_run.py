"""A few bad records among very many: a letter each, and nothing else suffers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import ceil, log2
from pathlib import Path

import pytest

LINES = 200_000
POISON = (17, 60_000, 60_001, 199_999)
JOB = """
import os

from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines
from flowctl_sql import SqlSink

POISON = set() if os.path.exists("mended") else {str(n) for n in <POISON>}
sink = SqlSink("sqlite:///lines.db", table="lines", schema="CREATE TABLE lines (n INTEGER)")


def load(batch):
    is_bad = any(record.value in POISON for record in batch[:])
    with open("calls", "a") as calls:
        calls.write(f"{len(batch)} {is_bad}\\n")
    if <READS>:  # iteration says which record it was
        rows = [{"n": int(check(record.value))} for record in batch]
    else:  # as a bulk call: nothing says which
        if is_bad:
            raise ValueError("the bulk call failed")
        rows = [{"n": int(record.value)} for record in batch[:]]
    sink.write(rows, batch=batch)


def check(value):
    if value in POISON:
        raise ValueError(f"bad id {value}")
    return value


spout = FlowControlSpout(
    name="poison",
    producer=TextLines("lines.txt"),
    bolts=LocalBolts(load, count=4),
)
"""


def flowctl(place: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "flowctl.cli.main", *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def rows(place: Path) -> int:
    import sqlite3

    with sqlite3.connect(place / "lines.db") as database:
        found = database.execute("SELECT count(*), count(DISTINCT n) FROM lines").fetchone()
    assert found[0] == found[1], "no row twice"
    return int(found[0])


@pytest.mark.slow
@pytest.mark.parametrize("reads", [True, False], ids=["record known", "bulk"])
def test_four_bad_records_of_200_000_are_four_letters(tmp_path: Path, reads: bool) -> None:
    """Exit code and summary say 4; put back after a mend they are processed."""
    (tmp_path / "lines.txt").write_text("".join(f"{n}\n" for n in range(1, LINES + 1)))
    (tmp_path / "job.py").write_text(
        JOB.replace("<POISON>", str(POISON)).replace("<READS>", str(reads))
    )
    letters = ["--dead-letters", ".flowctl/dead-letters"]
    report = tmp_path / "report.json"
    code, said = flowctl(tmp_path, "run", "job.py:spout", *letters, "--report", str(report))
    assert code == 3, said
    assert "4 dead-lettered" in said or "4 records dead-lettered" in said, said
    assert json.loads(report.read_text())["records_dead_lettered"] == len(POISON)
    assert rows(tmp_path) == LINES - len(POISON)

    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    failed = [int(size) for size, is_bad in calls if is_bad == "True"]
    # Each costs at most log2(n) + 5 more calls than none would; those that fail are fewer still.
    assert len(failed) <= len(POISON) * (ceil(log2(max(failed))) + 5)

    _, shown = flowctl(tmp_path, "dlq", "show", "poison")
    assert all(f"{n}" in shown for n in POISON), shown
    (tmp_path / "mended").touch()
    code, said = flowctl(tmp_path, "dlq", "redrive", "poison")
    assert code == 0, said
    code, said = flowctl(tmp_path, "run", "job.py:spout", *letters)
    assert code == 0, said
    assert rows(tmp_path) == LINES
