"""For the tests of SqlSink: tuples of numbered lines, a sink in ``t.db`` of the directory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl_sql import SqlSink, WriteResult

SCHEMA = ("CREATE TABLE t (number INTEGER, line TEXT)", "CREATE INDEX i ON t (number)")


class Opened:
    """A ``connect`` for SqlSink that remembers the connections which it opened to ``t.db``."""

    def __init__(self) -> None:
        self.all: list[sqlite3.Connection] = []

    def __call__(self) -> sqlite3.Connection:
        self.all.append(sqlite3.connect("t.db"))
        return self.all[-1]


def batch_of(
    numbers: Sequence[int],
    *,
    epoch: int = 1,
    job: str = "job",
    partition: str = "p",
    acked_through: int | None = None,
) -> Batch:
    """A tuple of the records ``numbers``."""
    span = Span(job, partition, numbers[0], numbers[-1], epoch, acked_through)
    return Batch([Record(n, f"line {n}") for n in numbers], span, bolt="b1", attempt=1)


def rows_of(batch: Batch) -> list[Any]:
    """A row for each record, of both columns."""
    return [(record.position, record.value) for record in batch]


def new_sink(**options: Any) -> SqlSink:
    """A sink of the table t, which it makes."""
    return SqlSink("sqlite:///t.db", **{"table": "t", "schema": SCHEMA, **options})


def write(sink: SqlSink, *numbers: int, **options: Any) -> WriteResult:
    """Write a tuple of the records ``numbers``."""
    batch = batch_of(numbers, **options)
    return sink.write(rows_of(batch), batch=batch)


def query(statement: str, database: str = "t.db") -> list[Any]:
    """What the database says, past the sink."""
    connection = sqlite3.connect(database)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()
