"""Ranges in virtual time: the same on every run, nothing lost, late bolts split."""

from __future__ import annotations

import msgspec
import pytest

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.ranges.run import RangeOutcome, RangeRun
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.workload import Workload

pytestmark = pytest.mark.on_change()


def run(scenario: Scenario, **how: bool) -> RangeOutcome:
    """A twelfth of the data: a second or two of work a bolt, with seconds a range."""
    short = msgspec.structs.replace(scenario, tuples=6_000, tuple_s=0.0, record_s=100e-6)
    return RangeRun(short, 7, Workload(short, 7, 0), **how).run()


@pytest.mark.parametrize("name", ["homog", "hetero", "crash", "lossy", "gc"])
def test_nothing_is_lost_and_without_a_fault_nothing_is_done_twice(name: str) -> None:
    outcome = run(CATALOGUE[name])
    assert outcome.finished
    assert outcome.lost == 0
    if name in ("homog", "hetero", "lossy"):
        assert outcome.duplicates == 0


def test_the_same_on_every_run() -> None:
    assert run(CATALOGUE["lossy"]) == run(CATALOGUE["lossy"])


def test_splits_keep_a_slow_bolt_from_being_waited_for() -> None:
    slow = Scenario(name="slow", what="one is 10x slower", speeds=(*(1.0,) * 11, 0.1))
    outcome = run(slow, knows_end=False)
    assert outcome.splits > 0
    assert outcome.efficiency > 0.9
