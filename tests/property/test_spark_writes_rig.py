"""Rows × partitions × attempts × orders × layouts × set-back checkpoints, against a naive model.

What Spark does with the function of a partition is drawn: it runs tasks, whose attempts die at some
call before or after the target has committed, gives rows in another order or in other partitions to
the next attempt, repeats actions and batches, and sets a stream back to an older batch, with the
same rows or with others.  Rows are rejected or fail, until they are mended; letters are put back.

The model knows nothing of sections, spans or ledgers.  After each action: every row that it had is
in the table or has a letter (nothing lost), and where rows came in one order and layout only, each
is in exactly one of the two (nothing doubled).

A case that fails prints the command that runs it again.
"""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

import pyarrow
from pyspark.sql import Row

from flowctl.bolts.batch import Batch
from flowctl_files import FileDeadLetter
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink, sink_task
from pyspark_flowctl.arrow_rows import ArrowRows
from pyspark_flowctl.sink_task import Origin
from pyspark_flowctl.sink_writers import BatchWriter
from pyspark_flowctl.sinks import FlowSink
from tests import moody
from tests.thorough import IS_THOROUGH

_HERE = "tests/property/test_spark_writes_rig.py"
_CASE = "SPARK_WRITES_CASE"
_SCHEMA = json.dumps({
    "type": "struct",
    "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}],
})  # fmt: skip
_FOLDERS = itertools.count()


class Attempt(msgspec.Struct, frozen=True):
    """Of all tasks of an action.  ``dies_at``: a call of each task; -1: it does not die.

    ``turned_at``: from which row on they come in another order; -1: never.
    """

    dies_at: int = -1
    is_committed: bool = False
    turned_at: int = -1


class Step(msgspec.Struct, frozen=True):
    """One action.  ``batch``: of a stream; ``version``: of the rows that it has then."""

    batch: int = 0
    version: int = 0
    parts: int = 1
    deaths: tuple[Attempt, ...] = ()
    last: Attempt = Attempt()
    redrives: bool = False


class Case(msgspec.Struct, frozen=True):
    """``rows`` in each action; ``rejected`` and ``failing`` are numbers of rows within it.

    ``rows_a_batch`` come in each batch of columns; 0: they come as Rows.
    From action ``mended_from`` on all rows are taken.
    """

    rows: int
    rows_max: int
    merge_every: int
    is_stream: bool
    by_writer: bool
    rows_a_batch: int
    rejected: tuple[int, ...]
    failing: tuple[int, ...]
    mended_from: int
    steps: tuple[Step, ...]


_attempts = st.builds(
    Attempt, dies_at=st.integers(0, 6), is_committed=st.booleans(), turned_at=st.integers(-1, 20)
)
_steps = st.builds(
    Step,
    batch=st.integers(0, 3),
    version=st.integers(0, 1),
    parts=st.integers(1, 3),
    deaths=st.lists(_attempts, max_size=2).map(tuple),
    last=st.builds(Attempt, turned_at=st.sampled_from([-1, -1, 0, 5])),
    redrives=st.booleans(),
)
_bad = st.lists(st.integers(0, 59), max_size=4, unique=True).map(tuple)
_cases = st.builds(
    Case,
    rows=st.integers(1, 60),
    rows_max=st.integers(1, 12),
    merge_every=st.integers(1, 4),
    is_stream=st.booleans(),
    by_writer=st.booleans(),
    rows_a_batch=st.sampled_from([0, 0, 3, 7, 100]),
    rejected=_bad,
    failing=_bad,
    mended_from=st.integers(1, 6),
    steps=st.lists(_steps, min_size=1, max_size=5).map(tuple),
)


def _batch(numbers: list[int]) -> Any:
    return pyarrow.record_batch([pyarrow.array(numbers, pyarrow.int64())], names=["c0"])


def _take(batch: Batch) -> None:
    moody.DOERS[-1](batch)


class World:
    """The target, the letters, and what the model knows."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder
        self.database = folder / "out.db"
        self.into = SqlSink(
            f"sqlite:///{self.database}",
            table="t",
            synchronous="NORMAL",
        )
        with sqlite3.connect(self.database) as connection:
            connection.execute("CREATE TABLE t (n INTEGER)")
        self.to_target = flow_sink(
            _take, target="rig", name="rig", dead_letter=folder,
            rows_max=case.rows_max, attempts_max=1,
        ).task  # fmt: skip
        self.bad: dict[int, str] = {}
        self.calls = 0
        self.attempt = Attempt()
        self.layouts: dict[int, set[Any]] = {}  # of each row: where and how it came
        self.seen: set[int] = set()
        self.redriven: set[int] = set()

    # -- the function of a batch ---------------------------------------------------------

    def take(self, batch: Batch) -> None:
        numbers = [record.value.n for record in batch]
        is_redrive = batch.span.partition.startswith("redrive:")
        dies = not is_redrive and self.calls == self.attempt.dies_at
        if is_redrive:
            self.redriven.update(numbers)
        else:
            self.calls += 1
        if dies and not self.attempt.is_committed:
            raise KeyboardInterrupt
        if any(self.bad.get(number) == "failing" for number in numbers):
            raise ValueError("not yet")
        for index, number in enumerate(numbers):
            if self.bad.get(number) == "rejected":
                batch.reject(index, "not yet")
        rows = [None if i in batch.rejected else {"n": n} for i, n in enumerate(numbers)]
        self.into.write(rows, batch=batch)
        if dies:
            raise KeyboardInterrupt

    # -- Spark ---------------------------------------------------------------------------

    def sink(self, step: Step) -> FlowSink:
        if self.case.is_stream:
            return FlowSink(self.to_target, Origin("query", batch_id=step.batch))
        return FlowSink(self.to_target, Origin(f"run {step.batch}.{step.version}"))

    def numbers(self, step: Step) -> list[int]:
        base = 10_000 * step.version + 100 * step.batch
        return [base + n for n in range(self.case.rows)]

    def run(self, step: Step, *, is_mended: bool) -> None:
        numbers = self.numbers(step)
        kinds = (
            [] if is_mended else [(self.case.rejected, "rejected"), (self.case.failing, "failing")]
        )
        self.bad = {numbers[n]: kind for bad, kind in kinds for n in bad if n < len(numbers)}
        if step.redrives:
            FileDeadLetter(self.folder).file_of("rig").redrive("rig")
        size = -(-len(numbers) // step.parts)
        for part in range(step.parts):
            rows = numbers[part * size : (part + 1) * size]
            for attempt in (*step.deaths, step.last):
                self.task(step, part, rows, attempt)
        self.seen.update(numbers)

    def task(self, step: Step, part: int, rows: list[int], attempt: Attempt) -> None:
        self.attempt, self.calls = attempt, 0
        rows = list(rows)
        if 0 <= attempt.turned_at < len(rows):
            rows[attempt.turned_at :] = rows[attempt.turned_at :][::-1]
        for number in rows:
            self.layouts.setdefault(number, set()).add((part, tuple(rows)))
        sink_task._partition_id = lambda: part  # restored by the test
        sink, size = self.sink(step), self.case.rows_a_batch or len(rows) or 1
        batches = [_batch(rows[at : at + size]) for at in range(0, len(rows), size)]
        given: Any = [Row(n=number) for number in rows]
        if self.case.rows_a_batch:
            given = ArrowRows(batches, _SCHEMA)
        try:
            if self.case.by_writer and not self.case.is_stream:
                BatchWriter(sink, _SCHEMA).write(iter(batches))
            else:
                sink(given)
        except KeyboardInterrupt:
            assert attempt.dies_at >= 0

    # -- the model -----------------------------------------------------------------------

    def check(self) -> None:
        with sqlite3.connect(self.database) as connection:
            table = Counter(n for (n,) in connection.execute("SELECT n FROM t"))
        letters = Counter(
            letter.value["n"]
            for letter in FileDeadLetter(self.folder).file_of("rig").read().of("rig")
        )
        lost = self.seen - set(table) - set(letters)
        assert not lost, f"lost: {sorted(lost)}"
        assert not set(table) - set(self.layouts), "rows that nobody had"
        for number in self.seen:
            if len(self.layouts[number]) > 1 or number in self.redriven:
                continue
            there = table[number], letters[number]
            assert there in ((1, 0), (0, 1)), f"{number}: (rows, letters) are {there}"


def _replayed() -> Case | None:
    text = os.environ.get(_CASE)
    return None if text is None else msgspec.json.decode(text, type=Case)


@pytest.mark.req("S70")
@settings(
    max_examples=1 if _CASE in os.environ else 5_000 if IS_THOROUGH else 250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=_cases)
def test_every_row_is_in_the_target_or_has_a_letter_and_none_is_there_twice(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _replayed() or case
    note(f"replay: {_CASE}='{msgspec.json.encode(case).decode()}' python -m pytest {_HERE}")
    with monkeypatch.context() as patch:
        patch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", case.merge_every)
        patch.setattr("flowctl.delivery.sections._ROWS_FIRST", 4)
        patch.setattr("flowctl.delivery.sections._ROWS_MAX", 16)
        patch.setattr(sink_task, "_partition_id", lambda: 0)
        folder = tmp_path / str(next(_FOLDERS))
        folder.mkdir()
        world = World(case, folder)
        patch.setattr(moody, "DOERS", [world.take])
        for number, step in enumerate(case.steps):
            world.run(step, is_mended=number >= case.mended_from)
            world.check()
        world.into.close()
