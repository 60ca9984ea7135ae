"""Bolts that collect until the end, in any topology with any faults: nothing is left with them."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl_storm import Input, ManualCollector
from tests.property.test_topology_faults import NO_EXPIRY, ROOTS, drive
from tests.topology_driver import Hub
from tests.topology_pieces import Pieces

pytestmark = pytest.mark.on_change("topology")


class Collecting:
    """Passes on at its end, or at a tick, what it collected."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self._pieces.maybe_fail()
        self._held.append(given)

    def on_tick(self, out: ManualCollector) -> None:
        if self._pieces.rng.random() < 0.1:
            self.on_end(out)

    def on_end(self, out: ManualCollector) -> None:
        for held in self._held:
            out.emit([*held.value, out.bolt.partition(".")[0]], anchors=held)
            out.ack(held)
        self._held = []


class CollectingPieces(Pieces):
    """Some of its bolts collect."""

    def _add(self, name: str, sources: list[str], code: Any) -> None:
        if name != "sink" and self.rng.random() < 0.6:
            code = partial(Collecting, self)
        bolt = self.topology.bolt
        tick_s = self.rng.choice([0.05, 1e6])
        if isinstance(code, partial):
            self.topology.bolt = partial(bolt, tick_s=tick_s)  # type: ignore[method-assign]
        super()._add(name, sources, code)
        self.topology.bolt = bolt  # type: ignore[method-assign]


def nothing_is_left(hub: Hub) -> None:
    assert hub.figures.complete == ROOTS
    assert hub.core.checkpoint().partitions["s:p"].records == ROOTS
    assert not any(stage.parcels for stage in hub.core.stages.values())
    assert not any(held for stage in hub.core.stages.values() for held in stage.held.values())


@pytest.mark.req("S64", "S70")
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_without_faults_each_way_of_each_root_arrives_once(seed: int) -> None:
    pieces = CollectingPieces(random.Random(seed), faults=0.0)
    hub = drive(pieces, kills=0.0, **{"hedge.enabled": False}, **NO_EXPIRY)
    wanted = {(n, path): 1 for n in range(ROOTS) for path in pieces.paths["sink"]}
    assert pieces.arrived == wanted
    nothing_is_left(hub)


@pytest.mark.req("S70", "S66")
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_with_faults_and_kills_each_arrives_at_least_once(seed: int) -> None:
    # Rare enough that a stage gets to its end: a bolt that dies gives back all that it collected.
    pieces = CollectingPieces(random.Random(seed), faults=0.005)
    hub = drive(pieces, kills=0.002, **{"retry.attempts_max": 1_000, "retry.backoff_max_s": 0.2})
    wanted = {(n, path) for n in range(ROOTS) for path in pieces.paths["sink"]}
    assert set(pieces.arrived) == wanted
    nothing_is_left(hub)
