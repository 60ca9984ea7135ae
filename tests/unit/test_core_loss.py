"""What proves a tuple lost, what was only thought so, and copies at the end."""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState, TupleHedged, TupleLost
from flowctl.core.messages import Emission
from flowctl.core.records import AckOutcome
from tests.core_driver import Driver


def in_order(*bolts: str, slots: int = 1, **values: object) -> Driver:
    driver = Driver(window_policy="fixed", window_initial=3, **values)
    for bolt in bolts:
        driver.add(bolt, slots=slots, in_order=True)
        driver.beat(bolt)
    return driver


def sent_to(bolt: str, emissions: list[Emission]) -> list[Emission]:
    return [emission for emission in emissions if emission.bolt == bolt]


# -- loss ------------------------------------------------------------------------------------


@pytest.mark.req("S16")
def test_the_ack_of_a_later_tuple_proves_the_earlier_lost_and_it_goes_first() -> None:
    driver = in_order("a", "b")
    driver.offer(6)
    first, second, third = sent_to("a", driver.emit())
    driver.ack(second)
    (lost,) = driver.events(TupleLost)
    assert (lost.tuple_id, lost.bolt) == (first.tuple_id, "a")
    assert driver.emit() == []  # a may have it only if nobody else can, and b is full
    driver.ack(sent_to("b", driver.log_emitted)[0])
    replay = driver.emit()[0]
    assert (replay.tuple_id, replay.bolt, replay.attempt) == (first.tuple_id, "b", 2)
    assert driver.ack(third) is AckOutcome.ACKED
    assert driver.core.counters.tuples_lost == 1


@pytest.mark.req("S9", "S16")
@pytest.mark.parametrize(("slots", "ordered"), [(2, True), (1, False)])
def test_but_not_with_several_slots_or_a_channel_without_order(slots: int, ordered: bool) -> None:
    driver = Driver(window_policy="fixed", window_initial=3)
    driver.add("a", slots=slots, in_order=ordered)
    driver.offer(3)
    _, second, third = driver.emit()
    driver.ack(third)
    driver.ack(second)
    assert driver.core.counters.tuples_lost == 0


# -- loss, several slots ---------------------------------------------------------------------


def of_two_slots() -> tuple[Driver, list[int]]:
    """a was sent five tuples and b one; return the ids of the five."""
    driver = Driver(window_policy="fixed", window_initial=5)
    driver.add("a", slots=2, in_order=True)
    driver.beat("a")
    driver.offer(5)
    ids = [emission.tuple_id for emission in driver.emit()]
    driver.add("b")
    return driver, ids


def lost_ids(driver: Driver) -> list[int]:
    return [event.tuple_id for event in driver.events(TupleLost)]


def test_what_was_sent_before_what_is_begun_and_is_not_there_was_lost() -> None:
    driver, ids = of_two_slots()
    driver.beat("a", busy=2, queued=1, begun=[ids[1], ids[3]])
    assert lost_ids(driver) == [ids[0], ids[2]]
    assert [(e.tuple_id, e.bolt) for e in driver.emit()] == [(ids[0], "b"), (ids[2], "b")]
    driver.beat("a", busy=2, queued=1, begun=[ids[1], ids[3]])
    assert len(lost_ids(driver)) == 2


def test_what_is_at_work_for_long_or_waits_is_not_lost() -> None:
    driver, ids = of_two_slots()
    driver.beat("a", busy=2, queued=3, begun=ids[:2])
    driver.ack(driver.log_emitted[1])
    driver.beat("a", busy=2, queued=2, begun=[ids[0], ids[2]])
    driver.beat("a", busy=2, queued=1, begun=[77, ids[0]])  # of something that is done
    assert lost_ids(driver) == []


def test_a_sending_that_came_after_another_of_the_same_tuple_proves_nothing() -> None:
    driver = Driver(window_policy="fixed", window_initial=5)
    driver.add("a", slots=2, in_order=True)
    driver.offer(3)
    first, second, third = driver.emit()
    driver.give_back("a", first.tuple_id)
    (again,) = driver.emit()
    assert (again.tuple_id, again.bolt, again.attempt) == (first.tuple_id, "a", 2)
    driver.beat("a", busy=2, queued=1, begun=[first.tuple_id, second.tuple_id])
    assert third.tuple_id not in lost_ids(driver)


def test_what_is_not_begun_and_does_not_wait_was_lost_in_time() -> None:
    """The newest: nothing that was sent later can show it."""
    driver, ids = of_two_slots()
    for emission in driver.log_emitted[1:4]:
        driver.ack(emission)
    for _ in range(30):
        driver.clock.advance(0.25)
        driver.beat("a", busy=1, begun=ids[:1])
        driver.wait(0)
    assert lost_ids(driver) == [ids[4]]


def test_what_has_not_come_yet_is_not_lost() -> None:
    """On a narrow link a tuple takes as long as what goes before it, to any bolt."""
    driver, ids = of_two_slots()
    for emission in driver.log_emitted[:3]:
        driver.ack(emission)
    for _ in range(30):
        driver.clock.advance(0.25)
        driver.beat("a", arrived=4)
        driver.wait(0)
    assert lost_ids(driver) == [ids[3]]  # it came, and is nowhere
    assert ids[4] in driver.core.bolts["a"].flight


def test_a_bolt_that_came_back_counts_anew() -> None:
    driver = Driver(window_policy="fixed", window_initial=5)
    driver.add("a", in_order=True)
    driver.offer(5)
    assert len(driver.emit()) == 5
    driver.beat("a", busy=1, queued=4, arrived=5)
    driver.add("a", epoch=2, in_order=True)
    driver.wait(0)
    again = driver.emit()
    driver.ack(again[0], epoch=2)
    for _ in range(30):
        driver.clock.advance(0.25)
        driver.beat("a", epoch=2, arrived=1)
        driver.wait(0)
    assert len(again) == 4  # its first one failed with it, and waits
    assert not lost_ids(driver)


def test_what_was_given_back_is_not_lost() -> None:
    driver = in_order("a", "b")
    driver.offer(6)
    _first, second, third = sent_to("a", driver.emit())
    driver.give_back("a", second.tuple_id)
    driver.ack(_first)
    driver.ack(third)
    assert driver.core.counters.tuples_lost == 0


# -- slow, and undone suspicion --------------------------------------------------------------


def test_a_bolt_that_is_late_gets_nothing_until_it_acks() -> None:
    driver = in_order("a", timeout_rto_first_s=0.5)
    driver.offer(1)
    (emission,) = driver.emit()
    for _ in range(3):
        driver.clock.advance(0.25)
        driver.beat("a", busy=1)
        driver.wait(0)
    assert driver.core.bolts["a"].state is BoltState.SLOW
    driver.offer(5)
    assert driver.emit() == []
    driver.ack(emission)
    assert len(driver.emit()) == 3


def test_but_one_with_a_free_slot_does() -> None:
    driver = in_order("a", slots=2, timeout_rto_first_s=0.5)
    driver.offer(1)
    driver.emit()
    for _ in range(3):
        driver.clock.advance(0.25)
        driver.beat("a", busy=1)
        driver.wait(0)
    driver.offer(5)
    assert len(driver.emit()) == 2


def test_a_wrong_suspicion_is_undone_where_nothing_was_sent_yet_and_makes_patient() -> None:
    driver = in_order("a", "b", timeout_rto_first_s=0.5)
    driver.offer(6)
    emissions = driver.emit()
    on_a = sent_to("a", emissions)
    for _ in range(4):
        driver.clock.advance(0.25)
        driver.beat("b", busy=1, queued=2)
        driver.wait(0)
    a = driver.core.bolts["a"]
    assert a.is_suspect
    assert len(a.flight) == 2  # its oldest goes to another as soon as one has room
    driver.beat("a", busy=1, queued=2)
    assert not a.is_suspect
    assert list(a.flight) == [e.tuple_id for e in on_a]
    assert [driver.ack(e) for e in on_a] == [AckOutcome.ACKED] * 3
    assert driver.core.counters.acks_late == 0
    assert driver.core.counters.tuples_moved == 0


def test_a_late_ack_from_a_suspect_makes_patient() -> None:
    driver = in_order("a", "b", timeout_rto_first_s=0.5)
    driver.offer(6)
    emissions = driver.emit()
    on_a = sent_to("a", emissions)
    driver.ack(sent_to("b", emissions)[0])
    for _ in range(4):
        driver.clock.advance(0.25)
        driver.beat("b", busy=1, queued=2)
        driver.wait(0)
    driver.ack(sent_to("b", emissions)[1])
    (replay,) = driver.emit()
    assert (replay.tuple_id, replay.bolt) == (on_a[0].tuple_id, "b")
    driver.clock.advance(0.1)
    driver.ack(sent_to("b", emissions)[2])
    before_s = driver.core.bolts["a"].rtt.rto_s
    assert driver.ack(on_a[0]) is AckOutcome.LATE
    assert driver.core.bolts["a"].rtt.rto_s > before_s
    assert driver.orders()[-1].tuple_ids == [replay.tuple_id]  # b need not begin it


# -- hedging ---------------------------------------------------------------------------------


def last_two(share_max: float = 1.0, service_s: float = 0.01) -> tuple[Driver, Emission]:
    """a has acked five of 10 ms; b holds the last tuple, for longer than its own 10 ms."""
    driver = Driver(
        "a",
        "b",
        window_policy="fixed",
        window_initial=1,
        hedge_enabled=True,
        hedge_share_max=share_max,
    )
    for _ in range(5):
        driver.offer(2)
        for emission in driver.emit():
            driver.clock.advance(service_s)
            driver.ack(emission, wait_s=0.0, service_s=service_s, idle_total_s=0.0)
    driver.offer(2)
    on_a, on_b = driver.emit()
    driver.end()
    driver.clock.advance(1.1 * service_s)
    driver.ack(on_a, wait_s=0.0, service_s=service_s, idle_total_s=0.0)
    return driver, on_b


def test_an_idle_bolt_runs_what_another_is_late_with_and_the_first_ack_counts() -> None:
    driver, slow = last_two()
    assert driver.emit() == []  # not late enough: as much again as it is late, against two services
    driver.wait_for_deadline()
    (copy,) = driver.emit()
    assert (copy.tuple_id, copy.bolt, copy.attempt) == (slow.tuple_id, "a", 2)
    (event,) = driver.events(TupleHedged)
    assert (event.bolt, event.slow_bolt) == ("a", "b")
    assert driver.emit() == []  # once a tuple
    assert driver.ack(copy) is AckOutcome.ACKED
    assert driver.core.is_drained
    assert driver.ack(slow) is AckOutcome.DUPLICATE


def test_copies_may_take_half_of_the_time_that_bolts_are_idle_for() -> None:
    """A share of the work that is less than one tuple: nobody else wants an idle bolt's time."""
    driver, _slow = last_two(share_max=0.001, service_s=0.1)
    idle_from_s = driver.clock()
    while not (copies := driver.emit()):
        driver.wait_for_deadline()
    assert copies[0].bolt == "a"
    assert 2 * 0.1 <= driver.clock() - idle_from_s < 3 * 0.1


def test_who_is_late_by_milliseconds_is_not_slow() -> None:
    """A thread may be held up so long on a busy machine: jobs of 10 ms did records twice."""
    driver, _slow = last_two(service_s=0.001)
    late_from_s = driver.clock()
    while not driver.emit():
        driver.wait_for_deadline()
    assert driver.clock() - late_from_s > 0.02


def test_if_the_slow_one_is_first_after_all_the_copy_is_called_back() -> None:
    driver, slow = last_two()
    driver.emit()
    driver.wait_for_deadline()
    (copy,) = driver.emit()
    driver.orders()
    assert driver.ack(slow) is AckOutcome.LATE
    assert driver.core.is_drained
    assert [(o.bolt, o.tuple_ids) for o in driver.orders()] == [("a", [copy.tuple_id])]
    assert driver.core.bolts["b"].rtt.rto_s == driver.core.bolts["a"].rtt.rto_s  # no time-out of it


def test_who_is_late_is_not_idle_though_another_has_its_tuple_now() -> None:
    driver, _slow = last_two()
    driver.widen("b", 4)  # it has room: what it is at work on takes one place of four
    driver.emit()
    driver.wait_for_deadline()
    (copy,) = driver.emit()
    assert copy.bolt == "a"
    assert driver.core.idle_bolts == ()


def test_without_leave_nothing_is_run_twice() -> None:
    driver, _slow = last_two(share_max=0.0)
    driver.emit()
    for _ in range(20):
        driver.clock.advance(0.1)
        driver.beat("a")
        driver.beat("b", busy=1)
        driver.wait(0)
        assert driver.emit() == []
    assert driver.core.counters.tuples_hedged == 0


def test_the_copy_survives_the_death_of_the_slow_one() -> None:
    driver, slow = last_two()
    driver.emit()
    driver.wait_for_deadline()
    (copy,) = driver.emit()
    driver.remove("b", reason="EOF")
    assert driver.core.counters.tuples_failed == 0
    assert driver.ack(copy) is AckOutcome.ACKED
    assert driver.core.is_drained
    assert copy.tuple_id == slow.tuple_id
