"""Where no bolt sends heartbeats, a time-out does not tell a long record from a lost one (S6)."""

from __future__ import annotations

from tests.core_driver import Driver


def _driver(records: int, **values: object) -> Driver:
    driver = Driver("a", "b", window_policy="just_full", window_initial=1, **values)
    driver.offer(records)
    return driver


def test_while_there_is_other_work_it_waits_for_the_bolt_that_may_be_at_work_on_it() -> None:
    driver = _driver(20)
    first = next(e for e in driver.emit() if e.bolt == "a")
    driver.wait(3.1)
    assert driver.core.counters.tuples_expired > 0
    assert first.tuple_id not in [e.tuple_id for e in driver.emit()]
    driver.ack(first)
    driver.wait(600.0)
    assert first.tuple_id not in [e.tuple_id for e in driver.emit()]


def test_a_bolt_with_nothing_else_to_do_gets_it_at_once_and_not_the_one_that_had_it() -> None:
    driver = _driver(2)
    driver.end()
    sent = {e.bolt: e for e in driver.emit()}
    driver.ack(sent["b"])
    driver.wait(3.1)
    again = driver.emit()
    assert [(e.tuple_id, e.bolt) for e in again] == [(sent["a"].tuple_id, "b")]
    driver.wait(8.0)  # a is asked again with nothing
    assert not driver.emit()


def test_it_goes_again_once_it_was_waited_for_as_long_as_for_a_bolt_that_is_busy() -> None:
    driver = _driver(2_000)
    lost = next(e for e in driver.emit() if e.bolt == "a")
    seen: list[int] = []
    for _ in range(1_200):  # b goes on, so that there is always other work
        driver.clock.advance(0.5)
        driver.wait(0.0)
        for emission in driver.emit():
            seen.append(emission.tuple_id)
            if emission.bolt == "b":
                driver.ack(emission)
        if lost.tuple_id in seen:
            break
    assert lost.tuple_id in seen


def test_where_bolts_send_heartbeats_it_goes_at_once() -> None:
    driver = _driver(20)
    sent = {e.bolt: e for e in driver.emit()}
    driver.beat("b")
    driver.wait(3.1)
    assert driver.core.counters.tuples_expired > 0
    driver.ack(sent["b"])
    assert driver.emit()[0].tuple_id == sent["a"].tuple_id


def test_what_a_bolt_that_went_may_have_been_at_work_on_is_sent_again_first() -> None:
    driver = _driver(20)
    first = next(e for e in driver.emit() if e.bolt == "a")
    driver.wait(3.1)
    driver.emit()
    driver.remove("a", lost=False)
    driver.add("c")
    assert driver.emit()[0].tuple_id == first.tuple_id
