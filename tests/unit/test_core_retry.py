"""What is tried again when: the pause, the queue, and what goes first."""

from __future__ import annotations

from itertools import islice

import pytest

from flowctl.core.buffer import Cut
from flowctl.core.records import Record
from flowctl.core.retry import Pause, RetryQueue, pause_of_store
from flowctl.core.settings import RetrySettings
from flowctl.core.tuples import FlowTuple, by_deadline


def tuple_due(tuple_id: int, deadline_s: float) -> FlowTuple:
    flow_tuple = FlowTuple(tuple_id, Cut("p", 0, [Record(tuple_id, None)], 9))
    flow_tuple.deadline_s = deadline_s
    return flow_tuple


def taken(queue: RetryQueue[str]) -> str:
    """All that is ready, in order."""
    names = []
    while (name := queue.take()) is not None:
        names.append(name)
    return "".join(names)


# -- the pause -----------------------------------------------------------------------------------


@pytest.mark.req("S110")
def test_a_pause_doubles_up_to_its_bound() -> None:
    pause = Pause(0.1, 10.0)
    waits = [pause.after(failures) for failures in (1, 2, 3, 4, 8, 5_000)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 10.0, 10.0]
    assert list(islice(pause.waits(), 9)) == [pause.after(n) for n in range(1, 10)]


def test_its_bound_holds_from_the_first_on() -> None:
    """A store that is saved to each minute is not tried a minute later, while it is away."""
    assert list(islice(pause_of_store(60.0).waits(), 2)) == [5.0, 5.0]
    assert list(islice(pause_of_store(2.0).waits(), 3)) == [2.0, 4.0, 5.0]


@pytest.mark.req("S110")
def test_chance_leaves_out_a_share_of_it() -> None:
    pause = Pause(0.1, 10.0, jitter_share=0.5)
    assert pause.after(1, lambda: 0.0) == 0.1
    assert pause.after(1, lambda: 1.0) == 0.05
    assert pause.after(3, lambda: 0.5) == pytest.approx(0.3)
    assert pause.after(5_000, lambda: 0.0) == 10.0


def test_a_target_that_asks_for_less_is_believed_once() -> None:
    pause = Pause(0.5, 2.0)
    assert [pause.asked(failures, 0.1) for failures in (1, 2, 3, 4)] == [0.1, 0.5, 1.0, 2.0]
    assert [pause.asked(failures, 7.0) for failures in (1, 2, 3, 4)] == [7.0] * 4


# -- the queue -----------------------------------------------------------------------------------


@pytest.mark.req("S18")
def test_the_earliest_deadline_goes_first_and_then_the_older_tuple() -> None:
    queue: RetryQueue[FlowTuple] = RetryQueue(rank=by_deadline)
    for tuple_id, deadline_s in ((1, 9.0), (4, 7.0), (3, 8.0), (2, 7.0)):
        queue.add(tuple_due(tuple_id, deadline_s), not_before_s=0.0, now_s=0.0)
    first = [queue.take() for _ in range(4)]
    assert [each.tuple_id for each in first if each is not None] == [2, 4, 3, 1]
    assert len(queue) == 0 and queue.take() is None


@pytest.mark.req("S110")
def test_two_with_the_same_time_both_survive_the_first_one_first() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name in "abc":
        queue.add(name, not_before_s=1.0, now_s=0.0)
    queue.ripen(1.0)
    assert taken(queue) == "abc"


@pytest.mark.req("S104", "S110", "S111")
def test_what_failed_goes_again_after_its_back_off_and_not_before() -> None:
    queue: RetryQueue[str] = RetryQueue(RetrySettings(backoff_first_s=1.0))
    assert queue.fault("a", 1, 10.0) == 11.0
    assert (queue.due_s("a"), queue.next_due_s()) == (11.0, 11.0)
    queue.ripen(10.999)
    assert not queue.has_ready and taken(queue) == "" and len(queue) == 1
    queue.ripen(11.0)
    assert queue.has_ready and queue.next_due_s() is None
    assert taken(queue) == "a" and len(queue) == 0 and queue.due_s("a") is None
    assert queue.fault("a", 2, 20.0) == 22.0


@pytest.mark.req("S110")
def test_back_offs_have_jitter_if_chance_is_given() -> None:
    settings = RetrySettings(backoff_first_s=1.0)
    queue: RetryQueue[str] = RetryQueue(settings, iter([0.0, 0.5, 1.0]).__next__)
    assert [queue.fault(name, 1, 0.0) for name in "abc"] == [1.0, 0.75, 0.5]
    queue.ripen(9.0)
    assert taken(queue) == "cba"


@pytest.mark.req("S109", "S110")
def test_nothing_is_scheduled_when_the_attempts_ran_out() -> None:
    queue: RetryQueue[str] = RetryQueue(RetrySettings(attempts_max=3))
    assert queue.fault("a", 2, 5.0) == 5.2
    assert queue.discard("a")
    assert queue.fault("a", 3, 5.0) is None
    assert len(queue) == 0


def test_what_was_refused_waits_two_seconds_at_most_and_costs_no_attempt() -> None:
    """Unless its target asked for something else: the end of a job does not wait for it."""
    queue: RetryQueue[str] = RetryQueue(RetrySettings(attempts_max=1))
    waits = [queue.refusal("a", refusals, 0.0) for refusals in range(1, 8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert queue.refusal("a", 1, 0.0, after_s=30.0) == queue.next_due_s() == 30.0
    assert RetryQueue(RetrySettings(backoff_max_s=0.3)).refusal("a", 9, 0.0) == 0.3


@pytest.mark.req("S110")
@pytest.mark.parametrize(("first_s", "then_s"), [(1.0, 5.0), (5.0, 1.0), (0.0, 5.0), (5.0, 0.0)])
def test_an_item_has_one_time_the_newest(first_s: float, then_s: float) -> None:
    queue: RetryQueue[str] = RetryQueue()
    queue.add("a", not_before_s=first_s, now_s=0.0)
    queue.add("a", not_before_s=then_s, now_s=0.0)
    assert len(queue) == 1
    queue.ripen(then_s - 0.5)
    assert taken(queue) == ("a" if then_s == 0.0 else "")
    queue.ripen(9.0)
    assert taken(queue) == ("" if then_s == 0.0 else "a")
    assert taken(queue) == ""


@pytest.mark.req("S111")
def test_what_is_due_goes_and_nothing_else() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name, due_s in (("a", 1.0), ("b", 2.0), ("c", 9.0), ("d", 0.0), ("e", 9.0)):
        queue.add(name, not_before_s=due_s, now_s=0.0)
    queue.ripen(0.5)
    assert taken(queue) == "d"
    queue.ripen(2.0)
    assert taken(queue) == "ab"
    assert sorted(queue.scheduled) == ["c", "e"]


@pytest.mark.parametrize("not_before_s", [0.0, 5.0])
def test_what_is_done_after_all_is_taken_out(not_before_s: float) -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name in ("a", "b"):
        queue.add(name, not_before_s=not_before_s, now_s=0.0)
    assert queue.discard("a")
    assert not queue.discard("a")
    queue.ripen(9.0)
    assert taken(queue) == "b"
    assert queue.next_due_s() is None and not queue


def test_all_that_are_meant_are_taken_out_ready_or_not() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name, not_before_s in (("p", 0.0), ("q", 0.0), ("P", 5.0), ("Q", 5.0)):
        queue.add(name, not_before_s=not_before_s, now_s=0.0)
    assert queue.discard_where(lambda name: name in "pP") == ["p", "P"]
    queue.ripen(9.0)
    assert taken(queue) == "qQ"


def test_what_could_not_go_has_its_next_turn_after_the_others() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name in "abc":
        queue.add(name, not_before_s=0.0, now_s=0.0)
    first = queue.take()
    assert first == "a"
    queue.put_back(first)
    assert len(queue) == 3 and queue.has_ready
    assert taken(queue) == "bca"


def test_what_could_not_go_goes_by_rank_too() -> None:
    queue: RetryQueue[str] = RetryQueue(rank=ord)
    for name in "abcd":
        queue.add(name, not_before_s=0.0, now_s=0.0)
    blocked = [queue.take() for _ in range(4)]
    for name in reversed(blocked):
        assert name is not None
        queue.put_back(name)
    assert taken(queue) == "abcd"


def test_what_comes_again_and_again_does_not_keep_others_waiting() -> None:
    """A hundred bad records were each tried again and again, and good ones never: the kind."""
    queue = RetryQueue[str]()
    for name in "ab":
        queue.add(name, not_before_s=0.0, now_s=0.0)
    assert queue.take() == "a"
    queue.put_back("a")  # there was no room for it
    for now_s in (1.0, 2.0):
        assert queue.take() == ("b" if now_s < 2.0 else "a")
        queue.add("b", not_before_s=now_s, now_s=now_s)


def test_to_start_over_is_to_begin_with_the_first_by_rank() -> None:
    queue = RetryQueue[str](rank=ord)
    for name in "abc":
        queue.add(name, not_before_s=0.0, now_s=0.0)
    assert queue.take() == "a"
    queue.put_back("a")
    queue.start_over()
    assert taken(queue) == "abc"


def test_the_next_time_is_that_of_what_still_waits() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name, due_s in (("a", 1.0), ("b", 2.5), ("c", 3.0)):
        queue.add(name, not_before_s=due_s, now_s=0.0)
    queue.discard("a")
    assert queue.next_due_s() == 2.5
    queue.ripen(2.7)
    assert (queue.due_s("b"), queue.next_due_s()) == (2.5, 3.0)


def test_what_is_parked_waits_for_something_else_than_time() -> None:
    queue: RetryQueue[str] = RetryQueue()
    queue.add("a", not_before_s=1.0, now_s=0.0)
    queue.park("a")
    assert queue.is_parked("a") and len(queue) == 1
    queue.ripen(1e9)
    assert taken(queue) == "" and queue.next_due_s() is None
    queue.add("a", not_before_s=0.0, now_s=0.0)
    assert not queue.is_parked("a") and taken(queue) == "a"


def test_what_is_doubted_is_known_until_its_time_comes_or_it_is_taken_out() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name in "abc":
        queue.doubt(name, until_s=1.0, now_s=0.0)
    queue.discard("a")
    queue.add("b", not_before_s=3.0, now_s=0.0)
    assert list(queue.doubted) == ["c"]
    queue.ripen(2.0)
    assert not queue.doubted and taken(queue) == "c"
