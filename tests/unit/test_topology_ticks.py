"""Bolts that are called at intervals: ``on_tick``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowctl.errors import ConfigError
from flowctl_storm import Input, ManualCollector, Topology
from tests.collecting_parts import Totals
from tests.topology_driver import Hub, Sink, nothing, topology


@pytest.fixture(autouse=True)
def no_ends() -> None:
    Totals.ends = []


class Ticking:
    """Acks and emits at each tick what came since the last one."""

    raises: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.held.append(given)

    def on_tick(self, out: ManualCollector) -> None:
        if self.held:
            out.emit([given.value for given in self.held], anchors=self.held)
        for given in self.held:
            out.ack(given)
        out.count("ticks")
        if Ticking.raises is not None:
            Ticking.raises()
        self.held = []


def ticking(sink: Any, code: Any = Ticking, tick_s: float | None = 2.0) -> Topology:
    made = topology()
    made.bolt("a", code, tick_s=tick_s).shuffle("s")
    made.bolt("sink", sink).shuffle("a")
    return made


def test_on_tick_is_called_every_tick_s_and_what_it_says_counts() -> None:
    sink = Sink()
    Ticking.raises = None
    hub = Hub(ticking(sink))
    began: list[float] = []
    answer = hub.answer

    def noting(emission: Any) -> None:
        if emission.partition == ":tick":
            began.append(hub.now_s)
        answer(emission)

    hub.answer = noting  # type: ignore[method-assign]
    for start in range(1, 4):
        hub.offer([start], start=start)
        while hub.step():
            pass
        hub.now_s = hub.core.next_deadline_s() or 0.0
        hub.step()
        hub.run(until_s=100.0)
    assert sink.values == [[1], [2], [3]]
    assert [round(at_s) for at_s in began] == [2, 4, 6]
    assert hub.figures.complete == 3


def test_a_tick_counts_among_what_reaches_its_bolt() -> None:
    """A bolt counts it as it comes; else it would seem to have got more than it was sent."""
    Ticking.raises = None
    hub = Hub(ticking(Sink()))
    came: list[str | int] = []
    answer = hub.answer

    def noting(emission: Any) -> None:
        held = hub.core.bolts[emission.bolt].flight.get(emission.tuple_id)
        if emission.bolt.startswith("a"):
            came.append("tick" if held is None else held.ordinal)
        answer(emission)

    hub.answer = noting  # type: ignore[method-assign]
    for start in (1, 2):
        hub.offer([start], start=start)
        hub.run(until_s=hub.now_s + 5.0)
    assert came == [1, "tick", 3, "tick"]


def test_a_tick_that_raises_has_said_nothing_and_is_reported() -> None:
    sink = Sink()

    def broken() -> None:
        Ticking.raises = None
        raise ValueError("tick")

    Ticking.raises = broken
    hub = Hub(ticking(sink))
    hub.offer([1])
    hub.run()
    errors = [error for _, watched in hub.watched for error in watched.errors]
    assert [(e.kind, e.problem) for e in errors] == [("ValueError", "tick")]
    assert sink.values == [[1]]


def test_a_bolt_that_is_called_is_not_called_again_before_it_answered() -> None:
    hub = Hub(ticking(nothing))
    hub.now_s = 2.5
    hub.emit()
    hub.now_s = 20.0
    hub.emit()
    [call] = hub.in_flight
    assert not hub.core.is_drained
    assert hub.core.may_speak_of("a.1", call.tuple_id)
    hub.step()
    assert not hub.core.may_speak_of("a.1", call.tuple_id)  # an answer counts once
    assert hub.core.is_drained


def test_a_tick_that_takes_as_long_as_its_interval_does_not_keep_the_run_going() -> None:
    class Slow(Totals):
        def on_tick(self, out: ManualCollector) -> None:
            hub.now_s += 2.0

    made = topology()
    made.bolt("a", Slow, count=2, tick_s=1.0).shuffle("s")
    made.bolt("sink", nothing).shuffle("a")
    hub = Hub(made)
    hub.offer(["x"] * 4)
    for _ in range(10):
        hub.step()
    hub.now_s += 1.0
    hub.emit()  # both are called, and one of them is from now on
    hub.core.end_of_input(now_s=hub.now_s)
    for _ in range(50):
        hub.step()
    assert (sorted(Totals.ends), hub.figures.complete) == (["a.1", "a.2"], 4)
    assert hub.core.is_drained


def test_ticks_of_a_bolt_that_is_gone_stop() -> None:
    hub = Hub(ticking(nothing))
    hub.kill("a.1", comes_back=False)
    hub.now_s = 10.0
    hub.emit()
    assert not hub.in_flight
    assert hub.core.next_deadline_s() is None or hub.core.next_deadline_s() > hub.now_s


@pytest.mark.parametrize(
    ("code", "tick_s", "problem"),
    [
        (Ticking, None, "has on_tick, but no interval"),
        (Totals, 1.0, "there is no on_tick"),
        (nothing, 1.0, "there is no on_tick"),
        (Ticking, 0.0, "tick_s must be greater than 0, got 0.0"),
        (Ticking, float("nan"), "tick_s must be greater than 0, got nan"),
    ],
)
def test_ticks_and_intervals_come_together(code: Any, tick_s: float | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ticking(nothing, code, tick_s)
