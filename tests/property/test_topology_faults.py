"""Any topology, any order, any faults: every root's effect arrives, and nothing is left over."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology_driver import Hub
from tests.topology_pieces import Pieces

pytestmark = pytest.mark.on_change("topology")

ROOTS = 60
# Bolts here send no heartbeats, and tuples wait for long: without this they would be sent twice.
NO_EXPIRY = {
    "lab.timeout.rto_first_s": 1e5,
    "lab.timeout.rto_min_s": 1e5,
    "lab.timeout.rto_max_s": 1e6,
}


def drive(pieces: Pieces, kills: float, **overrides: Any) -> Hub:
    rng = pieces.rng
    hub = Hub(pieces.topology, overrides={"tuple.records_max": rng.choice([1, 3, 50]), **overrides})
    hub.offer([[n] for n in range(ROOTS)])
    hub.core.end_of_input(now_s=0.0)
    for _ in range(100_000):
        if hub.core.is_drained:
            return hub
        hub.emit()
        hub.now_s += 0.01
        if rng.random() < kills and hub.in_flight:
            hub.kill(rng.choice(list(hub.in_flight)).bolt)
        elif hub.in_flight:
            hub.in_flight.rotate(rng.randrange(len(hub.in_flight)))
            emission = hub.in_flight.popleft()
            hub.answer(emission)
        assert hub.core.gave_up is None
    raise AssertionError(f"not drained: {hub.figures}")


@pytest.mark.req("S70", "S72", "S77")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_without_faults_each_way_of_each_root_arrives_once(seed: int) -> None:
    pieces = Pieces(random.Random(seed), faults=0.0)
    hub = drive(pieces, kills=0.0, **{"hedge.enabled": False}, **NO_EXPIRY)
    wanted = {(n, path): 1 for n in range(ROOTS) for path in pieces.paths["sink"]}
    assert pieces.arrived == wanted
    assert (hub.figures.complete, hub.figures.ledger_now) == (ROOTS, 0)
    assert hub.core.checkpoint().partitions["s:p"].records == ROOTS


@settings(max_examples=25)  # of .25 s each
@given(seed=st.integers(0, 2**32))
def test_with_refusals_each_way_of_each_root_arrives_once(seed: int) -> None:
    """What a target refuses goes again there: nothing fails, no root is sent again."""
    pieces = Pieces(random.Random(seed), faults=0.0)
    pieces.refuses = 0.2
    hub = drive(pieces, kills=0.0, **{"hedge.enabled": False}, **NO_EXPIRY)
    wanted = {(n, path): 1 for n in range(ROOTS) for path in pieces.paths["sink"]}
    assert pieces.arrived == wanted
    assert (hub.figures.complete, hub.figures.failed, hub.figures.ledger_now) == (ROOTS, 0, 0)
    assert hub.core.counters.calls_refused > 0
    assert not any(stage.parcels for stage in hub.core.stages.values())


@pytest.mark.req("S70", "S66", "S78")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_with_faults_and_kills_each_arrives_at_least_once(seed: int) -> None:
    pieces = Pieces(random.Random(seed), faults=0.02)
    hub = drive(pieces, kills=0.05, **{"retry.attempts_max": 1_000, "retry.backoff_max_s": 0.2})
    wanted = {(n, path) for n in range(ROOTS) for path in pieces.paths["sink"]}
    assert set(pieces.arrived) == wanted
    assert hub.figures.complete == ROOTS
    assert hub.core.checkpoint().partitions["s:p"].records == ROOTS
    assert not any(stage.parcels for stage in hub.core.stages.values())
    for _ in range(4):  # what late branches said of trees that had failed
        hub.now_s += 1.1e6
        hub.emit()
    assert hub.figures.ledger_now == 0
