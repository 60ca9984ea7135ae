"""What is in no tree: held inputs are not forgotten, emits that nobody gets are told."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.core.events import EmitUndelivered
from flowctl_storm import Collector, Input
from tests.collecting_parts import Pairs
from tests.topology_driver import Hub, Sink, nothing, passing, topology


def loosely_holding(sink: Any) -> Hub:
    """ "x" comes unanchored to a bolt that holds it for four ticks of the trees."""
    made = topology(tree_timeout_s=10.0)
    made.bolt("loose", lambda given, out: out(given.value, anchored=False)).shuffle("s")
    made.bolt("hold", Pairs).shuffle("loose")
    made.bolt("sink", sink).shuffle("hold")
    hub = Hub(made)
    hub.offer(["x"])
    while hub.step():
        pass
    for _ in range(4):
        hub.now_s += 10.1
        hub.emit()
    return hub


@pytest.mark.req("S80", "S83")
def test_an_unanchored_input_that_is_held_is_not_forgotten_when_trees_tick() -> None:
    sink = Sink()
    hub = loosely_holding(sink)
    assert hub.core.stage_figures()[1].held_now == 1
    hub.offer(["go"], start=2)
    hub.run()
    assert sink.values == [["x", "go"]]
    assert hub.core.stage_figures()[1].held_now == 0


@pytest.mark.req("S83")
def test_an_unanchored_input_that_a_dead_bolt_held_goes_to_the_next_one_also_after_ticks() -> None:
    sink = Sink()
    hub = loosely_holding(sink)
    hub.kill("hold.1")
    hub.offer(["go"], start=2)
    hub.run()
    assert sink.values == [["x", "go"]]


def undelivered(hub: Hub) -> list[tuple[str, int, str]]:
    hub.step()
    return [(e.source, e.emits, e.reason) for e in hub.events if isinstance(e, EmitUndelivered)]


@pytest.mark.req("S74", "S83")
def test_an_unanchored_emit_to_a_stream_that_nobody_gets_is_counted_and_told() -> None:
    def parse(given: Input, out: Collector) -> None:
        out(given.value, stream="bads", anchored=False)

    made = topology()
    made.bolt("a", parse).shuffle("s")
    made.bolt("bad", nothing).shuffle("a", stream="bad")
    hub = Hub(made)
    hub.offer(range(25))
    hub.run()
    assert undelivered(hub) == [
        ("a/bads", 25, "nobody receives stream 'bads' of 'a'. Did you mean 'bad'?")
    ]
    assert hub.figures.undelivered_emits == 25
    assert hub.figures.complete == 25


@pytest.mark.req("S83")
def test_an_unanchored_emit_without_the_field_that_it_is_grouped_by_is_counted_and_told() -> None:
    made = topology()
    made.bolt("a", lambda given, out: out({"name": 1}, anchored=False)).shuffle("s")
    made.bolt("b", nothing, count=2).fields("a", "user")
    hub = Hub(made)
    hub.offer(["x"])
    hub.run()
    [(source, emits, reason)] = undelivered(hub)
    assert (source, emits) == ("a", 1)
    assert "'user'" in reason and "'name'" in reason
    assert hub.figures.undelivered_emits == 1


@pytest.mark.req("S74")
def test_an_anchored_emit_that_nobody_gets_is_told_too_and_its_root_is_done() -> None:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    hub = Hub(made)
    hub.offer(range(3))
    hub.run()
    assert undelivered(hub) == [("a", 3, "nobody receives what 'a' emits")]
    assert (hub.figures.undelivered_emits, hub.figures.complete) == (3, 3)


@pytest.mark.req("S83")
def test_an_emit_that_was_directed_and_the_stage_takes_none_such_is_told() -> None:
    made = topology()
    made.bolt("a", lambda given, out: out("v", task=1, anchored=False)).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.run()
    [(_, _, reason)] = undelivered(hub)
    assert reason == "emitted to task 1, but 'a' has no direct grouping"


def test_an_emit_to_nobody_in_particular_for_direct_groupings_only_is_told() -> None:
    made = topology()
    made.bolt("a", lambda given, out: out("v", anchored=False)).shuffle("s")
    made.bolt("b", nothing).direct("a")
    hub = Hub(made)
    hub.offer(["x"])
    hub.run()
    [(_, _, reason)] = undelivered(hub)
    assert reason == "emitted without naming a task, but all groupings of 'a' are direct"


def test_a_flood_of_them_is_told_at_once_and_then_now_and_then() -> None:
    """A bolt that emits to nobody with each of thousands of tuples is told in a few lines."""
    made = topology()
    made.bolt("a", passing).shuffle("s")
    hub = Hub(made, overrides={"tuple.records_max": 1})
    hub.offer(range(3_000))
    hub.run()
    hub.now_s += 60.0
    hub.emit()
    hub.step()
    told = undelivered(hub)
    assert sum(emits for _, emits, _ in told) == 3_000
    assert len(told) <= 5


def test_the_summary_counts_them() -> None:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    hub = Hub(made)
    hub.offer(range(3))
    hub.run()
    report = hub.report()
    assert "3 emits that nobody received" in " ".join(report.more())
