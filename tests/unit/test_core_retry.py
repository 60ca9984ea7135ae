"""Which tuple goes again when."""

from __future__ import annotations

import pytest

from flowctl.core.buffer import Cut
from flowctl.core.records import Record
from flowctl.core.retry import RetryQueue, backoff_s
from flowctl.core.settings import RetrySettings
from flowctl.core.tuples import FlowTuple


def tuple_due(tuple_id: int, deadline_s: float) -> FlowTuple:
    flow_tuple = FlowTuple(tuple_id, Cut("p", 0, [Record(tuple_id, None)], 9))
    flow_tuple.deadline_s = deadline_s
    return flow_tuple


def ids(queue: RetryQueue) -> list[int]:
    return [flow_tuple.tuple_id for flow_tuple in queue.take_ready()]


@pytest.mark.req("S18")
def test_the_earliest_deadline_goes_first() -> None:
    queue = RetryQueue()
    for tuple_id, deadline_s in ((1, 9.0), (2, 7.0), (3, 8.0)):
        queue.add(tuple_due(tuple_id, deadline_s), not_before_s=0.0, now_s=0.0)
    assert ids(queue) == [2, 3, 1]
    assert len(queue) == 0


@pytest.mark.req("S110")
def test_two_with_the_same_time_both_survive() -> None:
    queue = RetryQueue()
    for tuple_id in (2, 1):
        queue.add(tuple_due(tuple_id, 7.0), not_before_s=1.0, now_s=0.0)
    queue.ripen(1.0)
    assert ids(queue) == [1, 2]


@pytest.mark.req("S104", "S111")
def test_what_backs_off_is_not_ready_before_its_time() -> None:
    queue = RetryQueue()
    queue.add(tuple_due(1, 0.0), not_before_s=2.0, now_s=0.0)
    assert queue.next_due_s() == 2.0
    queue.ripen(1.999)
    assert ids(queue) == [] and len(queue) == 1
    queue.ripen(2.0)
    assert queue.next_due_s() is None
    assert ids(queue) == [1]


@pytest.mark.parametrize("not_before_s", [0.0, 5.0])
def test_what_is_done_after_all_is_dropped(not_before_s: float) -> None:
    queue = RetryQueue()
    queue.add(tuple_due(1, 0.0), not_before_s=not_before_s, now_s=0.0)
    assert queue.discard(1)
    assert not queue.discard(1)
    queue.ripen(9.0)
    assert queue.next_due_s() is None
    assert not queue and ids(queue) == []


def test_what_could_not_go_has_its_next_turn_after_the_others() -> None:
    queue = RetryQueue()
    for tuple_id in (1, 2):
        queue.add(tuple_due(tuple_id, float(tuple_id)), not_before_s=0.0, now_s=0.0)
    queue.put_back(next(queue.take_ready()))
    assert ids(queue) == [2, 1]


@pytest.mark.req("S110")
def test_the_back_off_doubles_up_to_its_bound() -> None:
    settings = RetrySettings()
    waits = [backoff_s(faults, settings) for faults in (1, 2, 3, 4, 8, 5_000)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 10.0, 10.0]


@pytest.mark.req("S110")
def test_chance_leaves_out_a_share_of_the_wait() -> None:
    settings = RetrySettings(jitter_share=0.5)
    assert backoff_s(1, settings, lambda: 0.0) == 0.1
    assert backoff_s(1, settings, lambda: 1.0) == 0.05
    assert backoff_s(3, settings, lambda: 0.5) == pytest.approx(0.3)
    assert backoff_s(5_000, settings, lambda: 0.0) == settings.backoff_max_s


@pytest.mark.req("S110")
def test_refused_when_the_attempts_ran_out() -> None:
    queue = RetryQueue(RetrySettings(attempts_max=3))
    flow_tuple = tuple_due(1, 0.0)
    flow_tuple.faults = 2
    assert queue.schedule(flow_tuple, now_s=5.0) == 5.2
    assert queue.discard(1)
    flow_tuple.faults = 3
    assert queue.schedule(flow_tuple, now_s=5.0) is None
    assert len(queue) == 0


@pytest.mark.req("S110")
@pytest.mark.parametrize(("first_s", "then_s"), [(1.0, 5.0), (5.0, 1.0), (0.0, 5.0), (5.0, 0.0)])
def test_one_schedule_per_id_the_newest(first_s: float, then_s: float) -> None:
    queue = RetryQueue()
    flow_tuple = tuple_due(1, 0.0)
    queue.add(flow_tuple, not_before_s=first_s, now_s=0.0)
    queue.add(flow_tuple, not_before_s=then_s, now_s=0.0)
    assert len(queue) == 1
    queue.ripen(then_s - 0.5)
    assert ids(queue) == ([1] if then_s == 0.0 else [])
    queue.ripen(9.0)
    assert ids(queue) == ([] if then_s == 0.0 else [1])
    assert ids(queue) == []


@pytest.mark.req("S111")
def test_what_is_due_goes_and_nothing_else_whatever_its_partition() -> None:
    queue = RetryQueue()
    for tuple_id, partition, due_s in (
        (1, "p", 1.0), (2, "p", 2.0), (3, "p", 9.0), (4, "q", 0.0), (5, "r", 9.0),
    ):  # fmt: skip
        flow_tuple = FlowTuple(tuple_id, Cut(partition, 0, [Record(tuple_id, None)], 9))
        queue.add(flow_tuple, not_before_s=due_s, now_s=0.0)
    queue.ripen(0.5)
    assert ids(queue) == [4]
    queue.ripen(2.0)
    assert sorted(ids(queue)) == [1, 2]
    assert sorted(queue.scheduled) == [3, 5]
