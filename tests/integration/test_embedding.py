"""flowctl is a library: a plain script runs a job in it, and nothing is left when it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.req("S119")
ROOT = Path(__file__).resolve().parents[2]
# A part of somebody's ETL: it works before and after the job, and nobody started flowctl for it.
SCRIPT = """
import json, signal, sys, threading, psutil
from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines
from flowctl import FileCheckpointStore

def left():
    me = psutil.Process()
    ports = [c.laddr.port for c in me.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return {
        "threads": sorted(t.name for t in threading.enumerate()),
        "children": [p.name() for p in me.children(recursive=True)],
        "ports": ports,
        "connections": len(me.net_connections("inet")),
        "sigint": str(signal.getsignal(signal.SIGINT)),
    }

lines, during = [], []

def process(batch):
    during.append(left()) if not during else None
    lines.extend(record.value for record in batch)

before = left()
store = FileCheckpointStore("checkpoints")
job = FlowControlSpout(
    name="etl", producer=TextLines("in.log"), bolts=LocalBolts(process, count=3), checkpoint=store
)
report = job.run(view="off")
if CLOSES:
    store.close()
after = left()
# What is late on a busy machine may be done twice: this is no sink that knows.
json.dump([report.outcome, len(set(lines)), before, during[0], after], sys.stdout)
"""


def run_script(place: Path, *, closes: bool) -> tuple[list[Any], int]:
    """Run it in a session of its own; return what it tells, and the session's id."""
    (place / "in.log").write_text("".join(f"line {n}\n" for n in range(500)))
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("CLOSES", str(closes))],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == "", "a library is quiet"
    return json.loads(out), process.pid


def processes_of(place: Path) -> list[str]:
    """Every process that works in ``place`` or names it, whatever session it is in."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        said = " ".join(process.info["cmdline"] or [])
        if str(place) in said or str(place) in (process.info["cwd"] or ""):
            found.append(said)
    return found


def test_after_a_run_no_thread_process_or_port_is_left(tmp_path: Path) -> None:
    (outcome, lines, before, during, after), _ = run_script(tmp_path, closes=True)
    assert (outcome, lines) == ("finished", 500)
    assert len(during["ports"]) == 1 and len(during["threads"]) > 3, "it was at work"
    assert during["children"] == before["children"], "no server, and no other process"
    assert after == before
    assert processes_of(tmp_path) == []


def test_nor_after_a_script_that_closes_nothing(tmp_path: Path) -> None:
    (outcome, _, before, _, after), session = run_script(tmp_path, closes=False)
    assert outcome == "finished"
    assert (after["threads"], after["ports"]) == (before["threads"], before["ports"])
    assert processes_of(tmp_path) == []
    assert not [p.pid for p in psutil.process_iter() if _session_of(p.pid) == session]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1
