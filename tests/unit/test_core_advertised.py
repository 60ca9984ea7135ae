"""The receiver's word as a bound on the window: min(window, what the bolt advertises) (S28)."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from flowctl.core.messages import Emission
from flowctl.core.settings import CoreSettings, PolicyName
from tests.core_driver import Driver

pytestmark = pytest.mark.req("S28")
SERVICE_S = 0.01


def most_held(driver: Driver, tuples: int) -> int:
    """Work through ``tuples`` with each ack in range; the most that bolt "a" ever held."""
    driver.offer(tuples)
    most, flying = 0, list[Emission]()
    for _ in range(tuples):
        flying += driver.emit()
        most = max(most, driver.core.bolts["a"].held)
        if not flying:
            break
        driver.clock.advance(SERVICE_S)
        driver.ack(flying.pop(0), wait_s=0.0, service_s=SERVICE_S, idle_total_s=0.0)
    return most


def driver_of(slots: int, **values: Any) -> Driver:
    return Driver("a", slots=slots, window_max=64, **values)


def test_it_is_off_unless_asked_for() -> None:
    assert not CoreSettings().window.advertised
    driver = driver_of(2, window_growth="ack", window_threshold_s=1.0)
    assert most_held(driver, 200) > 2


@pytest.mark.parametrize("policy", get_args(PolicyName))
@pytest.mark.parametrize("slots", [1, 3])
def test_a_bolt_never_gets_more_than_it_advertised(policy: str, slots: int) -> None:
    driver = driver_of(slots, window_policy=policy, window_advertised=True, window_initial=8)
    assert most_held(driver, 300) == slots
    assert driver.window("a") <= slots


def test_a_smaller_window_still_counts() -> None:
    driver = driver_of(9, window_policy="fixed", window_advertised=True, window_initial=4)
    assert most_held(driver, 50) == 4


def test_each_bolt_by_its_own_word_and_anew_when_it_comes_back() -> None:
    driver = Driver(window_policy="fixed", window_initial=8, window_advertised=True)
    driver.add("a", slots=1)
    driver.add("b", slots=3)
    driver.offer(50)
    assert sorted(emission.bolt for emission in driver.emit()) == ["a", "b", "b", "b"]
    driver.remove("b", lost=False)
    driver.add("b", slots=5, epoch=2)
    assert [emission.bolt for emission in driver.emit()] == ["b"] * 5


def test_a_freed_slot_is_filled_at_once() -> None:
    driver = driver_of(2, window_policy="fixed", window_initial=8, window_advertised=True)
    driver.offer(50)
    first, _ = driver.emit()
    assert driver.emit() == []
    driver.ack(first)
    assert len(driver.emit()) == 1
