"""Where a module writes its events: to structlog if the program uses it, else to ``logging``.

structlog's own default is not used: if a program has not configured it, it prints every event, even
of level debug, on stdout, in the middle of a Spark job's output.  This module does not import
structlog, so that a worker need not load it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

LOGGER = "flowctl"
# Attributes of every record: ``extra`` must not replace them, so such a field gets a trailing "_".
_TAKEN = {*vars(logging.makeLogRecord({})), "message", "asctime", "event"}
logging.getLogger(LOGGER).addHandler(logging.NullHandler())


class Postponed(Protocol):
    """structlog's configuration, put off until some code has loaded structlog."""

    def end(self) -> None:
        """Configure it now, unless the user's code has."""

    def log(self, name: str, level: int, event: str, fields: dict[str, Any]) -> None:
        """Log an event; the first one that is to be written ends the postponement."""


# Jobs with a run in progress in this process.
_jobs: list[str] = []


@contextmanager
def running(job: str) -> Iterator[None]:
    """Note that a run of ``job`` is in progress: events of all threads get its name.

    Thread-safe.
    """
    _jobs.append(job)
    try:
        yield
    finally:
        _jobs.remove(job)


def with_job(fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with the job whose run is in progress, unless they name one.

    If several are in progress in one process, only events that name their job have one.
    """
    jobs = set(_jobs)
    return {"job": jobs.pop(), **fields} if len(jobs) == 1 else fields


# Set by ``flowctl.instrumentation.logging.configure``, in flowctl's own programs.
postponed: Postponed | None = None


class StdlibLogger:
    """structlog's calling style over a standard logger, without structlog's global set-up.

    The event's name and fields are in the message, and are attributes of the record (``extra``), so
    a handler that writes JSON gets them separately.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(level):
            fields = with_job(fields)
            text = " ".join(f"{key}={value!r}" for key, value in fields.items())
            extra = {f"{key}_" if key in _TAKEN else key: value for key, value in fields.items()}
            self._logger.log(level, "%s %s", event, text, extra={"event": event, **extra})


def is_handled(name: str = LOGGER) -> bool:
    """Return whether a handler takes what the standard logger ``name`` is given."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


class ModuleLogger:
    """Writes to structlog if the program has configured it, else to the standard logger ``name``.

    If the program has set up neither, warnings and worse are written to stderr, a line each, as
    Python's own logging does; the rest is dropped.  Safe for threads; costs no import.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, /, **fields: Any) -> None:
        self.log(logging.DEBUG, event, **fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self.log(logging.INFO, event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self.log(logging.WARNING, event, **fields)

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        fields = with_job(fields)
        structlog = sys.modules.get("structlog")  # a program that configured it has imported it
        if postponed is not None:
            postponed.log(self._name, level, event, fields)
        elif structlog is not None and structlog.is_configured():
            structlog.get_logger(self._name).log(level, event, **fields)
        elif is_handled(self._name):
            StdlibLogger(logging.getLogger(self._name)).log(level, event, **fields)
        elif level >= logging.WARNING and sys.stderr is not None:
            told = " ".join(f"{key}={value!r}" for key, value in fields.items())
            # One write, so that processes that share stderr don't mix their lines.
            sys.stderr.write(f"flowctl: {event} {told}\n")
