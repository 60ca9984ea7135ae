"""Sequences of what people do with a job of ``apply``, against a model of what is right.

Drivers begin, work, save, are killed, end, and run beside others; results are collected (``gc``);
the function and the input change.  At any operation on the place of the results a driver may be
killed, or another one may run from its beginning to its end.  Whatever happens: a result that is
returned has each row once, and so has the one that the next run returns.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from flowctl.bolts.batch import Batch
from flowctl.core.ranges.extent import Extent
from flowctl.core.rangeset import RangeSet
from flowctl.core.records import Checkpoint, Receipts, Record, Span
from flowctl.errors import ConfigError, FencedError, FlowctlError, SourceError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl_apply._job import Applied, Input, Job
from flowctl_apply._places import Found
from flowctl_apply._results import Results
from flowctl_apply._unnamed import Unnamed
from flowctl_apply._uses import fingerprint
from flowctl_apply.parquet_apply import Noted, added_to
from tests.thorough import IS_THOROUGH

SCHEMA = pyarrow.schema([("file", pyarrow.string()), ("row", pyarrow.int64())])
ROWS = 12
NAME = "scores"


class Killed(BaseException):
    """The driver is gone."""


class Memory:
    """A place in memory.  At the operation ``fault_at`` from now ``fault`` happens."""

    url = "/memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.fault_at = 0
        self.fault: Callable[[], None] = lambda: None

    def _step(self) -> None:
        self.fault_at -= 1
        if self.fault_at == 0:
            self.fault()

    def put(self, name: str, data: bytes) -> None:
        self._step()
        self.files[name] = data
        self._step()

    def put_new(self, name: str, data: bytes) -> bool:
        self._step()
        if name in self.files:
            return False
        self.files[name] = data
        self._step()
        return True

    def get(self, name: str) -> bytes:
        self._step()
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def names(self, directory: str = "", *, recursive: bool = False) -> list[Found]:
        self._step()
        top = f"{directory}/" if directory else ""
        return [
            Found(name, len(data))
            for name, data in sorted(self.files.items())
            if name.startswith(top) and (recursive or "/" not in name.removeprefix(top))
        ]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._step()
            self.files.pop(name, None)

    def delete_directory(self, directory: str) -> None:
        self.delete([name for name in self.files if name.startswith(f"{directory}/")])

    def delete_temporary(self) -> None: ...

    def path(self, name: str) -> str:
        return name

    def own_path(self, name: str) -> str:
        return name


def first(batch: Batch) -> list[tuple[str, int]]:
    return [record.value for record in batch]


def second(batch: Batch) -> list[tuple[str, int]]:
    return [(file, row) for file, row in [record.value for record in batch]]


class Files:
    """What one driver reads: the files where they are, or a copy of them."""

    def __init__(self, world: World, copy: str) -> None:
        self.world = world
        self.copy = copy

    def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
        identities = self.world.identities
        if not self.copy:
            return {name: Extent(0, ROWS, identity) for name, identity in identities.items()}
        if not any(f"/{self.copy}/" in name for name in self.world.place.files):
            raise SourceError(f"{self.copy} is gone.")
        return {f"{self.copy}/{name}": Extent(0, ROWS, "1") for name in "ab"}

    def reader(self) -> Any: ...
    def close(self) -> None: ...


class Driver:
    """What a run does, without bolts: the steps of ``run_job``."""

    def __init__(self, world: World, fn: Callable[..., Any], *, keep: bool, copies: bool) -> None:
        self.world = world
        self.job = Job(fn, SCHEMA, name=NAME, out="/memory", keep_results=keep)
        self.job.results = Results(world.place, NAME)
        # A copy of the input is another directory for each driver that makes one.
        write = (lambda url: world.place.put(f"{url}/x.parquet", b"")) if copies else None
        self.given = Input("rows", () if copies else ("in",), write, shape="rows")
        self.files_then = set("ab") if copies else set(world.identities)
        self.result = self.job.done(self.given)
        if self.result is not None and not self.grow():
            return
        self.job.check_empty(is_table=False)
        begun = self.job.begin(self.given)
        self.result = self.job.done(self.given)
        if self.result is not None:
            return
        self.copy = begun.copy
        self.process = self.job.process(begun)
        files = Files(world, begun.copy)
        self.source = Noted(files, self.job.results, begun)
        manifest, unnamed = self.job.results.manifest, Unnamed(self.job.results)
        self.store = ReceiptStore(MemoryCheckpointStore(), manifest, unnamed)
        try:
            self.epoch = self.store.acquire(NAME)
            checkpoint = self.store.load(NAME)
            self.extents = self.source.extents(checkpoint)
        except FencedError:
            raise
        except FlowctlError:
            self.result = self.job.ended_by_another(self.given, self.store)
            if self.result is None:
                self.job.withdraw(begun)
                raise
            return
        self.done: dict[str, RangeSet] = {name: RangeSet() for name in self.extents}
        for name, state in checkpoint.partitions.items():
            if isinstance(state.position, int):
                self.done[name].add(0, state.position + 1)
            for span in state.acked:
                assert isinstance(span.first, int) and isinstance(span.last, int)
                self.done[name].add(span.first, span.last + 1)

    def grow(self) -> bool:
        """Begin another round if there are more files than the finished job has done."""
        begun = self.job.results.description()
        if begun is None or begun.copy:
            return False
        found = Files(self.world, "").extents(Checkpoint())
        if added := added_to(begun.files, found):
            event("the finished job has more input")
            self.job.grow(self.given, added)
        return bool(added)

    def work(self, name: str, start: int, stop: int, *, is_told: bool = True) -> None:
        """A batch, if nothing of it is done; its report may be lost with its bolt."""
        name = f"{self.copy}/{name}" if self.copy else name
        if name not in self.extents:  # a file that was added since this driver began
            return
        stop = min(stop, int(self.extents[name].stop))
        if start >= stop or any(low < stop and start < high for low, high in self.done[name]):
            return
        records = [Record(row, (name[-1], row)) for row in range(start, stop)]
        span = Span(NAME, name, start, stop - 1, self.epoch)
        receipt = self.process(Batch(records, span, bolt="b1", attempt=1))
        if is_told:
            self.done[name].add(start, stop)
            self.store.append([Receipts(name, start, stop, stop - start, [receipt])])

    def save(self) -> None:
        self.store.save(NAME, Checkpoint(), epoch=self.epoch)

    def finish(self, files: int | None) -> Applied:
        try:
            for name, extent in self.extents.items():
                for row in range(int(extent.stop)):
                    self.work(name[-1], row, row + 1)
            self.save()
            return self.job.finish(self.extents, self.store, files=files)
        except FencedError:
            raise
        except FlowctlError:
            if (done := self.job.ended_by_another(self.given, self.store)) is None:
                raise
            return done


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place: Any = Memory()
        self.identities = {"a": "1", "b": "1"}
        self.drivers: list[Driver] = []
        self.fn: Any = first
        # Tokens and epochs decide which driver is the newest: the same ones in each run of a case.
        chance, calls = Random(0), itertools.count()
        clock = SimpleNamespace(time=lambda: 1_000 + next(calls) // 3, time_ns=lambda: 1)
        self.patches = contextlib.ExitStack()
        token = lambda count: chance.randbytes(count).hex()  # noqa: E731
        self.patches.enter_context(patch("secrets.token_hex", token))
        self.patches.enter_context(patch("flowctl.runtime.memory_store.time", clock))

    @initialize(copies=st.booleans())
    def choose(self, copies: bool) -> None:
        self.copies = copies

    # -- the model ------------------------------------------------------------------------------

    def rows_of(self, applied: Applied) -> list[tuple[str, int]]:
        tables = [
            pyarrow.parquet.read_table(io.BytesIO(self.place.files[file])) for file in applied.files
        ]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]

    def check(self, applied: Applied, at_least: set[str]) -> None:
        found = sorted(self.rows_of(applied))
        files = {file for file, _ in found}
        assert found == sorted(itertools.product(files, range(ROWS)))
        assert at_least <= files <= set(self.identities)
        assert applied.rows == len(found)

    def is_other(self) -> bool:
        """Whether the job was begun with another function or input than there is now."""
        begun = Results(self.place, NAME).description()
        assert begun is not None
        now = {} if begun.copy else {n: f"{one} {ROWS}" for n, one in self.identities.items()}
        changed = [name for name, one in begun.files.items() if now.get(name, one) != one]
        return begun.fn != fingerprint(self.fn) or bool(changed)

    def begin(self) -> Driver | None:
        """Another driver; None if the job was finished, or it is refused as it must be."""
        try:
            driver = Driver(self, self.fn, keep=False, copies=self.copies)
        except ConfigError as error:
            assert self.is_other(), error
            event(f"refused: {error.field}")
            return None
        except FencedError:
            event("another driver began meanwhile")
            return None
        if driver.result is not None:
            self.check(driver.result, driver.files_then)
            return None
        self.drivers.append(driver)
        return driver

    def finish(self, driver: Driver, files: int | None) -> None:
        if driver in self.drivers:
            self.drivers.remove(driver)
        try:
            applied = driver.finish(files)
        except FencedError:
            event("the older driver stops at the end")
            return
        self.check(applied, driver.files_then)

    def run_beside(self) -> None:
        """A driver from beginning to end, in the middle of what another one does."""
        if (driver := self.begin()) is not None:
            self.finish(driver, 1)

    def kill(self) -> None:
        raise Killed

    def gc(self) -> None:
        Results(self.place, NAME).sweep()

    # -- what people do -------------------------------------------------------------------------

    @rule(at=st.integers(1, 40), what=st.sampled_from(("kill", "run_beside", "gc")))
    def plan_fault(self, at: int, what: str) -> None:
        self.place.fault_at = at
        self.place.fault = getattr(self, what)

    @contextlib.contextmanager
    def mortal(self, driver: Driver | None = None) -> Any:
        try:
            yield
        except Killed:
            event("killed")
            self.drivers = [one for one in self.drivers if one is not driver]
        except FencedError:
            event("the older driver stops")
            self.drivers = [one for one in self.drivers if one is not driver]

    @precondition(lambda self: len(self.drivers) < 3)
    @rule()
    def start(self) -> None:
        with self.mortal():
            self.begin()

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        driver = data.draw(st.sampled_from(self.drivers))
        start = data.draw(st.integers(0, ROWS - 1))
        span = start, start + data.draw(st.integers(1, 6))
        with self.mortal(driver):
            driver.work(data.draw(st.sampled_from("abcd")), *span, is_told=data.draw(st.booleans()))

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        driver = data.draw(st.sampled_from(self.drivers))
        with self.mortal(driver):
            driver.save()

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), files=st.sampled_from((None, 1, 2)))
    def end(self, data: st.DataObject, files: int | None) -> None:
        driver = data.draw(st.sampled_from(self.drivers))
        with self.mortal(driver):
            self.finish(driver, files)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def end_a_driver(self, data: st.DataObject) -> None:
        self.drivers.remove(data.draw(st.sampled_from(self.drivers)))

    @rule()
    def collect(self) -> None:
        with self.mortal():
            self.gc()

    @rule()
    def change_the_code(self) -> None:
        self.fn = second if self.fn is first else first

    @rule(name=st.sampled_from("ab"))
    def change_the_input(self, name: str) -> None:
        """A file is written again: nobody may go on with what was made of the earlier one."""
        self.identities[name] = "2" if self.identities[name] == "1" else "1"

    @precondition(lambda self: not self.copies and len(self.identities) < 4)
    @rule()
    def add_a_file(self) -> None:
        self.identities["abcd"[len(self.identities)]] = "1"

    def teardown(self) -> None:
        """In the end somebody runs it as it was begun: the result is right."""
        with self.patches:
            self.run_to_the_end()

    def run_to_the_end(self) -> None:
        self.place.fault_at = 0
        begun = Results(self.place, NAME).description()
        if begun is not None:
            self.fn = first if begun.fn == fingerprint(first) else second
        if begun is not None and not begun.copy:
            self.identities |= {name: text.split()[0] for name, text in begun.files.items()}
        driver = Driver(self, self.fn, keep=False, copies=self.copies)
        result = driver.result or driver.finish(1)
        files = set("ab") if self.copies else set(self.identities)
        self.check(result, files)
        self.check(Driver(self, self.fn, keep=False, copies=self.copies).result, files)


TestSequences = World.TestCase
TestSequences.settings = settings(
    max_examples=2_000 if IS_THOROUGH else 40, stateful_step_count=25, deadline=None
)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("at", range(1, 21))
def test_a_driver_that_begins_while_another_runs_to_the_end_goes_on_with_what_it_did(
    monkeypatch: pytest.MonkeyPatch, at: int, copies: bool
) -> None:
    """Kind: what was looked at before is taken for what is there now.

    The other one's result was taken for a file that no job had written.
    """
    monkeypatch.setattr(f"{__name__}.event", lambda text: None)  # Hypothesis does not run this
    world = World()
    world.choose(copies)
    world.plan_fault(at, "run_beside")
    world.start()
    world.teardown()
