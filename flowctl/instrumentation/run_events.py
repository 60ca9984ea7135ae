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
from typing import Any, Final

import msgspec

import flowctl
from flowctl.config import Settings, name_of
from flowctl.errors import without_secrets
from flowctl.instrumentation.event_text import EventLogger
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.snapshot import Report, Snapshot

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
_LEVELS: Final = {
    "finished": logging.INFO,
    "interrupted": logging.WARNING,
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
    ) -> None:
        self._job = job
        self._settings = settings
        self._clock = clock
        self._now = now
        self._logger = logger or get_logger()
        self._next_s = clock() + PROGRESS_EVERY_S
        self._started_at = ""
        self._long: frozenset[object] = frozenset()  # calls that were reported

    def started(self) -> None:
        """Log that the run begins."""
        self._next_s = self._clock() + PROGRESS_EVERY_S
        self._started_at = self._at()
        self._log(
            logging.INFO,
            "run_started",
            version=flowctl.__version__,
            settings=changed_settings(self._settings),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def look(self, snapshot: Snapshot) -> None:
        """Report calls that take long, once each, and the state of the run, if it is time."""
        self._tell_long(snapshot)
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + PROGRESS_EVERY_S
        self._log(
            logging.INFO,
            "progress",
            **{name: getattr(snapshot, name) for name in _PROGRESS},
            done=snapshot.progress,
        )

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
        self._log(
            _LEVELS[report.outcome],
            "run_finished",
            outcome=report.outcome,
            error=report.error,
            **numbers,
        )
        return report

    def _log(self, level: int, event: str, **fields: Any) -> None:
        self._logger.log(level, event, job=self._job, at=self._at(), **fields)

    def _at(self) -> str:
        return self._now().isoformat(timespec="milliseconds")


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
