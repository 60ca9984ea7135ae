"""A topology whose target fails in ways nobody recognises, for a while: no good record is lost."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.core.blame import GIVEN_UP_FIRST_MAX
from flowctl.core.events import TargetCameBack, TargetWentDown
from flowctl.core.failures import NOTHING_SUCCEEDED
from flowctl_storm import Batched, Collector, Input
from tests.topology_driver import Hub, passing, topology

pytestmark = pytest.mark.on_change("topology")

POISON = 1_444


class Target:
    """Raises something unknown between ``fails`` [s], and for the poison at any time."""

    poisoned: type[Exception] = RuntimeError

    def __init__(self, fails: tuple[float, float], *, poison: tuple[int, ...] = (POISON,)) -> None:
        self.fails = fails
        self.poison = poison
        self.calls = 0
        self.hub: Any = None

    def take(self, values: list[int], bolt: str) -> None:
        self.calls += 1
        if self.fails[0] <= self.hub.now_s < self.fails[1] or self.is_cut_off(bolt):
            raise OSError(5, "Input/output error")
        if set(values) & set(self.poison):
            raise self.poisoned("poison")

    def is_cut_off(self, bolt: str) -> bool:
        return False

    def single(self, given: Input, out: Collector) -> None:
        self.take([given.value], out.bolt)

    def whole(self, given: Any, out: Collector) -> None:
        self.take([each.value for each in given], out.bolt)


def hub_of(
    target: Target,
    records: int,
    *,
    code: Any = None,
    max_pending: int | None = None,
    **overrides: Any,
) -> Hub:
    made = topology(max_pending=max_pending)
    made.bolt("a", passing, count=2).shuffle("s")
    made.bolt("b", code or target.single, count=4).shuffle("a")
    hub = target.hub = Hub(made, has_dead_letter=True, overrides=overrides)
    hub.offer(range(1, records + 1))
    hub.core.end_of_input(now_s=0.0)
    return hub


def letters(hub: Hub, *, until_s: float = 1_000.0) -> list[int]:
    """Run it in virtual time; return the values that were given up, in order."""
    kept: list[int] = []
    while not (hub.core.is_drained or hub.core.gave_up or hub.core.is_target_lost):
        if not hub.step() and not hub.in_flight:
            due_s = hub.core.next_deadline_s()
            assert due_s is not None and hub.now_s < until_s, f"stuck: {hub.figures}"
            hub.now_s = max(hub.now_s, due_s)
        while (dead := hub.core.poll_dead_letter()) is not None:
            kept += [record.value for record in dead.records]
            hub.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=hub.now_s)
    return sorted(kept)


@pytest.mark.req("S109")
@pytest.mark.parametrize("code", ["single", "whole"])
@pytest.mark.parametrize("fails_for_s", [0.1, 1.0, 10.0, 60.0])
@pytest.mark.parametrize("from_s", [1.0, 3.0])
def test_an_outage_costs_no_good_record(from_s: float, fails_for_s: float, code: str) -> None:
    target = Target((from_s, from_s + fails_for_s))
    called = target.single if code == "single" else Batched(target.whole)
    hub = hub_of(target, 2_000, code=called)
    assert letters(hub) == [POISON]
    assert hub.core.counters.records_acked == 2_000


def test_a_target_that_is_down_is_asked_now_and_then() -> None:
    target = Target((1.0, 61.0), poison=())
    hub = hub_of(target, 2_000)
    assert letters(hub) == []
    kinds = [type(event) for event in hub.events]
    assert TargetWentDown in kinds and TargetCameBack in kinds
    assert hub.core.counters.target_down_total_s > 50
    assert target.calls < 3 * 2_000, "not each record again and again: a minute of that is 30 times"


def test_an_outage_of_hours_costs_none_either() -> None:
    """Each root is asked with more than twenty times, which is no refusal of that root."""
    target = Target((0.2, 20_000.0), poison=())
    hub = hub_of(target, 250, **{"retry.give_up_after_s": 40_000.0})
    assert letters(hub, until_s=40_000.0) == []
    assert target.calls > 250 * 25


def test_one_bolt_of_four_that_reaches_nothing_costs_no_record() -> None:
    class CutOff(Target):
        def is_cut_off(self, bolt: str) -> bool:
            return bolt == "b.2"

    hub = hub_of(CutOff((0, 0), poison=()), 1_000)
    assert len(letters(hub)) <= GIVEN_UP_FIRST_MAX, "of the last ones at most"


def test_a_bad_end_is_found_though_it_takes_ten_seconds() -> None:
    bad = tuple(range(951, 1_001))
    hub = hub_of(Target((0, 0), poison=bad), 1_000)
    assert letters(hub) == list(bad)
    assert hub.now_s < 60


def test_where_more_is_left_that_fails_the_run_ends_and_keeps_it() -> None:
    hub = hub_of(Target((0, 0), poison=tuple(range(1_001, 2_001))), 2_000)
    assert letters(hub) == []
    assert hub.core.is_target_lost and hub.core.target_down is not None


def test_what_never_worked_does_not_empty_the_source_into_the_dead_letter() -> None:
    hub = hub_of(Target((0.0, 1e9)), 1_000)
    assert letters(hub) == [], "the next run begins with them, as without stages"
    assert hub.core.gave_up is not None and NOTHING_SUCCEEDED in hub.core.gave_up.reason


@pytest.mark.parametrize("max_pending", [1, 5, None])
def test_letters_wait_until_something_has_succeeded_where_they_failed(
    max_pending: int | None,
) -> None:
    """Though they are pending meanwhile, they take no place of those that may succeed."""
    hub = hub_of(Target((0, 0), poison=(1, 2, 3)), 30, max_pending=max_pending)
    assert letters(hub) == [1, 2, 3]
    assert hub.core.counters.records_acked == 30


def test_or_until_nothing_else_is_left() -> None:
    hub = hub_of(Target((0, 0), poison=(1, 2, 3)), 3)
    assert letters(hub) == [1, 2, 3]


def test_errors_about_values_are_the_records_own_however_many_fail() -> None:
    bad = tuple(range(1_001, 2_001))
    target = Target((0, 0), poison=bad)
    target.poisoned = ValueError
    hub = hub_of(target, 2_000)
    assert letters(hub) == list(bad)
    assert TargetWentDown not in [type(event) for event in hub.events]
