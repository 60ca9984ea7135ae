"""What the first answers tell: whether to wait for the next ones, and how fast a bolt is."""

from __future__ import annotations

import pytest

from tests.unit.test_core_shares import ack, just_full, sizes


def test_the_first_to_answer_waits_for_the_next_ones_which_tell_what_a_call_costs() -> None:
    """Each call takes .4 s, so a small tuple for whoever was first would cost a round of calls."""
    driver = just_full(*"abcd")
    driver.offer(1_000)
    small, large, *others = driver.emit()
    driver.clock.advance(0.4)
    ack(driver, small, 0.4, 0.0)
    assert driver.emit() == []
    assert driver.core.next_deadline_s() == pytest.approx(driver.clock() + 0.1)
    driver.clock.advance(0.05)
    for emission in (large, others[0]):
        ack(driver, emission, 0.45, 0.0)
    assert driver.emit() == [], "the last one may answer, too"
    ack(driver, others[1], 0.45, 0.0)
    assert min(sizes(driver.emit())) > 100, "all have answered"


def test_who_answered_first_does_not_wait_long() -> None:
    driver = just_full(*"abcd")
    driver.offer(1_000)
    first, *_ = driver.emit()
    driver.clock.advance(0.4)
    ack(driver, first, 0.4, 0.0)
    assert driver.emit() == []
    driver.clock.advance(0.1)
    driver.core.on_deadline(now_s=driver.clock())
    due_s = driver.core.next_deadline_s()
    assert due_s is None or due_s > driver.clock(), (
        "a time that is over would be asked for for ever"
    )
    given = driver.emit()
    assert {emission.bolt for emission in given} == {first.bolt}


def test_nobody_waits_where_first_tuples_tell_nothing_together() -> None:
    for bolts, records in (("abcd", 20), ("ab", 1_000)):  # of one size; of two bolts
        driver = just_full(*bolts)
        driver.offer(records)
        first, *_ = driver.emit()
        driver.clock.advance(0.4)
        ack(driver, first, 0.4, 0.0)
        assert first.bolt in {emission.bolt for emission in driver.emit()}


@pytest.mark.parametrize(("call_s", "most"), [(0.4, 1_000 // 16), (400.0, 4)])
def test_at_a_single_bolt_the_second_size_differs_much(call_s: float, most: int) -> None:
    """.4 s may be what a record takes: then a sixteenth of what is left hardly matters.  A second
    tuple of hours would."""
    driver = just_full("a", window_initial=1)
    driver.offer(1_001)
    driver.end()
    (first,) = driver.emit()
    driver.clock.advance(call_s)
    ack(driver, first, call_s, 0.0)
    second, *_ = driver.emit()
    assert len(second.records) <= most
    if call_s == 0.4:
        assert len(second.records) > 2 * len(first.records)


def test_records_that_were_cheap_by_chance_make_no_bolt_fast() -> None:
    """Of eight bolts with a record each one took a thousandth of the others' time."""
    driver = just_full(*"abcdefgh")
    driver.offer(64)
    driver.end()
    lucky, *others = driver.emit()
    driver.clock.advance(1.0)
    for number, emission in enumerate(others):
        ack(driver, emission, 0.0, (0.2, 1.0, 5.0)[number % 3])
    ack(driver, lucky, 0.0, 0.001)
    given = sum(len(e.records) for e in driver.emit() if e.bolt == lucky.bolt)
    assert given <= 2 * 64 / 8
