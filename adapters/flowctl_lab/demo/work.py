"""The work of the demo's bolts on a tuple: parse lines, take some time, write rows.

It runs on Spark's workers, so it imports little.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Protocol

from flowctl.bolts.batch import Batch
from flowctl.errors import JobError
from flowctl_lab.demo import journal
from flowctl_lab.demo.plan import SLOW_FACTOR, Plan

COLUMNS = ("file", "line", "host", "at", "method", "path", "status", "bytes", "agent")
# Without UNIQUE, so that the check finds a row that was written twice.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS access (file TEXT, line INTEGER, host TEXT, at TEXT, "
    "method TEXT, path TEXT, status INTEGER, bytes INTEGER, agent TEXT)"
)

_LINE = re.compile(
    r"(?P<host>\S+) \S+ \S+ \[(?P<at>[^]]+)\] "
    r'"(?:(?P<method>[A-Z]+) (?P<path>\S+) HTTP/[\d.]+|(?P<odd>[^"]*))" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-) "[^"]*" "(?P<agent>[^"]*)"'
)


class Sink(Protocol):
    """The part of ``flowctl_sql.SqlSink`` that the demo uses."""

    def write(self, rows: list[dict[str, Any]], *, batch: Batch) -> Any: ...


def parse(file: str, line_number: int, line: str) -> dict[str, Any]:
    """Return the row for one line of the log."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise JobError(f"{file}, line {line_number} is not a line of an access log.")
    size = found["bytes"]
    return {
        "file": file,
        "line": line_number,
        "host": found["host"],
        "at": found["at"],
        "method": found["method"] or "-",
        "path": found["path"] or found["odd"],
        "status": int(found["status"]),
        "bytes": 0 if size == "-" else int(size),
        "agent": found["agent"],
    }


class Work:
    """The demo's ``process``: a record takes ``plan.cost_s``, ten times that on the slow bolt.

    Each tuple is entered in the journal when it is begun, so that duplicates are measured
    independently of flowctl's counts.  Pickled to workers; used by several threads.
    """

    def __init__(self, plan: Plan, journal_directory: Path, sink: Sink) -> None:
        self._plan = plan
        self._slow_bolt = plan.slow_bolt
        self._journal = journal_directory
        self._sink = sink

    def __call__(self, batch: Batch) -> None:
        began_s = time.monotonic()
        journal.enter(self._journal, batch)
        cost_s = len(batch) * self._plan.cost_s * self._slowness(batch)
        file = Path(batch.span.partition).name
        rows = [parse(file, journal.line_of(record), record.value) for record in batch]
        rest_s = cost_s - (time.monotonic() - began_s)
        if rest_s > 0:
            time.sleep(rest_s)
        self._sink.write(rows, batch=batch)

    def _slowness(self, batch: Batch) -> int:
        if batch.bolt != self._slow_bolt:
            return 1
        since_s = time.time() - journal.started_unix_s(self._journal, batch.span.epoch)
        slow = self._plan.slow_from_s <= since_s < self._plan.slow_to_s
        return SLOW_FACTOR if slow else 1
