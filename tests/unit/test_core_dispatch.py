"""In turn, the full ones skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from flowctl.core.consumer import NOT_QUEUED, AdaptiveFlowConsumer, NewBolt
from flowctl.core.dispatch import (
    EXACT_MAX,
    BetterOfTwo,
    LeastCompletion,
    RoundRobin,
    dispatcher_for,
)
from flowctl.core.settings import CoreSettings
from tests.core_driver import Driver


def ring_of(*names: str) -> tuple[RoundRobin, dict[str, AdaptiveFlowConsumer]]:
    ring = RoundRobin()
    consumers = {
        name: AdaptiveFlowConsumer(
            NewBolt(name, slots=1, epoch=1, now_s=0.0), CoreSettings(), deque()
        )
        for name in names
    }
    for consumer in consumers.values():
        ring.note_room(consumer)
    return ring, consumers


def picks(ring: RoundRobin, count: int, avoid: frozenset[str] = frozenset()) -> str:
    return "".join(c.bolt if (c := ring.pick(avoid)) else "-" for _ in range(count))


@pytest.mark.req("S20")
def test_each_in_turn() -> None:
    ring, _ = ring_of("a", "b", "c")
    assert picks(ring, 7) == "abcabca"


@pytest.mark.req("S20")
def test_a_full_one_is_skipped_until_it_has_room_again() -> None:
    ring, consumers = ring_of("a", "b", "c")
    consumers["b"].has_room = False
    assert picks(ring, 4) == "acac"
    consumers["b"].has_room = True
    assert picks(ring, 2) == "ac"  # nobody said that b has room
    ring.note_room(consumers["b"])
    ring.note_room(consumers["b"])  # saying it twice does not give it two turns
    assert picks(ring, 6) == "acbacb"


def test_those_to_be_avoided_keep_their_place_in_the_ring() -> None:
    ring, _ = ring_of("a", "b", "c")
    assert picks(ring, 2, frozenset("ab")) == "cc"
    assert picks(ring, 2, frozenset("abc")) == "--"
    assert sorted(picks(ring, 3)) == ["a", "b", "c"]


@pytest.mark.req("S7")
def test_suspect_and_gone_bolts_have_no_room() -> None:
    ring, consumers = ring_of("a", "b", "c")
    consumers["a"].on_silent(0.0)
    consumers["b"].leave()
    for consumer in consumers.values():
        consumer.refresh()
    assert picks(ring, 3) == "ccc"


@pytest.mark.req("S10", "S20")
def test_the_spout_fills_all_windows_in_turn_and_stops() -> None:
    driver = Driver("a", "b", "c", window_initial=2)
    driver.offer(100)
    assert [e.bolt for e in driver.emit()] == list("abcabc")
    assert driver.emit() == []


def test_picking_costs_no_more_when_most_bolts_are_full() -> None:
    ring, consumers = ring_of(*(f"b{i}" for i in range(EXACT_MAX)))
    for name, consumer in consumers.items():
        consumer.has_room = name == "b7"
    assert picks(ring, 100) == "b7" * 100
    assert len(ring._ring) == 1  # each full one was looked at once, and left


def heap_of(**completions_s: float) -> tuple[LeastCompletion, dict[str, AdaptiveFlowConsumer]]:
    _, consumers = ring_of(*completions_s)
    heap = LeastCompletion()
    for name, consumer in consumers.items():
        consumer.queued_s = NOT_QUEUED
        consumer.completion_s = completions_s[name]
        heap.note_room(consumer)
    return heap, consumers


@pytest.mark.req("S21")
def test_the_one_that_would_be_done_first() -> None:
    heap, consumers = heap_of(a=0.3, b=0.1, c=0.2)
    assert heap.pick() is consumers["b"]
    consumers["b"].completion_s = 0.25  # it was sent one
    assert heap.pick() is consumers["c"]
    consumers["c"].has_room = False
    assert heap.pick() is consumers["b"]
    consumers["a"].completion_s = 0.05  # it acked
    heap.note_room(consumers["a"])
    assert heap.pick() is consumers["a"]
    assert heap.pick(frozenset("ab")) is None
    assert heap.pick(frozenset("a")) is consumers["b"]


def test_a_bolt_that_never_answered_is_as_quick_and_as_far_as_the_others_were() -> None:
    """The first to answer is the quickest and nearest: that alone says little of the rest."""
    driver = Driver("near", "far", "new", window_policy="just_full")
    driver.offer(3)
    at = {emission.bolt: emission for emission in driver.emit()}
    driver.clock.advance(0.2)
    driver.ack(at["near"], wait_s=0.0, service_s=0.1, idle_total_s=0.0)
    driver.clock.advance(0.4)
    driver.ack(at["far"], wait_s=0.0, service_s=0.3, idle_total_s=0.0)
    driver.add("newer")
    assert driver.core.bolts["newer"].completion_s == pytest.approx(0.2 + 0.2)


def test_a_bolt_whose_clock_is_ahead_makes_no_path_shorter_than_none() -> None:
    """It says that it worked for longer than its tuple was away; with a negative time the next bolt
    to be done was looked for for ever."""
    driver = Driver("a", "b", window_policy="just_full")
    driver.offer(4)
    first, *_ = driver.emit()
    driver.clock.advance(0.1)
    driver.ack(first, wait_s=0.0, service_s=5.0, idle_total_s=0.0)
    driver.add("new")
    assert driver.core.bolts["new"].completion_s == pytest.approx(5.0)


def test_among_equals_in_turn() -> None:
    driver = Driver("a", "b", "c", window_policy="just_full", window_initial=2)
    driver.offer(100)
    assert [e.bolt for e in driver.emit()] == list("abcabc")


def test_the_heap_does_not_grow_with_acks() -> None:
    heap, consumers = heap_of(**{f"b{i}": 1.0 for i in range(50)})
    for turn in range(1, 2_000):
        for consumer in consumers.values():
            consumer.completion_s = 1.0 / turn
            heap.note_room(consumer)
    assert len(heap._heap) < 64 + 5 * len(consumers)
    assert heap.pick() is not None


@pytest.mark.req("S21")
def test_among_very_many_the_better_of_two() -> None:
    _, consumers = heap_of(**{f"b{i}": 1.0 for i in range(300)})
    by_place = list(consumers.values())
    by_place[1].completion_s = 0.5
    ring = dispatcher_for(by_place)
    assert ring.pick() is by_place[1]
    by_place[1].completion_s = 1.5
    assert ring.pick() is by_place[0]
    by_place[0].completion_s = 2.0
    assert ring.pick() is by_place[2]
    for consumer in by_place:
        consumer.has_room = consumer is by_place[7]
    assert [ring.pick() for _ in range(3)] == [by_place[7]] * 3
    assert ring.pick(frozenset(["b7"])) is None
    by_place[9].has_room = True
    ring.note_room(by_place[9])
    assert ring.pick(frozenset(["b7"])) is by_place[9]


@pytest.mark.req("S21")
@pytest.mark.parametrize("make", [RoundRobin, BetterOfTwo])
def test_among_very_many_quick_ones_each_gets_several_at_once(
    make: Callable[[], RoundRobin],
) -> None:
    """One system call for all of them: with one each, 1,000 connections cost twice as much."""
    _, consumers = heap_of(**{f"b{i}": 1e-3 for i in range(1_000)})
    ring = make()
    for consumer in consumers.values():
        consumer.queued_s = NOT_QUEUED
        ring.note_room(consumer)
    picked = []
    for _ in range(100):
        consumer = ring.pick()
        assert consumer is not None
        picked.append(consumer.bolt)
        consumer.completion_s += 1e-3  # it holds one more of a millisecond
    # The driver needs 10 ms for one to each: half of that may wait at one bolt.
    assert 15 <= len(set(picked)) <= 25
    for consumer in consumers.values():
        consumer.completion_s = 1.0
    picked = []
    for _ in range(100):
        consumer = ring.pick()
        assert consumer is not None
        picked.append(consumer.bolt)
        consumer.completion_s += 1.0
    assert len(set(picked)) == 100  # slow ones: one each


def test_with_the_257th_bolt_the_better_of_two_goes_on_where_the_heap_was() -> None:
    names = [f"b{number}" for number in range(EXACT_MAX)]
    driver = Driver(*names, dispatch_choice="least_completion", window_initial=1)
    driver.offer(EXACT_MAX + 2)
    first = driver.emit(EXACT_MAX // 2)
    assert isinstance(driver.core.book.dispatcher, LeastCompletion)
    driver.add("late")
    assert isinstance(driver.core.book.dispatcher, BetterOfTwo)
    then = driver.emit()
    assert sorted(e.bolt for e in first + then) == sorted([*names, "late"])
    driver.ack(then[0])
    assert [e.bolt for e in driver.emit()] == [then[0].bolt]


@pytest.mark.req("S21")
def test_a_fast_bolt_gets_the_next_tuple_although_it_holds_more() -> None:
    driver = Driver("fast", "slow", window_policy="just_full", window_initial=8)
    for _ in range(5):  # until both are known by four samples
        driver.offer(16)
        for emission in driver.emit():
            driver.clock.advance(0.01)
            service_s = 0.001 if emission.bolt == "fast" else 0.1
            driver.ack(emission, wait_s=0.0, service_s=service_s, idle_total_s=0.0)
    driver.offer(2)
    assert [e.bolt for e in driver.emit()] == ["fast", "fast"]
    assert driver.core.bolts["slow"].has_room


@pytest.mark.req("S27")
def test_in_turn_waits_for_the_one_whose_turn_it_is() -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=1, dispatch_choice="in_turn")
    driver.offer(9)
    on_a, on_b = driver.emit()
    driver.ack(on_b)
    assert driver.emit() == []  # a's turn, and a is full
    driver.ack(on_a)
    assert [e.bolt for e in driver.emit()] == ["a", "b"]


@pytest.mark.req("S37", "S59")
def test_a_bound_on_the_bytes_under_way() -> None:
    driver = Driver(
        "a",
        "b",
        window_policy="fixed",
        window_initial=9,
        dispatch_bytes_max=250,
        tuple_records_max=1,
    )
    driver.offer(99, value="x" * 100)
    emissions = driver.emit()
    assert len(emissions) == 3  # 300 bytes: the one that reaches the bound still goes
    assert driver.core.is_at_limit
    driver.ack(emissions[0])
    assert not driver.core.is_at_limit
    assert len(driver.emit()) == 1


@pytest.mark.req("S37")
def test_a_bound_on_the_bytes_at_one_bolt() -> None:
    driver = Driver(
        "a", "b", window_policy="fixed", window_initial=9, window_bytes_max=150, tuple_records_max=1
    )
    driver.offer(99, value="x" * 100)
    on = [e.bolt for e in driver.emit()]
    assert sorted(on) == ["a", "a", "b", "b"]
    driver = Driver("a", window_policy="fixed", window_initial=9, window_bytes_max=1)
    driver.offer(9, value="x" * 100)
    assert len(driver.emit()) == 1  # whatever its size


def test_a_window_that_bytes_hold_back_does_not_grow() -> None:
    """Nobody asks for a larger one: acks of tuples that filled the bytes are no reason."""
    for bytes_max, grows in ((1 << 20, True), (150, False)):
        driver = Driver("a", window_policy="aiad", window_bytes_max=bytes_max, tuple_records_max=1)
        driver.offer(99, value="x" * 100)
        for _ in range(20):
            for emission in driver.emit():
                driver.ack(emission)
        assert (driver.core.bolts["a"].window > 2) is grows


@pytest.mark.req("S37", "S59")
def test_a_bound_on_all_that_is_under_way() -> None:
    driver = Driver("a", "b", window_initial=9, dispatch_in_flight_max=3)
    driver.offer(99)
    emissions = driver.emit()
    assert len(emissions) == 3
    driver.ack(emissions[0])
    assert len(driver.emit()) == 1
