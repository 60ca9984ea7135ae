"""structlog for the command line, and a logger for the library that never configures logging.

The library never configures logging.  A program that has configured structlog gets flowctl's
events through its own processors; any other gets them through the standard library's logger
``flowctl``, which is silent until a handler is added.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from flowctl import logs
from flowctl.instrumentation.event_text import EventLogger
from flowctl.logs import LOGGER, StdlibLogger, is_handled

if TYPE_CHECKING:
    from flowctl.instrumentation.event_text import EventLogger


def get_logger() -> EventLogger:
    """Return the logger that flowctl's events go to."""
    if logs.postponed is not None:
        return _PostponedLogger()
    if _is_configured():
        return _structlogs()
    return cast("EventLogger", StdlibLogger(logging.getLogger(LOGGER)))


def is_heard() -> bool:
    """Return whether the program has set up logging, so that events of :func:`get_logger` go
    somewhere."""
    return is_handled() or logs.postponed is not None or _is_configured()


def _is_configured() -> bool:
    if "structlog" not in sys.modules:
        return False
    import structlog

    return structlog.is_configured()


def _structlogs(name: str = LOGGER) -> EventLogger:
    import structlog

    # A program's own processors don't know the job.
    return cast("EventLogger", structlog.get_logger(name, **logs.with_job({})))


def configure(level: str = "WARNING", *, flow_events: bool = True, as_json: bool = False) -> None:
    """Configure structlog for a program of ours: ``timestamp level event key=value`` on stderr.

    ``as_json``: one JSON object a line instead, in ASCII.  ``flow_events=False`` leaves out the
    events of the core and the run, for when a view shows them.

    structlog takes as long to load as the rest of a command's start, and most runs log nothing.  So
    if it is not loaded yet, it is configured with the first event that is to be written, or by
    :func:`settle`.
    """
    setup = _Setup(level, flow_events=flow_events, as_json=as_json)
    if "structlog" in sys.modules:
        setup.apply()
    else:
        logs.postponed = setup


def settle() -> None:
    """Configure structlog if the user's code has loaded it by now, unless that code has configured
    it.
    """
    if logs.postponed is not None and "structlog" in sys.modules:
        logs.postponed.end()


class _Setup:
    """What :func:`configure` was given."""

    def __init__(self, level: str, *, flow_events: bool, as_json: bool) -> None:
        self._level: int = logging.getLevelName(level.upper())
        self._flow_events = flow_events
        self._as_json = as_json

    def apply(self) -> None:
        import structlog

        processors: list[Any] = [structlog.contextvars.merge_contextvars, _with_job]
        if not self._flow_events:
            processors.append(_without_flow_events)
        structlog.configure(
            processors=[
                *processors,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                _renderer(self._as_json),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
            logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        )

    def end(self) -> None:
        """Configure it now.

        Several threads may do this at once: each configures the same before it writes.
        """
        import structlog

        if not structlog.is_configured():
            self.apply()
        logs.postponed = None

    def log(self, name: str, level: int, event: str, fields: dict[str, Any]) -> None:
        """See :class:`flowctl.logs.Postponed`."""
        is_shown = self._flow_events or not _is_flow_event(event)
        if "structlog" in sys.modules or (level >= self._level and is_shown):
            self.end()
            _structlogs(name).log(level, event, **fields)


class _PostponedLogger:
    """Loads structlog with the first event that is to be written."""

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        if logs.postponed is not None:
            logs.postponed.log(LOGGER, level, event, fields)
        else:
            _structlogs().log(level, event, **fields)


def _renderer(as_json: bool) -> Any:
    import structlog

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
        with suppress(OSError):  # no reader any more, or a full disk: no reason to end a run
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def _with_job(logger: Any, method: str, fields: Any) -> Any:
    return logs.with_job(fields)


def _without_flow_events(logger: Any, method: str, fields: Any) -> Any:
    if _is_flow_event(fields["event"]):
        import structlog

        raise structlog.DropEvent
    return fields


def _is_flow_event(event: str) -> bool:
    from flowctl.instrumentation.event_text import NAMES, RUN_EVENTS

    return event in RUN_EVENTS or event in NAMES.values()


def light_logger() -> EventLogger:
    """As :func:`get_logger`, for code in a loop or on a worker.

    It does not load structlog unless the program has, and reads the program's configuration once:
    structlog's own logger does so at each call, which costs 3 us even if nothing is written.
    """
    logger: Any = get_logger()
    return cast("EventLogger", logger.bind() if hasattr(logger, "bind") else logger)
