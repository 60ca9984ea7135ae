"""Run a command, and others one after another beside it: ``beside.py COMMAND -- OTHER -- OTHER``.

For a command that leaves processors idle, as tests do that wait.  The others yield to it (nice), so
that it is hardly slower for them.  What another one says is shown when it ends.  One that fails
stops nothing: a run tells all that is wrong.  Exit code 1 if any failed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

NICE = 10  # gets what the command leaves, and a tenth where it leaves nothing
INTERRUPTED = 130


class Others:
    """Commands that run in turn; ``failed`` are those that did."""

    def __init__(self, commands: Sequence[str]) -> None:
        self.failed: list[str] = []
        self.is_interrupted = False
        self._commands = commands

    def interrupt(self, *_: object) -> None:
        """Begin nothing more.  The terminal told all that run, and the tests stop their servers."""
        self.is_interrupted = True

    def run(self) -> None:
        for command in self._commands:
            if self.is_interrupted:
                return
            done = subprocess.run(
                f"exec nice -n {NICE} {command}", shell=True, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if done.returncode == -signal.SIGINT:  # ours may come a little later
                return
            if done.returncode:
                self.failed.append(command)
            if done.stdout:
                print(f"\n{done.stdout}", end="", flush=True)


def main(command: str, *commands: str) -> int:
    """Run them; return the exit code."""
    others = Others(commands)
    signal.signal(signal.SIGINT, others.interrupt)
    beside = threading.Thread(target=others.run)
    beside.start()
    code = subprocess.run(command, shell=True, check=False).returncode
    beside.join()
    if others.is_interrupted:
        return INTERRUPTED
    failed = [*([command] if code else []), *others.failed]
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*" ".join(sys.argv[1:]).split(" -- ")))
