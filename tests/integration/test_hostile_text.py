"""Text of others on our screen: escape sequences, newlines, bidi controls and markup do nothing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_parts import ROOT, Valkey

from tests.cli_parts import flowctl_here

EVIL = "\x1b]0;pwned\x07\x1b[2J\r\nforged line \u202eesrever \x9b2J \u2028 [red]red[/red] :warning:"
JOB = """
import os, sys
from flowctl import FlowControlSpout, LocalBolts
from flowctl.core.records import Record
from flowctl.ports import SourceChunk
from flowctl_files import JsonLinesDeadLetter

EVIL = EVIL_TEXT

class Producer:
    def partitions(self):
        return [EVIL]
    def open(self, checkpoint):
        saved = checkpoint.partitions.get(EVIL)
        self.next = 0 if saved is None or saved.position is None else saved.position[0] + 1
    def poll(self, count):
        if self.next >= 100:
            if os.environ.get("SOURCE") == "raises":
                raise RuntimeError(EVIL)
            return None
        self.next += 1
        return SourceChunk(EVIL, [Record((self.next - 1, EVIL), EVIL)])
    def close(self):
        pass

def process(batch):
    for record in batch:
        if record.position[0] == 50 and os.environ.get("PROCESS") == "raises":
            raise ValueError(EVIL)

def broken():
    raise KeyError(EVIL)

spout = FlowControlSpout(
    name="job",
    producer=Producer(),
    bolts=LocalBolts(process, count=2),
    dead_letter=JsonLinesDeadLetter("dead.jsonl") if os.environ.get("LETTERS") else None,
)
""".replace("EVIL_TEXT", repr(EVIL))


@pytest.fixture
def place(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    server = Valkey(tmp_path, free_port)
    server.start()
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setenv("FLOWCTL_REDIS_URL", server.url)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "adapters")]))
    yield tmp_path
    server.kill()


def flowctl(place: Path, *arguments: str, code: int, **environment: str) -> str:
    """Run it in a pipe; return all that it wrote, which holds nothing that acts."""
    if arguments[0] in ("checkpoint", "dlq"):
        here = flowctl_here(place, *arguments, environment=environment)
        assert here.returncode == code, here
        assert_harmless(here.stdout + here.stderr)
        return here.stdout + here.stderr
    done = subprocess.run(
        [sys.executable, "-m", "flowctl.cli.main", *arguments],
        cwd=place, env={**os.environ, **environment}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == code, said
    assert_harmless(said)
    return said


def assert_harmless(said: str) -> None:
    acting = {c for c in said if not c.isprintable() and c != "\n"}
    assert not acting, f"{acting} in {said!r}"
    for line in said.splitlines():
        assert not line.strip().startswith("forged"), said


RUN = ("run", "job.py", "--set", "retry.attempts_max=2", "--set", "tuple.records_max=5")
PLAIN = (*RUN, "--plain", "--report", "report.json")


@pytest.mark.parametrize(
    "environment",
    [
        {"PROCESS": "raises"},
        {"PROCESS": "raises", "FLOWCTL_DEBUG": "1"},
        {"SOURCE": "raises"},
        {"SOURCE": "raises", "FLOWCTL_DEBUG": "1"},
    ],
    ids="-".join,
)
def test_plain_lines_errors_tracebacks_and_the_report(
    place: Path, environment: dict[str, str]
) -> None:
    said = flowctl(place, *PLAIN, code=1, **environment)
    assert "\\x1b]0;pwned\\x07\\x1b[2J\\r" in said
    # In one line with what is ours, or as a line of a block.
    assert "\\nforged line \\u202e" in said or "\n  | forged line \\u202e" in said
    assert "[red]red[/red] :warning:" in said
    raw = (place / "report.json").read_bytes()
    assert raw.isascii() and b"\x1b" not in raw
    assert "pwned" in json.loads(raw)["error"]


def test_log_lines(place: Path) -> None:
    said = flowctl(place, "--log-level", "DEBUG", *PLAIN, code=1, PROCESS="raises")
    assert "tuple_failed" in said and "pwned" in said


def test_dead_letters(place: Path) -> None:
    said = flowctl(place, *PLAIN, code=3, PROCESS="raises", LETTERS="1")
    assert "dead letter" in said and "pwned" in said
    letters = (place / "dead.jsonl").read_bytes()
    assert b"\x1b" not in letters and b"pwned" in letters


def test_checkpoint_list_show_and_rewind(place: Path) -> None:
    flowctl(place, *PLAIN, code=1, PROCESS="raises")
    assert "job" in flowctl(place, "checkpoint", "list", code=0)
    said = flowctl(place, "checkpoint", "show", "job", code=0)
    assert "\\x1b]0;pwned" in said
    flowctl(place, "checkpoint", "show", "job", "--json", code=0)
    rewind = ("checkpoint", "rewind", "job", "--partition")
    flowctl(place, *rewind, EVIL, "--to", EVIL, "--yes", code=2)
    flowctl(place, *rewind, f"no {EVIL}", "--start", "--yes", code=2)
    flowctl(place, *rewind, EVIL, "--start", "--yes", code=0)
    flowctl(place, "checkpoint", "show", EVIL, code=2)
    flowctl(place, "checkpoint", "clear", EVIL, "--yes", code=0)


def test_arguments_and_jobs(place: Path) -> None:
    flowctl(place, "run", f"{EVIL}.py", code=2)
    flowctl(place, "run", f"job.py:{EVIL}", code=2)
    flowctl(place, "run", "job.py", "--set", EVIL, code=2)
    flowctl(place, "run", "job.py", "--set", f"{EVIL}=1", code=2)
    flowctl(place, "run", "job.py", "--set", f"lab.window.policy={EVIL}", code=2)
    flowctl(place, "run", "job.py", "--bolts", EVIL, code=2)
    flowctl(place, EVIL, code=2)
    said = flowctl(place, "run", "job.py:broken", code=1)
    assert "raise KeyError(EVIL)" in said and "\\x1b" in said


FILES = """
from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines
spout = FlowControlSpout(
    name="files", producer=TextLines("*.log"),
    bolts=LocalBolts(lambda batch: None, count=1),
)
"""


@pytest.mark.parametrize(
    "name", [EVIL.replace("/", "").encode() + b".log", b"half \xff\xfe.log"], ids=["evil", "bytes"]
)
def test_names_of_files(place: Path, name: bytes) -> None:
    (place / "files.py").write_text(FILES)
    file = os.path.join(os.fsencode(place), name)
    with open(file, "wb") as opened:
        opened.write(b"good\nbad \xff line\n")
    said = flowctl(place, "run", "files.py", "--plain", "--report", "report.json", code=1)
    assert "Traceback" not in said
    assert json.loads((place / "report.json").read_bytes())["outcome"] == "failed"
    flowctl(place, "checkpoint", "list", code=0)


@pytest.mark.parametrize("fault", ["PROCESS", "SOURCE"])
def test_the_live_view(place: Path, fault: str) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "flowctl.cli.main", *RUN],
        cwd=place, stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "LINES": "40", "COLUMNS": "400", "CI": "",
             fault: "raises"},
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # EIO: the other side has closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(timeout=60) == 1
    text = shown.decode()
    assert "\\x1b]0;pwned\\x07" in text
    for acting in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u2028"):
        assert acting not in text, acting
    assert "[red]red[/red] :warning:" in text
    assert not [line for line in text.splitlines() if line.startswith("forged")]
