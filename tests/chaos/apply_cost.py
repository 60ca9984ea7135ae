"""What a kill at 80 % costs ``apply``, and the same function as a ``pandas_udf``.

    python -m tests.chaos.apply_cost [--rows 200000] [--master M] [--arm A] [--victim V]

Each arm runs twice on Spark's ``local-cluster``: once its driver is killed when 80 % of the rows
were given to the function, and started again, and once all its Python workers.  Printed: how many
rows were given to the function again, and how long it took from the kill to the end.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from pathlib import Path

import pandas
import psutil

from tests.chaos.apply import BOLTS, MASTER, ROW_S, Runs, bury, command_of, session

_MODULE = "tests.chaos.apply_cost"
_ARMS = {"apply": "tests.chaos.apply", "pandas_udf": _MODULE}
_VICTIMS = ("driver", "workers")
_AT = 0.8
_POLL_S = 0.05
_PARTITIONS = 4 * BOLTS  # as for a job whose rows cost differently
_TIMEOUT_S = 600.0
_WORKERS = "pyspark.daemon"
# A cluster tries a task four times; local[N] does so once, and a killed worker would end the job.
_LOCAL = re.compile(r"^local\[(\d+|\*)\]$")
_TRIES = 4


def job(place: Path, rows: int, master: str) -> None:
    """One run of the ``pandas_udf``, in a process of its own."""
    from pyspark.sql.functions import pandas_udf

    journal = str(place / "journal")

    def labels(ids: pandas.Series) -> pandas.Series:
        with open(journal, "a") as file:
            file.write("".join(f"{number}\n" for number in ids))
        time.sleep(ROW_S * len(ids))
        return ids.map(lambda number: f"#{number}")

    spark = session(master)
    # Batches as short as those of a bolt: a kill should not cost more for their length.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "400")
    label = pandas_udf(labels, "string")
    frame = spark.range(0, rows, 1, _PARTITIONS)
    made = frame.select("id", label("id").alias("label"))
    made.write.mode("overwrite").parquet(str(place / "out"))


def cost(place: Path, rows: int, master: str, module: str, victim: str) -> tuple[int, float]:
    """Return how many rows were done again, and how long it took from the kill to the end."""
    place.mkdir()
    runs = Runs(place, rows, master, random.Random(1), module=module)
    driver = runs.start()
    deadline_s = time.monotonic() + _TIMEOUT_S
    while runs.begun() < _AT * rows:
        if driver.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"80 % was not reached:\n{_last(runs)}")
        time.sleep(_POLL_S)
    killed_s = time.monotonic()
    below = driver.children(recursive=True)
    if victim == "driver":
        driver.kill()
        driver.wait()
        bury(below)
        driver = runs.start()
    else:
        _kill_workers(below)
    if driver.wait(_TIMEOUT_S):
        raise SystemExit(f"the run failed:\n{_last(runs)}")
    return runs.begun() - rows, time.monotonic() - killed_s


def _last(runs: Runs) -> str:
    """The end of what the run said, as its directory goes with this process."""
    return Path(runs.log.name).read_text()[-2_000:]


def _kill_workers(below: list[psutil.Process]) -> None:
    for process in below:
        if _WORKERS in " ".join(command_of(process)):
            process.kill()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--arm", choices=_ARMS, action="append", help="alone")
    parser.add_argument("--victim", choices=_VICTIMS, action="append", help="alone")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        job(given.job, given.rows, given.master)
        return 0
    master = _LOCAL.sub(rf"local[\1,{_TRIES}]", given.master)
    with tempfile.TemporaryDirectory() as temporary:
        for victim in given.victim or _VICTIMS:
            for arm in given.arm or _ARMS:
                place = Path(temporary) / f"{arm}-{victim}"
                again, took_s = cost(place, given.rows, master, _ARMS[arm], victim)
                share = again / given.rows
                print(
                    f"{arm:10s} {victim:7s} killed at 80 %: {again:6d} rows ({share:.1%}) again,"
                    f" {took_s:.0f} s to the end",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
