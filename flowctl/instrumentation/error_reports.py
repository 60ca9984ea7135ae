"""Errors that a task reports: those that it survives, and the one that it dies of."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from flowctl.instrumentation.events import EventLogger
from flowctl.instrumentation.logging import get_logger

# A task that reports each tuple would bury the log: five in ten seconds show what is wrong.
_TOLD_MAX: Final = 5
_PER_S: Final = 10.0
_KEPT: Final = 20  # enough for a report; the log has the rest


class ErrorReporter:
    """The errors of one task, as received by the driver.  For one thread.

    Every error is counted and the latest are kept in ``latest``; the log gets five in ten
    seconds, and the next one says how many were left out.
    """

    def __init__(
        self,
        task: str,
        *,
        clock: Callable[[], float],
        logger: EventLogger | None = None,
    ) -> None:
        self._task = task
        self._clock = clock
        self._logger = logger or get_logger()
        self._told_at_s: deque[float] = deque(maxlen=_TOLD_MAX)
        self._untold = 0
        self.count: int = 0
        self.latest: deque[str] = deque(maxlen=_KEPT)

    def report(self, kind: str, problem: str) -> None:
        """Report an error of the task, without secrets."""
        now_s = self._clock()
        self.count += 1
        self.latest.append(f"{kind}: {problem}")
        if len(self._told_at_s) == _TOLD_MAX and now_s - self._told_at_s[0] < _PER_S:
            self._untold += 1
            return
        self._told_at_s.append(now_s)
        self._logger.log(
            logging.ERROR,
            "task_error",
            task=self._task,
            error=self.latest[-1],
            left_out=self._untold,
        )
        self._untold = 0

    def left_out(self, errors: int) -> None:
        """The task had ``errors`` more, too many to send."""
        self.count += errors
        self._untold += errors
