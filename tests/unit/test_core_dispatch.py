"""In turn, the full ones skipped."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.dispatch import RoundRobin
from flowctl.core.settings import CoreSettings
from tests.core_driver import Driver


def ring_of(*names: str) -> tuple[RoundRobin, dict[str, AdaptiveFlowConsumer]]:
    ring = RoundRobin()
    consumers = {
        name: AdaptiveFlowConsumer(
            name, slots=1, epoch=1, now_s=0.0, settings=CoreSettings(), events=deque()
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
    consumers["b"].policy.window = 0.0
    assert picks(ring, 4) == "acac"
    consumers["b"].policy.window = 1.0
    assert picks(ring, 2) == "ac"  # nobody said that b has room
    ring.note_room(consumers["b"])
    ring.note_room(consumers["b"])  # saying it twice does not give it two turns
    assert picks(ring, 6) == "acbacb"


def test_those_to_be_avoided_keep_their_place_in_the_ring() -> None:
    ring, _ = ring_of("a", "b", "c")
    assert picks(ring, 2, frozenset("ab")) == "cc"
    assert picks(ring, 2, frozenset("abc")) == "--"
    assert sorted(picks(ring, 3)) == ["a", "b", "c"]


@pytest.mark.req("S7", "S10")
def test_suspect_and_gone_bolts_have_no_room() -> None:
    ring, consumers = ring_of("a", "b", "c")
    consumers["a"].suspect(0.0)
    consumers["b"].is_gone = True
    assert picks(ring, 3) == "ccc"


@pytest.mark.req("S10", "S20")
def test_the_spout_fills_all_windows_in_turn_and_stops() -> None:
    driver = Driver("a", "b", "c", window_initial=2)
    driver.offer(100)
    assert [e.bolt for e in driver.emit()] == list("abcabc")
    assert driver.emit() == []


def test_picking_costs_no_more_when_most_bolts_are_full() -> None:
    ring, consumers = ring_of(*(f"b{i}" for i in range(1_000)))
    for name, consumer in consumers.items():
        if name != "b7":
            consumer.policy.window = 0.0
    looks = Counter[str]()

    class Counting(AdaptiveFlowConsumer):
        __slots__ = ()

        @property
        def has_room(self) -> bool:
            looks["all"] += 1
            return bool(AdaptiveFlowConsumer.has_room.fget(self))  # type: ignore[misc]

    for consumer in consumers.values():
        consumer.__class__ = Counting
    assert picks(ring, 100) == "b7" * 100
    assert looks["all"] == 1_000 - 1 + 100  # each full one once, b7 a hundred times
