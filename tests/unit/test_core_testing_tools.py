"""The clock and the invariants that the core's tests rest on can themselves fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowctl.core.buffer import Cut
from flowctl.core.consumer import NOT_QUEUED
from flowctl.core.messages import Emission
from flowctl.core.records import Record
from flowctl.core.spout import SpoutCore
from flowctl.core.tuples import FlowTuple
from flowctl.errors import InternalError
from flowctl.testing.clock import ManualClock
from flowctl.testing.invariants import check
from tests.core_driver import Driver


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    assert clock.advance(0.5) == clock() == 5.5
    assert clock.advance_to(5.0) == 5.5
    assert clock.advance_to(6.0) == clock() == 6.0
    with pytest.raises(ValueError, match="back"):
        clock.advance(-0.1)


def _lose_a_tuple(core: SpoutCore) -> None:
    core.bolts["a"].flight.popitem()


def _double_a_tuple(core: SpoutCore) -> None:
    core._failures.retries.add(next(iter(core.book.pending.values())), not_before_s=0.0, now_s=0.0)


def _invent_a_tuple(core: SpoutCore) -> None:
    core.bolts["a"].flight[77] = FlowTuple(77, Cut("p", 0, [Record(1, 1)], 9))


def _forget_the_alarm(core: SpoutCore) -> None:
    core.bolts["a"].alarm_s = float("inf")


def _forget_the_ring(core: SpoutCore) -> None:
    core.bolts["b"].queued_s = NOT_QUEUED


def _miscount(core: SpoutCore) -> None:
    core.counters.records_pending_now += 1


def _shrink_too_far(core: SpoutCore) -> None:
    core.bolts["a"].policy.window = 0.5


def _miscount_uncommitted(core: SpoutCore) -> None:
    core.intake.uncommitted -= 1


def _pass_a_hole(core: SpoutCore) -> None:
    core.intake.ledgers["p"].cumulative_seq += 2


@pytest.mark.parametrize(
    "damage",
    [
        _lose_a_tuple,
        _double_a_tuple,
        _invent_a_tuple,
        _forget_the_alarm,
        _forget_the_ring,
        _miscount,
        _shrink_too_far,
        _miscount_uncommitted,
        _pass_a_hole,
    ],
)
def test_damage_is_seen(damage: Callable[[SpoutCore], None]) -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=2)
    driver.offer(3)
    driver.emit()
    driver.ack(driver_emission(driver))
    check(driver.core)
    damage(driver.core)
    with pytest.raises(InternalError):
        check(driver.core)


def driver_emission(driver: Driver) -> Emission:
    """The newest tuple of bolt a, so that there is a range above a hole."""
    tuple_id, flow_tuple = list(driver.core.bolts["a"].flight.items())[-1]
    return Emission(tuple_id, "a", flow_tuple.attempt, "p", flow_tuple.cut.records, None, 0)
