"""A logger on top of the standard library's, without imports: for workers without structlog."""

from __future__ import annotations

import logging
from typing import Any

LOGGER = "flowctl"
# Attributes of every record: ``extra`` must not replace them, so such a field gets a trailing "_".
_TAKEN = {*vars(logging.makeLogRecord({})), "message", "asctime", "event"}
logging.getLogger(LOGGER).addHandler(logging.NullHandler())


class StdlibLogger:
    """structlog's calling style over a standard logger, without structlog's global set-up.

    The event's name and fields are in the message, and are attributes of the record (``extra``), so
    a handler that writes JSON gets them separately.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def log(self, level: int, event: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(level):
            text = " ".join(f"{key}={value!r}" for key, value in fields.items())
            extra = {f"{key}_" if key in _TAKEN else key: value for key, value in fields.items()}
            self._logger.log(level, "%s %s", event, text, extra={"event": event, **extra})
