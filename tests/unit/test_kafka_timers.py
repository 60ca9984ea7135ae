"""Timers that are polled."""

from __future__ import annotations

import pytest

from flowctl.errors import ConfigError
from flowctl_kafka.topics import Timer


@pytest.mark.req("S90")
def test_the_first_time_comes_after_delay_and_period() -> None:
    timer = Timer(2.0, now_s=10.0)
    assert not timer.expired_reset_on_true(12.499)
    assert timer.expired_reset_on_true(12.5)


@pytest.mark.req("S90")
def test_it_restarts_only_when_it_said_so() -> None:
    timer = Timer(2.0, now_s=0.0, delay_s=0.0)
    for now_s in (0.5, 1.0, 1.9):
        assert not timer.expired_reset_on_true(now_s)
    assert timer.expired_reset_on_true(2.0)
    assert not timer.expired_reset_on_true(3.9)
    assert timer.expired_reset_on_true(4.0)


@pytest.mark.req("S90")
def test_polling_late_is_one_expiry() -> None:
    timer = Timer(1.0, now_s=0.0, delay_s=0.0)
    assert timer.expired_reset_on_true(9.0)
    assert not timer.expired_reset_on_true(9.5)
    assert timer.due_s == 10.0


@pytest.mark.parametrize(("period_s", "delay_s"), [(0.0, 0.5), (1.0, -0.1)])
def test_a_period_or_delay_that_can_not_be_names_its_field(period_s: float, delay_s: float) -> None:
    with pytest.raises(ConfigError):
        Timer(period_s, now_s=0.0, delay_s=delay_s)
