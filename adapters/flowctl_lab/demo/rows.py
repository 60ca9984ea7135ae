"""``demo --ranges``: rows in, rows out; the driver is killed halfway, and its results are kept."""

from __future__ import annotations

import hashlib
import importlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from flowctl.adapters import load_adapter
from flowctl.bolts.batch import Batch
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, InfrastructureError
from flowctl.instrumentation.numbers import count, percent
from flowctl.instrumentation.views import Page, ViewMode
from flowctl_lab.demo import weblog

JOB = "demo-rows"
SCHEMA = "id long, client string, status int"
_KILL_AT = 0.5  # share of the rows, so that both sides of the kill have enough
_POLL_S = 0.05  # between looks at the results, and so the delay of the kill
_FILES = 4  # several partitions
_GROUP_ROWS = 2_000  # several ranges in each file
_REQUEST = re.compile(r'(\S+) .*?"(?:GET|POST|HEAD|PUT) [^"]*" (\d+)')


class RowsPlan(msgspec.Struct, frozen=True):
    """The plan for both drivers of the demo."""

    records: int
    bolts: int
    seconds: float
    local: bool
    view: Page | ViewMode

    @classmethod
    def load(cls, place: Path) -> RowsPlan:
        """Return the plan of the demo in ``place``."""
        return msgspec.json.decode((place / "rows.json").read_bytes(), type=cls)


class Parse:
    """Turns a line into a row, or none if it is not a request.  Each line takes ``record_s``."""

    def __init__(self, record_s: float) -> None:
        self.record_s = record_s

    def __call__(self, batch: Batch) -> Iterator[tuple[int, str, int]]:
        time.sleep(self.record_s * len(batch))
        for record in batch:
            if found := _REQUEST.match(record.value["line"]):
                yield record.value["id"], found[1], int(found[2])


def perform(place: Path, plan: RowsPlan, *, seed: int) -> int:
    """Make the input, kill the first driver, let the second one finish, check; return the code."""
    lines = _make_input(place, plan, seed)
    (place / "rows.json").write_bytes(msgspec.json.encode(plan))
    results = _results(place)
    child = _start(place)
    try:
        _wait_for_half(child, results, plan.records)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    kept = _covered(results)
    click.echo(f"killed the driver (SIGKILL) at {percent(kept / plan.records)}; starting again")
    if code := _start(place).wait():
        raise InfrastructureError(
            f"The resumed driver ended with exit code {code}.", remedy="See its message above."
        )
    return _tell(place, results, lines, kept)


def _make_input(place: Path, plan: RowsPlan, seed: int) -> list[str]:
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    lines = list(weblog.generate(seed, plan.records))
    (place / "in").mkdir()
    for number in range(_FILES):
        span = range(number * len(lines) // _FILES, (number + 1) * len(lines) // _FILES)
        table = pyarrow.table({"id": list(span), "line": [lines[n] for n in span]})
        parquet.write_table(table, place / f"in/{number}.parquet", row_group_size=_GROUP_ROWS)
    click.echo(f"made {count(len(lines))} lines of a web access log in {_FILES} Parquet files")
    return lines


def _start(place: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "flowctl_lab.demo.rows_child", str(place)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _wait_for_half(child: subprocess.Popen[bytes], results: Any, records: int) -> None:
    while _covered(results) < _KILL_AT * records:
        if child.poll() is not None:
            raise InfrastructureError(
                f"The driver ended with exit code {child.returncode} before it could be killed.",
                remedy="Give it more time with --seconds.",
            )
        time.sleep(_POLL_S)


def _results(place: Path) -> Any:
    where = load_adapter("flowctl_apply._places", "parquet").place_at(str(place / "out"))
    return load_adapter("flowctl_apply._results", "parquet").Results(where, JOB)


def _covered(results: Any) -> int:
    return sum(entry.records for entry in results.entries())


def _tell(place: Path, results: Any, lines: list[str], kept: int) -> int:
    """Compare the result with the input, computed in another way than in the job."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    found = Counter(
        (row["id"], row["client"], row["status"])
        for file in results.files()
        for row in parquet.read_table(place / "out" / file.file).to_pylist()
    )
    wanted = Counter(
        (number, line.split(" ", 1)[0], int(line.split('"')[2].split()[0]))
        for number, line in enumerate(lines)
        if "HTTP/1.1" in line.split('"')[1]
    )
    lost, doubled = sum((wanted - found).values()), sum((found - wanted).values())
    click.echo(
        f"\nkept the results of {count(kept)} rows, did the other {count(len(lines) - kept)}"
    )
    click.echo(f"rows in   {count(len(lines))} in {_FILES} files")
    click.echo(f"rows out  {count(sum(found.values()))} in {count(len(results.files()))} files"
               f" · checksum {_checksum(found)}")  # fmt: skip
    verdict = "EXACT" if found == wanted else "WRONG"
    click.echo(f"{verdict}  lost {count(lost)} · doubled or wrong {count(doubled)} (checked)")
    return EXIT_FINISHED if found == wanted else EXIT_FAILED


def _checksum(rows: Counter[tuple[int, str, int]]) -> str:
    total = sum(
        times * int.from_bytes(hashlib.sha256(repr(row).encode()).digest()[:8], "big")
        for row, times in rows.items()
    )
    return f"{total % (1 << 64):016x}"
