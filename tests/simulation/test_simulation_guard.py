"""The shared sink guard where its search once ended too early."""

from __future__ import annotations

import pytest

from flowctl.core.events import SinkCapChanged
from tests.simulation.simulation_runs import events, run

pytestmark = pytest.mark.on_change()


def test_half_of_the_tuples_is_no_gain_and_a_third_is() -> None:
    """Seed 602: at one tuple a bolt the sink is as bad as at two, by a hair worse."""
    simulation, outcome = run("sinkknee", "just_full", 602, tuples=6_000)
    caps = [e.after for e in events(simulation, SinkCapChanged)]
    assert caps[0] == 12
    assert caps[-1] is not None
    assert caps[-1] < 10
    assert outcome.efficiency > 0.93
