"""A logger over the standard library's, which loads nothing: for workers without structlog."""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

from flowctl.instrumentation.events import EventLogger

LOGGER = "flowctl"
logging.getLogger(LOGGER).addHandler(logging.NullHandler())


class StdlibLogger:
    """structlog's calling style over a standard logger, without structlog's global set-up."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(level):
            text = " ".join(f"{key}={value!r}" for key, value in fields.items())
            self._logger.log(level, "%s %s", event, text)


def light_logger() -> EventLogger:
    """As :func:`flowctl.instrumentation.logging.get_logger`, for who logs in a loop or on a worker.

    It does not load structlog where nobody has, and takes the program's configuration once:
    structlog's own does so at each call, which costs 3 us though nothing is written.
    """
    if "structlog" in sys.modules:
        from flowctl.instrumentation.logging import get_logger

        logger: Any = get_logger()
        return cast("EventLogger", logger if isinstance(logger, StdlibLogger) else logger.bind())
    return StdlibLogger(logging.getLogger(LOGGER))
