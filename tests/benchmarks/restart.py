"""How long a restarted job takes to its first tuple, against the start of a bare SparkSession.

``python -m tests.benchmarks restart [--rounds 5]``: the file has grown since the last run, and the
checkpoint is in flowctl's own Redis server.  Each round starts both arms one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flowctl.bolts.batch import Batch

_RECORDS = 20_000
_BOLTS = 12
_GOAL_S = 1.0  # on top of a bare session's start


class _FirstTuple:
    """Notes when a bolt begins a tuple."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "first"

    def __call__(self, batch: Batch) -> None:
        del batch
        with self._path.open("a") as file:
            file.write(f"{time.time()}\n")


def _bare() -> None:
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    builder = SparkSession.builder.master(f"local[{_BOLTS + 1}]").config(
        "spark.ui.enabled", "false"
    )
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    print(time.time(), flush=True)
    session.stop()


def _job(directory: Path) -> None:
    from flowctl import FileCheckpointStore, FlowControlSpout
    from flowctl_files import TextLines
    from pyspark_flowctl import SparkBolts

    (directory / "first").unlink(missing_ok=True)
    FlowControlSpout(
        name="restart",
        producer=TextLines(directory / "lines.txt"),
        bolts=SparkBolts(_FirstTuple(directory), count=_BOLTS),
        checkpoint=FileCheckpointStore(directory / "checkpoints"),
    ).run(view="off")


def _started(arm: str, directory: Path) -> float:
    began_s = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.restart", arm, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    said = done.stdout if arm == "bare" else (directory / "first").read_text()
    return min(float(line) for line in said.split()) - began_s


def _rounds(count: int) -> Iterator[tuple[float, float]]:
    with tempfile.TemporaryDirectory(prefix="flowctl-restart-") as made:
        directory = Path(made)
        _add_lines(directory)
        _started("job", directory)
        for _ in range(count):
            _add_lines(directory)
            bare_s, job_s = _started("bare", directory), _started("job", directory)
            print(f"  bare session {bare_s:5.2f} s   first tuple {job_s:5.2f} s", flush=True)
            yield bare_s, job_s


def _add_lines(directory: Path) -> None:
    """Work for the next start."""
    with (directory / "lines.txt").open("a") as lines:
        lines.write("a line\n" * _RECORDS)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark, or one of its processes; exit 1 if the goal is missed."""
    if arguments and arguments[0] == "bare":
        _bare()
        return 0
    if arguments and arguments[0] == "job":
        _job(Path(arguments[1]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks restart", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = list(_rounds(parser.parse_args(arguments).rounds))
    bare_s, job_s = (statistics.median(times) for times in zip(*rounds, strict=True))
    more_s = statistics.median(job - bare for bare, job in rounds)
    print(
        f"restart, medians of {len(rounds)}: bare session {bare_s:.2f} s,"
        f" first tuple {job_s:.2f} s, on top {more_s:+.2f} s (goal: {_GOAL_S:.0f} s)"
    )
    return 0 if more_s <= _GOAL_S else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
