"""Faults that the default policy once lost time with; the figures before are those of 0.1.0's first
control law, of the seeds given here."""

from __future__ import annotations

import pytest

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.engine import Outcome, simulate
from flowctl_lab.simulation.policies import settings_of

pytestmark = pytest.mark.on_change()


def run(name: str, seed: int) -> Outcome:
    scenario = CATALOGUE[name]
    return simulate(scenario, settings_of("just_full", scenario), seed)


@pytest.mark.parametrize("seed", [401, 402])
def test_a_bolt_that_dies_before_its_first_heartbeat_costs_what_it_did(seed: int) -> None:
    """Before: .11, not finished at 160 s, and .94."""
    outcome = run("dead_early", seed)
    assert outcome.finished
    assert outcome.efficiency >= 0.88
    assert outcome.lag_s <= 3.0
    assert outcome.lost == 0


@pytest.mark.parametrize("seed", [401, 402])
def test_a_bolt_far_away_goes_on_when_it_thaws(seed: int) -> None:
    """Before: .83."""
    outcome = run("frozen_far", seed)
    assert outcome.efficiency >= 0.88
    assert outcome.lag_s <= 1.0
    assert outcome.duplicates <= 0.001


def test_loss_is_seen_with_several_slots_too() -> None:
    """Before, with twice as many tuples: E .85, and the checkpoint 2 s behind (the bound)."""
    outcome = run("lossy4", 401)
    assert outcome.efficiency >= 0.96
    assert outcome.lag_s <= 1.0
    assert outcome.duplicates <= 0.001
