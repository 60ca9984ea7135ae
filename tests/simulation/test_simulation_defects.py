"""Why the product does not stop at the literal rule: its defects, which ``just_full`` has not.

The baselines run with the core of the product, but judge by a fixed time-out as they do elsewhere.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowctl.config import name_of
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.engine import Outcome, simulate
from flowctl_lab.simulation.policies import settings_of
from flowctl_lab.simulation.scenario import Death
from tests.simulation.simulation_runs import run, said

# They are about other rules; the control report holds what the product's own does.
pytestmark = [pytest.mark.long, pytest.mark.on_change()]

# A third of the scenario: what is to be seen is seen by then.
FEW = 8_000


def with_settings(name: str, policy: str, tuples: int, **values: Any) -> Outcome:
    """Run a part of a scenario with settings changed, as ``window_threshold_s``."""
    scenario = msgspec.structs.replace(CATALOGUE[name], tuples=tuples)
    overrides = {name_of(*key.split("_", 1)): value for key, value in values.items()}
    return simulate(scenario, settings_of(policy, scenario, overrides), 1)


# -- the black hole --------------------------------------------------------------------------

DEAD = (Death(0, 2.0), Death(1, 2.0))


@pytest.mark.req("S7", "S48")
def test_what_a_dead_bolt_held_holds_up_the_cumulative_ack() -> None:
    """By the clock alone it stands still for five seconds; by signs, for one."""
    _, literal = run("homog", "aiad", tuples=FEW, deaths=DEAD)
    _, ours = run("homog", "just_full", tuples=FEW, deaths=DEAD)
    assert literal.lag_records > 4 * ours.lag_records
    assert ours.lag_s < 1.0


def test_a_blind_pool_is_swallowed_by_its_dead_bolts() -> None:
    """Storm's bound on pending tuples: every place in it ends at a dead bolt, for 30 s each."""
    _, blind = run("homog", "storm_max_pending", tuples=FEW, deaths=DEAD)
    _, ours = run("homog", "just_full", tuples=FEW, deaths=DEAD)
    assert blind.efficiency < 0.2
    assert ours.efficiency > 0.98


@pytest.mark.parametrize("policy", ["aiad", "fixed:16", "just_full"])
def test_no_tuple_goes_from_one_dead_bolt_to_another(policy: str) -> None:
    """The loop itself is the core's to prevent, and it does so for all policies.

    What expired stays in the window of its bolt until that is known to be rid of it, so a dead
    bolt has no room, whatever the clock says; and a bolt that failed a tuple does not get it back.
    """
    deaths = tuple(Death(bolt, 2.0) for bolt in range(6))
    simulation, outcome = run("homog", policy, tuples=FEW, deaths=deaths)
    assert max(entry[5] for entry in said(simulation, "emit")) == 2  # attempts
    assert outcome.finished


# -- the latecomer ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "until_s"), [("two", 20.0), ("three", 25.0)])
def test_a_latecomer_starves_on_a_long_path(name: str, until_s: float) -> None:
    """All see the queue, but the first holds more of it and gives up as little."""
    _, literal = run(name, "aiad", until_s=until_s)
    _, ours = run(name, "just_full", until_s=until_s)
    assert literal.jain is not None
    assert literal.jain < 0.9
    assert ours.jain is not None
    assert ours.jain >= 0.97


# -- the absolute threshold ------------------------------------------------------------------


def test_no_absolute_threshold_suits_all() -> None:
    """Too near the round trip without load it starves a long path, too far from it it queues."""
    no_load_s = 0.11
    starved = with_settings("highbdp", "aiad_tuned", 6_000, window_threshold_s=no_load_s)
    assert starved.efficiency < 0.2
    queued = with_settings("homog", "aiad_tuned", 6_000, window_threshold_s=10 * 0.012)
    assert queued.queued > 8
    assert with_settings("highbdp", "just_full", 6_000).efficiency > 0.97  # its start included
    assert with_settings("homog", "just_full", 6_000).queued < 1


def test_an_absolute_threshold_does_not_follow_a_drift() -> None:
    """Services become three times as long: the threshold of the beginning lets no tuple wait."""
    assert with_settings("drift", "aiad_tuned", 20_000).efficiency < 0.96
    assert with_settings("drift", "just_full", 20_000).efficiency > 0.99


# -- the fixed time-out ----------------------------------------------------------------------


def test_a_long_timeout_loses_a_quarter_where_tuples_are_lost() -> None:
    """What was lost is missed only after five seconds, and takes its place in the window."""
    assert with_settings("lossy", "aiad_tuned", 12_000).efficiency < 0.8
    assert with_settings("lossy", "just_full", 12_000).efficiency > 0.98


def test_a_short_timeout_wastes_work_where_tuples_are_long() -> None:
    """At 0.3 s, where some take a second: they are begun again elsewhere."""
    short = {f"timeout_rto_{bound}_s": 0.3 for bound in ("first", "min", "max")}
    assert with_settings("heavy", "fixed:16", FEW, **short).wasted > 0.03
    assert with_settings("heavy", "aiad_tuned", FEW, **short).wasted > 0.015
    assert with_settings("heavy", "just_full", FEW).wasted < 0.01
