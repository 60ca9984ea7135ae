"""SqlSink over SQLite: shapes of rows, skipping, fencing, merging, connections."""

from __future__ import annotations

import os
import pickle
import sqlite3
import threading
import weakref
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import (
    CallTooLongError,
    ConfigError,
    FencedError,
    JobError,
    RowError,
    UnrunnableError,
)
from flowctl_sql import SqlSink
from tests.sql_parts import SCHEMA, Opened, batch_of, new_sink, query, rows_of, write


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _numbers() -> list[int]:
    return [number for (number,) in query("SELECT number FROM t ORDER BY number")]


def _spans() -> int:
    return int(query("SELECT count(*) FROM flowctl_spans")[0][0])


def test_a_write_tells_its_time_in_the_sink() -> None:
    ticks = count(0.0, 0.5)
    span = Span("job", "p", 1, 1, 1)
    batch = Batch([Record(1, "x")], span, bolt="b1", attempt=1, clock=lambda: next(ticks))
    sink = new_sink()
    sink.write(rows_of(batch), batch=batch)
    assert batch.sink_s == 0.5
    with pytest.raises(JobError):  # a failed write took its time too
        sink.write([(1, "other")], batch=batch)
    assert batch.sink_s == 1.0


def test_a_replay_changes_nothing() -> None:
    sink = new_sink()
    assert write(sink, 1, 2, 3) == (3, 0)
    assert write(sink, 1, 2, 3) == (0, 3)
    assert _numbers() == [1, 2, 3]


def test_a_tuple_cut_differently_adds_only_what_is_new() -> None:
    sink = new_sink()
    write(sink, 3, 4)
    write(sink, 7, 8)
    assert write(sink, *range(1, 11), epoch=2) == (6, 4)
    assert _numbers() == list(range(1, 11))
    assert _spans() == 1


def test_partitions_jobs_and_sinks_are_apart() -> None:
    first, second = new_sink(), new_sink(name="another")
    for sink, options in ((first, {}), (first, {"partition": "q"}), (first, {"job": "k"})):
        assert write(sink, 1, **options) == (1, 0)
    assert write(second, 1) == (1, 0)
    assert _numbers() == [1, 1, 1, 1]


def test_rows_are_tuples_dicts_lists_or_none() -> None:
    batch = batch_of([1, 2, 3, 4])
    rows = [None, {"line": "a", "number": 2}, [(30, "b"), {"number": 31, "line": "c"}], []]
    assert new_sink(columns=["number", "line"]).write(rows, batch=batch) == (3, 0)
    assert query("SELECT * FROM t") == [(2, "a"), (30, "b"), (31, "c")]


def test_columns_are_the_keys_of_the_dicts() -> None:
    sink = new_sink()
    batch = batch_of([1, 2])
    sink.write(({"line": f"{n}"} for n in (1, 2)), batch=batch)
    sink.write([{"number": 3}], batch=batch_of([3]))
    assert query("SELECT * FROM t") == [(None, "1"), (None, "2"), (3, None)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, "a")], "1 rows for a batch of 2 records"),
        ([(1, "a"), (2,)], "position 2: a row of 1 values where 2 are expected"),
        ([(1, "a"), "text"], "position 2: str is not a row"),
        ([[1, "a"], None], "position 1: int is not a row"),
        ([{"number": 1}, {}], "position 2: an empty row"),
        ([(1, "a"), {"number": 1}], "position 2: a dict among tuples"),
    ],
)
def test_rows_of_a_wrong_shape_are_placed(rows: list[Any], said: str) -> None:
    with pytest.raises(JobError, match=said) as caught:
        new_sink().write(rows, batch=batch_of([1, 2]))
    assert "None for a record without a row" in caught.value.remedy


@pytest.mark.parametrize(
    "rows", [[("1", "a"), ("2",)], [("1", "a"), ("2", "b", "c")], [("1",), ("2", "b")]]
)
def test_a_row_of_another_width_is_placed_though_only_the_driver_looks(rows: list[Any]) -> None:
    sink = new_sink(schema="CREATE TABLE t (number TEXT, line TEXT)")  # no column of numbers
    with pytest.raises(JobError, match=r"position 2: a row of \d values where") as caught:
        sink.write(rows, batch=batch_of([1, 2]))
    assert type(caught.value) is RowError  # and so it does not end the run
    assert query("SELECT * FROM t") == []


def test_ranges_are_merged_now_and_then() -> None:
    sink = new_sink(synchronous="NORMAL")  # 400 commits that wait for no disk
    for number in range(400):
        write(sink, number, acked_through=number - 1)
    assert _spans() < 100
    assert write(sink, 5) == (0, 1)


def test_a_database_of_an_older_version_is_gone_on_with() -> None:
    sink = new_sink()
    write(sink, 1)
    sink.close()
    with sqlite3.connect("t.db") as connection:  # it had rowids, and counted the writes
        for table in ("flowctl_epochs", "flowctl_spans"):
            old = connection.execute(
                "SELECT sql FROM sqlite_master WHERE name = ?", (table,)
            ).fetchone()[0]
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            connection.execute(f"DROP TABLE {table}")
            connection.execute(old.replace("WITHOUT ROWID", ""))
            marks = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.execute("INSERT INTO flowctl_partitions VALUES ('job', 't', 'p', 1)")
    connection.close()
    assert write(new_sink(), 1, 2) == (1, 1)
    assert query("SELECT number FROM t") == [(1,), (2,)]


def test_rows_may_have_other_keys_than_the_first() -> None:
    sink = new_sink(schema="CREATE TABLE t (number INTEGER, line TEXT DEFAULT 'none')")
    rows = [{"number": 1}, {"line": "b", "number": 2}, {"number": 3, "line": "c"}, {"number": 4}]
    assert sink.write(rows, batch=batch_of([1, 2, 3, 4])) == (4, 0)
    assert sink.write(rows[1:], batch=batch_of([2, 3, 5])) == (1, 2)
    found = [(1, "none"), (2, "b"), (3, "c"), (4, "none"), (4, "none")]
    assert query("SELECT * FROM t ORDER BY number") == found


def test_of_named_columns_a_row_may_lack_some_but_have_no_other() -> None:
    sink = new_sink(columns=["number", "line"])
    assert sink.write([{"line": "a"}], batch=batch_of([1])) == (1, 0)
    with pytest.raises(JobError, match="position 2: a row with the key 'other', which is none of"):
        sink.write([{"number": 2, "other": 1}], batch=batch_of([2]))
    assert query("SELECT * FROM t") == [(None, "a")]


@pytest.mark.parametrize(
    ("options", "rows", "said"),
    [
        ({"columns": ["number", "wrong"]}, [(1, "a")], "no column named wrong"),
        ({}, [{"number": 1, "wrong": "a"}], r"keys \['number', 'wrong'\] don't fit .* wrong"),
        ({}, [(1, "a", 2)], "has 2 columns but 3 values"),
        ({"schema": "CREATE TABLE t (a, n REAL)"}, [(1,)], "has 2 columns but 1 values"),
        ({"schema": ()}, [(1, "a")], "table: 't' in .* can't be read"),
        ({"schema": "CREATE TABEL t (n)"}, [(1, "a")], "schema: .* syntax error"),
        ({"schema": "CREATE TABLE o (n)"}, [(1, "a")], "schema: .* don't create the table 't'"),
        ({"schema": "CREATE TABLE t (n); SELECT 1"}, [(1, "a")], r"one statement.* Give a list"),
    ],
)
def test_what_no_row_can_be_written_with_ends_the_run(
    options: dict[str, Any], rows: list[Any], said: str
) -> None:
    with pytest.raises(UnrunnableError, match=said) as caught:
        new_sink(**options).write(rows, batch=batch_of([1]))
    assert caught.value.remedy


def test_odd_rows_among_others_are_those_records_fault() -> None:
    sink = new_sink()
    odd = {"number": 2, "wrong": "a"}
    with pytest.raises(JobError, match="don't fit") as caught:
        sink.write([{"number": 1}, odd], batch=batch_of([1, 2]))
    assert not isinstance(caught.value, UnrunnableError)
    sink.write([{"number": 1}], batch=batch_of([1]))
    with pytest.raises(JobError, match="don't fit") as caught:
        sink.write([odd], batch=batch_of([2]))
    assert not isinstance(caught.value, UnrunnableError), "others have been written"
    assert query("SELECT number FROM t") == [(1,)]


def test_nan_is_refused_where_it_would_become_null() -> None:
    sink = new_sink(table="main.t", schema='CREATE TABLE t ("Number" REAL, line VARCHAR(9))')
    with pytest.raises(JobError, match="position 1: column Number is NaN"):
        sink.write([(float("nan"), "a")], batch=batch_of([1]))
    sink.write([(1.5, float("nan"))], batch=batch_of([1]))
    assert query("SELECT * FROM t") == [(1.5, None)], "missing text is NULL"


def test_the_position_of_the_reader_is_left_alone() -> None:
    batch = batch_of([1, 2])
    iterator = iter(batch)
    next(iterator)
    new_sink().write([(1, "a"), (2, "b")], batch=batch)
    assert batch.reading_index == 0


def test_a_failed_write_leaves_nothing_behind() -> None:
    sink = new_sink(schema="CREATE TABLE t (number INTEGER UNIQUE, line TEXT)")
    write(sink, 5)
    batch = batch_of([1, 2])
    with pytest.raises(sqlite3.IntegrityError):
        sink.write([(1, "a"), (5, "b")], batch=batch)
    assert _numbers() == [5]
    assert sink.write([(1, "a"), (2, "b")], batch=batch) == (2, 0)


@pytest.mark.parametrize("when", ["before it writes", "while it writes"])
def test_a_call_that_was_given_up_writes_nothing_however_late_it_comes_back(when: str) -> None:
    """Kind: its record is a letter, which may be put back, and its row was written besides."""
    batch = batch_of([1, 2])

    def give_up(*_: object) -> None:
        batch.overdue = CallTooLongError("a call took longer than 1 s (call_timeout_s)")

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect("t.db")
        connection.set_trace_callback(lambda said: "INTO t" in said and give_up())
        return connection

    sink = new_sink(connect=connect) if when == "while it writes" else new_sink()
    if when == "before it writes":
        give_up()
    with pytest.raises(CallTooLongError):
        sink.write(rows_of(batch), batch=batch)
    assert write(new_sink(), 1, 2) == (2, 0), "neither a row nor its span was committed"
    assert _numbers() == [1, 2]


def test_rows_are_not_kept_beyond_their_batch() -> None:
    """They were until the next write: twice the memory, and 3 % more CPU."""

    class Text(str):
        """Can be referred to weakly."""

    text = Text("x")
    alive = weakref.ref(text)
    sink, batch = new_sink(), batch_of([1])
    sink.write([(1, text)], batch=batch)
    del text
    assert alive() is not None, "a second write for this batch is compared with the first"
    del batch
    assert alive() is None


def test_a_second_write_of_other_rows_is_refused() -> None:
    sink = new_sink()
    batch = batch_of([1, 2])
    assert sink.write([(1, "a"), None], batch=batch) == (1, 0)
    assert sink.write([(1, "a"), None], batch=batch) == (0, 2)  # a retry in process is fine
    with pytest.raises(JobError, match="second write"):
        sink.write([None, (2, "b")], batch=batch)


def test_an_older_driver_is_fenced() -> None:
    sink = new_sink()
    write(sink, 1, epoch=4)
    write(sink, 2, epoch=5)
    with pytest.raises(FencedError, match=r"'job'.*epoch 4 was replaced; epoch 5"):
        write(sink, 3, epoch=4)
    with pytest.raises(FencedError):
        write(sink, 1, epoch=4, partition="q")  # the whole job, not a partition
    assert write(sink, 3, epoch=4, job="k") == (1, 0)
    assert write(sink, 4, epoch=5) == (1, 0)
    assert _numbers() == [1, 2, 3, 4]


def test_unfence_lets_a_new_first_epoch_in_and_doubles_nothing() -> None:
    sink = new_sink()
    write(sink, 1, 2, epoch=7)
    sink.unfence("job")
    assert write(sink, 1, 2, 3, epoch=1) == (1, 2)


def test_forget_lets_rows_be_written_again_and_keeps_the_fence() -> None:
    sink = new_sink()
    write(sink, 1, 2, epoch=7)
    write(sink, 1, job="k")
    sink.forget("job")
    assert write(sink, 1, 2, epoch=8) == (2, 0)
    assert write(sink, 1, job="k") == (0, 1)
    with pytest.raises(FencedError):
        write(sink, 9, epoch=6)


def test_forget_one_partition_above_a_position() -> None:
    sink = new_sink()
    for numbers in ([1, 2, 3], [4, 5, 6], [10, 11, 12], [20, 21]):
        write(sink, *numbers)
    write(sink, 1, 2, 3, partition="q")
    write(sink, 1, 2, 3, job="k")
    assert sink.forget("job", "p", above=10)
    assert write(sink, 1, 2, 3, 4, 5, 6, 10, 11, 12, 20, 21, epoch=2) == (4, 7)
    assert sink.forget("job", "p", above=4)  # in the middle of a range
    assert write(sink, 4, 5, 6, epoch=2) == (2, 1)
    assert sink.forget("job", "p")
    assert write(sink, 1, 2, 3, epoch=2) == (3, 0)
    assert write(sink, 1, 2, 3, partition="q", epoch=2) == (0, 3)
    assert write(sink, 1, 2, 3, job="k") == (0, 3)
    assert not sink.forget("job", "p", above=3)  # nothing was remembered there
    assert not sink.forget("no such job")
    with pytest.raises(ConfigError, match="above"):
        sink.forget("job", above=3)


def test_memory_of_spans_stays_small() -> None:
    sink = new_sink()
    for number in range(0, 3000, 10):
        write(sink, *range(number, number + 10), acked_through=number - 1 if number else None)
    assert _spans() <= 66
    assert write(sink, *range(3000), epoch=2) == (0, 3000)


def test_merging_spares_what_is_not_acked_and_what_the_sink_never_saw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", 1)
    sink = new_sink()
    # 0 to 9 were done before this sink was there; 14 to 16 are under way.
    for numbers in ([10, 11], [12, 13], [17, 18]):
        write(sink, *numbers, acked_through=13)
    assert _spans() == 2
    assert write(sink, *range(20), epoch=2, acked_through=13) == (14, 6)


def test_a_sink_travels_without_its_connection(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = new_sink()
    write(sink, 1)
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    copy = pickle.loads(pickle.dumps(sink))
    assert write(copy, 1, 2) == (1, 1)
    monkeypatch.chdir(here)
    assert _numbers() == [1, 2]


def test_a_fork_opens_its_own_connection() -> None:
    opened = Opened()
    sink = SqlSink(connect=opened, table="t", schema=SCHEMA)
    write(sink, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if write(sink, 1, 2) == (1, 1) and len(opened.all) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert write(sink, 2, 3) == (1, 1)
    assert len(opened.all) == 1


def test_threads_have_their_own_connections() -> None:
    sink = new_sink()
    results: list[int] = []

    def work(offset: int) -> None:
        for number in range(20):
            results.append(write(sink, number, number + 1, partition=str(offset % 2)).written)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _numbers() == sorted([*range(21), *range(21)])
    assert sum(results) == 42


def test_close_and_go_on() -> None:
    sink = new_sink()
    write(sink, 1)
    sink.close()
    sink.close()
    assert write(sink, 1, 2) == (1, 1)


def test_a_lost_connection_is_replaced() -> None:
    opened = Opened()
    sink = SqlSink(connect=opened, table="t", schema=SCHEMA)
    write(sink, 1)
    opened.all[-1].close()
    with pytest.raises(sqlite3.ProgrammingError):
        write(sink, 2)
    assert write(sink, 1, 2) == (1, 1)
    assert len(opened.all) == 2


def test_a_connection_of_ones_own_will_do() -> None:
    sink = SqlSink(connect=lambda: sqlite3.connect("t.db"), table="t", schema=SCHEMA)
    assert write(sink, 1, 2) == (2, 0)
    assert write(sink, 2, 3) == (1, 1)
    with pytest.raises(FencedError):
        write(sink, 9, epoch=0)
    assert _numbers() == [1, 2, 3]
