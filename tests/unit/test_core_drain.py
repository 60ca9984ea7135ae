"""The end of the input: idle bolts take what slow ones have not begun."""

from __future__ import annotations

from flowctl.core.records import AckOutcome
from tests.core_driver import Driver


def fast_and_slow(**values: object) -> Driver:
    """The last tuples are out: a has one of them, b, the slow one, has four."""
    driver = Driver("a", window_policy="fixed", window_initial=4, **values)
    driver.add("b")
    driver.offer(8)
    emissions = driver.emit()
    driver.end()
    assert driver.emit() == []
    for emission in [e for e in emissions if e.bolt == "a"][:3]:
        driver.ack(emission)
    assert driver.orders() == []  # a is at work
    driver.ack([e for e in emissions if e.bolt == "a"][3])
    return driver


def asked(driver: Driver) -> list[tuple[str, list[int]]]:
    driver.emit()  # the sender asks what to send, hears nothing, and then drains the orders
    return [(order.bolt, order.tuple_ids) for order in driver.orders()]


def test_an_idle_bolt_asks_the_slow_one_for_its_newest_tuple_and_gets_it() -> None:
    driver = fast_and_slow()
    newest = list(driver.core.bolts["b"].flight)[-1]
    assert asked(driver) == [("b", [newest])]
    driver.give_back("b", newest)
    (emission,) = driver.emit()
    assert (emission.tuple_id, emission.bolt) == (newest, "a")
    assert driver.core.counters.tuples_failed == 0


def test_what_the_idle_bolt_has_to_avoid_stays_where_it_is() -> None:
    """It would only come back to the slow one, 50 times a second until that has room."""
    driver = fast_and_slow()
    *_, older, newest = driver.core.bolts["b"].flight.values()
    newest.avoid("a")  # it failed there
    assert asked(driver) == [("b", [older.tuple_id])]
    driver.give_back("b", older.tuple_id)
    (emission,) = driver.emit()
    for flow_tuple in driver.core.bolts["b"].flight.values():
        flow_tuple.avoid("a")
    driver.ack(emission)
    assert asked(driver) == []


def test_until_the_slow_one_is_left_with_what_it_has_begun() -> None:
    driver = fast_and_slow()
    moved = 0
    for _ in range(20):
        for bolt, tuple_ids in asked(driver):
            assert bolt == "b"
            driver.give_back("b", *tuple_ids)
        for emission in driver.emit():
            moved += 1
            assert driver.ack(emission) is AckOutcome.ACKED
    assert moved == 3
    assert len(driver.core.bolts["b"].flight) == 1
    assert asked(driver) == []


def test_before_the_end_nobody_is_asked() -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=2)
    driver.offer(4)
    for emission in driver.emit():
        if emission.bolt == "a":
            driver.ack(emission)
    assert asked(driver) == []


def test_a_bolt_that_has_begun_it_all_is_left_alone() -> None:
    driver = fast_and_slow()
    assert len(asked(driver)) == 1
    for _ in range(5):
        driver.give_back("b")  # nothing
        assert asked(driver) == []


def test_one_question_at_a_time_for_one_idle_bolt() -> None:
    driver = fast_and_slow()
    assert len(asked(driver)) == 1
    assert asked(driver) == []


def test_a_victim_that_died_and_came_back_is_asked_again() -> None:
    driver = fast_and_slow()
    assert len(asked(driver)) == 1
    driver.clock.advance(0.1)
    driver.remove("b", lost=False)
    driver.add("b", epoch=2)
    on_a = driver.emit()
    for emission in on_a:
        if emission.bolt == "a":
            driver.ack(emission)
    assert len(driver.core.bolts["b"].flight) == 2
    assert asked(driver) == [("b", [list(driver.core.bolts["b"].flight)[-1]])]


def test_a_bolt_that_joins_at_the_end_helps_too() -> None:
    driver = Driver("b", window_policy="fixed", window_initial=4)
    driver.offer(4)
    driver.emit()
    driver.end()
    assert asked(driver) == []
    driver.add("late")
    ((bolt, tuple_ids),) = asked(driver)
    assert bolt == "b"
    driver.give_back("b", *tuple_ids)
    assert [e.bolt for e in driver.emit()] == ["late"]


def test_of_several_the_one_with_most_work_is_asked() -> None:
    driver = Driver("a", "b", "c", window_policy="fixed", window_initial=3)
    driver.offer(12)
    first = driver.emit(3)
    for emission, service_s in zip(first, (0.01, 0.1, 1.0), strict=True):
        driver.clock.advance(0.01)
        driver.ack(emission, wait_s=0.0, service_s=service_s)
    rest = driver.emit()
    driver.end()
    for emission in rest:
        if emission.bolt == "a":
            driver.ack(emission, wait_s=0.0, service_s=0.01)
    ((bolt, _),) = asked(driver)
    assert bolt == "c"


def test_most_work_is_judged_by_what_is_left_now() -> None:
    driver = Driver("a", "b", "c", window_policy="fixed", window_initial=5)
    driver.offer(15)
    emissions = driver.emit()
    at = {name: [e for e in emissions if e.bolt == name] for name in "abc"}
    driver.clock.advance(0.5)
    driver.ack(at["b"][0], wait_s=0.0, service_s=0.4)
    driver.ack(at["c"][0], wait_s=0.0, service_s=0.29)
    driver.end()
    assert driver.emit() == []
    for emission in at["a"]:
        driver.ack(emission, wait_s=0.0, service_s=0.01)
    ((first, _),) = asked(driver)
    assert first == "b"  # 4 x 0.4 s against 4 x 0.29 s
    newest = at["b"][4].tuple_id
    driver.give_back("b", newest)  # b is left with 3 x 0.4 s, and soon with two
    (emission,) = driver.emit()
    driver.ack(emission, wait_s=0.0, service_s=0.01)
    driver.ack(at["b"][1], wait_s=0.0, service_s=0.4)
    ((second, _),) = asked(driver)
    assert second == "c"


def test_a_bolt_that_would_be_last_gets_nothing_more() -> None:
    """The others would have to wait for it, though it is idle and they are full."""
    driver = Driver("fast", "slow", window_policy="just_full", window_initial=1)
    driver.offer(2)
    for emission in driver.emit():
        service_s = 0.01 if emission.bolt == "fast" else 1.0
        driver.clock.advance(service_s)
        driver.ack(emission, wait_s=0.0, service_s=service_s, idle_total_s=0.0)
    driver.offer(10)
    driver.end()
    emissions = driver.emit()
    assert emissions
    assert {emission.bolt for emission in emissions} == {"fast"}
    assert driver.core.bolts["slow"].has_room
    assert not driver.core.bolts["fast"].has_room


def test_an_idle_bolt_takes_nothing_that_would_be_done_sooner_where_it_is() -> None:
    driver = Driver("fast", "slow", window_policy="fixed", window_initial=3)
    driver.offer(6)
    emissions = driver.emit()
    driver.end()
    times_s = {"fast": 0.1, "slow": 1.0}
    for emission in emissions:
        if emission.bolt == "slow" or emission is emissions[0]:
            service_s = times_s[emission.bolt]
            driver.ack(emission, wait_s=0.0, service_s=service_s, idle_total_s=0.0)
    assert len(driver.core.bolts["fast"].flight) == 2
    assert asked(driver) == []
