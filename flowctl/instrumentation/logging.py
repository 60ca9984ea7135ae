"""structlog for the command line, and a logger for the library that never configures logging.

The library never configures logging.  A program that has configured structlog gets flowctl's
events through its own processors; any other gets them through the standard library's logger
``flowctl``, which is silent until a handler is added.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO, cast

from flowctl import logs
from flowctl.logs import LOGGER, StdlibLogger, is_handled

if TYPE_CHECKING:
    from flowctl.instrumentation.events import EventLogger


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

    return cast("EventLogger", structlog.get_logger(name))


def configure(level: str = "WARNING", *, flow_events: bool = True, as_json: bool = False) -> None:
    """Configure structlog for a program of ours: ``timestamp level event key=value`` on stderr.

    ``as_json``: one JSON object a line instead, in ASCII.  ``flow_events=False`` leaves out the
    events of the core and the run, for when a view shows them.

    structlog takes as long to load as the rest of a command's start, and most runs log nothing.
    So where it is not loaded yet, it is configured when it is: by the first event that is
    written, or by the user's code.
    """
    setup = _Setup(level, flow_events=flow_events, as_json=as_json)
    if "structlog" in sys.modules:
        setup.apply()
    else:
        setup.postpone()


class _Setup:
    """What :func:`configure` was given.  While postponed, it stands among the import system's
    finders, so that it sees structlog come."""

    def __init__(self, level: str, *, flow_events: bool, as_json: bool) -> None:
        self._level: int = logging.getLevelNamesMapping()[level.upper()]
        self._flow_events = flow_events
        self._as_json = as_json

    def apply(self) -> None:
        import structlog

        processors: list[Any] = [structlog.contextvars.merge_contextvars]
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

    def postpone(self) -> None:
        """Wait for structlog, in place of an earlier one that waits."""
        others = [each for each in sys.meta_path if not isinstance(each, _Setup)]
        sys.meta_path[:] = [self, *others]
        logs.postponed = self

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """structlog as the other finders find it, but configured as soon as it is loaded."""
        if fullname != "structlog":
            return None
        others = (each for each in sys.meta_path if each is not self)
        found = (each.find_spec(fullname, path, target) for each in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(  # type: ignore[method-assign]
                self._load, spec.loader.exec_module
            )
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        # The loader of a zip file loads others too.
        if module.__name__ == "structlog" and logs.postponed is self:
            self.apply()
            logs.postponed = None
            sys.meta_path.remove(self)

    def log(self, name: str, level: int, event: str, fields: dict[str, Any]) -> None:
        """See :class:`flowctl.logs.Postponed`."""
        if "structlog" in sys.modules or (
            level >= self._level and (self._flow_events or not _is_flow_event(event))
        ):
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
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _without_flow_events(logger: Any, method: str, fields: Any) -> Any:
    if _is_flow_event(fields["event"]):
        import structlog

        raise structlog.DropEvent
    return fields


def _is_flow_event(event: str) -> bool:
    from flowctl.instrumentation.events import NAMES, RUN_EVENTS

    return event in RUN_EVENTS or event in NAMES.values()
