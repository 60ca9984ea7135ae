"""A loop's ticks, as messages to itself: no thread, no timer, no place in a full queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from flowctl.instrumentation.ticks import TickSchedule
from flowctl.runtime.queues import Inbox

M = TypeVar("M")


class TickingInbox(Generic[M]):
    """``inbox``, and before its messages the ticks that are due (S47, S61).

    ``tick`` makes the message of an interval's tick.  How late a tick may be is how long the loop
    waits or works: for ticks of seconds it does not matter.
    """

    def __init__(
        self,
        inbox: Inbox[M],
        schedule: TickSchedule,
        *,
        clock: Callable[[], float],
        tick: Callable[[float], M],
    ) -> None:
        self._inbox = inbox
        self._schedule = schedule
        self._clock = clock
        self._tick = tick

    def consume(self, handle: Callable[[M], None], until: Callable[[], bool] | None = None) -> int:
        """As :class:`flowctl.runtime.queues.Inbox`; ticks count."""
        due = self._schedule.due(self._clock())
        for interval_s in due:
            handle(self._tick(interval_s))
        return len(due) + self._inbox.consume(handle, until)
