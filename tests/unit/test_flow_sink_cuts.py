"""Rows whose partitions are cut in another way when they come again: none may be left out."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from flowctl.bolts.batch import Batch
from flowctl.core.positions import encode
from flowctl.delivery.sections import Sections
from flowctl.errors import ProcessError, UnrunnableError
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink, sink_task
from pyspark_flowctl.sink_task import BATCHES_TOLD_APART, Origin, SinkTask, deliver
from pyspark_flowctl.sinks import FlowSink


def test_batches_of_a_stream_are_named_by_query_and_number() -> None:
    sections = Sections(range(3))
    where = Origin("query", batch_id=7).where("job", sections)
    first = where.place(next(iter(sections)))
    assert (where.partition, first[:2], first[-1]) == ("query/0", (7, 0), 0)
    assert encode(where.before) < encode((7 - BATCHES_TOLD_APART, 0, 0, 0)), "older batches only"


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


@pytest.fixture
def merges_at_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", 1)


def _stream(database: Path) -> tuple[SqlSink, SinkTask]:
    into = SqlSink(
        f"sqlite:///{database}",
        table="t",
        schema="CREATE TABLE t (n INTEGER)",
        synchronous="NORMAL",
    )
    return into, flow_sink(sink=into, target="db", rows_max=3).task


def _batch(task: SinkTask, batch_id: int, numbers: range) -> None:
    FlowSink(task, Origin("query", batch_id=batch_id))([Row(n=n) for n in numbers])


def _numbers_in(database: Path) -> Counter[int]:
    with sqlite3.connect(database) as connection:
        return Counter(n for (n,) in connection.execute("SELECT n FROM t"))


@pytest.mark.req("S70")
@pytest.mark.usefixtures("merges_at_each_write")
def test_after_a_checkpoint_was_set_back_by_some_batches_new_rows_are_written(
    tmp_path: Path,
) -> None:
    """Kind: a sink may take positions together only if nothing else can come between them.

    Spans of older batches were joined into one range, so what lay in it counted as written.
    """
    database = tmp_path / "out.db"
    _, task = _stream(database)
    for batch_id in range(9):
        _batch(task, batch_id, range(10 * batch_id, 10 * batch_id + 10))
    for batch_id in range(4, 12):  # rows that are new, and batch 6 as it was
        first = 60 if batch_id == 6 else 1_000 + 10 * batch_id
        _batch(task, batch_id, range(first, first + 10))
    new = {n for n in range(1_040, 1_120) if not 1_060 <= n < 1_070}
    assert _numbers_in(database) == Counter([*range(90), *new])


@pytest.mark.req("S70")
@pytest.mark.usefixtures("merges_at_each_write")
def test_a_batch_that_is_older_than_what_the_sink_tells_apart_is_refused_by_name(
    tmp_path: Path,
) -> None:
    """Neither left out nor doubled: its old rows are joined, so nobody knows which they were."""
    database = tmp_path / "out.db"
    into, task = _stream(database)
    for batch_id in range(BATCHES_TOLD_APART + 5):
        _batch(task, batch_id, range(batch_id, batch_id + 1))
    with pytest.raises(UnrunnableError, match="more batches than SqlSink tells apart") as caught:
        _batch(task, 2, range(5_000, 5_001))
    assert "forget" in caught.value.remedy
    with pytest.raises(UnrunnableError, match="more batches than SqlSink tells apart"):
        _batch(task, 0, range(1))  # where the joined range begins
    into.forget("db", "query/0")
    _batch(task, 2, range(5_000, 5_001))
    assert 5_000 in _numbers_in(database)


@pytest.mark.usefixtures("merges_at_each_write")
def test_what_the_sink_remembers_of_a_stream_does_not_grow_for_ever(tmp_path: Path) -> None:
    database = tmp_path / "out.db"
    _, task = _stream(database)
    sizes = []
    for batch_id in range(2 * BATCHES_TOLD_APART):
        _batch(task, batch_id, range(7))
        with sqlite3.connect(database) as connection:
            sizes += connection.execute("SELECT COUNT(*) FROM flowctl_spans").fetchone()
    assert max(sizes) <= 3 * BATCHES_TOLD_APART + 4


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


def _written(database: Path, task: SinkTask, *attempts: list[Row]) -> Counter[int]:
    """Run the task of partition 0 with these rows, one attempt after the other; count n."""
    sink = FlowSink(task, Origin("2026-11-22"))
    for rows in attempts:
        sink(rows)
    with sqlite3.connect(database) as connection:
        return Counter(n for (n,) in connection.execute("SELECT n FROM t"))


@pytest.mark.req("S70")
@pytest.mark.parametrize("turned_at", [0, 128, 200, 1_000, 2_999])
def test_rows_that_come_in_another_order_the_second_time_are_all_written(
    tmp_path: Path, turned_at: int
) -> None:
    """After a shuffle a task that runs again gets its rows in any order, also after the first."""
    database = tmp_path / "out.db"
    into = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (n INTEGER)")
    task = flow_sink(sink=into, target="db", rows_max=50).task
    rows = [Row(n=n) for n in range(3_000)]
    again = rows[:turned_at] + rows[turned_at:][::-1]
    found = _written(database, task, rows[: turned_at + 700], again, again)
    assert sorted(found) == list(range(3_000)), "none is missing"
    twice = sum(found.values()) - 3_000
    # What came before in the same order, to the end of a section, is not written again.
    assert twice <= 700 + turned_at / 2 + 128


def test_a_row_that_fails_is_named_by_its_number() -> None:
    def write(batch: Batch) -> None:
        for record in batch:
            if record.value.n == 7:
                raise ValueError("no seven")

    with pytest.raises(ProcessError, match=r"row 7 of partition .* failed 5 times: ValueError"):
        flow_sink(write, target="t", run="2026-11-22")([Row(n=n) for n in range(20)])


def test_only_sections_that_differ_are_written_again(tmp_path: Path) -> None:
    database = tmp_path / "out.db"
    into = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (n INTEGER)")
    task = flow_sink(sink=into, target="db", rows_max=50).task
    rows = [Row(n=n) for n in range(1_000)]
    turned = rows[:128] + rows[128:256][::-1] + rows[256:]
    found = _written(database, task, rows, turned, rows)
    assert found == Counter(range(1_000)) + Counter(range(128, 256))


def test_moments_of_the_run_and_addresses_do_not_make_rows_other_ones() -> None:
    class Point:
        """Its repr is where it is in memory."""

    def mark(*rows: Row, passing_moments: bool = True) -> int:
        sections = Sections(rows, passing_moments=passing_moments)
        return sum(sections.place(number)[1] for number, _ in enumerate(sections))

    early, late = datetime(2026, 11, 22, 1, 2, 3, 4), datetime(2026, 11, 23)
    assert mark(Row(n=1, at=early, p=Point())) == mark(Row(n=1, at=late, p=Point()))
    assert mark(Row(n=1, at=early)) != mark(Row(n=2, at=early))
    assert mark(Row(n=1, at=[early])) != mark(Row(n=1, at=[early, early]))
    assert mark(Row(at=early), Row(at=late)) != mark(Row(at=early), Row(at=early))
    assert mark(Row(at=early), Row(at=late)) != mark(Row(at=late), Row(at=early))
    runs = [mark(*(Row(n=n, now=now) for n in range(40))) for now in (early, late)]
    assert runs[0] == runs[1], "current_timestamp() is one moment for all rows"
    attempts = [
        mark(*(Row(n=n, now=now) for n in range(40)), passing_moments=False)
        for now in (early, late)
    ]
    assert attempts[0] != attempts[1], "attempts of one task have the same one"


def test_which_moments_pass_is_decided_by_the_first_section() -> None:
    """A later one with one moment only may be of rows that came at once: that one counts."""
    early, late = datetime(2026, 11, 22), datetime(2026, 11, 23)

    def marks(later: datetime) -> list[int]:
        rows = [Row(n=n, at=(early, late)[n % 2]) for n in range(128)]
        sections = Sections([*rows, *(Row(n=n, at=later) for n in range(9))], passing_moments=True)
        return [sections.place(number)[1] for number, _ in enumerate(sections)]

    one, other = marks(early), marks(late)
    assert one[:128] == other[:128]
    assert one[128] != other[128]


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100, 40_000])
def test_sections_take_no_row_away_and_number_them_all(count: int) -> None:
    sections = Sections(iter(range(count)))
    found = [(row, sections.place(row), sections.rest()) for row in sections]
    assert [row for row, _, _ in found] == list(range(count))
    places = [place for _, place, _ in found]
    assert places == sorted(places), "the ledger needs an order"
    last_of_each = [place[0] for _, place, rest in found if rest == 0]
    assert last_of_each == list(range(len(last_of_each))), "a section ends where nothing is left"


def test_only_rows_of_the_section_that_is_given_out_have_a_place() -> None:
    """Of another one the mark is not known: a row would get the name of another."""
    sections = Sections(iter(range(200)))
    for number, _ in enumerate(sections):
        first, last = (0, 127) if number < 128 else (128, 199)
        assert sections.place(first)[2] == first and sections.place(last)[2] == last
        for other in (first - 1, last + 1):
            with pytest.raises(ValueError, match="not in this section"):
                sections.place(other)


def test_sections_grow_so_that_a_ledger_stays_small_and_end_where_memory_would() -> None:
    ends = []
    sections = Sections(iter(range(80_000)))
    for number, _ in enumerate(sections):
        if not sections.rest():
            ends.append(number + 1)
    doubled = [128 * 2**n for n in range(8)]
    assert ends == [*doubled, *range(32_768, 80_000, 16_384), 80_000]


@pytest.mark.parametrize("short", [(2,), (), 2])
def test_rows_may_be_shorter_than_the_first(short: Any) -> None:
    """Rows of an RDD need not be alike, and a moment is looked for where the first row has it."""
    now = datetime(2026, 11, 22)

    def mark(*rows: Any) -> int:
        sections = Sections(rows, passing_moments=True)
        return sum(sections.place(number)[1] for number, _ in enumerate(sections))

    assert mark((1, now), short) == mark((1, now), short) != mark((1, now), (3,))
    many = [(n, now) for n in range(128)]
    assert mark(*many, short) != mark(*many, (3,)), "also in a section after the first"


@pytest.mark.parametrize("odd", [2**70, "\ud800", {(1, 2): 3}, Row(a=Row(b=[1])), float("nan")])
def test_any_value_has_a_mark(odd: Any) -> None:
    def mark(value: Any) -> int:
        sections = Sections([Row(n=1, value=value)])
        return next(sections.place(number)[1] for number, _ in enumerate(sections))

    assert mark(odd) == mark(odd) != mark("another")


def test_large_rows_are_not_collected() -> None:
    """A task would hold 16,384 of 10 MB, and 128 of the first ones."""
    taken = 0

    def rows() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(12):
            taken += 1
            yield bytes(10_000_000)

    held = [taken - given for given, _ in enumerate(Sections(rows()))]
    assert max(held) <= 3


@pytest.mark.parametrize("passing_moments", [False, True])
def test_where_the_first_section_ends_does_not_depend_on_the_moment(passing_moments: bool) -> None:
    """A moment without microseconds is a shorter text, and may move a row over the limit."""

    def places(now: datetime) -> list[int]:
        rows = (Row(text="x" * 2_097_130, now=now, n=n) for n in range(20))
        sections = Sections(rows, passing_moments=passing_moments)
        return [sections.place(number)[0] for number, _ in enumerate(sections)]

    assert places(datetime(2026, 11, 22)) == places(datetime(2026, 11, 22, 1, 2, 3, 4))


@pytest.mark.req("S70")
@pytest.mark.usefixtures("merges_at_each_write")
@pytest.mark.parametrize("batch_id", [None, 7])
@pytest.mark.parametrize("rows_max", [7, 100, 1_000])
def test_what_was_given_up_is_tried_again_when_it_comes_again(
    tmp_path: Path, rows_max: int, batch_id: int | None
) -> None:
    """Kind: a row that was never written counts as written, as rows around it are.

    The sink joined what it remembers over the rows that the dead letter has.
    """
    database = tmp_path / "out.db"
    rows = [Row(n=n, text=None if n % 97 == 5 else "x") for n in range(600)]
    bad = {row.n for row in rows if row.text is None}

    def write(rows_max: int) -> Any:
        into = SqlSink(
            f"sqlite:///{database}",
            table="t",
            schema="CREATE TABLE IF NOT EXISTS t (n INTEGER, text TEXT NOT NULL)",
        )
        task = flow_sink(
            sink=into, target="db", name="again", dead_letter=str(tmp_path), rows_max=rows_max,
            attempts_max=1,
        ).task  # fmt: skip
        origin = Origin("2026-11-22", batch_id=batch_id)
        return deliver(task, origin, rows, at_end=batch_id is None)

    assert write(rows_max).gave_up == len(bad)
    again = write(50)
    assert (again.gave_up, again.left_out) == (len(bad), len(rows) - len(bad))
    with sqlite3.connect(database) as connection:  # the table is corrected
        connection.executescript(
            "CREATE TABLE u (n INTEGER, text TEXT); INSERT INTO u SELECT * FROM t;"
            "DROP TABLE t; ALTER TABLE u RENAME TO t"
        )
    last = write(300)
    assert (last.gave_up, last.written, last.left_out) == (0, len(rows), len(rows) - len(bad))
    with sqlite3.connect(database) as connection:
        found = [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]
        spans = connection.execute("SELECT COUNT(*) FROM flowctl_spans").fetchone()[0]
    assert found == list(range(len(rows)))
    assert spans <= 2 * len(bad) + 4
    assert write(1_000).left_out == len(rows)
