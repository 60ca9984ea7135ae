"""Late, doubled, unknown acks; fails; giving up; epochs."""

from __future__ import annotations

import msgspec
import pytest

from flowctl.core.events import BoltRemoved, TupleExpired, TupleFailed, TupleGaveUp, TupleMoved
from flowctl.core.records import AckOutcome
from tests.core_driver import Driver


@pytest.mark.req("S50", "S108")
def test_a_second_ack_is_counted_and_ignored() -> None:
    driver = Driver("a")
    driver.offer(1)
    (emission,) = driver.emit()
    assert driver.ack(emission) is AckOutcome.ACKED
    assert driver.ack(emission) is AckOutcome.DUPLICATE
    assert (driver.core.counters.tuples_acked, driver.core.counters.acks_duplicate) == (1, 1)


@pytest.mark.req("S50")
def test_an_ack_of_a_tuple_bolt_or_epoch_that_is_not_known() -> None:
    driver = Driver("a")
    driver.offer(1)
    (emission,) = driver.emit()
    never_sent = msgspec.structs.replace(emission, tuple_id=99)
    assert driver.ack(never_sent) is AckOutcome.UNKNOWN
    assert driver.ack(emission, bolt="z") is AckOutcome.UNKNOWN
    assert driver.ack(emission, epoch=2) is AckOutcome.UNKNOWN
    assert driver.core.counters.acks_unknown == 3
    assert not driver.core.is_drained


@pytest.mark.req("S7", "S50")
def test_a_late_ack_completes_the_tuple_and_drops_the_replay_that_waits() -> None:
    driver = Driver("a", window_initial=1)
    driver.offer(1)
    (emission,) = driver.emit()
    driver.wait_for_deadline()
    assert driver.ack(emission) is AckOutcome.LATE
    assert driver.emit() == []
    assert driver.core.is_drained
    assert driver.position() == 1


@pytest.mark.req("S7", "S50")
def test_or_calls_back_the_replay_that_went() -> None:
    driver = Driver("a", "b")
    driver.offer(1)
    (emission,) = driver.emit()
    driver.wait_for_deadline()
    (replay,) = driver.emit()
    assert (replay.tuple_id, replay.bolt, replay.attempt) == (emission.tuple_id, "b", 2)
    assert driver.ack(emission) is AckOutcome.LATE
    assert [(o.bolt, o.tuple_ids) for o in driver.orders()] == [("b", [replay.tuple_id])]
    assert driver.core.bolts["b"].held == 1  # until b says what became of it
    assert driver.ack(replay) is AckOutcome.DUPLICATE
    assert driver.core.bolts["b"].held == 0


@pytest.mark.req("S3")
def test_the_ack_of_an_earlier_sending_to_the_same_bolt_is_no_sample_for_the_later() -> None:
    driver = Driver("a", window_initial=3)
    driver.offer(1)
    (first,) = driver.emit()
    driver.wait_for_deadline()
    (second,) = driver.emit()  # there is no other bolt
    assert (second.bolt, second.attempt) == ("a", 2)
    driver.clock.advance(0.001)
    assert driver.ack(first) is AckOutcome.LATE
    assert driver.core.bolts["a"].rtt.srtt_s is None  # not 1 ms (Karn)
    assert driver.ack(second) is AckOutcome.DUPLICATE
    assert driver.core.bolts["a"].held == 0


# -- expiry: on to the next bolt ---------------------------------------------------------------


@pytest.mark.req("S7", "S16")
def test_an_expired_tuple_goes_to_another_bolt() -> None:
    driver = Driver("a", "b", "c", window_initial=1)
    driver.offer(1)
    (emission,) = driver.emit()
    assert emission.bolt == "a"
    driver.wait_for_deadline()
    (replay,) = driver.emit()
    assert replay.bolt == "b"
    driver.wait_for_deadline()
    (replay,) = driver.emit()
    assert replay.bolt == "c"
    assert [e.bolt for e in driver.events(TupleExpired)] == ["a", "b"]
    moved = [(e.moved_from, e.bolt, e.attempt) for e in driver.events(TupleMoved)]
    assert moved == [("a", "b", 2), ("b", "c", 3)]


@pytest.mark.req("S7")
def test_it_waits_while_the_others_are_only_full() -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=1)
    driver.offer(1)
    (emission,) = driver.emit()
    driver.fail(emission)
    driver.offer(1)
    (busy,) = driver.emit()
    assert busy.bolt == "b"
    driver.wait(1.0)  # the back-off is over
    assert driver.emit() == []  # a has room, but it failed this tuple; b is full
    driver.ack(busy)
    (again,) = driver.emit()
    assert (again.tuple_id, again.bolt) == (emission.tuple_id, "b")


@pytest.mark.req("S7")
def test_new_tuples_pass_one_that_has_to_wait() -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=1)
    driver.offer(1)
    (emission,) = driver.emit()
    driver.fail(emission)
    driver.offer(2)
    assert [e.bolt for e in driver.emit(1)] == ["b"]
    driver.wait(1.0)
    (new,) = driver.emit()
    assert (new.bolt, new.attempt) == ("a", 1)


@pytest.mark.req("S7")
def test_when_every_bolt_has_failed_it_any_may_have_it_again() -> None:
    driver = Driver("a", "b", window_initial=1)
    driver.offer(1)
    bolts = []
    for _ in range(4):
        (emission,) = driver.emit()
        bolts.append(emission.bolt)
        driver.fail(emission)
        driver.wait_for_deadline()
    assert bolts[:2] == ["a", "b"]
    assert set(bolts[2:]) <= {"a", "b"}


@pytest.mark.req("S18")
def test_retries_go_before_new_tuples_earliest_deadline_first() -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=4)
    sent = []
    for _ in range(6):
        driver.offer(1)
        sent += driver.emit()
        driver.clock.advance(0.1)
    on_a = [e for e in sent if e.bolt == "a"]
    for emission in [e for e in sent if e.bolt == "b"]:
        driver.ack(emission)
    driver.remove("b")  # so that those of a have to wait
    driver.offer(1)
    driver.wait(3.0)
    driver.remove("a", lost=False)
    driver.add("c")
    driver.core.bolts["c"].policy.window = 4.0
    assert [e.tuple_id for e in driver.emit(3)] == [e.tuple_id for e in on_a]
    assert [e.attempt for e in driver.emit()] == [1]


@pytest.mark.req("S48")
def test_nothing_is_waited_for_without_a_deadline() -> None:
    driver = Driver("a")
    assert driver.core.next_deadline_s() is None
    driver.offer(1)
    driver.emit()
    assert driver.core.next_deadline_s() == 3.0


# -- fails --------------------------------------------------------------------------------


@pytest.mark.req("S109", "S110")
def test_a_failed_tuple_goes_again_after_a_back_off() -> None:
    driver = Driver("a", "b")
    driver.offer(1)
    (emission,) = driver.emit()
    assert driver.fail(emission) is AckOutcome.FAILED
    (failed,) = driver.events(TupleFailed)
    assert (failed.bolt, failed.reason, failed.retry_at_s) == ("a", "boom", 0.1)
    driver.wait(0.09)
    assert driver.emit() == []
    assert driver.core.next_deadline_s() == pytest.approx(0.1)
    driver.wait_for_deadline()
    (again,) = driver.emit()
    assert (again.bolt, again.attempt) == ("b", 2)


@pytest.mark.req("S50", "S109")
def test_a_fail_of_what_the_bolt_does_not_hold_is_ignored() -> None:
    driver = Driver("a", "b")
    driver.offer(1)
    (emission,) = driver.emit()
    driver.ack(emission)
    assert driver.fail(emission) is AckOutcome.DUPLICATE
    assert driver.fail(emission, epoch=7) is AckOutcome.UNKNOWN
    assert driver.core.counters.tuples_failed == 0


@pytest.mark.req("S109")
def test_after_the_last_attempt_it_is_given_up_naming_its_records_and_the_position_stays() -> None:
    driver = Driver("a", "b", "c", retry_attempts_max=3)
    driver.offer(2)
    poison, fine = driver.emit()
    driver.ack(fine)
    for _ in range(2):
        assert driver.fail(poison) is AckOutcome.FAILED
        driver.wait_for_deadline()
        (poison,) = driver.emit()
    assert driver.fail(poison) is AckOutcome.GAVE_UP
    gave_up = driver.core.gave_up
    assert gave_up is not None and driver.events(TupleGaveUp) == [gave_up]
    assert (gave_up.partition, gave_up.first, gave_up.last) == ("p", 1, 1)
    assert (gave_up.attempts, gave_up.bolts, gave_up.reason) == (3, ("a", "b", "c"), "boom")
    assert driver.position() is None
    assert driver.acked_above() == [(2, 2, 1)]
    assert not driver.core.is_drained


def test_expiry_alone_never_gives_up() -> None:
    driver = Driver("a", "b", retry_attempts_max=2)
    driver.offer(1)
    for _ in range(12):
        driver.emit()
        driver.wait_for_deadline()
    assert driver.core.gave_up is None
    assert driver.core.counters.tuples_expired > 4


# -- bolts come and go ----------------------------------------------------------------------


def test_what_a_dead_bolt_held_goes_to_others_and_only_the_head_is_to_blame() -> None:
    driver = Driver("a", "b", window_initial=3)
    driver.offer(6)
    held = [e.tuple_id for e in driver.emit() if e.bolt == "a"]
    driver.remove("a", reason="EOF")
    (removed,) = driver.events(BoltRemoved)
    assert (removed.moved, removed.reason) == (3, "EOF")
    assert [e.tuple_id for e in driver.events(TupleFailed)] == held[:1]
    assert driver.core.counters.bolts_lost == 1
    driver.widen("b", 9)
    assert [e.tuple_id for e in driver.emit()] == held[1:]  # at once
    driver.wait_for_deadline()
    assert [e.tuple_id for e in driver.emit()] == held[:1]  # after a back-off


def test_with_two_slots_two_are_to_blame_and_with_a_bolt_that_leaves_none() -> None:
    driver = Driver("a", slots=2, window_initial=4)
    driver.add("b", slots=2)
    driver.offer(8)
    driver.emit()
    driver.remove("a")
    assert len(driver.events(TupleFailed)) == 2
    driver.remove("b", lost=False)
    assert len(driver.events(TupleFailed)) == 2
    assert driver.core.counters.bolts_lost == 1


def test_a_tuple_that_kills_its_bolts_is_given_up() -> None:
    driver = Driver(*"abcdef", window_initial=1, retry_attempts_max=3)
    driver.offer(1)
    for _ in range(3):
        (poison,) = driver.emit()
        driver.remove(poison.bolt, reason="EOF")
        if driver.core.gave_up is None:
            driver.wait_for_deadline()
    assert driver.core.gave_up is not None
    assert "died: EOF" in driver.core.gave_up.reason


def test_a_bolt_back_with_a_new_epoch_starts_empty_and_old_acks_mean_nothing() -> None:
    driver = Driver("a", window_initial=2)
    driver.offer(2)
    first, _ = driver.emit()
    driver.add("a", epoch=2)
    assert driver.core.bolts["a"].held == 0
    assert driver.ack(first, epoch=1) is AckOutcome.UNKNOWN
    driver.wait(1.0)
    again = driver.emit()
    assert {e.tuple_id for e in again} == {1, 2}
    assert all(driver.ack(e, epoch=2) is AckOutcome.ACKED for e in again)
    assert driver.core.is_drained


@pytest.mark.req("S15")
def test_a_bolt_keeps_its_window_and_its_counts_over_epochs() -> None:
    driver = Driver("a", window_initial=2, window_threshold_s=1.0)
    driver.offer(50)
    for _ in range(3):
        for emission in driver.emit():
            driver.ack(emission)
            driver.clock.advance(0.001)
    learned, acked = driver.window("a"), driver.core.bolts["a"].acked
    assert learned > 2
    driver.add("a", epoch=2)
    assert driver.window("a") == learned
    assert driver.core.bolts["a"].acked == acked


def test_removing_a_bolt_that_is_not_there_does_nothing() -> None:
    driver = Driver("a")
    driver.remove("z")
    assert driver.events(BoltRemoved) == []


def test_the_records_of_a_tuple_can_be_named_while_it_is_pending() -> None:
    driver = Driver("a", tuple_records_max=2)
    driver.offer(2)
    (emission,) = driver.emit()
    assert driver.core.tuple_records("a", emission.tuple_id) == emission.records
    driver.ack(emission)
    assert driver.core.tuple_records("a", emission.tuple_id) == ()
