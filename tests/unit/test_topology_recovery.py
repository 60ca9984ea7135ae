"""TopologyCore in virtual time: faults, time, back-pressure, restarts."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.core.events import TupleDropped
from flowctl.core.records import AckOutcome
from flowctl_storm import Batched, Collector, Input
from flowctl_storm.callbacks import SpoutCallbacks
from tests.collecting_parts import Pairs
from tests.topology_driver import Hub, Sink, nothing, passing, topology

pytestmark = pytest.mark.on_change("topology")


def diamond(sink: Any) -> Any:
    made = topology()
    made.bolt("b1", passing).shuffle("s")
    made.bolt("b2", passing).shuffle("s")
    made.bolt("b3", sink).shuffle("b1").shuffle("b2")
    return made


def test_a_worker_that_dies_has_emitted_nothing() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", passing, count=2).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(range(60))
    hub.emit()
    first = hub.in_flight[0]
    said = hub.process_one(first)  # all but the ack
    epoch = hub.epoch[first.bolt]
    lost = hub.kill(first.bolt)
    assert first in lost and said.emits
    hub.epoch[first.bolt], new_epoch = epoch, hub.epoch[first.bolt]
    assert hub.ack(first, said) is AckOutcome.UNKNOWN  # of a connection that is over
    hub.epoch[first.bolt] = new_epoch
    hub.run()
    assert sorted(sink.values) == list(range(60))
    assert hub.figures.ledger_now == 0


def test_what_waits_to_be_sent_again_does_not_fill_the_next_stage() -> None:
    """It emits nothing until it is sent, and it is not sent while the next stage counts as full."""
    sink = Sink()
    made = topology()
    made.bolt("a", lambda given, out: [out(given.value) for _ in range(10)], count=2).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(range(2000))
    kills = 0
    while kills < 6 and hub.step():
        held = sum(len(e.records) for e in hub.in_flight if e.bolt.startswith("a."))
        if hub.core.stages["a"].done and hub.core.stages["b"].done and held > 40:
            for bolt in ("a.1", "a.2"):
                hub.kill(bolt)
            kills += 1
    assert kills
    hub.run()
    assert sorted(set(sink.values)) == list(range(2000))


def test_the_second_ack_of_a_tuple_emits_nothing() -> None:
    sink = Sink()
    made = topology()
    made.bolt("a", lambda given, out: [out(given.value), out("l", anchored=False)]).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.emit()
    emission = hub.in_flight.popleft()
    said = hub.process_one(emission)
    assert hub.ack(emission, said) is AckOutcome.ACKED
    assert hub.ack(emission, said) is AckOutcome.DUPLICATE
    hub.run()
    assert sorted(sink.values) == ["l", "x"]


@pytest.mark.req("S48", "S79")
def test_a_tree_that_is_not_complete_in_time_goes_again() -> None:
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides={"lab.timeout.rto_max_s": 1e6, "lab.timeout.rto_first_s": 1e6})
    hub.offer(["x"])
    hub.emit()
    forgotten = hub.in_flight.popleft()
    hub.now_s = 10.1
    hub.emit()
    assert hub.figures.expired == 0  # it lives for one to two ticks
    hub.now_s = 20.2
    hub.emit()
    assert (hub.figures.expired, hub.figures.replayed) == (1, 1)
    hub.ack(forgotten, hub.process_one(forgotten))  # late: counted, not taken for the new one
    assert hub.core.checkpoint().partitions["s:p"].records == 0
    hub.run()
    assert hub.core.checkpoint().partitions["s:p"].records == 1


def test_a_tuple_that_kills_its_workers_fails_its_roots() -> None:
    made = topology()
    made.bolt("a", nothing, count=2).shuffle("s")
    hub = Hub(made, overrides={"retry.attempts_max": 2, "hedge.enabled": False})
    hub.offer(["poison"])
    kills = 0
    while hub.core.gave_up is None:
        hub.emit()
        hub.now_s += 0.2
        if hub.in_flight:
            hub.kill(hub.in_flight[0].bolt)
            kills += 1
    assert kills == 4  # two for each of the root's two attempts
    assert "died" in hub.core.gave_up.reason


@pytest.mark.req("S59", "S37")
def test_max_pending_bounds_the_roots() -> None:
    made = topology(max_pending=40)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made, overrides={"tuple.records_max": 10})
    hub.offer(range(1000))
    most = 0
    while hub.step():
        most = max(most, len(hub.core.roots.trees))
    assert most == 40
    assert hub.figures.complete == 1000


@pytest.mark.req("S52", "S53", "S59")
def test_a_stage_that_takes_nothing_stops_the_first_and_nothing_grows() -> None:
    made = topology()
    made.bolt("a", passing, count=2).shuffle("s")
    made.bolt("b", passing, count=2).shuffle("a")
    made.bolt("c", nothing, count=2).shuffle("b")
    hub = Hub(made)
    hub.offer(range(40_000))
    stuck = []
    for _ in range(5_000):
        hub.emit()
        hub.now_s += 0.001
        while hub.in_flight and hub.in_flight[0].bolt.startswith("c"):
            stuck.append(hub.in_flight.popleft())
        if hub.in_flight:
            emission = hub.in_flight.popleft()
            hub.ack(emission, hub.process_one(emission))
        hub.now_s += 0.02
    before = hub.core.stage_figures()
    assert not hub.in_flight
    assert before[0].records < 10_000
    assert hub.core.intake.buffer.records > 30_000
    for emission in stuck:  # it comes back to life: all goes on
        hub.ack(emission, hub.process_one(emission))
    hub.run(until_s=1e6)
    assert hub.figures.complete == 40_000


def test_a_restart_runs_only_trees_that_were_not_complete() -> None:
    sink = Sink()
    hub = Hub(diamond(nothing))
    hub.offer(range(50))
    for _ in range(3):
        hub.step()
    hub.run()
    hub.offer(range(50, 80), start=51)
    hub.emit()  # under way when the driver dies
    saved = hub.core.checkpoint()
    assert saved.partitions["s:p"].records == 50
    again = Hub(diamond(sink), checkpoint=saved)
    again.offer(range(80))
    again.run()
    assert sorted(sink.values) == sorted([*range(50, 80)] * 2)
    assert again.core.checkpoint().partitions["s:p"].records == 80


def test_a_key_that_is_missing_fails_the_root_with_words() -> None:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing, count=2).fields("a", "user")
    hub = Hub(made, overrides={"retry.attempts_max": 2})
    hub.offer([{"user": 1}, {"name": 1}])
    while hub.core.gave_up is None:
        hub.step()
    assert "user" in hub.core.gave_up.reason
    assert hub.figures.complete == 1


@pytest.mark.req("S82")
def test_ends_are_told_with_their_values() -> None:
    failed = []

    def once(given: Input, out: Collector) -> None:
        if not failed:
            failed.append(given.value)
            raise ValueError("once")

    made = topology()
    made.bolt("a", once).shuffle("s")
    made.callbacks["s"] = SpoutCallbacks(on_ack=print)  # someone listens
    hub = Hub(made)
    hub.offer(["x"])
    hub.run()
    told = [(end.partition, end.position, end.value, end.reason) for end in hub.ends]
    assert told == [("p", 1, "x", "ValueError: once"), ("p", 1, "x", None)]


def test_a_batched_bolt_fails_and_acks_whole_tuples() -> None:
    calls: list[int] = []

    def store(inputs: Any, out: Collector) -> None:
        calls.append(len(inputs))
        if len(calls) == 1:
            raise OSError("disk full")

    made = topology()
    made.bolt("a", Batched(store)).shuffle("s")
    hub = Hub(made)
    hub.offer(range(20))
    hub.run()
    assert calls[0] == 20 and sum(calls) == 40
    assert (hub.figures.failed, hub.figures.complete) == (20, 20)


@pytest.mark.req("S83", "S105")
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("fails_by", ["raising", "dying"])
def test_what_is_in_no_tree_and_fails_is_told(mode: str, fails_by: str) -> None:
    def failing(given: Input, out: Collector) -> None:
        raise ValueError("each time")

    made = topology()
    made.bolt("a", lambda given, out: out(given.value, anchored=False)).shuffle("s")
    made.bolt("b", failing).shuffle("a")
    hub = Hub(made, overrides={"guarantee.mode": mode, "retry.attempts_max": 1})
    hub.offer(range(5))
    hub.core.on_committed()
    hub.step()
    hub.emit()
    if fails_by == "dying":
        hub.kill("b.1")
    hub.run()
    hub.step()
    dropped = [event for event in hub.events if isinstance(event, TupleDropped)]
    assert {event.partition for event in dropped} == {"b"}
    assert {event.bolt for event in dropped} == {"b.1"}
    assert sum(event.records for event in dropped) == hub.core.counters.records_dropped == 5
    # A worker that dies with a tuple of several sends it on in pieces, to find the one to blame;
    # with one attempt and nothing sent again it is dropped whole.
    assert 1 <= len(dropped) <= 5
    assert hub.figures.complete == 5


@pytest.mark.req("S58", "S105")
def test_without_ackers_what_is_held_is_not_forgotten() -> None:
    sink = Sink()
    made = topology(ackers=0, tree_timeout_s=10.0)
    made.bolt("a", Pairs).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    while hub.step():
        pass
    for _ in range(4):
        hub.now_s += 10.1
        hub.emit()
    hub.offer(["go"], start=2)
    hub.run()
    assert sink.values == [["x", "go"]]


@pytest.mark.req("S88")
def test_neighbours_that_are_dropped_together_are_told_as_one() -> None:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    hub = Hub(made, overrides={"guarantee.mode": "at_most_once", "tuple.records_max": 50})
    hub.offer(range(1, 21))
    hub.offer(range(1, 6), partition="s:q")
    hub.core.on_committed()
    hub.emit()
    hub.kill("a.1")
    hub.run()
    hub.step()
    dropped = [event for event in hub.events if isinstance(event, TupleDropped)]
    assert [(e.partition, e.first, e.last, e.records) for e in dropped] == [
        ("s:p", 1, 20, 20),
        ("s:q", 1, 5, 5),
    ]
