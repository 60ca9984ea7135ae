"""However a run is killed and begun again, each row's result counts exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import event, given

from flowctl.core.rangeset import RangeSet
from flowctl.core.records import Receipts
from flowctl.errors import CheckpointUnavailableError, FencedError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl.runtime.receipts import Entry, Segment, accepted, adopted, coverage, missing

pytestmark = pytest.mark.on_change()

ROWS = 40
EXTENTS = {"a": (0, ROWS), "b": (0, ROWS)}


class Killed(Exception):
    """The driver is gone."""


class Faulty:
    """A manifest in memory.  At step ``fault_at`` from now ``fault`` happens."""

    where = "memory"

    def __init__(self) -> None:
        self.files: dict[tuple[int, str, int], Segment] = {}
        self.fault_at = 0
        self.fault: Callable[[], None] = lambda: None

    def _step(self) -> None:
        self.fault_at -= 1
        if self.fault_at == 0:
            self.fault()

    def segments(self) -> Sequence[Segment]:
        self._step()
        return list(self.files.values())

    def newest_base(self) -> tuple[int, str] | None:
        self._step()
        return max(((a, b) for (a, b, _), s in self.files.items() if s.is_base), default=None)

    def append(self, segment: Segment) -> None:
        self._step()
        self.files[segment.epoch, segment.token, segment.number] = segment
        self._step()

    def forget_before(self, epoch: int, token: str) -> None:
        for key in sorted(self.files):
            self._step()
            if key[:2] < (epoch, token):
                self.files.pop(key, None)


class Driver:
    """Accepts reports whole or not at all, as a core does, and saves."""

    def __init__(self, store: ReceiptStore) -> None:
        self.store = store
        self.epoch = store.acquire("job")
        self.done: dict[str, RangeSet] = {name: RangeSet() for name in EXTENTS}
        for name, state in store.load("job").partitions.items():
            if isinstance(state.position, int):
                self.done[name].add(0, state.position + 1)
            for span in state.acked:
                assert isinstance(span.first, int) and isinstance(span.last, int)
                self.done[name].add(span.first, span.last + 1)

    def report(self, partition: str, start: int, stop: int, receipt: bytes) -> None:
        done = self.done[partition]
        if any(low < stop and start < high for low, high in done):
            return
        done.add(start, stop)
        self.store.append([Receipts(partition, start, stop, stop - start, [receipt])])

    def save(self) -> None:
        entries = [
            Entry(name, start, stop, stop - start)
            for name, done in self.done.items()
            for start, stop in done
        ]
        self.store.save("job", adopted(entries), epoch=self.epoch)


class World:
    """Drivers of one job, one after the other and several at once, and one manifest."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.manifest = Faulty()
        self.inner = MemoryCheckpointStore()
        self.made: dict[bytes, tuple[str, int, int]] = {}  # results that bolts wrote
        self.made_for: dict[bytes, int] = {}  # the epoch of the driver that they were for
        self.drivers: list[Driver] = []  # old ones may go on for a while

    def begin(self) -> Driver:
        self.drivers.append(Driver(ReceiptStore(self.inner, self.manifest, self.unnamed)))
        return self.drivers[-1]

    def unnamed(self, epoch: int) -> list[Entry]:
        """What the bolts of the driver of ``epoch`` wrote, named or not."""
        return [
            Entry(partition, start, stop, stop - start, (receipt,))
            for receipt, (partition, start, stop) in self.made.items()
            if self.made_for[receipt] == epoch
        ]

    def plan_fault(self) -> None:
        """Something happens in the middle of what a driver does with the manifest."""
        self.manifest.fault_at = self.data.draw(st.integers(0, 8))
        self.manifest.fault = self.data.draw(
            st.sampled_from((self.kill, self.be_away, self.take_over))
        )

    def kill(self) -> None:
        event("killed within a step")
        raise Killed

    def be_away(self) -> None:
        raise CheckpointUnavailableError("away")

    def take_over(self) -> None:
        event("a newer driver began within a step")
        self.begin()

    def act(self) -> None:
        driver = self.data.draw(st.sampled_from(self.drivers))
        action = self.data.draw(st.sampled_from("wwwwsssf"))
        if action == "f":
            return self.plan_fault()
        if action == "w":
            partition = self.data.draw(st.sampled_from(sorted(EXTENTS)))
            start = self.data.draw(st.integers(0, ROWS - 1))
            stop = self.data.draw(st.integers(start + 1, ROWS))
            is_reported = self.data.draw(st.booleans())
            return self.write(driver, partition, start, stop, is_reported=is_reported)
        try:
            driver.save()
        except FencedError:
            event("an older driver was fenced")
        except CheckpointUnavailableError:
            event("the save is tried again later")
        return None

    def write(
        self, driver: Driver, partition: str, start: int, stop: int, *, is_reported: bool = True
    ) -> None:
        """A bolt writes a result, and reports it, unless it is killed between."""
        receipt = str(len(self.made)).encode()
        self.made[receipt] = (partition, start, stop)
        self.made_for[receipt] = driver.epoch
        if is_reported:
            driver.report(partition, start, stop, receipt)

    def finish(self) -> list[Entry]:
        """A last run without faults does what is missing."""
        self.manifest.fault_at = 0
        driver = self.begin()
        for gap in missing(EXTENTS, driver.done):
            self.write(driver, *gap)
        driver.save()
        return accepted(list(self.manifest.files.values()))


@given(data=st.data(), runs=st.integers(1, 5))
def test_each_rows_result_counts_exactly_once(data: st.DataObject, runs: int) -> None:
    world = World(data)
    for _ in range(runs):
        world.plan_fault()
        try:
            world.begin()
            for _ in range(data.draw(st.integers(0, 20))):
                world.act()
        except (Killed, CheckpointUnavailableError):
            continue
    entries = world.finish()
    assert missing(EXTENTS, coverage(entries)) == []
    assert adopted(entries).records == len(EXTENTS) * ROWS
    counted = [world.made[receipt] for one in entries for receipt in one.receipts]
    rows = [(name, row) for name, start, stop in counted for row in range(start, stop)]
    assert len(rows) == len(set(rows)) == len(EXTENTS) * ROWS
