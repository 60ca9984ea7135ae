"""Kill the driver, workers and executors of an ``apply`` again and again; then check its rows.

    python -m tests.chaos.apply [--rows 200000] [--kills 20] [--seed 1] [--master M] [--keep DIR]

Each row gives none, one or two rows.  It runs on Spark's ``local-cluster`` with speculation.  After
the kills it runs to its end.  Printed: how many rows were done again, and that each row's result is
there exactly once, and no file that nothing names.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from flowctl.bolts.batch import Batch

ROW_S = 0.0004  # 200,000 rows on four bolts: 20 s of work
BOLTS = 4
_POLL_S = 0.1
_START_TIMEOUT_S = 300.0  # until something is done again: a session takes 20 s on a busy machine
MASTER = "local-cluster[2,3,1024]"
# A kill is mostly the start of three JVMs: the second compiler would take half of their time.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MODULE = "tests.chaos.apply"


class Score:
    """Notes what it is given in ``journal``, and takes as long as a call would."""

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def __call__(self, batch: Batch) -> list[tuple[int, str]]:
        ids = [record.value["id"] for record in batch]
        with open(self.journal, "a") as journal:
            journal.write("".join(f"{number}\n" for number in ids))
        time.sleep(ROW_S * len(ids))
        return [(number, f"#{number}") for number in ids for _ in range(number % 3)]


def job(place: Path, rows: int, master: str) -> None:
    """One run, in a process of its own."""
    from pyspark_flowctl import apply

    spark = session(master)
    made = apply(
        spark.range(rows).selectExpr("id", "concat('#', id) AS text"),
        Score(str(place / "journal")),
        schema="id long, label string",
        name="chaos",
        out=str(place / "out"),
        bolts=BOLTS,
        view="plain",
    )
    print(f"rows {made.count()}")


def session(master: str) -> Any:
    """A session with speculation."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take python3 on PATH
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "200ms")
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .config("spark.executor.extraJavaOptions", _JAVA_OPTIONS)
        .getOrCreate()
    )


class Runs:
    """Starts the job, kills parts of it, and counts what is done."""

    def __init__(
        self, place: Path, rows: int, master: str, chance: random.Random, *, module: str = _MODULE
    ) -> None:
        """``module`` is the command that runs one job."""
        self.module = module
        self.place = place
        self.master = master
        self.rows = rows
        self.chance = chance
        self.log = (place / "log").open("w")

    def start(self) -> psutil.Popen:
        command = [sys.executable, "-m", self.module, "--job", str(self.place)]
        command += ["--rows", str(self.rows), "--master", self.master]
        return psutil.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def begun(self) -> int:
        """Rows that were given to the function, repeats included."""
        journal = self.place / "journal"
        return journal.read_text().count("\n") if journal.exists() else 0

    def kill_one(self, driver: psutil.Popen, number: int) -> str:
        """Kill the driver, or a worker or an executor of it, at a random moment of its work."""
        self._await_work(driver)
        time.sleep(self.chance.uniform(0, 2))
        if driver.poll() is not None:
            return "nobody"
        below = driver.children(recursive=True)
        if number % 2 == 0:
            driver.kill()
            driver.wait()
            bury(below)
            return "the driver"
        kind = self.chance.choice(("pyspark.daemon", "CoarseGrainedExecutorBackend"))
        found = [one for one in below if kind in " ".join(command_of(one))]
        if found:
            self.chance.choice(found).kill()
        return f"{kind} ({len(found)} there)"

    def _await_work(self, driver: psutil.Popen) -> None:
        before, deadline_s = self.begun(), time.monotonic() + _START_TIMEOUT_S
        while self.begun() == before and driver.poll() is None:
            if time.monotonic() > deadline_s:
                below = driver.children(recursive=True)
                driver.kill()
                bury(below)
                raise SystemExit(f"nothing is done; see {self.log.name}")
            time.sleep(_POLL_S)


def bury(processes: list[psutil.Process]) -> None:
    """Wait for them: what the driver had started ends with it; or it is ended."""
    _, alive = psutil.wait_procs(processes, timeout=20)
    for one in alive:
        one.kill()


def command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def check(place: Path, rows: int) -> list[str]:
    """Return what is wrong with the result."""
    import pyarrow.parquet

    from flowctl_apply._places import LocalPlace
    from flowctl_apply._results import Results

    results = Results(LocalPlace(str(place / "out")), "chaos")
    named = [file.file for file in results.files()]
    counts: Counter[int] = Counter()
    for name in named:
        table: Any = pyarrow.parquet.read_table(place / "out" / name)
        counts.update(table["id"].to_pylist())
    wrong = [number for number in range(rows) if counts[number] != number % 3]
    there = {path.name for path in (place / "out").glob("*.parquet")}
    problems = [f"{len(wrong)} rows, the first {wrong[:5]}"] if wrong else []
    unnamed = there - set(named)
    return problems + ([f"{len(unnamed)} files that nothing names"] if unnamed else [])


def chaos(place: Path, runs: Runs, kills: int) -> int:
    """Kill and start again; return the exit code."""
    rows, made, began_s = runs.rows, 0, time.monotonic()
    driver = runs.start()
    while made < kills:
        what = runs.kill_one(driver, made)
        if what == "nobody":
            print(f"the run ended after {made} kills: give more --rows, or see {runs.log.name}")
            break
        made += 1
        at_s = time.monotonic() - began_s
        print(f"kill {made}: {what}; {runs.begun()} of {rows} rows begun, {at_s:.0f} s", flush=True)
        if what == "the driver":
            driver = runs.start()
    code = driver.wait()
    again = runs.begun() - rows
    problems = check(place, rows) if code == 0 else [f"the last run ended with {code}"]
    print(
        f"{made} kills; {again} of {rows} rows were done again ({again / max(1, made):.0f} a kill);"
        f" {time.monotonic() - began_s:.0f} s"
    )
    print("EXACT" if not problems else f"WRONG: {'; '.join(problems)}; see {place}")
    return bool(problems)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        job(given.job, given.rows, given.master)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        place = given.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        runs = Runs(place, given.rows, given.master, random.Random(given.seed))
        return chaos(place, runs, given.kills)


if __name__ == "__main__":
    sys.exit(main())
