"""The simulator as a whole: repeatable, conserving, and its faults do what they say."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from flowctl.core.events import (
    BoltAdded,
    BoltRemoved,
    BoltState,
    StateChanged,
    TupleExpired,
    TupleHedged,
    TupleLost,
)
from flowctl.core.messages import Ack
from flowctl.testing.invariants import check
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.scenario import Bursts, Death, Freeze, Loss, Scenario, Slow
from tests.simulation.simulation_runs import events, run, said

pytestmark = pytest.mark.on_change()

ALL_AT_ONCE: dict[str, Any] = {
    "tuples": 1_500,
    "jitter_s": 0.004,
    "loss": Loss((2, 3), 0.05),
    "freezes": (Freeze(4, 0.3, 0.9, 2.0),),
    "deaths": (Death(0, 0.4, 0.9), Death(1, 0.5, seen_after_s=0.02)),
    "ack_flush_s": 0.02,
    "heartbeat_late_s": 0.3,
}


def shortened(scenario: Scenario) -> dict[str, Any]:
    """A twentieth of the work, so that every scenario can be run in a test."""
    if scenario.until_s is not None:
        return {"until_s": 3.0, "joins_s": tuple(j / 5 for j in scenario.joins_s),
                "measured_from_s": 2.5}  # fmt: skip
    return {"tuples": max(40, scenario.tuples // 20)}


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("policy", ["aiad", "fixed:4"])
def test_every_record_is_acked_once_and_by_work_that_was_done(name: str, policy: str) -> None:
    simulation, outcome = run(name, policy, **shortened(CATALOGUE[name]))
    assert outcome.finished
    assert outcome.lost == 0
    for spout in simulation.spouts:
        check(spout.core)
        if spout.workload.records is not None:
            assert spout.core.is_drained
            assert spout.core.checkpoint().records == spout.workload.records
    firsts = [e for e in said(simulation, "ack") if e[5] in ("acked", "late")]
    assert len({(e[1], e[4].tuple_id) for e in firsts}) == len(firsts) == outcome.tuples


@pytest.mark.parametrize("name", [n for n in CATALOGUE if n not in ("sinkknee", "batch")])
def test_nobody_beats_the_oracle(name: str) -> None:
    _, outcome = run(name, "fixed:4", **shortened(CATALOGUE[name]))
    # A tuple that is sent again, or cut otherwise, draws its noise anew, which may be luckier.
    luck = 1.001 if CATALOGUE[name].service_cv <= 0.1 else 1.05
    assert 0 < outcome.efficiency <= luck


def test_a_trivial_clairvoyant_reaches_the_oracle() -> None:
    """Equal bolts, equal tuples, no way to go: two in flight are all that one can know."""
    _, outcome = run(tuples=6_000, service_cv=0.0, one_way_s=1e-6)
    assert outcome.efficiency > 0.995


@pytest.mark.parametrize("policy", ["aiad", "fixed:4"])
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    one, outcome = run("homog", policy, 5, **ALL_AT_ONCE)
    other, again = run("homog", policy, 5, **ALL_AT_ONCE)
    assert one.log == other.log
    outcome_fields = [f for f in outcome.__struct_fields__ if f != "cost_us"]
    assert all(getattr(outcome, f) == getattr(again, f) for f in outcome_fields)
    third, _ = run("homog", policy, 6, **ALL_AT_ONCE)
    assert third.log != one.log


def test_virtual_time_never_goes_back_in_the_log() -> None:
    simulation, _ = run("homog", "aiad", 2, **ALL_AT_ONCE)
    assert simulation.log is not None
    assert all(before[0] <= after[0] for before, after in pairwise(simulation.log))


def test_a_frozen_bolt_is_silent_and_a_slow_one_is_not() -> None:
    frozen, outcome = run("homog", "just_full", tuples=6_000, freezes=(Freeze(0, 1.0, 3.0, 99.0),))
    silent = [e for e in events(frozen, StateChanged) if e.reason == "no heartbeat"]
    assert {e.bolt for e in silent} == {"b1"}
    assert outcome.duplicates > 0  # what it had begun it ends after the thaw
    slow, outcome = run("homog", "just_full", tuples=6_000, slow=(Slow((0,), 0.01, 1.0, 4.0),))
    assert not [e for e in events(slow, StateChanged) if e.reason == "no heartbeat"]


def test_messages_to_a_frozen_bolt_wait_in_order() -> None:
    simulation, _ = run(
        "homog", "fixed:16", bolts=1, tuples=40, freezes=(Freeze(0, 0.0, 0.5, 99.0),)
    )
    acks = [(at_s, ack.tuple_id) for at_s, _, _, _, ack, *_ in said(simulation, "ack")]
    assert [tuple_id for _, tuple_id in acks] == sorted(tuple_id for _, tuple_id in acks)
    assert acks[0][0] > 0.5


def test_lost_tuples_are_seen_and_cost_no_work() -> None:
    simulation, outcome = run("homog", "just_full", tuples=3_000, loss=Loss((0,), 0.1))
    assert {e.bolt for e in events(simulation, TupleLost)} == {"b1"}
    assert not events(simulation, TupleExpired)
    # Each lost one is run once; only copies at the end are run twice.
    assert outcome.duplicates * outcome.tuples <= len(events(simulation, TupleHedged))
    assert outcome.lost == 0


@pytest.mark.parametrize("bolts", [4, 12, 40])
def test_what_waits_in_a_narrow_link_is_not_sent_again(bolts: int) -> None:
    """200 tuples of 50 ms of the link each.  Before: up to 1,077 taken for lost, 16.5 s not 10."""
    simulation, outcome = run(
        "homog", "just_full", bolts=bolts, tuples=200, sizes=(10,), outlet_record_s=0.005
    )
    assert outcome.finished
    assert not events(simulation, TupleLost)
    assert not events(simulation, TupleExpired)
    assert outcome.duplicates == 0
    assert outcome.makespan_s <= 1.01 * 200 * 10 * 0.005


def test_late_heartbeats_alone_make_nobody_suspect() -> None:
    """A second between two is more than the .75 s of silence, but acks are signs of life too."""
    simulation, outcome = run(tuples=3_000, heartbeat_late_s=0.6)
    assert not [e for e in events(simulation, StateChanged) if e.after is BoltState.BUSY]
    assert outcome.duplicates == 0


def test_a_death_that_nobody_tells_is_found_and_the_bolt_comes_back() -> None:
    simulation, outcome = run("homog", "aiad", tuples=6_000, deaths=(Death(0, 1.0, 3.0),))
    assert outcome.finished
    assert outcome.wasted > 0  # what it had begun
    assert [e.epoch for e in events(simulation, BoltAdded) if e.bolt == "b1"] == [1, 2]
    told = [e.reason for e in events(simulation, BoltRemoved)]
    assert told == ["came back with a new epoch"]
    after = [e for e in said(simulation, "ack") if e[3] == "b1" and e[0] > 3.0]
    assert len(after) > 150  # of some 220 that it can do: it works as before
    assert {e[6] for e in after} == {2}
    assert not [e for e in said(simulation, "ack") if e[3] == "b1" and 1.01 < e[0] < 3.0]


def test_what_was_sent_to_a_dead_connection_never_reaches_the_next_one() -> None:
    simulation, outcome = run("highbdp", "fixed:16", tuples=4_000, deaths=(Death(0, 1.0, 1.03),))
    after = [e for e in said(simulation, "ack") if e[3] == "b1" and e[0] > 1.08]
    assert {e[6] for e in after} == {2}
    assert len(after) > 150  # of some 230 that it can do: no slot is taken for ever
    assert outcome.lost == 0


def test_a_death_that_is_seen_is_seen_when_declared() -> None:
    simulation, _ = run(tuples=3_000, deaths=(Death(0, 1.0, seen_after_s=0.02),))
    (removed,) = events(simulation, BoltRemoved)
    assert (removed.bolt, removed.at_s) == ("b1", pytest.approx(1.02))
    assert not [e for e in said(simulation, "emit") if e[3] == "b1" and e[0] > 1.02]


def test_delayed_acks_leave_together() -> None:
    simulation, _ = run(tuples=2_000, ack_flush_s=0.1)
    for at_s, *_ in said(simulation, "ack"):
        flushes = (at_s - 0.001) / 0.1
        assert math.isclose(flushes, round(flushes), abs_tol=1e-6)


def test_revoked_tuples_are_worked_on_once() -> None:
    simulation, outcome = run("drain", "fixed:16")  # without copies at the end
    revoked = [tuple_id for entry in said(simulation, "revoked") for tuple_id in entry[4]]
    assert revoked
    assert outcome.duplicates == 0


def test_nothing_is_sent_before_it_arrives() -> None:
    simulation, outcome = run(tuples=600, bursts=Bursts(300.0, 0.5, 1.0))
    sent = {e[4]: e[0] for e in said(simulation, "emit")}
    assert min(sent.values()) == 0.0
    assert not [at_s for at_s in sent.values() if 0.7 < at_s < 1.5]
    small = 2 * 12  # tuples of 25 records, the first of each bolt
    assert sum(1 for at_s in sent.values() if at_s < 0.25) <= 0.25 * 300 + 1 + small
    assert 0.9 < outcome.efficiency <= 1.001


def test_bolts_without_telemetry_only_ack() -> None:
    simulation, _ = run(tuples=500, telemetry=False)
    acks: list[Ack] = [e[4] for e in said(simulation, "ack")]
    assert {(a.wait_s, a.service_s, a.idle_total_s) for a in acks} == {(None, None, None)}
    assert not any(c.sends_heartbeats for c in simulation.spouts[0].core.bolts.values())


def test_telemetry_adds_up() -> None:
    """Wait and service are inside the round trip; idle time and work fill the bolt's life."""
    simulation, _ = run("homog", "fixed:3", bolts=2, tuples=400)
    emitted = {e[4]: e[0] for e in said(simulation, "emit")}
    spent = {"b1": 0.0, "b2": 0.0}
    for at_s, _, _, bolt, ack, *_ in said(simulation, "ack"):
        inside_s = ack.wait_s + ack.service_s
        assert at_s - emitted[ack.tuple_id] == pytest.approx(inside_s + 0.002)
        began_s = at_s - 0.001 - ack.service_s
        assert ack.idle_total_s + spent[bolt] == pytest.approx(began_s)
        spent[bolt] += ack.service_s


def test_two_equal_spouts_share_by_their_windows() -> None:
    _, outcome = run("two_near", "fixed:4", until_s=6.0, joins_s=(0.0, 0.5), measured_from_s=1.0)
    assert outcome.efficiency > 0.99
    assert outcome.jain is not None
    assert outcome.jain > 0.999


def test_a_run_that_takes_far_too_long_is_broken_off() -> None:
    """Two tuples a bolt over a path of four seconds: 66 times slower than possible."""
    _, outcome = run(tuples=2_400, one_way_s=2.0)
    assert not outcome.finished
    assert 0 < outcome.efficiency < 0.1
