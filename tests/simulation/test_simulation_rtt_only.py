"""Bolts without telemetry under the default policy: its fallback keeps them busy too."""

from __future__ import annotations

import pytest

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.gates import judge
from tests.simulation.simulation_runs import run

pytestmark = pytest.mark.on_change()


@pytest.mark.parametrize(
    # As many tuples as make the start, and the last tuples, small beside the rest.
    ("name", "tuples"),
    [("homog_bare", 4_000), ("hetero_bare", 8_000), ("highbdp_bare", 16_000)],
)
def test_bolts_that_tell_nothing_are_kept_just_full_as_well(name: str, tuples: int) -> None:
    _, outcome = run(name, "just_full", 41, tuples=tuples)
    missed = [str(v) for v in judge(CATALOGUE[name], [outcome]) if not v.is_met]
    assert not missed


def test_tuples_keep_their_size_behind_a_queue() -> None:
    """A round trip of half a second is mostly queue; it is no reason for smaller tuples."""
    _, outcome = run("homog_bare", "fixed:64", 1, tuples=2_000)
    assert outcome.tuples < 2_000 + 200  # the last few are small for all policies
