"""Kill the driver with SIGKILL at a random moment, resume, check; again and again.

    python -m tests.chaos --logs 'DIR/*.log' --runs 20 [--lines 100000] [--seed 1]

Each run reads the logs (repeated until there are ``--lines`` lines) on Spark with 12 bolts into
SQLite, is killed at a random fraction of its work, and started again.  It is exact if SQLite
then holds every line of every file once, with its number and text.  What ran again is counted
by the bolts' own journal, and must not be more than was begun and not in the saved checkpoint.
"""

from __future__ import annotations

import argparse
import glob
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flowctl_lab.demo import journal
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

_JOB_FILE = Path(__file__).with_name("job.py")
_POLL_S = 0.02
_RUN_TIMEOUT_S = 300  # a run takes some 20 s; a machine ten times slower still ends


class Outcome(NamedTuple):
    """What one killed and resumed run left."""

    saved: int
    begun: int
    ran_again: int
    problem: str  # "" if SQLite is exact

    @property
    def is_good(self) -> bool:
        return not self.problem and self.ran_again <= self.begun - self.saved


def amplify(pattern: str, folder: Path, lines_min: int) -> int:
    """Copy the logs that match into ``folder``, each repeated; return the number of lines."""
    texts = {Path(name).name: Path(name).read_bytes() for name in sorted(glob.glob(pattern))}
    if not texts:
        raise SystemExit(f"no file matches {pattern}")
    texts = {name: text if text.endswith(b"\n") else text + b"\n" for name, text in texts.items()}
    lines = sum(text.count(b"\n") for text in texts.values())
    times = max(1, -(-lines_min // lines))
    for name, text in texts.items():
        (folder / name).write_bytes(text * times)
    return lines * times


def expected(folder: Path) -> Iterator[tuple[str, int, str]]:
    """Yield what SQLite should hold, read without flowctl."""
    for path in sorted(folder.glob("*.log")):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            text = line.removesuffix(b"\r").decode("utf-8", errors="replace")
            yield str(path), number, text


def check(database: Path, folder: Path) -> str:
    """Compare SQLite with the input, line by line; return what differs."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT file, line, text FROM lines ORDER BY file, line")
        count = 0
        for wanted in expected(folder):
            found = rows.fetchone()
            if found != wanted:
                return f"wanted {wanted[:2]}, found {found and found[:2]}"
            count += 1
        return "" if rows.fetchone() is None else f"more than {count} rows"


class Chaos:
    """One job, its files and its environment."""

    def __init__(
        self, folder: Path, logs: Path, redis_url: str, name: str, record_s: float
    ) -> None:
        self.name = name
        self.logs = logs
        self.database = folder / f"{name}.db"
        self.journal = folder / f"{name}-journal"
        self.journal.mkdir()
        self._store = RedisCheckpointStore(redis_url)
        self._command = [sys.executable, "-m", "flowctl.cli.main", "run", f"{_JOB_FILE}:spout"]
        self._command += ["--redis", redis_url, "--quiet"]
        self._env = os.environ | {
            "JOB": name,
            "LOGS": str(logs / "*.log"),
            "DATABASE": str(self.database),
            "JOURNAL": str(self.journal),
            "RECORD_S": str(record_s),
        }

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._env, stdin=subprocess.DEVNULL)

    def kill_at(self, records: int) -> int:
        """Start, wait for ``records`` in the checkpoint, kill; return what was saved then."""
        driver = self.start()
        while self.saved() < records:
            if driver.poll() is not None:
                raise SystemExit(f"the driver ended by itself with exit code {driver.returncode}")
            time.sleep(_POLL_S)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        return self.saved()

    def saved(self) -> int:
        return self._store.load(self.name).records

    def run(self, kill_at: int) -> Outcome:
        """Kill once, resume, check."""
        saved = self.kill_at(kill_at)
        code = self.start().wait(_RUN_TIMEOUT_S)
        # A resumed run with nothing left to do begins no tuple and is not in the journal.
        first, *resumed = journal.epochs(self.journal)
        before = journal.begun(self.journal, first)
        after = {record for epoch in resumed for record in journal.begun(self.journal, epoch)}
        problem = f"exit code {code}" if code else check(self.database, self.logs)
        self._store.close()
        return Outcome(saved, len(before), len(before & after), problem)


def main() -> int:
    """Do the runs; exit 1 if one is not exact or redid too much."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--logs", required=True, help="a glob of log files")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record-s", type=float, default=0.0005, help="sleep per record [s]")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="flowctl-chaos-") as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        lines = amplify(args.logs, folder / "logs", args.lines)
        server = EmbeddedServer(folder / "redis")
        url = server.start()
        try:
            for number in range(1, args.runs + 1):
                kill_at = int(lines * draw.uniform(0.02, 0.98))
                chaos = Chaos(folder, folder / "logs", url, f"chaos-{number}", args.record_s)
                outcome = chaos.run(kill_at)
                chaos.database.unlink()
                bad += not outcome.is_good
                print(
                    f"run {number:2}: killed with {outcome.saved:7,} of {lines:,} saved,"
                    f" {outcome.begun - outcome.saved:6,} in flight or acked since;"
                    f" ran again {outcome.ran_again:6,}; {outcome.problem or 'exact'}",
                    flush=True,
                )
        finally:
            server.stop()
    print(f"{args.runs - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
