"""Manual-ack bolts: inputs held over several tuples, joins, failing, prolonging, dying."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from flowctl.errors import JobError
from flowctl_storm import Input, ManualCollector
from flowctl_storm.worker.tasks import StageCode
from tests.topology_driver import Hub, topology


class Join:
    """Emits one value for each pair of equal keys, anchored to both."""

    def __init__(self) -> None:
        self.first: dict[Any, Input] = {}

    def execute(self, given: Input, out: ManualCollector) -> None:
        key = given["k"]
        other = self.first.pop(key, None)
        if other is None:
            self.first[key] = given
            return
        out.emit([key, other["side"], given["side"]], anchors=(other, given))
        out.ack(other)
        out.ack(given)


def joining(got: list[Any], code: Any = Join) -> Any:
    made = topology()
    made.bolt("join", code, count=2).fields("s", "k")
    made.bolt("sink", lambda given, out: got.append(given.value)).shuffle("join")
    return made


def sides(keys: int) -> list[dict[str, Any]]:
    """All left sides first, so that each is held for long."""
    return [{"k": k, "side": side} for side in "lr" for k in range(keys)]


@pytest.mark.req("S83", "S84", "S64")
def test_a_join_acks_both_of_its_inputs_when_what_came_of_them_is_done() -> None:
    got: list[Any] = []
    hub = Hub(joining(got), overrides={"tuple.records_max": 7})
    hub.offer(sides(100)[:100])
    while hub.step():
        pass
    assert hub.core.stage_figures()[0].held_now == 100
    assert hub.core.checkpoint().partitions["s:p"].records == 0
    hub.offer(sides(100)[100:], start=101)
    hub.run()
    assert sorted(got) == [[k, "l", "r"] for k in range(100)]
    assert hub.core.checkpoint().partitions["s:p"].records == 200
    assert (hub.figures.ledger_now, hub.figures.complete, hub.figures.failed) == (0, 200, 0)
    assert hub.core.stage_figures()[0].held_now == 0


def test_a_tree_of_two_anchors_fails_both_roots() -> None:
    got: list[Any] = []
    seen: Counter[Any] = Counter()
    made = topology()
    made.bolt("join", Join).fields("s", "k")

    def sink(given: Input, out: Any) -> None:
        seen[given[0]] += 1
        if seen[given[0]] == 1 and given[0] == 3:
            raise ValueError("once")
        got.append(given[0])

    made.bolt("sink", sink).shuffle("join")
    hub = Hub(made)
    hub.offer(sides(5))
    hub.run()
    assert sorted(got) == list(range(5))
    assert (hub.figures.failed, hub.figures.replayed, hub.figures.complete) == (2, 2, 10)


def test_what_a_dead_bolt_held_is_given_to_the_next_one() -> None:
    got: list[Any] = []
    hub = Hub(joining(got))
    hub.offer(sides(50)[:50])
    while hub.step():
        pass
    hub.kill("join.1")
    hub.kill("join.2")
    hub.offer(sides(50)[50:], start=51)
    hub.run()
    assert sorted(k for k, *_ in got) == list(range(50))
    assert (hub.figures.complete, hub.figures.replayed, hub.figures.ledger_now) == (100, 0, 0)


class Flaky:
    """Fails its first input by hand, raises on its second, having acked it."""

    seen = 0

    def execute(self, given: Input, out: ManualCollector) -> None:
        Flaky.seen += 1
        if Flaky.seen == 1:
            out.fail(given, "not today")
            return
        out.emit(given.value, anchors=given)
        out.ack(given)
        if Flaky.seen == 2:
            raise ValueError("after its ack")


@pytest.mark.req("S66", "S84")
def test_what_a_manual_bolt_fails_goes_again_and_what_it_raises_takes_its_words_back() -> None:
    got: list[Any] = []
    Flaky.seen = 0
    made = topology()
    made.bolt("a", Flaky).shuffle("s")
    made.bolt("sink", lambda given, out: got.append(given.value)).shuffle("a")
    hub = Hub(made)
    hub.offer(range(5))
    hub.run()
    assert sorted(got) == list(range(5))
    reasons = {getattr(event, "reason", "") for event in hub.events}
    assert {"not today", "ValueError: after its ack"} <= reasons


class Keeper:
    """Holds everything until it is told to let go; may prolong what it holds."""

    prolongs = False

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.held.append(given)
        if given.value == "go":
            for held in self.held:
                out.ack(held)
        elif self.prolongs:
            for held in self.held:
                out.prolong(held)


def _held_over_two_ticks(prolongs: bool) -> Any:
    class Kept(Keeper):
        pass

    Kept.prolongs = prolongs
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", Kept).shuffle("s")
    hub = Hub(made)
    hub.offer(["x"])
    while hub.step():
        pass
    for start in (2, 3, 4):
        hub.now_s += 9.0
        hub.offer(["y"], start=start)
        while hub.step():
            pass
    hub.now_s += 9.0
    hub.emit()
    return hub


def test_what_is_held_for_too_long_expires() -> None:
    hub = _held_over_two_ticks(prolongs=False)
    assert hub.figures.expired >= 1


class Late(Keeper):
    """Emits what it held when it is told to, however late."""

    def execute(self, given: Input, out: ManualCollector) -> None:
        if given.value != "go":
            self.held.append(given)
            return
        for held in self.held:
            out.emit(held.value, anchors=held)
            out.ack(held)
        self.held.clear()
        out.ack(given)


@pytest.mark.req("S50")
def test_what_comes_of_an_input_that_nobody_waits_for_any_more_is_dropped() -> None:
    got: list[Any] = []
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", Late).shuffle("s")
    made.bolt("sink", lambda given, out: got.append(given.value)).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    for _ in range(4):
        while hub.step():
            pass
        hub.now_s += 10.1
    assert hub.figures.replayed >= 1  # each replay is held as well
    hub.offer(["go"], start=2)
    hub.run()
    assert got == ["x"]
    assert hub.figures.dropped_emits == hub.figures.replayed
    assert hub.figures.complete == 2


def test_a_bolt_may_prolong_what_it_holds() -> None:
    hub = _held_over_two_ticks(prolongs=True)
    assert hub.figures.expired == 0
    hub.offer(["go"], start=5)
    hub.run()
    assert (hub.figures.complete, hub.figures.ledger_now) == (5, 0)


def test_an_anchor_that_was_acked_is_refused() -> None:
    out = ManualCollector()
    given = Input(1, "x", "s")
    out.ack(given)
    with pytest.raises(JobError, match="Emit first"):
        out.emit("y", anchors=given)


@pytest.mark.req("S50")
def test_only_the_first_word_about_an_input_counts() -> None:
    out = ManualCollector()
    given = Input(1, "x", "s")
    out.ack(given)
    out.fail(given)
    out.ack(given)
    made = out.settlement([given])
    assert (made.failed, made.held, made.acked) == ([], [], [])


def test_each_connection_has_a_state_of_its_own() -> None:
    code = StageCode(functools.partial(Join), ["s"])
    assert code.is_manual
    first, second = code.for_connection("a.1"), code.for_connection("a.1")
    assert first._bolt is not second._bolt  # type: ignore[attr-defined]
