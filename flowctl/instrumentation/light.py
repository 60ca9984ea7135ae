"""The logger of loops and workers, where a call must be cheap and structlog may be missing."""

from __future__ import annotations

from typing import Any, cast

from flowctl.instrumentation.events import EventLogger
from flowctl.instrumentation.logging import get_logger


def light_logger() -> EventLogger:
    """As :func:`flowctl.instrumentation.logging.get_logger`, for code in a loop or on a worker.

    It does not load structlog unless the program has, and reads the program's configuration once:
    structlog's own logger does so at each call, which costs 3 us even if nothing is written.
    """
    logger: Any = get_logger()
    return cast("EventLogger", logger.bind() if hasattr(logger, "bind") else logger)
