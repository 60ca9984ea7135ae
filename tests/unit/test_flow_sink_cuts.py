"""Rows whose partitions are cut in another way when they come again: none may be left out."""

from __future__ import annotations

import sqlite3
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from flowctl.core.positions import encode
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink, sink_task
from pyspark_flowctl.sink_task import Origin
from pyspark_flowctl.sinks import FlowSink


def test_batches_of_a_stream_are_named_by_query_and_number() -> None:
    where = Origin("query", batch_id=7).where("job", mark=5)
    assert (where.partition, where.place(3), where.before) == ("query/0", (7, 5, 3), (7, -1))
    assert encode(where.before) < encode(where.place(0)), "all batches before this one"


def _numbers(sink: FlowSink, layout: dict[int, range], monkeypatch: pytest.MonkeyPatch) -> None:
    """Write partitions with these numbers, as Spark would."""
    for partition, numbers in layout.items():
        monkeypatch.setattr(sink_task, "_partition_id", lambda partition=partition: partition)
        sink([Row(n=n) for n in numbers])


@pytest.mark.parametrize("batch_id", [None, 7])
def test_rows_of_partitions_that_are_cut_elsewhere_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_id: int | None
) -> None:
    """With two cores partition 1 had other rows than with four, and only it was written."""
    database = tmp_path / "out.db"
    into = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (n INTEGER)")
    task = flow_sink(sink=into, target="db").task
    sink = FlowSink(task, Origin("2026-11-22", batch_id=batch_id))
    two = {0: range(20), 1: range(20, 40)}
    four = {part: range(10 * part, 10 * part + 10) for part in range(4)}
    _numbers(sink, {1: two[1]}, monkeypatch)
    _numbers(sink, four, monkeypatch)
    _numbers(sink, four, monkeypatch)  # the same again
    with sqlite3.connect(database) as connection:
        found = Counter(n for (n,) in connection.execute("SELECT n FROM t"))
    assert sorted(found) == list(range(40)), "none is missing"
    assert sum(found.values()) == 60, "again is only what began with other rows"


def test_rows_of_a_batch_that_was_cut_in_several_ways_are_all_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks of one batch have no order: the ledger joined two, and what lay between was left out.

    So it is if ``foreachBatch`` writes a batch in parts, or if the batch begins with other rows at
    each restart.
    """
    database = tmp_path / "out.db"
    into = SqlSink(
        f"sqlite:///{database}",
        table="t",
        schema="CREATE TABLE t (n INTEGER)",
        synchronous="NORMAL",
    )
    # One row in each call, so ranges are joined several times.
    task = flow_sink(sink=into, target="db", rows_max=1).task
    sink = FlowSink(task, Origin("query", batch_id=7))
    for part in range(8):
        _numbers(sink, {0: range(200 * part, 200 * part + 200)}, monkeypatch)
    with sqlite3.connect(database) as connection:
        found = Counter(n for (n,) in connection.execute("SELECT n FROM t"))
    assert found == Counter(range(1_600))


def test_events_that_differ_in_their_time_only_are_not_taken_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two cores partition 1 had other events than with four, and only it was written."""
    database = tmp_path / "out.db"
    into = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (at TEXT, what TEXT)")
    sink = flow_sink(sink=into, target="db", run="2026-11-22")
    begun = datetime(2026, 11, 22)
    events = [Row(at=begun + timedelta(seconds=n), what="click") for n in range(40)]
    four = [(part, events[10 * part : 10 * part + 10]) for part in range(4)]
    for partition, part in [(1, events[20:]), *four]:
        monkeypatch.setattr(sink_task, "_partition_id", lambda partition=partition: partition)
        sink(part)
    with sqlite3.connect(database) as connection:
        found = {at for (at,) in connection.execute("SELECT at FROM t")}
    assert len(found) == 40


def test_moments_and_addresses_do_not_make_rows_other_ones() -> None:
    class Point:
        """Its repr is where it is in memory."""

    def mark(*rows: Row) -> int:
        return sink_task.marked(rows)[1]

    early, late = datetime(2026, 11, 22, 1, 2, 3, 4), datetime(2026, 11, 23)
    assert mark(Row(n=1, at=early, p=Point())) == mark(Row(n=1, at=late, p=Point()))
    assert mark(Row(n=1, at=early)) != mark(Row(n=2, at=early))
    assert mark(Row(n=1, at=[early])) != mark(Row(n=1, at=[early, early]))
    assert mark() == mark()
    assert mark(Row(at=early), Row(at=late)) != mark(Row(at=early), Row(at=early))
    loaded = [mark(*(Row(n=n, now=now) for n in range(3))) for now in (early, late)]
    assert loaded[0] == loaded[1], "current_timestamp() is one moment for all rows"
    both = sink_task.marked([Row(at=early), Row(at=late)], with_moments=False)[1]
    assert both == sink_task.marked([Row(at=late), Row(at=early)], with_moments=False)[1]


def test_the_mark_takes_no_row_away() -> None:
    for count in (0, 1, 8, 9, 100):
        rows, _ = sink_task.marked(iter(range(count)))
        assert list(rows) == list(range(count))
