"""Errors that a task reports: its own, without dying of them, and the one that it dies of."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from flowctl.errors import without_secrets
from flowctl.instrumentation.events import EventLogger
from flowctl.instrumentation.logging import get_logger

# A task that reports each tuple would bury the log: five in ten seconds show what is wrong.
_TOLD_MAX: Final = 5
_PER_S: Final = 10.0
_KEPT: Final = 20  # enough for a report; the log has the rest


class ErrorReport(msgspec.Struct, frozen=True, gc=False):
    """One error.  Secrets in URLs are left out; ``at_s`` is monotonic."""

    component: str
    task_id: int
    kind: str
    problem: str
    at_s: float


class ErrorReporter:
    """``report_error`` for one task (S68).  For the task's thread.

    Every error is counted and the latest are kept in ``latest``; the log gets five in ten
    seconds, and the next one says how many were left out.
    """

    def __init__(
        self,
        component: str,
        task_id: int,
        *,
        clock: Callable[[], float],
        logger: EventLogger | None = None,
    ) -> None:
        self._component = component
        self._task_id = task_id
        self._clock = clock
        self._logger = logger or get_logger()
        self._told_at_s: deque[float] = deque(maxlen=_TOLD_MAX)
        self._untold = 0
        self.count = 0
        self.latest: deque[ErrorReport] = deque(maxlen=_KEPT)

    def report_error(self, error: BaseException) -> None:
        """Tell of ``error``; the task goes on."""
        now_s = self._clock()
        kind, problem = type(error).__name__, without_secrets(str(error))
        self.count += 1
        self.latest.append(ErrorReport(self._component, self._task_id, kind, problem, now_s))
        if len(self._told_at_s) == _TOLD_MAX and now_s - self._told_at_s[0] < _PER_S:
            self._untold += 1
            return
        self._told_at_s.append(now_s)
        self._logger.log(
            logging.ERROR,
            "task_error",
            component=self._component,
            task=self._task_id,
            error=f"{kind}: {problem}",
            left_out=self._untold,
        )
        self._untold = 0
