"""Letters of flow_sink's task attempts: those of an attempt that failed do not count.

Kind: what an attempt leaves behind counts only if the attempt does.  A letter stands for a row that
the target does not have, so a row that is written has none.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

import pyspark
from pyspark.sql import Row

from flowctl.bolts.batch import Batch
from flowctl.cli.main import cli
from flowctl.core.letters import Letter
from flowctl.errors import ProcessError, TooManyLostError
from flowctl_files import FileDeadLetter
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_sink
from pyspark_flowctl.sinks import FlowSink
from tests import moody

ROWS = [Row(n=n) for n in range(200)]


@pytest.fixture(autouse=True)
def nothing_taken() -> None:
    moody.TAKEN.clear()
    moody.MOODS.clear()


def take(batch: Batch) -> None:
    """Do with each row what its mood says; the others are taken."""
    for record in batch:
        mood = moody.MOODS.get(record.value.n)
        if mood == "rejected":
            batch.reject(record, "not yet")
        elif mood == "fails":
            raise ValueError("not yet")
        elif mood == "dies":
            raise KeyboardInterrupt
    moody.TAKEN.update(r.value.n for i, r in enumerate(batch) if i not in batch.rejected)


def sink_of(folder: Path, **more: Any) -> FlowSink:
    given = {"run": "2026-11-22", "name": "orders", "rows_max": 1, "attempts_max": 1, **more}
    return flow_sink(take, target="t", dead_letter=folder, **given)


def letters(folder: Path) -> list[Letter]:
    return FileDeadLetter(folder).file_of("orders").read().of("orders")


def redrive(folder: Path) -> int:
    marked: int = FileDeadLetter(folder).file_of("orders").redrive("orders")[0]
    return marked


def test_a_task_that_failed_with_letters_and_then_writes_all_rows_leaves_none(
    tmp_path: Path,
) -> None:
    sink = sink_of(tmp_path)
    moody.MOODS.update(dict.fromkeys(range(200), "fails"))
    with pytest.raises(ProcessError, match="9 rows in a row failed"):
        sink(ROWS)
    assert redrive(tmp_path) == 0, "its letters do not count"
    moody.MOODS.clear()
    sink(ROWS)  # Spark runs the task again
    assert (letters(tmp_path), redrive(tmp_path)) == ([], 0)
    sink_of(tmp_path, run="the next")(ROWS[:1])
    assert sorted(moody.TAKEN.elements()) == [0, *range(200)]


def test_of_an_attempt_that_was_killed_only_what_fails_again_is_a_letter(tmp_path: Path) -> None:
    sink = sink_of(tmp_path)
    moody.MOODS.update({3: "rejected", 7: "fails", 9: "rejected", 50: "dies"})
    with pytest.raises(KeyboardInterrupt):
        sink(ROWS)
    assert letters(tmp_path) == []
    moody.MOODS.update({3: "", 7: "", 50: ""})
    sink(ROWS)
    assert [letter.value["n"] for letter in letters(tmp_path)] == [9]
    assert moody.TAKEN[3] == moody.TAKEN[7] == 1


def test_a_row_that_the_same_run_writes_later_takes_its_letter_back(tmp_path: Path) -> None:
    """Also if the attempt that left it out had succeeded, and even if it is marked for redrive."""
    moody.MOODS.update({3: "rejected", 7: "fails", 9: "rejected"})
    sink_of(tmp_path)(ROWS)
    assert [letter.value["n"] for letter in letters(tmp_path)] == [3, 7, 9]
    del moody.MOODS[3], moody.MOODS[7]
    sink_of(tmp_path)(ROWS)
    assert [letter.value["n"] for letter in letters(tmp_path)] == [9]


def test_another_attempt_that_fails_takes_no_letter_of_one_that_counts(tmp_path: Path) -> None:
    """As a speculative copy does that is behind."""
    moody.MOODS.update({3: "rejected"})
    sink_of(tmp_path)(ROWS)
    moody.MOODS.update({50: "dies"})
    with pytest.raises(KeyboardInterrupt):
        sink_of(tmp_path)(ROWS)
    assert [letter.value["n"] for letter in letters(tmp_path)] == [3]


def test_a_letter_of_rows_that_are_not_in_this_action_stays(tmp_path: Path) -> None:
    moody.MOODS.update({3: "rejected"})
    sink_of(tmp_path)(ROWS)
    moody.MOODS.clear()
    sink_of(tmp_path)([Row(n=n + 1_000) for n in range(200)])
    assert [letter.value["n"] for letter in letters(tmp_path)] == [3]


def test_an_attempt_in_another_order_takes_back_what_the_one_before_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a shuffle the same row has another place; without ``run=`` the name is the task's."""
    context = SimpleNamespace(
        attemptNumber=lambda: 0, stageId=lambda: 7, partitionId=lambda: 1,
        getLocalProperty=lambda name: None,
    )  # fmt: skip
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: context)
    sink = sink_of(tmp_path, run=None)
    moody.MOODS.update({3: "rejected", 9: "rejected", 50: "dies"})
    with pytest.raises(KeyboardInterrupt):
        sink(ROWS)
    moody.MOODS.update({3: "", 50: ""})
    sink(ROWS[::-1])
    sink([Row(n=n) for n in range(300, 400)])  # fn may call it for several parts of a partition
    assert [letter.value["n"] for letter in letters(tmp_path)] == [9]


@pytest.mark.parametrize("dies", [True, False])
def test_a_rejected_row_that_sqlsink_writes_later_takes_its_letter_back(
    tmp_path: Path, dies: bool
) -> None:
    """SqlSink counted all records of a call as written, also those that ``fn`` had rejected."""
    database = tmp_path / "out.db"
    into = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (n INTEGER)")
    is_first = tmp_path / "first"
    is_first.touch()

    def write(batch: Batch) -> None:
        rows = []
        for record in batch:
            n = record.value.n
            if n == 150 and dies and is_first.exists():
                raise KeyboardInterrupt
            if n == 3 and is_first.exists():
                batch.reject(record, "not yet")
            rows.append(None if n == 3 and is_first.exists() else {"n": n})
        into.write(rows, batch=batch)

    sink = flow_sink(write, target="t", name="orders", run="r", dead_letter=tmp_path)
    if dies:
        with pytest.raises(KeyboardInterrupt):
            sink(ROWS)
    else:
        sink(ROWS)
    is_first.unlink()
    sink(ROWS)
    with sqlite3.connect(database) as connection:
        found = Counter(n for (n,) in connection.execute("SELECT n FROM t"))
    assert found == Counter(range(200))
    assert letters(tmp_path) == []


def test_a_letter_that_fails_again_in_an_attempt_that_dies_is_tried_by_the_next(
    tmp_path: Path,
) -> None:
    moody.MOODS.update({3: "rejected", 9: "rejected"})
    sink_of(tmp_path)(ROWS)
    assert redrive(tmp_path) == 2
    moody.MOODS[9] = "dies"
    with pytest.raises(KeyboardInterrupt):
        sink_of(tmp_path, run="the next")([])
    del moody.MOODS[3]
    moody.MOODS[9] = "rejected"
    sink_of(tmp_path, run="the next")([])
    left = letters(tmp_path)
    assert [(letter.value["n"], letter.redrives) for letter in left] == [(9, 1)]
    assert moody.TAKEN[3] == 1


def test_the_list_tells_of_letters_that_do_not_count_and_the_error_says_why(
    tmp_path: Path,
) -> None:
    moody.MOODS.update(dict.fromkeys(range(200), "rejected"))
    with pytest.raises(TooManyLostError, match=r"fail_over allows 2.*not yet"):
        sink_of(tmp_path, fail_over="2")(ROWS)
    told = CliRunner().invoke(cli, ["dlq", "list", "--dir", str(tmp_path)])
    assert "3 rows of task attempts that did not finish" in told.output


def test_letters_that_are_dropped_meanwhile_take_none_of_an_attempt_under_way(
    tmp_path: Path,
) -> None:
    moody.MOODS.update({3: "rejected"})
    sink_of(tmp_path)(ROWS)
    file = FileDeadLetter(tmp_path).file_of("orders")

    def drop_all(batch: Batch) -> None:
        if batch[0].value.n == 1_050:
            assert file.drop("orders", lambda letter: True) == 1, "rewrites the file"
        if batch[0].value.n == 1_009:
            batch.reject(0, "not yet")

    given = {"name": "orders", "rows_max": 1, "dead_letter": tmp_path}
    flow_sink(drop_all, target="t", **given)([Row(n=n + 1_000) for n in range(200)])
    assert [letter.value["n"] for letter in letters(tmp_path)] == [1_009]


def test_letters_that_can_not_be_counted_fail_the_task(tmp_path: Path) -> None:
    """Else rows would be in neither place, and the job fine."""
    moody.MOODS.update({3: "rejected"})

    def then_full(batch: Batch) -> None:
        take(batch)
        if batch[0].value.n == 199:
            (tmp_path / "orders.jsonl").unlink()
            (tmp_path / "orders.jsonl").mkdir()

    given = {"run": "r", "name": "orders", "rows_max": 1, "dead_letter": tmp_path}
    with pytest.raises(ProcessError, match="all rows are settled, but the dead letter"):
        flow_sink(then_full, target="t", **given)(ROWS)
