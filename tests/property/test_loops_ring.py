"""A ring of loops with every queue full never stands still, whoever comes first (S53)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.testing.clock import ManualClock
from tests.loop_parts import Parked
from tests.ring import PLACES, Ring


def make_ring(**settings: Any) -> Ring:
    clock = ManualClock()
    return Ring(clock=clock, make_park=lambda: Parked(clock), **settings)


def run_fairly(ring: Ring, order: tuple[str, ...] = PLACES) -> None:
    """Let each step in turn.  A message is handed over at least every ``drain_every`` rounds."""
    handovers = ring.roots * (4 + 2 * ring.kept_max["first"])
    for _ in range(2 * handovers * ring.loops["spout"]._drain_every + 10):
        if ring.is_done:
            return
        for name in order:
            ring.loops[name].step()
            ring.check()
    raise AssertionError(f"stands still with {len(ring.acked)} of {ring.roots} acked")


@pytest.mark.req("S52", "S53")
@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 4),
    fan_out=st.integers(0, 4),
    roots=st.integers(1, 12),
    max_pending=st.none() | st.integers(1, 4),
    drain_every=st.integers(1, 4),
    schedule=st.lists(st.sampled_from(PLACES), max_size=150),
    order=st.permutations(PLACES),
)
def test_every_root_is_acked_once_whoever_steps_when(
    sizes, fan_out, roots, max_pending, drain_every, schedule, order
):
    ring = make_ring(
        sizes=sizes,
        fan_out=fan_out,
        roots=roots,
        max_pending=max_pending,
        drain_every=drain_every,
    )
    for name in schedule:
        ring.loops[name].step()
        ring.check()
        assert len(ring.pending) <= (max_pending or roots)
    run_fairly(ring, tuple(order))
    assert sorted(ring.acked) == list(range(1, roots + 1))
    assert not ring.pending and not ring.ledger


@pytest.mark.req("S53")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_with_every_queue_full_and_every_emit_refused_it_comes_loose(size: int):
    """The spout looks for acks at every 100th step only: until then all goes full."""
    ring = make_ring(sizes=(size,) * 4, fan_out=3, roots=50, drain_every=100)
    for _ in range(98):
        for name in PLACES:
            ring.loops[name].step()
    assert all(place.is_stuck for place in ring.places.values())
    assert ring.acked == []
    run_fairly(ring)
    assert sorted(ring.acked) == list(range(1, 51))
