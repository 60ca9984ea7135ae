"""What failed: again after a back-off, given up, or dropped; whatever it is that can fail."""

from __future__ import annotations

import pytest

from flowctl.core.attempts import Attempts, Fate
from flowctl.core.settings import RetrySettings


class Thing:
    def __init__(self, name: str, rank: float = 0.0) -> None:
        self.name = name
        self.rank = rank
        self.faults = 0


def taken(attempts: Attempts[Thing]) -> list[str]:
    names = []
    while (thing := attempts.take()) is not None:
        names.append(thing.name)
    return names


@pytest.mark.req("S104", "S110")
def test_what_failed_goes_again_after_its_back_off_and_not_before() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings(backoff_first_s=1.0))
    thing = Thing("a")
    assert attempts.fault(thing, "boom", 10.0) is Fate.AGAIN
    assert (thing.faults, attempts.due_s(thing), attempts.next_due_s()) == (1, 11.0, 11.0)
    attempts.ripen(10.999)
    assert not attempts.has_ready and taken(attempts) == [] and len(attempts) == 1
    attempts.ripen(11.0)
    assert attempts.has_ready and attempts.next_due_s() is None
    assert taken(attempts) == ["a"] and len(attempts) == 0
    assert attempts.due_s(thing) is None
    attempts.fault(thing, "boom", 20.0)
    assert attempts.due_s(thing) == 22.0


@pytest.mark.req("S110")
def test_the_back_off_has_jitter_if_chance_is_given() -> None:
    settings = RetrySettings(backoff_first_s=1.0, jitter_share=0.5)
    attempts: Attempts[Thing] = Attempts(settings, chance=iter([0.0, 0.5, 1.0]).__next__)
    things = [Thing(name) for name in "abc"]
    for thing in things:
        attempts.fault(thing, "boom", 0.0)
    assert [attempts.due_s(thing) for thing in things] == [1.0, 0.75, 0.5]
    attempts.ripen(9.0)
    assert taken(attempts) == ["c", "b", "a"]


@pytest.mark.req("S110")
def test_two_with_the_same_time_both_survive_the_first_one_first() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings(backoff_first_s=1.0))
    for name in "abc":
        attempts.fault(Thing(name), "boom", 0.0)
    attempts.ripen(1.0)
    assert taken(attempts) == ["a", "b", "c"]


@pytest.mark.req("S18")
def test_what_is_ready_goes_by_rank() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings(), rank=lambda thing: thing.rank)
    for name, rank in (("a", 9.0), ("b", 7.0), ("c", 8.0)):
        attempts.again(Thing(name, rank), 0.0, 0.0)
    assert taken(attempts) == ["b", "c", "a"]


@pytest.mark.req("S109")
def test_after_the_last_attempt_it_waits_for_the_dead_letter() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings(attempts_max=2), has_dead_letter=True)
    thing = Thing("a")
    assert attempts.fault(thing, "first", 0.0) is Fate.AGAIN
    attempts.ripen(1.0)
    assert attempts.take() is thing
    assert attempts.fault(thing, "second", 2.0) is Fate.GAVE_UP
    assert len(attempts) == 0 and attempts.gave_up is None
    dead = attempts.poll_dead_letter()
    assert dead is not None and (dead.item, dead.reason, dead.at_s) == (thing, "second", 2.0)
    assert attempts.poll_dead_letter() is None


def test_without_a_dead_letter_the_first_that_is_given_up_is_known() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings(attempts_max=1))
    for name in "ab":
        assert attempts.fault(Thing(name), f"{name} failed", 0.0) is Fate.GAVE_UP
    assert attempts.gave_up is not None
    assert attempts.gave_up.reason == "a failed"
    assert attempts.poll_dead_letter() is None


@pytest.mark.req("S88")
def test_where_nothing_is_sent_again_it_is_dropped() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings(), sends_again=False)
    assert attempts.fault(Thing("a"), "boom", 0.0) is Fate.DROPPED
    assert attempts.again(Thing("b"), 0.0, 0.0) is Fate.DROPPED
    assert len(attempts) == 0 and attempts.gave_up is None


@pytest.mark.req("S110")
def test_an_item_has_one_schedule_the_newest() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings())
    thing = Thing("a")
    attempts.again(thing, 5.0, 0.0)
    attempts.again(thing, 7.0, 0.0)
    attempts.ripen(6.0)
    assert not attempts.has_ready and attempts.next_due_s() == 7.0
    attempts.again(thing, 6.0, 6.0)
    attempts.ripen(7.0)
    assert taken(attempts) == ["a"]


@pytest.mark.parametrize("not_before_s", [0.0, 5.0])
def test_what_is_done_after_all_is_taken_out(not_before_s: float) -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings())
    done, other = Thing("done"), Thing("other")
    for thing in (done, other):
        attempts.again(thing, not_before_s, 0.0)
    assert attempts.discard(done)
    assert not attempts.discard(done)
    attempts.ripen(9.0)
    assert taken(attempts) == ["other"]
    assert attempts.next_due_s() is None


def test_all_that_are_meant_are_taken_out_ready_or_not() -> None:
    attempts: Attempts[Thing] = Attempts(RetrySettings())
    things = [Thing(name) for name in ("p1", "q1", "p2", "q2")]
    for thing, not_before_s in zip(things, (0.0, 0.0, 5.0, 5.0), strict=True):
        attempts.again(thing, not_before_s, 0.0)
    gone = attempts.discard_where(lambda thing: thing.name.startswith("p"))
    assert [thing.name for thing in gone] == ["p1", "p2"]
    attempts.ripen(9.0)
    assert taken(attempts) == ["q1", "q2"]
