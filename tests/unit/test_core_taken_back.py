"""What a bolt gives back, and what a bolt that says nothing may get."""

from __future__ import annotations

from flowctl.core.events import TupleExpired
from tests.core_driver import Driver

PATH_S = 0.1


def full(*bolts: str, window: int = 2, **values: object) -> Driver:
    """Bolts with full windows, and more to send."""
    driver = Driver(*bolts, window_policy="fixed", window_initial=window, **values)
    for bolt in bolts:
        driver.beat(bolt)
    driver.offer(20)
    driver.emit()
    return driver


def held(driver: Driver, bolt: str) -> list[int]:
    return list(driver.core.bolts[bolt].flight)


def test_to_give_back_unbegun_is_no_failure() -> None:
    """Only the bolt that gave it back has room: it gets it again."""
    driver = full("a", "b")
    newest = held(driver, "a")[-1]
    driver.give_back("a", newest)
    (again,) = driver.emit()
    assert (again.tuple_id, again.bolt) == (newest, "a")


def test_but_another_that_has_room_comes_first() -> None:
    driver = full("a", "b")
    driver.give_back("a", newest := held(driver, "a")[-1])
    driver.ack(next(e for e in driver.log_emitted if e.bolt == "b"))
    assert (newest, "b") in [(e.tuple_id, e.bolt) for e in driver.emit()]


def test_tuples_that_only_full_bolts_may_have_do_not_hold_up_others() -> None:
    """Five failed at a, and b is full; one failed at b, and a has room."""
    driver = full("a", "b", window=6, retry_backoff_first_s=0.001)
    mine, others = ([e for e in driver.log_emitted if e.bolt == bolt] for bolt in ("a", "b"))
    for emission in mine[:5]:
        driver.fail(emission)
    driver.widen("b", 5)
    driver.fail(others[-1])
    driver.wait(0.1)
    seen = {e.tuple_id: e.bolt for _ in range(3) for e in driver.emit()}
    assert seen[others[-1].tuple_id] == "a"


def one_is_mute() -> Driver:
    """b acked one tuple and said nothing since: what it had then has expired."""
    driver = Driver("a", "b", window_policy="just_full", window_initial=2)
    driver.beat("a")
    driver.offer(4)
    times = {"wait_s": 0.0, "service_s": 1.0, "idle_total_s": 0.0}
    emissions = driver.emit()
    driver.clock.advance(1.0)
    driver.ack(next(e for e in emissions if e.bolt == "b"), **times)
    driver.ack(next(e for e in emissions if e.bolt == "a"), **times)
    while not driver.events(TupleExpired):
        driver.clock.advance(0.2)
        driver.beat("a", busy=1)
        driver.wait(0)
    return driver


def test_a_bolt_that_says_nothing_is_not_asked_to_do_more() -> None:
    driver = one_is_mute()
    assert driver.events(TupleExpired)[0].bolt == "b"
    assert not driver.core.bolts["b"].has_room
    driver.offer(20)
    driver.emit()
    assert not held(driver, "b")


def later(driver: Driver, by_s: float) -> None:
    for _ in range(int(by_s / 0.2)):
        driver.clock.advance(0.2)
        driver.beat("a", busy=1)
        driver.wait(0)


def test_with_work_for_all_it_is_tried_again_in_a_while() -> None:
    driver = one_is_mute()
    driver.offer(20)
    driver.emit()
    later(driver, 30.0)
    assert "b" in {e.bolt for e in driver.emit()}


def test_at_the_end_of_the_work_it_is_not_but_if_nobody_else_is_left() -> None:
    driver = one_is_mute()
    driver.emit()
    later(driver, 30.0)
    assert not driver.core.bolts["b"].has_room
    driver.remove("a", lost=False)
    later_s = driver.core.next_deadline_s()
    assert later_s is not None
    driver.wait(later_s - driver.clock())
    assert driver.core.bolts["b"].has_room


# -- a slow bolt --------------------------------------------------------------------------------


def on_a_long_path(*, offered: int) -> Driver:
    """a, 50 ms away each way, 20 ms a tuple, holds what bridges the path and has just become slow;
    b holds one tuple."""
    driver = Driver("a", window_policy="just_full", window_initial=8, timeout_silence_s=0.75)
    driver.add("b")
    driver.beat("a")
    driver.beat("b")
    driver.offer(offered)
    for _ in range(6):
        emissions = driver.emit()
        driver.clock.advance(0.12)
        for emission in emissions:
            driver.ack(emission, wait_s=0.0, service_s=0.02, idle_total_s=0.0)
    driver.emit()
    driver.orders()
    return driver


def slow_for(driver: Driver, by_s: float) -> list[int]:
    """The bolts are at work on their first tuple for so long; return what a is asked for."""
    ends_s = driver.clock() + by_s
    while driver.clock() < ends_s:
        driver.clock.advance(0.05)
        for bolt in ("a", "b"):
            driver.beat(bolt, busy=1, queued=len(held(driver, bolt)) - 1)
        driver.wait(0)
    asked = [order.tuple_ids for order in driver.orders() if order.bolt == "a"]
    return asked[-1] if asked else []


def test_a_slow_bolt_keeps_what_bridges_its_path_while_there_is_work_for_all() -> None:
    driver = on_a_long_path(offered=1000)
    mine = held(driver, "a")
    assert len(mine) >= 5
    asked = slow_for(driver, 0.5)
    assert set(asked) <= set(mine[5:])
    assert driver.core.bolts["a"].state.value == "SLOW"


def test_but_not_for_longer_than_a_bolt_may_be_silent() -> None:
    driver = on_a_long_path(offered=1000)
    assert set(slow_for(driver, 1.5)) == set(held(driver, "a"))


def test_with_no_other_work_it_gives_all_back_at_once() -> None:
    driver = on_a_long_path(offered=40)
    assert not driver.core.buffer.records
    assert set(slow_for(driver, 0.5)) == set(held(driver, "a"))
