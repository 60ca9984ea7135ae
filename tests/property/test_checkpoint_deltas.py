"""Saves of what moved, in any cut and under any fault of the store, amount to the whole."""

from __future__ import annotations

from collections import deque
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowctl.core.buffer import Cut
from flowctl.core.intake import Intake
from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Record
from flowctl.core.settings import BufferSettings
from flowctl.errors import CheckpointUnavailableError
from flowctl_redis import RedisCheckpointStore, held

pytestmark = pytest.mark.on_change()

_NAMES = st.sampled_from(["a", "b", "c", "d"])
_SETTINGS = settings(stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
_NOT_BEGUN = PartitionCheckpoint()


class IntakeMachine(RuleBasedStateMachine):
    """Records come and are acked in any order; now and then what moved is saved, or not."""

    @initialize(holes=st.booleans())
    def begin(self, holes: bool) -> None:
        acked = (AckedRange(6, 7, 2),) if holes else ()
        restored = Checkpoint({"a": PartitionCheckpoint(3, 4, acked), "z": PartitionCheckpoint(1)})
        self.intake = Intake(BufferSettings(), restored, deque())
        self.next = {"a": 4}
        self.flying: list[Cut] = []
        self.saved = dict(restored.partitions)

    @rule(name=_NAMES, count=st.integers(1, 4))
    def read(self, name: str, count: int) -> None:
        first = self.next.get(name, 0)
        self.next[name] = first + count
        self.intake.offer(name, [Record(first + n, "value") for n in range(count)], 0.0)

    @precondition(lambda self: self.intake.buffer)
    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        self.flying.append(self.intake.buffer.cut(count, 1 << 20))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        self.intake.ack(self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1))))

    @rule(name=_NAMES)
    def finish(self, name: str) -> None:
        self.intake.finish(name, ("size", self.next.get(name, 0)))

    @rule(name=_NAMES)
    def take_away(self, name: str) -> None:
        self.intake.buffer.drop(name)
        self.flying = [cut for cut in self.flying if cut.partition != name]
        state = self.intake.forget(name)
        self.saved.pop(name, None)
        self.next.pop(name, None)
        if state is not None and state.position is not None:
            self.intake.give(name, state)
            self.next[name] = int(str(state.position)) + 1

    @rule(is_lost=st.booleans())
    def save(self, is_lost: bool) -> None:
        moved = self.intake.take_moved()
        if is_lost:
            self.intake.touch(moved)
        else:
            self.saved |= moved

    @invariant()
    def what_is_saved_and_what_moved_is_the_whole(self) -> None:
        moved = self.intake.take_moved()
        self.intake.touch(moved)
        assert _begun(self.saved | moved) == _begun(self.intake.checkpoint().partitions)

    @invariant()
    def the_overview_shows_holes_first(self) -> None:
        whole = self.intake.checkpoint().partitions
        holes = {name for name, state in whole.items() if state.acked}
        for limit in (1, 2, 10):
            shown = list(self.intake.overview(limit).items())
            assert len(shown) == min(limit, len(whole))
            assert all(whole[name] == state for name, state in shown)
            assert {name for name, _ in shown[: len(holes)]} <= holes

    @invariant()
    def an_end_is_saved_only_once_all_is_acked(self) -> None:
        for name, state in self.intake.checkpoint().partitions.items():
            ledger = self.intake.ledgers.get(name) or PartitionLedger(name, state)
            assert state.end is None or (ledger.uncommitted == 0 and not state.acked)


def _begun(partitions: dict[str, PartitionCheckpoint]) -> dict[str, PartitionCheckpoint]:
    return {name: state for name, state in partitions.items() if state != _NOT_BEGUN}


class FaultyClient:
    """fakeredis whose answers get lost; a lost call may also arrive later, or never."""

    def __init__(self, server: fakeredis.FakeServer) -> None:
        self.real = fakeredis.FakeRedis(server=server)
        self.fate = ""
        self.late: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def eval(self, *arguments: Any) -> Any:
        fate, self.fate = self.fate, ""
        if fate == "late":
            self.late.append(arguments)
        if fate in ("late", "never"):
            raise redis.TimeoutError("gone")
        reply = self.real.eval(*arguments)
        if fate == "answer lost":
            raise redis.TimeoutError("gone")
        return reply


class StoreMachine(RuleBasedStateMachine):
    """One driver after another saves what moved; what failed is given again, as the run does."""

    def __init__(self) -> None:
        super().__init__()
        self.server = fakeredis.FakeServer()
        self.client = FaultyClient(self.server)
        self.backup = b""
        self.steps = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        """A driver is killed; its calls that did not arrive yet may still do so."""
        self.store = RedisCheckpointStore(client=self.client)
        self.client.fate = ""
        self.epoch = self.store.acquire("job")
        self.saved = self.store.load("job").partitions
        self.moved: dict[str, PartitionCheckpoint] = {}

    @rule(
        names=st.sets(_NAMES),
        holes=st.booleans(),
        end=st.booleans(),
        fate=st.sampled_from(["", "", "answer lost", "never", "late"]),
    )
    def save(self, names: set[str], holes: bool, end: bool, fate: str) -> None:
        self.steps += 1
        at = self.steps
        for name in names:
            acked = (AckedRange(at + 2, at + 2, 1),) if holes else ()
            self.moved[name] = PartitionCheckpoint(at, at, acked, (at,) if end else None)
        self.client.fate = fate
        try:
            self.store.save("job", Checkpoint(dict(self.moved)), epoch=self.epoch)
        except CheckpointUnavailableError:
            assert fate
            return
        self.saved |= self.moved
        self.moved = {}
        fresh = RedisCheckpointStore(client=self.client)
        assert fresh.load("job").partitions == self.saved

    @precondition(lambda self: self.client.late)
    @rule()
    def a_lost_call_arrives(self) -> None:
        self.client.real.eval(*self.client.late.pop(0))

    @rule()
    def a_replica_is_made(self) -> None:
        self.backup = self.client.real.dump("flowctl:{job}") or b""

    @rule()
    def the_server_falls_back_to_its_replica(self) -> None:
        """Its last writes are gone; a driver that runs gives them back."""
        self.client.real.flushall()
        if self.backup:
            self.client.real.restore("flowctl:{job}", 0, self.backup)
        self.save(set(), False, False, "")


@pytest.mark.req("S13")
def test_what_moved_is_what_was_not_saved() -> None:
    run_state_machine_as_test(IntakeMachine, settings=settings(_SETTINGS, max_examples=100))


@pytest.mark.req("S13", "S44")
def test_no_fault_of_the_store_loses_a_delta_or_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "LOOSE_MAX", 2)
    monkeypatch.setattr(held, "BLOCK_PARTITIONS", 1)
    monkeypatch.setattr(held, "_UNLOOSED_MAX", 2)
    run_state_machine_as_test(StoreMachine, settings=settings(_SETTINGS, max_examples=30))
