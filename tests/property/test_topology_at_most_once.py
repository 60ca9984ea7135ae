"""Any topology where nothing goes again: whatever dies, fails or expires, no effect is doubled."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.core.events import TupleDropped
from flowctl.core.messages import Emission, SettledAck
from flowctl.core.trees.settlement import Settlement
from tests.topology_driver import RECORD_S, Hub
from tests.topology_pieces import Pieces

pytestmark = pytest.mark.on_change("topology")

ROOTS = 60
PARTS = 3  # offered and committed one after the other
TREE_TIMEOUT_S = 20.0
# The document's letter: a tuple expires on the clock, so that acks of expired ones come late.
EXPIRING = {"lab.timeout.rule": "clock", "lab.timeout.rto_first_s": 1.0}


class World:
    """A hub whose bolts die, fail, are late and fall silent."""

    def __init__(self, seed: int, mode: str, *, ackers: int = 1) -> None:
        rng = self.rng = random.Random(seed)
        self.pieces = Pieces(
            rng,
            rng.choice([0.0, 0.05]),
            holds=rng.random() < 0.5,
            tree_timeout_s=TREE_TIMEOUT_S,
            ackers=ackers,
        )
        size = rng.choice([1, 3, 50])
        overrides = {"guarantee.mode": mode, "tuple.records_max": size, **EXPIRING}
        # In order: an ack that overtakes others proves them lost; here they come late.
        in_order = rng.random() < 0.5
        self.hub = Hub(self.pieces.topology, overrides=overrides, in_order=in_order)
        self.kills, self.fails, self.lates = (rng.choice([0.0, 0.1]) for _ in range(3))
        self.late: deque[tuple[Emission, int, Settlement]] = deque()

    def turn(self) -> None:
        """One tuple is processed, or something happens to it; time passes, sometimes a lot."""
        hub, rng = self.hub, self.rng
        hub.emit()
        while (event := hub.core.poll_event()) is not None:
            hub.events.append(event)
        hub.now_s += 0.01 if hub.in_flight else 1.0
        if self.late and rng.random() < 0.2:
            self._ack_late()
        if not hub.in_flight:
            return
        hub.in_flight.rotate(rng.randrange(len(hub.in_flight)))
        emission = hub.in_flight.popleft()
        chance = rng.random()
        epoch = hub.epoch[emission.bolt]
        if chance < self.kills:
            if rng.random() < 0.5:
                hub.process_one(emission)  # it had its effect, and died before it could say so
            hub.kill(emission.bolt)
        elif chance < self.kills + self.fails:
            hub.process_one(emission)
            hub.fail(emission, "failed")
        elif chance < self.kills + self.fails + self.lates:
            self.late.append((emission, epoch, hub.process_one(emission)))
            hub.now_s += rng.choice([0.1, 2.0, TREE_TIMEOUT_S])
        else:
            hub.ack(emission, hub.process_one(emission))

    def _ack_late(self) -> None:
        emission, epoch, settlement = self.late.popleft()
        sent = (emission.tuple_id, emission.attempt)
        ack = SettledAck(*sent, 0.0, RECORD_S, 0.0, settlement=settlement)
        self.hub.core.on_ack(emission.bolt, epoch, ack, now_s=self.hub.now_s)

    def run(self) -> None:
        hub = self.hub
        each = ROOTS // PARTS
        for part in range(PARTS):
            hub.offer([[n] for n in range(part * each, (part + 1) * each)], start=part * each)
            if hub.core.guarantee.commits_before_emit:
                before = hub.figures.pending_now
                for _ in range(5):
                    hub.emit()
                assert hub.figures.pending_now <= before, "planted before it was saved"
            assert hub.core.checkpoint().partitions["s:p"].records == (part + 1) * each
            hub.core.on_committed()
            while hub.core.intake.buffer:
                self.turn()
        hub.core.end_of_input(now_s=hub.now_s)
        for _ in range(20_000):
            if hub.core.is_drained:
                return
            self.turn()
        raise AssertionError(f"not drained: {hub.figures}")

    def settle(self) -> None:
        """What is late comes in, and what nobody waits for expires."""
        while self.late:
            self._ack_late()
        for _ in range(5):
            self.hub.now_s += TREE_TIMEOUT_S + 1
            self.hub.emit()
        while (event := self.hub.core.poll_event()) is not None:
            self.hub.events.append(event)


def told(world: World) -> Counter[Any]:
    """How often each position was told as dropped."""
    counts: Counter[Any] = Counter()
    for event in world.hub.events:
        if isinstance(event, TupleDropped) and event.partition == "s:p":
            first, last = event.first, event.last
            assert isinstance(first, int) and isinstance(last, int)
            assert event.records == last - first + 1
            counts.update(range(first, last + 1))
    return counts


@pytest.mark.req("S88", "S89", "S105")
@pytest.mark.parametrize("mode", ["at_most_once", "no_guarantee"])
@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_no_effect_is_doubled_nothing_hangs_and_what_is_lost_is_told(mode: str, seed: int) -> None:
    world = World(seed, mode)
    world.run()
    world.settle()
    core, arrived = world.hub.core, world.pieces.arrived
    assert not arrived or max(arrived.values()) == 1
    dropped = told(world)
    assert not dropped or max(dropped.values()) == 1
    paths = world.pieces.paths["sink"]
    whole = {n for n in range(ROOTS) if all((n, path) in arrived for path in paths)}
    assert whole | set(dropped) == set(range(ROOTS)), "some are neither done nor told"
    counters = core.counters
    assert counters.records_dropped == len(dropped)
    assert counters.records_acked + counters.records_dropped == ROOTS
    assert (world.hub.figures.replayed, counters.tuples_hedged) == (0, 0)
    assert (world.hub.figures.ledger_now, world.hub.figures.pending_now) == (0, 0)
    assert not any(stage.parcels for stage in core.stages.values())
    assert not any(each.has_lost for stage in core.stages.values() for each in stage.cores)


@pytest.mark.req("S88", "S105")
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_without_ackers_nothing_is_tracked_and_the_same_holds(seed: int) -> None:
    world = World(seed, "at_most_once", ackers=0)
    world.run()
    arrived = world.pieces.arrived
    assert not arrived or max(arrived.values()) == 1
    assert world.hub.figures.complete == ROOTS  # done when it was planted
