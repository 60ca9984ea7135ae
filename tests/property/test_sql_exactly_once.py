"""Whatever is sent, in whatever order and however it is cut: each record's rows are there once.

The model is a set of record numbers.  A life is one run of a driver, with its own epoch; it cuts
what its checkpoint leaves into tuples and sends them in any order, some twice.  Some tuples of
earlier lives arrive late.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.core.records import Position, Record, Span
from flowctl.errors import FencedError
from flowctl_sql import SqlSink

pytestmark = pytest.mark.on_change()

_JOBS = itertools.count()


def _position(number: int) -> Position:
    return (number * 7, number)


def _columns_of(job: str, numbers: list[int]) -> Any:
    pyarrow = pytest.importorskip("pyarrow", reason="has the columns")
    return pyarrow.RecordBatch.from_pydict(
        {"job": [job] * len(numbers), "number": numbers, "copy": [0] * len(numbers)}
    )


class World:
    """The sink beside what it should hold: none to two rows a record, or one if in columns."""

    def __init__(self, sink: SqlSink, records: int, in_columns: bool) -> None:
        self.sink = sink
        self.in_columns = in_columns
        self.job = f"job {next(_JOBS)}"
        self.records = records
        self.done: set[int] = set()
        self.newest_epoch = 0

    def acked_through(self) -> Position | None:
        contiguous = next(n for n in range(self.records + 1) if n not in self.done)
        return _position(contiguous - 1) if contiguous else None

    def tuple_of(self, numbers: list[int], epoch: int) -> Batch:
        """Cut and sent now: carries today's cumulative ack."""
        first, last = _position(numbers[0]), _position(numbers[-1])
        span = Span(self.job, "part", first, last, epoch, self.acked_through())
        records = [Record(_position(number), number) for number in numbers]
        return Batch(records, span, bolt="b1", attempt=1)

    def arrive(self, batch: Batch) -> None:
        again = Batch(batch[:], batch.span, bolt="b2", attempt=2)  # a sink sees a new object
        numbers = [record.value for record in batch]
        rows: Any = [self.rows_of(number) or None for number in numbers]
        if self.in_columns:
            rows = _columns_of(self.job, numbers)
        if batch.span.epoch < self.newest_epoch:
            with pytest.raises(FencedError):
                self.sink.write(rows, batch=again)
            return
        result = self.sink.write(rows, batch=again)
        self.newest_epoch = batch.span.epoch
        new = [number for number in numbers if number not in self.done]
        written = sum([len(self.rows_of(number)) for number in new])
        assert result == (written, len(numbers) - len(new))
        self.done.update(numbers)

    def rows_of(self, number: int) -> list[tuple[str, int, int]]:
        if self.in_columns:
            return [(self.job, number, 0)]
        return [(self.job, number, copy) for copy in range(number % 3)]  # none, one or two


def _cut(draw: st.DrawFn, numbers: list[int]) -> Iterator[list[int]]:
    while numbers:
        size = draw(st.integers(1, max(1, len(numbers) // 2)))
        yield numbers[:size]
        numbers = numbers[size:]


@st.composite
def lives(draw: st.DrawFn, world: World) -> None:
    late: list[Batch] = []
    for epoch in range(1, draw(st.integers(1, 4)) + 1):
        # The checkpoint may lie behind what is done, and know acked ranges above it.
        start = draw(st.integers(0, _contiguous(world)))
        known = {n for n in world.done if n >= start and draw(st.booleans())}
        left = [n for n in range(start, world.records) if n not in known]
        sent = [world.tuple_of(numbers, epoch) for numbers in _cut(draw, left)]
        order = draw(st.permutations(sent + sent[: draw(st.integers(0, len(sent)))]))
        arriving = order[: draw(st.integers(0, len(order)))]
        for batch in arriving:
            if late and draw(st.booleans()):
                world.arrive(draw(st.sampled_from(late)))
            world.arrive(batch)
        late += sent
    for numbers in _cut(draw, list(range(world.records))):  # the last life gets through
        world.arrive(world.tuple_of(numbers, 9))


def _contiguous(world: World) -> int:
    return next(n for n in range(world.records + 1) if n not in world.done)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sql") / "rows.db"


@pytest.mark.req("S13", "S70")
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    data=st.data(),
    records=st.integers(1, 40),
    merge_every=st.integers(1, 5),
    in_columns=st.booleans(),
)
def test_each_record_is_there_exactly_once(
    database: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: st.DataObject,
    records: int,
    merge_every: int,
    in_columns: bool,
) -> None:
    monkeypatch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", merge_every)
    sink = SqlSink(
        f"sqlite:///{database}",
        table="rows",
        schema="CREATE TABLE rows (job TEXT, number INTEGER, copy INTEGER)",
    )
    world = World(sink, records, in_columns)
    data.draw(lives(world))
    sink.close()
    with sqlite3.connect(database) as connection:
        found = Counter(
            connection.execute("SELECT * FROM rows WHERE job = ?", (world.job,)).fetchall()
        )
        ranges = connection.execute(
            "SELECT first_position, last_position FROM flowctl_spans WHERE job = ? "
            "ORDER BY first_position",
            (world.job,),
        ).fetchall()
    connection.close()
    assert found == Counter(row for n in range(records) for row in world.rows_of(n))
    assert all(first <= last for first, last in ranges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
