"""``max_pending`` bounds the roots that are not done, and holds back no root that goes again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowctl_storm import Collector, Input
from tests.topology_driver import Hub, Sink, nothing, passing, topology


def most_pending(hub: Hub, *, steps: int = 5_000) -> int:
    """Step until all is done; return the most roots that were pending at one moment."""
    most = 0
    for _ in range(steps):
        if hub.core.is_drained:
            break
        if not hub.step():
            hub.now_s = max(hub.now_s, hub.core.next_deadline_s() or hub.now_s)
        most = max(most, hub.figures.pending_now)
    assert hub.core.is_drained
    assert hub.core.counters.max_in_flight_records <= most
    return most


@pytest.mark.req("S37", "S59")
@pytest.mark.parametrize("limit", [1, 3, 300])
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_never_more_roots_are_pending_than_max_pending(limit: int, mode: str) -> None:
    made = topology(max_pending=limit)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made, overrides={"guarantee.mode": mode})
    hub.offer(range(1_000))
    hub.core.on_committed()
    assert most_pending(hub) == limit
    assert hub.figures.complete == 1_000


@pytest.mark.req("S37", "S59")
def test_roots_that_wait_for_their_back_off_are_pending_too() -> None:
    tried: set[int] = set()

    def once(given: Input, out: Collector) -> None:
        if given.value not in tried:
            tried.add(given.value)
            raise ValueError("the first time")

    made = topology(max_pending=3)
    made.bolt("a", once).shuffle("s")
    hub = Hub(made, overrides={"retry.backoff_first_s": 5.0})
    hub.offer(range(2_000))
    while hub.step():
        pass
    assert len(tried) == hub.figures.pending_now == 3
    assert hub.core.is_at_limit


@pytest.mark.req("S59", "S94")
def test_a_root_that_goes_again_is_not_held_back_by_the_limit() -> None:
    """The limit is reached by roots that a bolt works on; one that failed goes again at once."""
    tried: list[Any] = []

    def once(given: Input, out: Collector) -> None:
        tried.append(given.value)
        if tried == [0]:
            raise ValueError("the first time")

    made = topology(max_pending=3)
    made.bolt("a", once, count=3).shuffle("s")
    hub = Hub(made, overrides={"tuple.records_max": 1, "retry.backoff_first_s": 0.01})
    hub.offer(range(100))
    hub.emit()
    first = hub.in_flight.popleft()
    hub.ack(first, hub.process_one(first))
    hub.now_s = 1.0
    hub.emit()
    assert len(hub.in_flight) == 3, "the two that were under way, and the one that failed"
    again = [e for e in hub.in_flight if e.records[0].value == 0]
    assert len(again) == 1
    assert hub.figures.pending_now == 3


@pytest.mark.req("S55")
def test_inactive_spouts_send_nothing_again_either() -> None:
    def failing(given: Input, out: Collector) -> None:
        raise ValueError("each time")

    made = topology()
    made.bolt("a", failing).shuffle("s")
    hub = Hub(made)
    hub.offer(["x"])
    hub.step()
    hub.core.is_active = False
    hub.now_s = 60.0
    hub.emit()
    assert not hub.in_flight
    hub.core.is_active = True
    hub.emit()
    assert len(hub.in_flight) == 1


@pytest.mark.req("S110")
def test_roots_that_failed_together_do_not_all_come_back_at_the_same_moment() -> None:
    """Chance leaves out up to half of each root's wait, at random."""

    def failing(given: Input, out: Collector) -> None:
        raise ValueError("each time")

    made = topology()
    made.bolt("a", failing).shuffle("s")
    hub = Hub(made, overrides={"retry.backoff_first_s": 1.0}, chance=random.Random(7).random)
    hub.offer(range(30))
    while hub.figures.failed < 30:
        hub.step()
    hub.step()
    due_s = {event.retry_at_s - event.at_s for event in hub.events if hasattr(event, "retry_at_s")}
    assert len(due_s) == 30
    assert all(0.5 <= wait_s <= 1.0 for wait_s in due_s)


@pytest.mark.req("S110")
def test_tuples_of_a_stage_that_failed_as_a_whole_come_back_apart_too() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", sink, count=8).shuffle("s")
    hub = Hub(
        made,
        overrides={"tuple.records_max": 1, "retry.backoff_first_s": 1.0},
        chance=random.Random(7).random,
    )
    hub.offer(range(8))
    hub.emit()
    assert len(hub.in_flight) == 8
    while hub.in_flight:
        hub.fail(hub.in_flight.popleft(), "boom")
    back_at_s = []
    while not sink.got or len(sink.got) < 8:
        hub.now_s = hub.core.next_deadline_s() or 0.0
        hub.emit()
        back_at_s += [hub.now_s] * len(hub.in_flight)
        while hub.in_flight:
            emission = hub.in_flight.popleft()
            hub.ack(emission, hub.process_one(emission))
    assert len(set(back_at_s)) == 8
    assert all(0.5 <= at_s <= 1.1 for at_s in back_at_s)


def test_a_job_draws_its_jitter_at_random() -> None:
    """What a run is given: numbers that differ, not None, which would be no jitter at all."""
    made = topology()
    made.bolt("a", nothing).shuffle("s")
    job = Hub(made, chance=None).job
    drawn = [job.chance() for _ in range(100)]
    assert len(set(drawn)) == 100 and all(0 <= each <= 1 for each in drawn)
