"""What all views share: the run's clock, and that every event is logged."""

from __future__ import annotations

import time
from collections.abc import Callable

from flowctl.core.events import FlowEvent
from flowctl.instrumentation import numbers
from flowctl.instrumentation.events import EventLogger, log_event
from flowctl.instrumentation.logging import get_logger
from flowctl.instrumentation.snapshot import Report, Snapshot


class BaseView:
    """Shows nothing; logs each event.  Also the view of mode ``off``.

    One thread calls it.  Times on screen are counted from :meth:`start` by ``clock`` [s]: the
    core's own ``at_s`` has no origin that means anything to a person.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        logger: EventLogger | None = None,
    ) -> None:
        self._clock = clock
        self._logger = logger or get_logger()
        self._started_s = clock()

    def start(self, job: str, headline: str) -> None:
        self._started_s = self._clock()

    def update(self, snapshot: Snapshot) -> None:
        """Show how the run stands."""

    def event(self, event: FlowEvent) -> None:
        log_event(self._logger, event)
        self.show_event(event)

    def show_event(self, event: FlowEvent) -> None:
        """Show ``event`` if it is news to a person."""

    def message(self, text: str) -> None:
        """Show a line."""

    def stop(self, report: Report) -> None:
        """Show how the run ended and give the terminal back."""

    def now(self) -> str:
        """Return the time since the start as ``0:14.2``."""
        return numbers.clock(self._clock() - self._started_s, tenths=True)
