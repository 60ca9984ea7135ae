"""Partitions of a topology's spout come and go in mid-run: nothing is claimed that was not done."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.core.events import PartitionTakenAway
from flowctl.core.records import PartitionCheckpoint, Position, Record
from flowctl_storm import Collector, Input
from tests.topology_driver import Hub, passing, topology

pytestmark = pytest.mark.on_change("topology")

PARTITIONS = ("p", "q")
RECORDS = 40  # of each
NO_EXPIRY = {
    "lab.timeout.rto_first_s": 1e5,
    "lab.timeout.rto_min_s": 1e5,
    "lab.timeout.rto_max_s": 1e6,
}


class Shared:
    """A driver that reads two partitions, each of which another one has at times."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults = self.rng.choice([0.0, 0.05])
        self.done: set[tuple[str, Position]] = set()  # had its effect, here or elsewhere
        self.ours: dict[str, Position | None] = {}  # read here, up to where
        made = topology(tree_timeout_s=1e6)
        made.bolt("a", passing, count=2).shuffle("s")
        made.bolt("b", passing, count=2).fields("a", 0)
        made.bolt("c", self._sink, count=2).shuffle("b").shuffle("a")
        limits = {"tuple.records_max": self.rng.choice([1, 5]), "retry.attempts_max": 1_000}
        self.hub = Hub(made, overrides={**limits, "retry.backoff_max_s": 0.1, **NO_EXPIRY})
        self.elsewhere = {name: PartitionCheckpoint() for name in PARTITIONS}

    def _sink(self, given: Input, out: Collector) -> None:
        if self.rng.random() < self.faults:
            raise ValueError("by chance")
        name, number = given.value
        self.done.add((f"s:{name}", number))

    def give(self, name: str) -> None:
        state = self.elsewhere.pop(name)
        self.hub.core.handover.give(f"s:{name}", state, now_s=self.hub.now_s)
        self.ours[name] = state.position

    def take_away(self, name: str) -> None:
        core, partition = self.hub.core, f"s:{name}"
        for _ in range(self.rng.choice([0, 5])):  # it may finish some of it
            if core.handover.hold_back(partition) == 0:
                break
            self.work()
        state = core.checkpoint().partitions[partition]
        core.handover.take_away(partition, now_s=self.hub.now_s)
        assert partition not in core.checkpoint().partitions
        del self.ours[name]
        self.elsewhere[name] = self._go_on(partition, state)

    def _go_on(self, partition: str, state: PartitionCheckpoint) -> PartitionCheckpoint:
        """The other driver does some of it, from where we had come."""
        first = state.position if isinstance(state.position, int) else 0
        last = self.rng.randint(first, min(first + 10, RECORDS))
        self.done |= {(partition, n) for n in range(first + 1, last + 1)}
        if last == first:
            return state
        above = tuple(r for r in state.acked if r.first > last)  # type: ignore[operator]
        skipped = [r for r in state.acked if r.first <= last < r.last]  # type: ignore[operator]
        return PartitionCheckpoint(last, last, () if skipped else above)

    def read(self, name: str) -> None:
        at = self.ours[name]
        first = (at if isinstance(at, int) else 0) + 1
        records = [Record(n, [name, n]) for n in range(first, min(first + 15, RECORDS) + 1)]
        taken = self.hub.core.offer(f"s:{name}", records, now_s=self.hub.now_s)
        if taken:
            self.ours[name] = records[taken - 1].position

    def work(self) -> None:
        hub = self.hub
        hub.emit()
        hub.now_s += 0.01
        if hub.in_flight:
            hub.in_flight.rotate(self.rng.randrange(len(hub.in_flight)))
            emission = hub.in_flight.popleft()
            hub.ack(emission, hub.process_one(emission))

    def check(self) -> None:
        for partition, state in self.hub.core.checkpoint().partitions.items():
            upto = state.position if isinstance(state.position, int) else 0
            claimed = {(partition, n) for n in range(1, upto + 1)}
            for r in state.acked:
                claimed |= {(partition, n) for n in range(r.first, r.last + 1)}  # type: ignore
            assert claimed <= self.done, sorted(claimed - self.done)[:3]

    def step(self) -> None:
        name = self.rng.choice(PARTITIONS)
        chance = self.rng.random()
        if chance < 0.03 and name in self.ours:
            self.take_away(name)
        elif chance < 0.1 and name not in self.ours:
            self.give(name)
        elif chance < 0.2 and name in self.ours:
            self.read(name)
        elif chance < 0.23 and self.hub.in_flight:
            self.hub.kill(self.rng.choice(list(self.hub.in_flight)).bolt)
        else:
            self.work()


@pytest.mark.req("S99", "S108", "S113")
@settings(max_examples=40)  # of .17 s each
@given(seed=st.integers(0, 2**32))
def test_nothing_is_claimed_that_was_not_done_and_all_is_done_in_the_end(seed: int) -> None:
    world = Shared(seed)
    for _ in range(400):
        world.step()
        world.check()
    for name in PARTITIONS:
        if name not in world.ours:
            world.give(name)
    core = world.hub.core
    for _ in range(10_000):
        for name in PARTITIONS:
            world.read(name)
        world.work()
        if core.is_drained and all(at == RECORDS for at in world.ours.values()):
            break
    world.check()
    done: Any = core.checkpoint().partitions
    assert all(done[f"s:{name}"].position == RECORDS for name in PARTITIONS), done
    assert core.intake.uncommitted == world.hub.figures.pending_now == 0
    assert core.is_drained and not any(stage.parcels for stage in core.stages.values())
    while (event := core.poll_event()) is not None:
        world.hub.events.append(event)
    gone = [e for e in world.hub.events if isinstance(e, PartitionTakenAway)]
    assert core.counters.tuples_handed_over >= sum(e.handed_over for e in gone)
    assert len(core.roots.trees) == 0
    for _ in range(4):  # what late branches said of trees that had failed
        world.hub.now_s += 1.1e6
        world.hub.emit()
    assert world.hub.figures.ledger_now == 0
