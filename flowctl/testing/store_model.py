"""Random runs of a checkpoint store against a plain model.  Needs hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from flowctl.core.records import AckedRange, Checkpoint, LostRange, PartitionCheckpoint
from flowctl.errors import ConfigError, FencedError, InternalError
from flowctl.ports import CheckpointStore

_DRIVERS = st.sampled_from([0, 1])
_JOBS = st.sampled_from(["x", "y"])
_NAMES = st.sampled_from(["a", "b", "c"])
# Few values, so that equal, rising and falling positions are all frequent.
_POSITIONS = st.one_of(st.none(), st.integers(0, 5))
_run_numbers = itertools.count()


@st.composite
def _checkpoints(draw: st.DrawFn) -> Checkpoint:
    def partition() -> PartitionCheckpoint:
        position = draw(_POSITIONS)
        first = 0 if position is None else position + 2
        acked = (AckedRange(first, first, 1),) if draw(st.booleans()) else ()
        end = draw(_POSITIONS)
        mark = draw(_POSITIONS)
        records, lost = draw(st.integers(0, 3)), _lost(draw(_POSITIONS), draw(st.integers(0, 2)))
        return PartitionCheckpoint(position, records, acked, end, mark, lost)

    names = draw(st.sets(_NAMES))
    return Checkpoint({name: partition() for name in sorted(names)})


def _lost(position: int | None, records: int) -> tuple[LostRange, ...]:
    return () if position is None else (LostRange(position, position, records),)


class _Model:
    """One job in its simplest form."""

    def __init__(self) -> None:
        self.epoch = 0
        self.saved = False
        self.checkpoint = Checkpoint()

    def save(self, checkpoint: Checkpoint, epoch: int) -> type[Exception] | None:
        partitions = self.checkpoint.partitions
        if epoch != self.epoch:
            return FencedError
        if any(_below(v, partitions.get(n)) for n, v in checkpoint.partitions.items()):
            return InternalError
        self.saved = True
        self.checkpoint = Checkpoint(partitions | checkpoint.partitions)
        return None

    def rewind(self, name: str, position: int | None) -> type[Exception] | None:
        before = self.checkpoint.partitions.get(name)
        if before is None or _below(before, PartitionCheckpoint(position)):
            return ConfigError
        records = before.records if before.position == position else 0
        lost = before.lost
        if position is None or (lost and lost[0].first > position):  # type: ignore[operator]
            lost = () if position is None else _lost(position, 0)
        after = {name: PartitionCheckpoint(position, records, lost=lost)}
        self.checkpoint = Checkpoint(self.checkpoint.partitions | after)
        self.epoch += 1
        return None


def _below(value: PartitionCheckpoint, other: PartitionCheckpoint | None) -> bool:
    """Whether ``value`` lies before ``other``.  None (nothing yet) lies before every position."""
    if other is None or other.position is None:
        return False
    return value.position is None or value.position < other.position  # type: ignore[operator]


class _Machine(RuleBasedStateMachine):
    factory: Callable[[], CheckpointStore]

    @initialize()
    def begin(self) -> None:
        self.stores = [type(self).factory(), type(self).factory()]
        self.prefix = f"model{next(_run_numbers)}-"
        self.models = {"x": _Model(), "y": _Model()}
        self.epochs: dict[tuple[int, str], int] = {}

    @rule(driver=_DRIVERS, job=_JOBS)
    def acquire(self, driver: int, job: str) -> None:
        epoch = self.stores[driver].acquire(self.prefix + job)
        assert epoch > self.models[job].epoch
        self.models[job].epoch = self.epochs[driver, job] = epoch

    @rule(driver=_DRIVERS, job=_JOBS, checkpoint=_checkpoints())
    def save(self, driver: int, job: str, checkpoint: Checkpoint) -> None:
        epoch = self.epochs.get((driver, job))
        if epoch is None:
            return
        expected = self.models[job].save(checkpoint, epoch)
        self._expect(
            expected,
            lambda: self.stores[driver].save(self.prefix + job, checkpoint, epoch=epoch),
        )

    @rule(driver=_DRIVERS, job=_JOBS, name=_NAMES, position=_POSITIONS)
    def rewind(self, driver: int, job: str, name: str, position: int | None) -> None:
        expected = self.models[job].rewind(name, position)
        self._expect(
            expected, lambda: self.stores[driver].rewind(self.prefix + job, name, position)
        )

    @rule(driver=_DRIVERS, job=_JOBS)
    def clear(self, driver: int, job: str) -> None:
        model = self.models[job]
        assert self.stores[driver].clear(self.prefix + job) is model.saved
        self.models[job] = _Model()
        # At most one more; what matters is that older drivers are fenced, which save checks.
        self.models[job].epoch = model.epoch + 1 if model.epoch else 0

    @rule(driver=_DRIVERS)
    def jobs(self, driver: int) -> None:
        names = [n for n in self.stores[driver].jobs() if n.startswith(self.prefix)]
        assert sorted(names) == [self.prefix + j for j in "xy" if self.models[j].saved]

    @rule(driver=_DRIVERS, job=_JOBS)
    def load(self, driver: int, job: str) -> None:
        assert self.stores[driver].load(self.prefix + job) == self.models[job].checkpoint

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            store.close()

    @staticmethod
    def _expect(expected: type[Exception] | None, call: Callable[[], Any]) -> None:
        raised: type[Exception] | None = None
        try:
            call()
        except (FencedError, InternalError, ConfigError) as error:
            raised = type(error)
        assert raised is expected


def run(store_factory: Callable[[], CheckpointStore], *, examples: int) -> None:
    machine = type("StoreMachine", (_Machine,), {"factory": staticmethod(store_factory)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
