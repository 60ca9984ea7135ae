"""Bolts that collect: ``on_end`` when their input is done, ``on_tick`` at intervals."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

from flowctl.core.events import TreesHeldUp
from flowctl.errors import RetryLater
from flowctl.failure.classify import Meaning
from flowctl.failure.kinds import Kind
from flowctl_storm import Input, ManualCollector
from tests.collecting_parts import QUICK, Totals, collecting, finish
from tests.topology_driver import Hub, Sink, topology


@pytest.fixture(autouse=True)
def no_ends() -> None:
    Totals.ends = []


def test_on_end_is_called_once_per_task_and_what_it_emits_is_in_the_trees_of_what_it_holds() -> (
    None
):
    sink = Sink()
    hub = Hub(collecting(Totals, sink=sink, count=2), overrides={"tuple.records_max": 3})
    hub.offer([n % 5 for n in range(100)])
    while hub.step():
        pass
    assert (Totals.ends, hub.core.is_drained) == ([], False)
    assert hub.core.checkpoint().partitions["s:p"].records == 0
    finish(hub)
    assert sorted(Totals.ends) == ["total.1", "total.2"]
    sums: Counter[Any] = Counter()
    for value in sink.values:
        sums.update(dict(value))
    assert sums == dict.fromkeys(range(5), 20)
    assert (hub.figures.complete, hub.figures.replayed, hub.figures.ledger_now) == (100, 0, 0)
    assert hub.core.checkpoint().partitions["s:p"].records == 100
    assert not any(stage.parcels for stage in hub.core.stages.values())


def test_the_run_does_not_end_before_what_on_end_emitted_is_done() -> None:
    hub = Hub(collecting(Totals))
    hub.offer(range(10))
    hub.core.end_of_input(now_s=0.0)
    while not Totals.ends:
        hub.step()
    hub.emit()
    assert [e.bolt for e in hub.in_flight] == ["sink.1"]
    assert (hub.core.is_drained, hub.figures.complete) == (False, 0)
    hub.run()
    assert hub.figures.complete == 10


class Sums(Totals):
    """Adds up what ``Totals`` emitted."""

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.counts.update(dict(given.value))
        self.held.append(given)


def test_a_stage_that_collects_from_one_that_does_is_called_after_it() -> None:
    sink = Sink()
    made = topology()
    made.bolt("low", Totals, count=2).shuffle("s")
    made.bolt("high", Sums).shuffle("low")
    made.bolt("sink", sink).shuffle("high")
    hub = Hub(made, overrides={"tuple.records_max": 5})
    hub.offer(["x"] * 20)
    finish(hub)
    assert (sorted(Totals.ends[:2]), Totals.ends[2:]) == (["low.1", "low.2"], ["high.1"])
    assert sink.values == [[("x", 20)]]
    assert hub.figures.complete == 20


def test_a_bolt_that_dies_with_what_it_held_is_called_again_where_that_is_then() -> None:
    sink = Sink()
    hub = Hub(collecting(Totals, sink=sink))
    hub.offer(["x"] * 10)
    while hub.step():
        pass
    hub.core.end_of_input(now_s=hub.now_s)
    hub.emit()
    [call] = hub.in_flight
    hub.process_one(call)  # on_end ran, and its worker dies before the answer is heard
    assert [e.tuple_id for e in hub.kill("total.1")] == [call.tuple_id]
    hub.run()
    assert Totals.ends == ["total.1", "total.1"]
    assert sink.values == [[("x", 10)]]
    assert (hub.figures.complete, hub.figures.replayed) == (10, 0)


def test_a_bolt_that_gets_more_after_its_end_is_called_again() -> None:
    seen: list[Any] = []

    def flaky(given: Input, out: Any) -> None:
        seen.append(given.value)
        if len(seen) == 1:
            raise ValueError("once")

    hub = Hub(collecting(Totals, sink=flaky), overrides=QUICK)
    hub.offer(["x"] * 4)
    finish(hub)
    assert Totals.ends == ["total.1", "total.1"]
    assert (hub.figures.failed, hub.figures.complete, hub.figures.ledger_now) == (4, 4, 0)
    assert seen == [[("x", 4)], [("x", 4)]]


def test_an_end_that_was_called_before_more_came_is_not_the_last() -> None:
    sink = Sink()
    hub = Hub(collecting(Totals, sink=sink))
    hub.offer(["x"] * 4)
    while hub.step():
        pass
    hub.core.end_of_input(now_s=hub.now_s)
    hub.emit()
    [call] = hub.in_flight
    hub.offer(["y"], start=5)  # as a root that goes again
    hub.emit()
    hub.in_flight.remove(call)
    hub.answer(hub.in_flight.popleft())  # "first" passes it on to the bolt that was called
    hub.emit()
    hub.in_flight.appendleft(call)
    hub.run()
    assert Totals.ends == ["total.1", "total.1"]
    assert sink.values == [[("x", 4)], [("y", 1)]]
    assert hub.figures.complete == 5


def test_what_is_held_for_the_end_does_not_expire_nor_count_as_held_up() -> None:
    hub = Hub(collecting(Totals, tree_timeout_s=10.0))
    hub.offer(["x"])
    for start in range(2, 12):
        while hub.step():
            pass
        hub.now_s += 9.0
        hub.offer(["x"], start=start)
    finish(hub, until_s=200.0)
    assert (hub.figures.expired, hub.figures.complete) == (0, 11)
    assert not [e for e in hub.events if isinstance(e, TreesHeldUp)]


class LeavesOne(Totals):
    def on_end(self, out: ManualCollector) -> None:
        for given in self.held[1:]:
            out.ack(given)
        self.held.clear()


def test_what_on_end_leaves_unsettled_fails() -> None:
    hub = Hub(collecting(LeavesOne), overrides=QUICK)
    hub.offer(["x"] * 5)
    hub.core.end_of_input(now_s=0.0)
    while hub.core.gave_up is None:
        hub.step()
        hub.now_s = max(hub.now_s, hub.core.next_deadline_s() or 0.0)
    assert hub.core.gave_up.reason == "on_end neither acked nor failed it"
    assert hub.figures.complete == 4


class Raising(Totals):
    errors: ClassVar[list[BaseException]] = []

    def on_end(self, out: ManualCollector) -> None:
        if self.errors:
            out.emit("taken back", anchors=self.held)
            for given in self.held:
                out.ack(given)
            raise self.errors.pop()
        super().on_end(out)


def answering(hub: Hub) -> None:
    """Steps, but what ``on_end`` raises fails its call, as the worker would say it."""
    answer = hub.answer

    def may_fail(emission: Any) -> None:
        try:
            answer(emission)
        except ValueError as error:
            hub.fail(emission, str(error))

    hub.answer = may_fail  # type: ignore[method-assign]


def test_an_on_end_that_raises_or_is_refused_is_called_again_and_said_nothing_before() -> None:
    sink = Sink()
    Raising.errors = [RetryLater(after_s=5.0), ValueError("no"), ValueError("no")]
    hub = Hub(collecting(Raising, sink=sink), overrides=QUICK)
    answering(hub)
    hub.offer(["x"] * 3)
    finish(hub)
    assert Totals.ends == ["total.1"]
    assert sink.values == [[("x", 3)]]
    assert (hub.figures.complete, hub.figures.failed) == (3, 0)
    assert hub.now_s > 5.0


def test_an_on_end_that_raises_too_often_ends_the_run() -> None:
    Raising.errors = [ValueError("no")] * 9
    hub = Hub(collecting(Raising), overrides=QUICK)
    answering(hub)
    hub.offer(["x"] * 3)
    hub.core.end_of_input(now_s=0.0)
    while hub.core.gave_up is None:
        hub.step()
        hub.now_s = max(hub.now_s, hub.core.next_deadline_s() or 0.0)
    gave_up = hub.core.gave_up
    assert (gave_up.attempts, gave_up.bolts, gave_up.reason) == (3, ("total.1",), "no")
    assert gave_up.partition == "on_end of total"
    assert hub.core.checkpoint().partitions["s:p"].records == 0


@pytest.mark.parametrize("ackers", [0, 1])
def test_where_nothing_goes_again_on_end_is_called_too(ackers: int) -> None:
    sink = Sink()
    hub = Hub(
        collecting(Totals, sink=sink, ackers=ackers),
        overrides={"guarantee.mode": "at_most_once"},
    )
    hub.offer(["x"] * 3)
    hub.core.on_committed()
    finish(hub)
    assert sink.values == [[("x", 3)]]


def test_a_refusal_is_no_fault() -> None:
    hub = Hub(collecting(Totals), overrides={**QUICK, "retry.attempts_max": 1})
    hub.offer(["x"])
    while hub.step():
        pass
    hub.core.end_of_input(now_s=hub.now_s)
    for _ in range(5):
        while not hub.in_flight:
            hub.now_s = max(hub.now_s, hub.core.next_deadline_s() or 0.0)
            hub.emit()
        hub.refuse(hub.in_flight.popleft(), Meaning(Kind.FULL, "full"))
    hub.run()
    assert (hub.core.gave_up, hub.figures.complete) == (None, 1)
