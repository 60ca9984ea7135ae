"""The command ends once it has saved and told, whatever threads do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# An import that never returns: the bolt's thread keeps its lock.  What runs at the end of the
# process needs the same module, as any clean-up may.
STUCK = "import time\nwhile True:\n    time.sleep(0.01)\n"
JOB = """
import atexit, sys
from pathlib import Path
from flowctl import FlowControlSpout, LocalBolts
from flowctl.testing.stores import MemoryCheckpointStore

sys.path.insert(0, str(Path(__file__).parent))
left_open = open(Path(__file__).with_name("left_open.txt"), "w")
left_open.write("written by the job")

def at_exit():
    print("at exit", flush=True)
    import stuck

atexit.register(at_exit)

def process(batch):
    print("begun", flush=True)
    import stuck

bolts = LocalBolts(process, count=1)
spout = FlowControlSpout(
    name="stuck", producer=[1], bolts=bolts, checkpoint=MemoryCheckpointStore()
)
"""


def test_a_command_that_was_interrupted_and_saved_ends_although_a_bolt_holds_an_imports_lock(
    tmp_path: Path,
) -> None:
    """Kind: a process that has said how it ended and never does, as its shutdown waits for a
    thread."""
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, "-m", "flowctl", "run", f"{tmp_path / 'job.py'}:spout", "--plain"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            assert running.stdout is not None
            said: list[str] = []
            for line in running.stdout:
                said.append(line)
                if line == "begun\n":  # twice: the second saves at once
                    running.send_signal(signal.SIGINT)
                if "again: save at once" in line:
                    running.send_signal(signal.SIGINT)
                if line == "at exit\n":
                    break
            else:
                pytest.fail("".join(said))
            code = running.wait(timeout=30)
        finally:
            running.kill()
    assert code == 130
    assert any("interrupted" in line for line in said), said
    assert (tmp_path / "left_open.txt").read_text() == "written by the job"
