"""structlog for the command line, and a logger for the library that never configures logging.

The library never configures logging.  A program that has configured structlog gets flowctl's
events through its own processors; any other gets them through the standard library's logger
``flowctl``, which is silent until a handler is added.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

import structlog

from flowctl.logs import LOGGER, StdlibLogger, is_handled

if TYPE_CHECKING:
    from flowctl.instrumentation.events import EventLogger


def get_logger() -> EventLogger:
    """Return the logger that flowctl's events go to."""
    if structlog.is_configured():
        return cast("EventLogger", structlog.get_logger(LOGGER))
    return cast("EventLogger", StdlibLogger(logging.getLogger(LOGGER)))


def is_heard() -> bool:
    """Return whether the program has set up logging, so that events of :func:`get_logger` go
    somewhere."""
    return is_handled() or structlog.is_configured()


def configure(level: str = "WARNING", *, flow_events: bool = True, as_json: bool = False) -> None:
    """Configure structlog for a program of ours: ``timestamp level event key=value`` on stderr.

    ``as_json``: one JSON object a line instead, in ASCII.  ``flow_events=False`` leaves out the
    events of the core and the run, for when a view shows them.
    """
    processors: list[Any] = [structlog.contextvars.merge_contextvars]
    if not flow_events:
        processors.append(_without_flow_events)
    structlog.configure(
        processors=[
            *processors,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _renderer(as_json),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
    )


def _renderer(as_json: bool) -> Any:
    if as_json:
        # A value that JSON has no form for is shown as text instead of failing in the middle of a
        # run.
        return structlog.processors.JSONRenderer(sort_keys=True, default=repr)
    return structlog.processors.KeyValueRenderer(
        key_order=["timestamp", "level", "event"], sort_keys=True
    )


class _Stderr:
    """Writes to whatever ``sys.stderr`` is at the moment: the live view replaces it while it is
    shown."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _without_flow_events(logger: Any, method: str, fields: Any) -> Any:
    from flowctl.instrumentation.events import NAMES, RUN_EVENTS

    if fields["event"] in RUN_EVENTS or fields["event"] in NAMES.values():
        raise structlog.DropEvent
    return fields
