"""The target is down, or full: what the core sends meanwhile, and what it counts."""

from __future__ import annotations

import pytest

from flowctl.core.blame import given_up_first_max
from flowctl.core.events import (
    BoltState,
    SinkCapChanged,
    TargetCameBack,
    TargetWentDown,
    TupleFailed,
    TupleGaveUp,
    TupleRefused,
)
from flowctl.core.messages import Emission
from flowctl.core.records import AckOutcome, Checkpoint, PartitionCheckpoint
from flowctl.core.state import Liveness
from tests.core_driver import Driver


def refuse(driver: Driver, emission: Emission, after_s: float | None = None) -> AckOutcome:
    outcome = driver.fail(emission, error="503", is_refused=True, after_s=after_s)
    driver.wait(0)
    return outcome


def refuse_all(driver: Driver) -> int:
    """Refuse what may be sent now; return how many calls that were."""
    calls = 0
    while emissions := driver.emit():
        for emission in emissions:
            refuse(driver, emission)
            calls += 1
    return calls


BOLTS = [f"b{n}" for n in range(16)]


def down(*, bolts: int = 16, records: int = 1_000, **values: object) -> Driver:
    """A driver whose target refuses everything."""
    driver = Driver(*BOLTS[:bolts], window_initial=1, **values)
    driver.offer(records)
    refuse_all(driver)
    driver.wait(0.4)
    return driver


@pytest.mark.req("S109")
def test_a_refusal_is_not_an_attempt() -> None:
    driver = Driver("a", "b", retry_attempts_max=1)
    driver.offer(1)
    for _ in range(3):
        (emission,) = driver.emit()
        assert refuse(driver, emission) is AckOutcome.REFUSED
        driver.wait(3.0)
    assert driver.core.counters.calls_refused == 3
    assert driver.core.counters.tuples_failed == 0
    assert not driver.events(TupleGaveUp)
    assert len(driver.events(TupleRefused)) == 3


def test_what_the_target_asked_to_wait_is_waited() -> None:
    driver = Driver("a")
    driver.offer(1)
    refuse(driver, driver.emit()[0], after_s=7.0)
    driver.wait(6.9)
    assert driver.emit() == []
    driver.wait(0.2)
    assert len(driver.emit()) == 1


@pytest.mark.parametrize("bolts", [1, 2, 16])
def test_who_asks_to_be_left_alone_for_longer_than_may_be_waited_ends_the_run(bolts: int) -> None:
    """Everybody waits as asked, so no further failure tells that the target is down."""
    driver = Driver(*BOLTS[:bolts], window_initial=1, retry_give_up_after_s=4.0)
    driver.offer(100)
    for emission in driver.emit():
        refuse(driver, emission, after_s=300.0)
    driver.wait(3.9)
    assert not driver.core.is_target_lost
    driver.wait(0.2)
    driver.wait(0.1)
    assert driver.core.is_target_lost


def test_a_refused_bolt_is_slow_and_rests() -> None:
    driver = Driver("a", "b", window_initial=4)
    driver.offer(8)
    first, *_ = driver.emit()
    refuse(driver, first)
    consumer = driver.core.bolts[first.bolt]
    assert consumer.state is BoltState.SLOW and consumer.window < 4
    assert not consumer.has_room
    driver.wait(0.5)
    assert driver.core.bolts[first.bolt].liveness is Liveness.ALIVE


def test_while_nothing_succeeds_calls_are_few_and_fall() -> None:
    driver = down(retry_attempts_max=1)
    calls = []
    for _ in range(12):  # seconds
        sent = 0
        for _ in range(10):
            driver.wait(0.1)
            sent += refuse_all(driver)
        calls.append(sent)
    assert calls[0] <= 2, "two a second for all bolts together, far below two a bolt"
    assert max(calls[4:]) <= 1
    assert sum(calls[2:]) <= 6
    assert not driver.events(TupleGaveUp)
    assert driver.core.target_down is not None
    assert len(driver.events(TargetWentDown)) == 1


def test_a_target_that_refused_all_slots_at_once_is_down_only_if_it_refuses_later_too() -> None:
    """One that takes twenty calls a second was called down for a second, as sixteen bolts asked for
    more at the same moment, and then all rested.  The kind: silence is no sign while nobody asks.
    """
    driver = down()
    assert driver.core.target_down is None
    limit = driver.events(SinkCapChanged)[-1:]
    driver.wait(0.5)
    (emission,) = driver.emit()  # one asks for all
    driver.wait(0.1)
    driver.ack(emission)
    assert not driver.events(TargetWentDown) + driver.events(TargetCameBack)
    assert driver.core.counters.target_down_total_s == 0.0
    driver.wait(2.0)  # rests are over
    assert 1 <= len(driver.emit()) <= 8, f"what the refusals have shown holds: {limit}"


def test_what_bolts_have_not_begun_is_taken_back_when_the_target_goes() -> None:
    driver = Driver(*BOLTS[:4], window_initial=5)
    driver.offer(100)
    emissions = driver.emit()
    assert len(emissions) == 20
    for emission in emissions[:4]:
        refuse(driver, emission)
    driver.wait(0.4)
    ordered = {tuple_id for order in driver.orders() for tuple_id in order.tuple_ids}
    assert ordered == {emission.tuple_id for emission in emissions[4:]}


def test_the_first_success_ends_it() -> None:
    driver = down()
    driver.wait(0.5)
    assert refuse_all(driver) == 1
    assert driver.core.target_down is not None
    driver.wait(1.0)
    (emission,) = driver.emit()
    driver.wait(0.1)
    driver.ack(emission)
    (back,) = driver.events(TargetCameBack)
    assert back.down_s == pytest.approx(2.0) and back.asked == 2
    assert driver.core.target_down is None
    driver.wait(2.0)  # rests are over
    assert len(driver.emit()) >= 16
    assert driver.core.counters.target_down_total_s == pytest.approx(2.0)


def test_after_the_budget_the_run_has_to_end() -> None:
    driver = down(retry_give_up_after_s=30.0)
    for _ in range(100):
        driver.wait_for_deadline()
        refuse_all(driver)
        if driver.core.is_target_lost:
            break
    assert driver.core.is_target_lost
    assert 30.0 <= driver.clock() < 33.0
    assert driver.core.gave_up is None


def succeed_once(driver: Driver) -> None:
    """A run in which something has succeeded."""
    driver.offer(1)
    (emission,) = driver.emit()
    driver.ack(emission)


def test_failures_that_nobody_recognises_count_as_the_targets_too_if_nothing_succeeds() -> None:
    driver = Driver(*BOLTS[:4], retry_attempts_max=2, has_dead_letter=True)
    succeed_once(driver)
    driver.offer(100)
    for _ in range(40):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(1.0)
    assert len(driver.events(TargetWentDown)) == 1
    assert not driver.events(TupleGaveUp), "no good record is given up"
    assert driver.core.poll_dead_letter() is None
    faults = {t.faults for t in driver.core.book.pending.values()}
    assert faults == {0}, "those before it was noticed are excused"


def test_a_process_that_never_worked_fails_at_once() -> None:
    """A typo must not look like a target that is down."""
    driver = Driver(*BOLTS[:4], retry_attempts_max=3)
    driver.offer(100)
    for _ in range(10):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(1.0)
    assert driver.core.gave_up is not None
    assert not driver.events(TargetWentDown)


def test_a_process_that_never_worked_does_not_empty_the_source_into_the_dead_letter() -> None:
    driver = Driver(*BOLTS[:4], retry_attempts_max=2, has_dead_letter=True)
    driver.offer(1_000)
    letters = 0
    for _ in range(100):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(1.0)
        while (letter := driver.core.poll_dead_letter()) is not None:
            letters += 1
            driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
        if driver.core.gave_up is not None:
            break
    assert driver.core.gave_up is not None, "the run has to end"
    assert "nothing has succeeded" in driver.core.gave_up.reason
    assert letters == 0, "a later run begins with them"


@pytest.mark.parametrize(("done_before", "most"), [(0, 8), (79, 8), (4_000, 400), (10**9, 1_000)])
def test_what_earlier_runs_did_says_how_much_may_be_given_up_first(
    done_before: int, most: int
) -> None:
    """Kind: advice that leads nowhere: the dead letter keeps nothing, as only bad ones are left."""
    assert given_up_first_max(done_before) == most
    done = PartitionCheckpoint(position=done_before, records=done_before)
    left = min(most, 20)
    driver = Driver(
        *BOLTS[:4],
        checkpoint=Checkpoint({"done": done}),
        has_dead_letter=True,
        retry_attempts_max=2,
        tuple_records_max=1,
    )
    driver.offer(left)
    driver.end()
    letters = 0
    for _ in range(200):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(1.0)
        while (letter := driver.core.poll_dead_letter()) is not None:
            letters += 1
            driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
    assert (letters, driver.core.gave_up) == (left, None)


def test_letters_that_fail_again_say_nothing_of_the_process() -> None:
    """They are what fails alone, so they do not count to the eight after which the run ends."""
    driver = Driver(*BOLTS[:4], retry_attempts_max=1, has_dead_letter=True)
    driver.offer(9, partition="redrive:1760000000000")
    driver.offer(1)
    for _ in range(5):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(1.0)
    assert len(driver.events(TupleGaveUp)) == 10
    assert driver.core.gave_up is None


def test_letters_wait_until_something_has_succeeded_or_nothing_else_is_left() -> None:
    driver = Driver("a", has_dead_letter=True, retry_attempts_max=1, tuple_records_max=1)
    driver.offer(2)
    first, second = driver.emit()
    driver.fail(first)
    assert driver.core.poll_dead_letter() is None, "process may be what is wrong"
    driver.ack(second)
    letter = driver.core.poll_dead_letter()
    assert letter is not None and letter.gave_up.tuple_id == first.tuple_id

    driver = Driver("a", has_dead_letter=True, retry_attempts_max=1, tuple_records_max=1)
    driver.offer(2)
    for emission in driver.emit():
        assert driver.core.poll_dead_letter() is None
        driver.fail(emission)
    letters = list(iter(driver.core.poll_dead_letter, None))
    assert [one.gave_up.first for one in letters] == [1, 2], "bad, as far as anybody can tell"


@pytest.mark.parametrize("a_second", [1, 10, 100])
def test_a_limit_of_calls_a_second_is_gone_through_though_tuples_are_larger(a_second: int) -> None:
    """A token bucket: each record is a call, and the call that finds it empty is refused."""
    driver = Driver(*BOLTS[:4], tuple_records_max=25, window_initial=2)
    driver.checks = False
    records = 20 * a_second
    driver.offer(records)
    driver.end()
    done: set[object] = set()
    calls = 0
    tokens, filled_at_s = float(a_second), 0.0
    while not driver.core.is_drained:
        assert driver.clock() < 120, f"{len(done)} of {records} done"
        for emission in driver.emit():
            for index, record in enumerate(emission.records):
                now_s = driver.clock()
                tokens = min(a_second, tokens + (now_s - filled_at_s) * a_second)
                filled_at_s = now_s
                if tokens < 1:
                    refused = {"error": "429", "is_refused": True, "after_s": 1.0}
                    driver.fail(emission, record_index=index, **refused)
                    break
                tokens -= 1
                calls += 1
                done.add(record.position)
            else:
                driver.ack(emission)
        driver.wait(0.05)
    assert len(done) == records
    assert calls <= 2.5 * records, "not many records are called again and again"
    assert driver.core.counters.tuples_failed == 0
    if a_second > 1:  # one that takes a call a second looks as if it were down now and then
        assert not driver.events(TargetWentDown), "it is full, not down"


def test_bad_records_at_the_end_of_a_job_do_not_look_like_a_target_that_is_down() -> None:
    driver = Driver(*BOLTS[:4], retry_attempts_max=3, has_dead_letter=True)
    succeed_once(driver)
    driver.offer(8)
    driver.end()
    for _ in range(40):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(1.0)
        while (letter := driver.core.poll_dead_letter()) is not None:
            driver.core.on_dead_lettered(letter.gave_up.tuple_id, now_s=driver.clock())
    assert driver.core.is_drained
    assert driver.core.counters.records_dead_lettered == 8


def test_a_record_that_is_always_refused_while_others_are_not_is_at_fault_in_the_end() -> None:
    driver = Driver("a", "b", has_dead_letter=True, retry_attempts_max=2)
    driver.offer(1_000)
    for _ in range(400):
        for emission in driver.emit():
            if emission.records[0].position == 1:
                refuse(driver, emission)
            else:
                driver.ack(emission)
        driver.wait(1.0)
        if driver.core.poll_dead_letter() is not None:
            break
    else:
        raise AssertionError("refused for ever")
    assert driver.events(TupleGaveUp)[0].first == 1


def run_with_limit(driver: Driver, limits: list[int], *, service_s: float = 0.05) -> list[int]:
    """Calls of ``service_s`` against a target that takes ``limits[k]`` at once in second k.

    Returns the calls that succeeded in each second.
    """
    driver.checks = False
    busy: list[tuple[float, Emission]] = []
    done = [0] * len(limits)
    while driver.clock() < len(limits):
        now_s = driver.clock()
        for emission in driver.emit():
            if len(busy) >= limits[int(now_s)]:
                refuse(driver, emission)
            else:
                busy.append((now_s + service_s, emission))
        driver.wait(0.005)
        now_s = driver.clock()
        for due in [due for due in busy if due[0] <= now_s]:
            busy.remove(due)
            if int(now_s) < len(limits):
                done[int(now_s)] += 1
            driver.ack(due[1], wait_s=0.0, service_s=service_s)
    return done


def test_a_target_that_takes_ten_at_once_gets_about_ten() -> None:
    driver = Driver(*BOLTS, window_initial=1, window_max=1, buffer_records_max=10_000)
    driver.offer(10_000)
    done = run_with_limit(driver, [10] * 12)
    assert sum(done[2:]) >= 0.85 * 10 * (10 / 0.05)
    refused = driver.core.counters.calls_refused
    assert refused <= 0.05 * sum(done)
    assert driver.events(SinkCapChanged)
    assert not driver.events(TargetWentDown)


@pytest.mark.parametrize(
    ("bolts", "limits", "service_s", "share", "refused"),
    [  # of what the target takes, and of the calls
        (16, [3] * 20, 0.05, 0.93, 0.03),
        (40, [10] * 20, 0.05, 0.93, 0.02),
        (40, [30] * 20, 0.2, 0.97, 0.02),
        (16, [10] * 10 + [5] * 10 + [10] * 20, 0.2, 0.94, 0.03),
        (16, [4] * 10 + [12] * 20, 0.2, 0.9, 0.03),
        (16, [4] * 10 + [12] * 20, 1.0, 0.9, 0.13),
        (16, [10] * 8 + [2] + [10] * 15, 0.2, 0.92, 0.04),
        (16, [10] * 60, 1.0, 0.98, 0.07),
    ],
)
def test_what_a_target_takes_at_once_is_used_with_few_refusals(
    bolts: int, limits: list[int], service_s: float, share: float, refused: float
) -> None:
    """A fifth less per refused round, as it was, made .39 of what a target of 30 takes."""
    names = [f"b{number}" for number in range(bolts)]
    driver = Driver(*names, window_initial=1, window_max=1, buffer_records_max=40_000)
    driver.offer(40_000)
    done = run_with_limit(driver, limits, service_s=service_s)
    best = [min(limit, bolts) / service_s for limit in limits]
    assert sum(done[2:]) >= share * sum(best[2:])
    assert driver.core.counters.calls_refused <= refused * sum(done)


def test_when_the_limit_goes_the_cap_goes_within_three_seconds() -> None:
    driver = Driver(*BOLTS, window_initial=1, window_max=1, buffer_records_max=20_000)
    driver.offer(20_000)
    done = run_with_limit(driver, [1_000] * 2 + [10] * 4 + [1_000] * 5)
    full = done[1]
    assert min(done[9:]) >= 0.9 * full
    assert driver.events(SinkCapChanged)[-1].after is None


def test_a_round_of_refusals_shows_what_the_target_takes_and_is_told_once() -> None:
    driver = Driver(*BOLTS, window_initial=1, window_max=1)
    driver.offer(1_000)
    sent = driver.emit()
    driver.wait(0.01)  # by now all are at the target, so those after the first refusal count too
    for emission in sent[10:]:
        refuse(driver, emission)
    driver.ack(sent[0])
    (told,) = driver.events(SinkCapChanged)
    assert (told.before, told.after, told.reason) == (None, 10, "503")


def test_after_an_outage_of_a_second_the_limit_is_what_it_was() -> None:
    driver = Driver(*BOLTS, window_initial=1, window_max=1, buffer_records_max=20_000)
    driver.offer(20_000)
    done = run_with_limit(driver, [1_000] * 3 + [0] + [1_000] * 3)
    assert driver.events(TargetWentDown)
    assert done[5] >= 0.9 * done[1]


def test_an_outage_does_not_lower_the_cap() -> None:
    driver = Driver(*BOLTS, window_initial=1, window_max=1, buffer_records_max=20_000)
    driver.offer(20_000)
    done = run_with_limit(driver, [1_000] * 2 + [0] * 6 + [1_000] * 5)
    assert sum(done[4:8]) == 0
    assert min(done[11:]) >= 0.9 * done[1]


def test_bad_records_that_were_found_and_fail_alone_are_no_further_sign() -> None:
    """With one attempt a record has no fault when it goes alone, but its tuple failed for it."""
    driver = Driver("a", "b", retry_attempts_max=1, has_dead_letter=True, tuple_records_max=10)
    succeed_once(driver)
    driver.offer(1_000)
    for emission in driver.emit(2):
        driver.fail(emission, record_index=0)
    for _ in range(6):
        driver.wait(0.1)
        for emission in driver.emit():
            if len(emission.records) == 1:
                driver.fail(emission)
    assert driver.core.counters.tuples_failed >= 4, "the two records, more than once"
    assert not driver.events(TargetWentDown)


def test_whether_a_failure_named_the_target_is_told() -> None:
    assert all(event.has_refused for event in down().events(TargetWentDown))
    driver = Driver(*BOLTS[:4], retry_attempts_max=2)
    succeed_once(driver)
    driver.offer(100)
    for _ in range(4):
        for emission in driver.emit():
            driver.fail(emission)
        driver.wait(0.3)
    (event,) = driver.events(TargetWentDown)
    assert not event.has_refused
    known = driver.core.target_down
    assert known is not None and not known.has_refused
    driver.wait(2.0)
    for emission in driver.emit():
        refuse(driver, emission)
    known = driver.core.target_down
    assert known is not None and known.has_refused


@pytest.mark.req("S109")
def test_both_parts_of_a_tuple_that_was_refused_in_the_middle_wait() -> None:
    """What the target took goes apart from the rest, and neither at once: it has just said that it
    is full, and a bolt that is idle would only be refused too."""
    driver = Driver("a", "b", tuple_records_max=10, window_initial=1)
    driver.offer(20)
    ours, theirs = driver.emit()
    outcome = driver.fail(ours, error="429", is_refused=True, after_s=5.0, record_index=4)
    assert outcome is AckOutcome.REFUSED
    driver.ack(theirs)
    driver.wait(4.9)
    assert driver.emit() == []
    sent: list[int] = []
    for _ in range(20):
        driver.wait(0.5)
        for emission in driver.emit():
            sent.append(len(emission.records))
            driver.ack(emission)
    assert sorted(sent) == [4, 6]


def test_what_is_said_of_a_fail_names_the_record_that_was_worked_on_and_of_a_refusal_none() -> None:
    driver = Driver("a", tuple_records_max=10)
    driver.offer(10)
    driver.fail(driver.emit()[0], error="503", is_refused=True, record_index=4)
    driver.wait(10.0)
    for emission in driver.emit():
        driver.fail(emission, error="bad", record_index=1, is_data_error=True)
    assert [event.reason for event in driver.events(TupleRefused)] == ["503"]
    assert driver.events(TupleFailed)[0].reason == "bad, at record 2"
