"""A logger over the standard library's, which loads nothing: for workers without structlog."""

from __future__ import annotations

import logging
from typing import Any

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
