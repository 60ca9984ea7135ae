"""A run's beginning, progress and end as structlog events, for machines.

Their names and fields are public, like those of ``instrumentation/event_text.py``.  Each has the
job and the wall-clock time, so that the runs of many hosts can be merged.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import msgspec

import flowctl
from flowctl.checksums import crc32
from flowctl.config import Settings, name_of
from flowctl.core.events import FlowEvent
from flowctl.errors import without_secrets
from flowctl.instrumentation.event_log import EventLog
from flowctl.instrumentation.event_text import NAMES, EventLogger, fields_of
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.snapshot import Limit, Report, Snapshot

# Seconds between events, as between the plain view's lines: an hour is 720 events.
PROGRESS_EVERY_S: Final = 5.0

# The fields of a snapshot that the event has, by the same names.
_PROGRESS: Final = (
    "phase",
    "elapsed_s",
    "records_acked",
    "records_per_s",
    "records_saved",
    "records_rejected",
    "records_dead_lettered",
    "eta_s",
    "bolts_up",
    "tuples_in_flight",
)
# What the event log leaves out of a snapshot: long, and of no use for `flowctl explain`.
_NOT_LOGGED: Final = ("job", "bolts", "partitions", "times")
_BOLTS_LOGGED: Final = 12  # those in trouble first; a thousand would fill the file in an hour
# Tuples that hold so many times the records, or fewer, are told as resized.
_RESIZED: Final = 2.0
_LEVELS: Final = {
    "finished": logging.INFO,
    "interrupted": logging.WARNING,
    "paused": logging.WARNING,
    "failed": logging.ERROR,
}


class RunEvents:
    """Logs ``run_started``, ``progress`` and ``run_finished`` of one run.  For one thread."""

    def __init__(
        self,
        job: str,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        logger: EventLogger | None = None,
        log: EventLog | None = None,
    ) -> None:
        """``log``: gets what is logged, the decisions of the core, and more numbers."""
        self._log_file = log
        self._last: Snapshot | None = None  # not written yet
        self._limit = Limit.STARTING
        self._size = _Size(0, 0, 0.0)
        self._job = job
        self._settings = settings
        self._clock = clock
        self._now = now
        self._logger = logger or get_logger()
        self._next_s = clock() + PROGRESS_EVERY_S
        self._started_at = ""
        self._long: frozenset[object] = frozenset()  # calls that were reported

    def started(self, *, began_with: str = "") -> None:
        """Log that the run begins; ``began_with``: what it knows from the last one."""
        self._next_s = self._clock() + PROGRESS_EVERY_S
        self._started_at = self._at()
        settings = changed_settings(self._settings)
        self._log(
            logging.INFO,
            "run_started",
            version=flowctl.__version__,
            settings=settings,
            settings_id=f"{crc32(b'settings', repr(sorted(settings.items())).encode()):08x}",
            host=socket.gethostname(),
            pid=os.getpid(),
            **({"began_with": began_with} if began_with else {}),
        )

    def look(self, snapshot: Snapshot) -> None:
        """Report calls that take long, once each, and the state of the run, if it is time."""
        self._tell_long(snapshot)
        self._tell_limit(snapshot)
        self._tell_progress(snapshot)
        if self._log_file is not None:
            self._log_file.flush()

    def _tell_progress(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._last = None
        self._next_s = now_s + PROGRESS_EVERY_S
        self._tell_size(snapshot)
        verdict = snapshot.verdict
        told = {name: getattr(snapshot, name) for name in _PROGRESS}
        told |= {"done": snapshot.progress, "limit": verdict.limit, "verdict": verdict.sentence}
        self._logger.log(logging.INFO, "progress", job=self._job, at=self._at(), **told)
        self._write("progress", numbers_of(snapshot))

    def happened(self, event: FlowEvent) -> None:
        """Keep a decision of the core in the event log; views log it themselves."""
        name = NAMES[type(event)]
        if self._log_file is not None and self._log_file.takes(name):
            self._write(name, fields_of(event))

    def _tell_limit(self, snapshot: Snapshot) -> None:
        verdict = snapshot.verdict
        if verdict.limit is self._limit:
            return
        before, self._limit = self._limit, verdict.limit
        self._log(
            logging.INFO,
            "limit_changed",
            before=before,
            after=verdict.limit,
            verdict=verdict.sentence,
            remedy=verdict.remedy,
            since_s=verdict.since_s,
        )

    def _tell_size(self, snapshot: Snapshot) -> None:
        """Tell that tuples are of another size, with what a call and a tuple cost."""
        before = self._size
        tuples = snapshot.tuples_acked - before.tuples
        if not tuples:
            return
        mean = (snapshot.records_acked - before.records) / tuples
        told = before.mean or mean
        if not told / _RESIZED < mean < told * _RESIZED:
            dear = snapshot.dear_call
            self._log(
                logging.DEBUG,
                "tuples_resized",
                before=round(told),
                after=round(mean),
                call_s=None if dear is None else dear.call_s,
                tuple_s=snapshot.verdict.tuple_time.service_s,
            )
            told = mean
        self._size = _Size(snapshot.tuples_acked, snapshot.records_acked, told)

    def _tell_long(self, snapshot: Snapshot) -> None:
        began = {(call.bolt, call.partition, call.first): call for call in snapshot.long_calls}
        for key in began.keys() - self._long:
            call = began[key]
            self._log(
                logging.WARNING,
                "call_takes_long",
                bolt=call.bolt,
                partition=call.partition,
                first=call.first,
                last=call.last,
                for_s=call.for_s,
            )
        self._long = frozenset(began)

    def finished(self, report: Report) -> Report:
        """Log the end of the run, or that it could not begin, with all numbers of the report.

        Return the report with the times of start and end, flowctl's version and the settings.
        """
        report = msgspec.structs.replace(
            report,
            started_at=self._started_at,
            ended_at=self._at(),
            versions=_versions(),
            settings=changed_settings(self._settings),
        )
        told = msgspec.to_builtins(report)
        numbers = {name: told[name] for name in told if isinstance(told[name], int | float)}
        verdict = report.verdict
        numbers |= {"limit": verdict.limit, "verdict": verdict.sentence}
        outcome = {"outcome": report.outcome, "error": report.error}
        if report.paused_until:
            outcome["paused_until"] = report.paused_until
        at = report.ended_at
        level = _LEVELS[report.outcome]
        self._logger.log(level, "run_finished", job=self._job, at=at, **outcome, **numbers)
        if self._last is not None:
            self._write("progress", numbers_of(self._last))
        self._write("run_finished", outcome | told_of(report))
        if self._log_file is not None:
            self._log_file.close()
        return report

    def _log(self, level: int, event: str, **fields: Any) -> None:
        self._logger.log(level, event, job=self._job, at=self._at(), **fields)
        self._write(event, fields)

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        log = self._log_file
        if log is None:
            return
        had_problem = bool(log.problem)
        log.write(event, {"job": self._job, "time": self._at(), **fields})
        if log.problem and not had_problem:
            self._logger.log(logging.WARNING, "event_log_lost", error=log.problem)

    def _at(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


class _Size(NamedTuple):
    """Tuples and records acked until the last look, and the mean size that was told."""

    tuples: int
    records: int
    mean: float


def numbers_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return what the event log keeps of ``snapshot``: all but zeros, and of bolts the first few
    that are in trouble.
    """
    numbers = told_of(snapshot)
    slow = set(snapshot.verdict.names)
    bolts = sorted(
        snapshot.bolts,
        key=lambda bolt: (bolt.up, not bolt.refused, bolt.name not in slow, -bolt.moved_away),
    )
    numbers["bolts"] = [
        {name: value for name, value in msgspec.to_builtins(bolt).items() if value}
        for bolt in bolts[:_BOLTS_LOGGED]
    ]
    numbers["bolts_up"], numbers["bolts_all"] = snapshot.bolts_up, len(snapshot.bolts)
    numbers["tuples_in_flight"] = snapshot.tuples_in_flight
    return numbers


def told_of(told: Snapshot | Report) -> dict[str, Any]:
    """Return the fields of a snapshot or report that the event log keeps: all but zeros."""
    fields = msgspec.to_builtins(told)
    return {name: v for name, v in fields.items() if v and name not in _NOT_LOGGED}


def _versions() -> dict[str, str]:
    pyspark = sys.modules.get("pyspark")  # a run without Spark has not loaded it
    spark = {"pyspark": str(pyspark.__version__)} if pyspark is not None else {}
    return {"flowctl": flowctl.__version__, "python": platform.python_version(), **spark}


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from the defaults, by dotted names, without secrets."""
    given, defaults = msgspec.to_builtins(settings), msgspec.to_builtins(Settings())
    return {
        name_of(section, field): without_secrets(value) if isinstance(value, str) else value
        for section, fields in given.items()
        for field, value in fields.items()
        if value != defaults[section][field]
    }
