"""Ticks as messages of a loop to itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from flowctl.instrumentation.ticks import TickSchedule
from flowctl.runtime.ticking import TickingInbox
from flowctl.testing.clock import ManualClock


class Messages:
    """An Inbox in a list."""

    def __init__(self, *items: object) -> None:
        self.items = deque(items)

    def consume(
        self, handle: Callable[[object], None], until: Callable[[], bool] | None = None
    ) -> int:
        count = 0
        while self.items and not (until is not None and until()):
            handle(self.items.popleft())
            count += 1
        return count


@pytest.mark.req("S47", "S61")
def test_ticks_come_before_the_messages_and_need_no_place_among_them():
    clock = ManualClock()
    schedule = TickSchedule([10.0, 60.0], now_s=clock())
    messages = Messages("message")
    inbox = TickingInbox(messages, schedule, clock=clock, tick=lambda interval_s: interval_s)
    got: list[object] = []
    clock.advance(9.9)
    assert inbox.consume(got.append, lambda: True) == 0
    clock.advance(0.1)
    assert inbox.consume(got.append) == 2
    assert got == [10.0, "message"]
    clock.advance(50.0)
    assert inbox.consume(got.append) == 2
    assert got[2:] == [10.0, 60.0]
