"""Why the product does not stop at the literal rule: its defects, reproduced with ``aiad``."""

from __future__ import annotations

import msgspec

from flowctl.simulation.catalogue import CATALOGUE
from flowctl.simulation.engine import simulate
from flowctl.simulation.policies import settings_of
from tests.simulation.simulation_runs import run


def test_a_latecomer_starves_on_a_long_path() -> None:
    """Both see the queue, but the first holds more of it and gives up as little."""
    _, outcome = run("two", "aiad", until_s=20.0)
    assert outcome.jain is not None
    assert outcome.jain < 0.9


def test_no_absolute_threshold_suits_all() -> None:
    """Too near the round trip without load it starves a long path, too far from it it queues."""
    efficiency, _ = _with_threshold("highbdp", 0.11)  # just what a tuple takes without load
    assert efficiency < 0.2
    _, queued = _with_threshold("homog", 10 * 0.012)
    assert queued > 8


def _with_threshold(name: str, threshold_s: float) -> tuple[float, float]:
    scenario = msgspec.structs.replace(CATALOGUE[name], tuples=6_000)
    settings = settings_of("aiad_tuned", scenario, {"window.threshold_s": threshold_s})
    outcome = simulate(scenario, settings, 1)
    return outcome.efficiency, outcome.queued


def test_a_fixed_timeout_loses_a_quarter_where_tuples_are_lost() -> None:
    """What was lost is missed only after five seconds, and takes its place in the window."""
    _, outcome = run("lossy", "aiad_tuned", tuples=12_000)
    assert outcome.efficiency < 0.8
