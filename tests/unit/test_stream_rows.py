"""What a task of a stream makes of the rows that ``process`` returns."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="streams need Spark 4.2")

from pyspark.sql.types import LongType, StructType

from flowctl.core.records import Record
from flowctl.delivery.offset_reader import Piece
from flowctl.errors import UnrunnableError
from flowctl_files import FileDeadLetter
from pyspark_flowctl.stream_options import StreamOptions
from pyspark_flowctl.stream_reader import Chunk, chunks_of
from pyspark_flowctl.stream_task import rows_out

TWO = StructType().add("n", LongType()).add("twice", LongType()).json()


def rows(process: str, **options: str) -> list[dict[str, Any]]:
    given = {"producer": "tests.stream_parts:Numbers", "process": f"tests.stream_parts:{process}"}
    pieces = [Piece("n", [Record(number, number) for number in range(20)])]
    made = rows_out(StreamOptions.of({**given, **options}), TWO, pieces)
    return [row for batch in made for row in batch.to_pylist()]


def test_a_column_that_the_schema_has_not_ends_the_query_and_is_not_null() -> None:
    with pytest.raises(UnrunnableError, match=r"process: row 0 .* no column 'n'; it has 'N', 'twi"):
        rows("misspelt")


def test_a_value_that_does_not_fit_its_column_is_the_fault_of_its_record(tmp_path: Path) -> None:
    found = rows("halves", dead_letter=str(tmp_path), name="halves", attempts_max="1")
    assert [row["n"] for row in found] == [n for n in range(20) if n != 7]
    [letter] = FileDeadLetter(tmp_path).file_of("halves").read().of("halves")
    assert letter.value == 7
    assert "column 'twice' is int64, and the function returned 3.5" in letter.reason


def test_rows_may_be_a_frame() -> None:
    assert rows("framed") == [{"n": n, "twice": 2 * n} for n in range(20)]


def test_a_call_that_returns_after_its_bound_adds_no_rows() -> None:
    """Kind: what a call that was given up still does must not count beside the one after it."""
    assert rows("late", call_timeout_s="0.2") == [{"n": n, "twice": 2 * n} for n in range(20)]


@pytest.mark.parametrize("process", ["refused_in_part", "refused_in_part_later"])
def test_a_call_that_is_refused_in_part_goes_again_whole_and_no_row_is_missing(
    process: str,
) -> None:
    """It raised instead of returning, so there are no rows of what the target did take."""
    assert rows(process) == [{"n": n, "twice": 2 * n} for n in range(20)]


@pytest.mark.req("S70")
def test_a_chunk_that_is_written_does_not_count_the_one_before_it_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a sink may take positions together only if nothing else can come between them.

    Chunks of one batch run side by side, and the later one said that all before it was settled.
    """
    database = tmp_path / "out.db"
    away = Path(f"{database}.away")
    away.touch()
    monkeypatch.setenv("STREAM_DB", str(database))
    monkeypatch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", 1)
    given = {"producer": "tests.stream_parts:Numbers", "process": "tests.stream_parts:stored"}
    options = StreamOptions.of(given)

    def read(chunk: Chunk) -> None:
        assert not list(rows_out(options, TWO, chunk.records()))

    for first in range(0, 360, 120):
        numbers = [Record(number, number) for number in range(first, first + 120)]
        one, other = chunks_of([Piece("n", numbers)], 2)
        if first == 0:
            with pytest.raises(UnrunnableError, match="the task dies"):
                read(one)
        read(other)
        away.unlink(missing_ok=True)
        read(one)
    with sqlite3.connect(database) as connection:
        found = Counter(n for (n,) in connection.execute("SELECT n FROM t"))
        [ranges] = connection.execute("SELECT COUNT(*) FROM flowctl_spans").fetchone()
    assert found == Counter(range(360))
    assert ranges <= 6, "what is remembered does not grow with the stream"
