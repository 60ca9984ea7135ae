"""All that was read is at bolts, and the source has not told its end: idle bolts help already."""

from __future__ import annotations

from typing import Any

from flowctl.core.messages import Emission
from tests.core_driver import Driver

SERVICE_S = 0.1


def all_out(*bolts: str, records: int = 2, **values: Any) -> tuple[Driver, list[Emission]]:
    """``a`` has done its part, and what the others hold, which is returned, is late."""
    driver = Driver(*bolts, window_policy="just_full", hedge_enabled=True, **values)
    driver.offer(records)
    emissions = driver.emit()
    driver.clock.advance(SERVICE_S)
    for emission in emissions:
        if emission.bolt == "a":
            done(driver, emission)
    if len(emissions) == records:
        assert driver.emit() == []  # the sender asks after each ack; from now on `a` is idle
    driver.clock.advance(10 * SERVICE_S)
    return driver, [emission for emission in emissions if emission.bolt != "a"]


def done(driver: Driver, emission: Emission) -> None:
    driver.ack(emission, wait_s=0.0, service_s=SERVICE_S, idle_total_s=0.0)


def test_what_is_late_is_copied_before_the_end_is_told() -> None:
    driver, (late,) = all_out("a", "b")
    (copy,) = driver.emit()
    assert (copy.tuple_id, copy.bolt) == (late.tuple_id, "a")
    assert driver.core.counters.tuples_hedged == 1


def test_nothing_is_copied_where_hedging_is_off() -> None:
    driver, _ = all_out("a", "b")
    off, _ = all_out("a", "b", hedge_share_max=0.0)
    assert driver.emit()
    assert off.emit() == []


def test_a_source_that_gives_records_as_they_come_has_no_end_in_sight() -> None:
    driver, _ = all_out("a", "b")
    driver.offer(1)  # though there was room for it before
    (new,) = driver.emit()
    done(driver, new)
    assert driver.emit() == []
    driver.clock.advance(10 * SERVICE_S)
    assert driver.emit() == []
    assert driver.core.counters.tuples_hedged == 0


def test_what_comes_after_all_was_out_ends_the_search_until_the_end_is_told() -> None:
    """Else the core would keep account of each tuple of a stream for ever."""
    driver, _ = all_out("a", "b")
    assert driver.core.book.is_all_out
    driver.offer(1)
    driver.emit()
    assert not driver.core.book.is_all_out
    driver.end()
    driver.emit()
    assert driver.core.book.is_all_out


def test_a_bolt_that_hangs_loses_what_each_of_its_slots_held() -> None:
    driver, late = all_out("a", "b", records=6, slots=3)
    assert len(late) == 3
    copied: list[int] = []
    for _ in late:
        for copy in driver.emit():
            copied.append(copy.tuple_id)
            done(driver, copy)
        driver.clock.advance(10 * SERVICE_S)
    assert sorted(copied) == sorted(emission.tuple_id for emission in late)


def test_bolts_that_never_had_anything_do_not_hide_the_one_that_is_known() -> None:
    driver, (late,) = all_out("a", "b", *(f"idle{number}" for number in range(70)))
    (copy,) = driver.emit()
    assert (copy.tuple_id, copy.bolt) == (late.tuple_id, "a")


def test_once_all_is_done_nothing_is_due_though_the_end_is_not_told() -> None:
    """Else the sender would ask again and again until it is."""
    driver = Driver("a", "b", window_policy="just_full", hedge_enabled=True)
    driver.offer(2)
    first, second = driver.emit()
    driver.clock.advance(SERVICE_S)
    done(driver, first)
    assert driver.emit() == []
    driver.clock.advance(SERVICE_S / 2)
    assert driver.emit() == []  # too soon for a copy
    asked_again_s = driver.core.next_deadline_s()
    assert asked_again_s is not None
    done(driver, second)
    driver.emit()
    driver.clock.advance(10 * SERVICE_S)
    due_s = driver.core.next_deadline_s()
    assert due_s is None or asked_again_s < driver.clock() < due_s
