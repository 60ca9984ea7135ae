from __future__ import annotations

import pytest

from flowctl.bolts import slots
from flowctl.bolts.slots import Idleness


class Clock:
    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slots, "time", clock)
    return clock


def test_time_between_waits_is_not_idle(clock):
    idle = Idleness(1)
    with idle.one():
        clock.now_s += 2
    clock.now_s += 100
    assert idle.total_s() == 2
    with idle.one():
        clock.now_s += 3
        assert idle.idle_slots == 1
        assert idle.total_s() == 5  # the wait under way counts
    assert (idle.total_s(), idle.idle_slots) == (5, 0)


def test_the_total_is_the_mean_over_the_slots(clock):
    idle = Idleness(2)
    with idle.one():
        clock.now_s += 2
        with idle.one():
            clock.now_s += 3
            assert idle.total_s() == 4
        clock.now_s += 1
    assert idle.total_s() == 4.5
