"""The logger of loops and workers, where a call must cost little and structlog may not be there."""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

from flowctl.instrumentation.events import EventLogger
from flowctl.instrumentation.stdlib import LOGGER, StdlibLogger


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
