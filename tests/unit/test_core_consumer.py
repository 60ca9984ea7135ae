"""One bolt as the spout sees it: send times, state, window, tuple size."""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState, StateChanged, WindowChanged
from flowctl.core.messages import Emission
from tests.core_driver import Driver


@pytest.mark.req("S3")
def test_the_rtt_is_the_time_from_sending_to_ack() -> None:
    driver = Driver("a")
    driver.offer(1)
    driver.wait(5.0)
    (emission,) = driver.emit()
    driver.clock.advance(0.25)
    driver.ack(emission)
    assert driver.core.bolts["a"].rtt.srtt_s == pytest.approx(0.25)


@pytest.mark.req("S4", "S5", "S116")
def test_the_state_is_that_of_the_last_ack() -> None:
    driver = Driver(
        "a", window_policy="aiad", window_growth="ack", window_threshold_s=0.5, window_initial=1
    )
    trace = []
    for rtt_s in (0.1, 0.6, 0.7, 0.5):
        driver.offer(1)
        (emission,) = driver.emit()
        driver.clock.advance(rtt_s)
        driver.ack(emission)
        trace.append(driver.core.bolts["a"].state)
    assert trace == [BoltState.NORMAL, BoltState.SLOW, BoltState.SLOW, BoltState.NORMAL]


def busy_driver() -> tuple[Driver, Emission]:
    """Two tuples were sent at 0.0 and one at 0.6; the first two expired at 1.0."""
    driver = Driver("a", window_threshold_s=0.5, window_initial=5, timeout_rto_first_s=1.0)
    driver.offer(2)
    driver.emit()
    driver.wait(0.6)
    driver.offer(1)
    (newest,) = driver.emit()
    driver.wait(0.4)
    return driver, newest


@pytest.mark.req("S6", "S116")
def test_an_expiry_is_busy_at_once_and_one_less() -> None:
    driver, _ = busy_driver()
    assert driver.core.bolts["a"].state is BoltState.BUSY
    assert driver.window("a") == 4  # the two were sent together: one step
    (changed,) = driver.events(WindowChanged)
    assert (changed.before, changed.after, changed.reason) == (5, 4, "tuple expired")


@pytest.mark.req("S116")
@pytest.mark.parametrize(("rtt_s", "after"), [(0.45, BoltState.NORMAL), (0.55, BoltState.BUSY)])
def test_the_next_ack_in_range_ends_busy(rtt_s: float, after: BoltState) -> None:
    """Also one that was sent before the round began, but not one over the threshold."""
    driver, newest = busy_driver()
    driver.clock.advance_to(0.6 + rtt_s)
    driver.ack(newest)
    assert driver.core.bolts["a"].state is after
    assert driver.window("a") == 4


@pytest.mark.req("S116", "S121")
def test_each_change_is_an_event_with_its_reason() -> None:
    driver = Driver("a", window_growth="ack", window_threshold_s=0.5, window_initial=2)
    driver.offer(3)
    first, second = driver.emit()
    driver.clock.advance(0.1)
    driver.ack(first)
    driver.clock.advance(0.5)
    driver.ack(second)
    changes = [(e.before, e.after, e.reason) for e in driver.events(WindowChanged)]
    assert changes == [(2, 3, "ack in range"), (3, 2, "ack over threshold")]
    (slow,) = driver.events(StateChanged)
    assert (slow.before, slow.after) == (BoltState.NORMAL, BoltState.SLOW)
    assert slow.ack_rtt_s == pytest.approx(0.6)
    assert slow.threshold_s == 0.5


@pytest.mark.req("S1")
def test_at_the_end_tuples_are_a_share_of_what_is_left() -> None:
    driver = Driver("a", "b", tuple_records_max=100, window_initial=20)
    driver.offer(100)
    driver.end()
    assert [len(e.records) for e in driver.emit(5)] == [25, 25, 12, 12, 6]


@pytest.mark.req("S9")
def test_any_ack_makes_room_whatever_its_place() -> None:
    driver = Driver("a", window_policy="fixed", window_initial=3)
    driver.offer(10)
    first, second, third = driver.emit()
    driver.ack(third)
    (fourth,) = driver.emit()  # the window's left edge did not move
    driver.ack(second)
    driver.ack(fourth)
    assert len(driver.emit()) == 2
    assert driver.position() is None
    driver.ack(first)
    assert driver.position() == 4


@pytest.mark.req("S10")
def test_never_more_than_the_window_is_held() -> None:
    driver = Driver("a", window_policy="fixed", window_initial=3)
    driver.offer(50)
    for _ in range(10):
        for emission in driver.emit():
            assert driver.core.bolts["a"].held <= 3
            driver.ack(emission)
            break


def test_what_a_shrunk_window_holds_too_much_is_worked_off_first() -> None:
    driver = Driver("a", window_growth="ack", window_threshold_s=0.1, window_initial=4)
    driver.offer(50)
    emissions = driver.emit()
    driver.clock.advance(0.5)
    driver.ack(emissions[0])
    driver.ack(emissions[1])
    assert (driver.window("a"), driver.core.bolts["a"].held) == (2, 2)
    assert driver.emit() == []
    driver.ack(emissions[2])
    assert (driver.window("a"), driver.core.bolts["a"].held) == (1, 1)
    assert driver.emit() == []
    driver.ack(emissions[3])
    assert len(driver.emit()) == 1


def test_a_large_window_tells_of_moves_not_of_single_steps() -> None:
    """A sixteenth of 100 is 6.25: the seventh step is the first that is told."""
    driver = Driver("a", window_initial=100, window_growth="ack")
    driver.offer(120)
    emissions = driver.emit()
    for emission in emissions[:6]:
        driver.ack(emission)
    assert driver.window("a") == 106
    assert driver.events(WindowChanged) == []
    driver.ack(emissions[6])
    assert [(e.before, e.after) for e in driver.events(WindowChanged)] == [(100, 107)]
