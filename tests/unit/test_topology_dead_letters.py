"""TopologyCore in virtual time: roots that are given up, and what a listener hears of roots."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowctl.core.events import TupleDeadLettered, TupleGaveUp
from flowctl.core.records import Record
from flowctl_storm import Collector, Input
from flowctl_storm.hub.core import TopologyCore
from tests.listener_parts import Log
from tests.topology_driver import Hub, Sink, nothing, passing, topology

pytestmark = pytest.mark.on_change("topology")

FAST = {"retry.attempts_max": 3, "retry.backoff_first_s": 0.01}


def poisoned(sink: Sink, poison: set[Any]) -> Any:
    def last(given: Input, out: Collector) -> None:
        if given.value in poison:
            raise ValueError("poison")
        sink(given, out)

    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", passing).shuffle("a")
    made.bolt("c", last).shuffle("b")
    return made


def keep_all(core: TopologyCore, now_s: float) -> list[Any]:
    kept = []
    while (dead := core.poll_dead_letter()) is not None:
        kept.append(dead)
        core.on_dead_lettered(dead.gave_up.tuple_id, now_s=now_s)
    return kept


@pytest.mark.req("S109", "S124")
def test_a_root_that_is_given_up_is_kept_and_then_counts_as_acked() -> None:
    sink = Sink()
    hub = Hub(poisoned(sink, {7, 8}), overrides=FAST, has_dead_letter=True)
    hub.offer(range(1, 21))
    hub.offer(range(1, 11), partition="s:q")  # seqs of another partition are the same numbers
    dead: list[Any] = []
    for _ in range(200):
        if not hub.step():
            hub.now_s += 0.01
        if (found := hub.core.poll_dead_letter()) is not None:
            dead.append(found)
    assert hub.core.gave_up is None
    assert not hub.core.is_drained, "they are not safe yet"
    assert hub.core.checkpoint().partitions["s:p"].position == 6
    said = [(d.gave_up.partition, d.records[0].position, d.gave_up.attempts) for d in dead]
    assert sorted(said) == [("s:p", 7, 3), ("s:p", 8, 3), ("s:q", 7, 3), ("s:q", 8, 3)]
    for each in dead:
        assert "ValueError: poison" in each.gave_up.reason
        hub.core.on_dead_lettered(each.gave_up.tuple_id, now_s=hub.now_s)
        hub.core.on_dead_lettered(each.gave_up.tuple_id, now_s=hub.now_s)  # once counts
    hub.step()
    assert hub.core.is_drained
    done = hub.core.checkpoint().partitions
    assert (done["s:p"].position, done["s:p"].acked, done["s:q"].position) == (20, (), 10)
    assert (hub.core.counters.tuples_dead_lettered, hub.core.counters.records_acked) == (4, 30)
    trees = hub.core.tree_figures()
    assert (trees.complete, trees.failed, trees.replayed) == (26, 12, 8), "30 = 26 and 4 letters"
    kinds = [type(event) for event in hub.events]
    assert kinds.count(TupleGaveUp) == kinds.count(TupleDeadLettered) == 4
    wanted = [n for n in [*range(1, 21), *range(1, 11)] if n not in {7, 8}]
    assert sorted(sink.values) == sorted(wanted)


@pytest.mark.req("S109")
def test_what_translate_raises_on_is_kept_too() -> None:
    made = topology()
    made.bolt("a", nothing).shuffle("s")
    made.translations["s"] = lambda partition, record: 1 // record.value
    hub = Hub(made, overrides=FAST, has_dead_letter=True)
    hub.offer([1, 0, 2])
    kept: list[Any] = []
    while not hub.core.is_drained:
        if not hub.step():
            hub.now_s += 0.01
        kept += keep_all(hub.core, hub.now_s)
    assert [dead.records[0].position for dead in kept] == [2]
    assert hub.core.checkpoint().partitions["s:p"].position == 3


@pytest.mark.req("S94", "S109")
@pytest.mark.parametrize("seed", range(20))
def test_poison_never_blocks_the_rest_with_little_room(seed: int) -> None:
    """Room for ten roots above the cumulative ack, as for tuples of one stage."""
    rng = random.Random(seed)
    poison = {n for n in range(200) if rng.random() < 0.3}
    sink = Sink()
    limits = {**FAST, "buffer.uncommitted_max": 10, "tuple.records_max": rng.choice([1, 4])}
    hub = Hub(poisoned(sink, poison), overrides=limits, has_dead_letter=True)
    kept: list[Any] = []
    offered = 0
    for _ in range(20_000):
        if offered == 200 and hub.core.is_drained:
            break
        more = [Record(n + 1, n) for n in range(offered, 200)]
        offered += hub.core.offer("s:p", more, now_s=hub.now_s)
        if not hub.step():
            hub.now_s += 0.01
        kept += keep_all(hub.core, hub.now_s)
    assert {dead.records[0].value for dead in kept} == poison
    assert sorted(sink.values) == sorted(set(range(200)) - poison)
    assert hub.core.checkpoint().partitions["s:p"].position == 200


@pytest.mark.req("S82", "S106", "S109", "S112")
def test_a_listener_hears_of_roots() -> None:
    log = Log()
    hub = Hub(poisoned(Sink(), {3}), overrides=FAST, has_dead_letter=True, listener=log)
    hub.offer(range(1, 6))
    while not hub.core.is_drained:
        if not hub.step():
            hub.now_s += 0.01
        keep_all(hub.core, hub.now_s)
    hub.tell()
    assert log.said[0] == ("open", "test")
    assert log.of(1) == ["emit", "ack"]
    assert log.of(3) == ["emit", "retry", "retry", "max"]
    assert {emission.bolt for emission in log.emissions} == {"s"}
