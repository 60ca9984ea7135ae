"""Kill an ``apply(…, key=…)`` at half of its keys, then let it end, and run another job after it.

    python -m tests.chaos.apply_keys [--rows 200000] [--texts 5000] [--kills 1] [--master M]

Many rows have the same text, and each different text costs a call.  It runs on Spark's
``local-cluster`` with speculation.  The other job has the same function and 1 % of new texts, and
shares a cache with the first.  Printed: how many calls were paid, how many of them twice, and that
each row has the result of its text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

import psutil

from flowctl.bolts.batch import Batch
from tests.chaos.apply import MASTER, bury, session

CALL_S = 0.004  # 5,000 calls on four bolts: 5 s of work
BOLTS = 4
_POLL_S = 0.05


class Label:
    """Notes each call in ``journal``, and takes as long as a call would."""

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def __call__(self, batch: Batch) -> list[tuple[str]]:
        made = []
        for record in batch:
            with open(self.journal, "a") as journal:
                journal.write(f"{record.value.text}\n")
            time.sleep(CALL_S)
            made.append((record.value.text.upper(),))
        return made


def job(place: Path, rows: int, texts: int, name: str, master: str) -> None:
    """One run, in a process of its own."""
    from pyspark_flowctl import apply

    # Of the other job's texts, the last 1 % are new.
    first = 0 if name == "first" else texts // 100
    text = f"concat('text ', {first} + id % {texts}) AS text"
    df = session(master).range(rows).selectExpr("id", text)
    made = apply(
        df,
        Label(str(place / "journal")),
        schema="label string",
        key="text",
        name=name,
        out=str(place / "out"),
        cache=str(place / "cache"),
        bolts=BOLTS,
        view="plain",
    )
    wrong = made.where("NOT (label <=> upper(text))").count()
    print(f"rows {made.count()}, {wrong} of them with the result of another text")


def paid(place: Path) -> Counter[str]:
    """How often each text was given to the function."""
    journal = place / "journal"
    return Counter(journal.read_text().splitlines() if journal.exists() else ())


def started(place: Path, given: argparse.Namespace, name: str, log: IO[str]) -> psutil.Popen:
    command = [sys.executable, "-m", "tests.chaos.apply_keys", "--job", str(place), "--name", name]
    command += ["--rows", str(given.rows), "--texts", str(given.texts), "--master", given.master]
    return psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def run(place: Path, given: argparse.Namespace) -> int:
    """Kill and start again, and run the other job; return the exit code."""
    wrong, log = 0, (place / "log").open("w")
    for number in range(given.kills):
        driver = started(place, given, "first", log)
        half = given.texts * (number + 1) // (given.kills + 1)
        while driver.poll() is None and paid(place).total() < half:
            time.sleep(_POLL_S)
        below = driver.children(recursive=True)
        driver.kill()
        driver.wait()
        bury(below)
        print(f"killed after {paid(place).total()} calls", flush=True)
    for name, texts in (("first", given.texts), ("second", given.texts + given.texts // 100)):
        before = paid(place)
        wrong += started(place, given, name, log).wait() != 0
        calls = paid(place)
        lines = (place / "log").read_text().splitlines()
        told = next(line for line in reversed(lines) if line.startswith("rows "))
        wrong += not told.endswith(f"rows {given.rows}, 0 of them with the result of another text")
        wrong += len(calls) != texts
        print(
            f"{name}: {calls.total() - before.total()} calls; of {len(calls)} texts"
            f" {calls.total() - len(calls)} were paid twice; {told}"
        )
    print("WRONG" if wrong else "EXACT")
    return bool(wrong)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--texts", type=int, default=5_000)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        job(given.job, given.rows, given.texts, given.name, given.master)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        place = given.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        return run(place, given)


if __name__ == "__main__":
    sys.exit(main())
