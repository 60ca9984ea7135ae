"""Letters as rows of a DataFrame, without a Spark session: what is read, and what can't be."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row
from pyspark.sql.types import (
    DayTimeIntervalType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from flowctl.core.records import Record
from flowctl.errors import ConfigError, SourceError
from flowctl_files import FileDeadLetter
from pyspark_flowctl import failures
from pyspark_flowctl.arrow_rows import row_of
from pyspark_flowctl.failed_rows import Written, failures_of_write

SCHEMA = StructType().add("n", LongType())


def frame(schema: StructType = SCHEMA) -> Any:
    """As much of a DataFrame as is asked; what is made of the rows is a list."""
    session = SimpleNamespace(createDataFrame=lambda rows, schema: (rows, schema.names))
    return SimpleNamespace(
        mapInArrow=None, schema=schema, columns=schema.names, sparkSession=session
    )


def keep(folder: Path, value: Any, partition: str = "r/0", **more: Any) -> None:
    given = {"attempts": 1, "reason": "rejected: no", **more}
    position = len(FileDeadLetter(folder).letters("job"))
    FileDeadLetter(folder).dead_letter("job", partition, [Record(position, value)], **given)


def test_each_row_comes_with_its_reason_attempts_and_time(tmp_path: Path) -> None:
    keep(tmp_path, {"n": 7}, reason="ValueError: seven", attempts=5)
    [(row), names] = failures(frame(), name="job", dead_letter=str(tmp_path))
    [(n, reason, error, attempts, at)] = row
    assert names == ["n", "reason", "error", "attempts", "at"]
    assert (n, reason, attempts, at.tzinfo) == (7, "ValueError: seven", 5, timezone.utc)
    assert error == "ValueError"


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("rejected: no", None),
        ("rejected: No country", None),
        ("rejected: ValueError: no", "ValueError"),
        ("HTTPStatusError: 400: bad", "HTTPStatusError"),
        ("KeyError", "KeyError"),
        ("refused: busy", None),
    ],
)
def test_the_class_of_an_exception_is_its_error(
    tmp_path: Path, reason: str, error: str | None
) -> None:
    keep(tmp_path, {"n": 7}, reason=reason)
    [row], _ = failures(frame(), name="job", dead_letter=tmp_path)
    assert row[2] == error


def test_a_column_of_the_rows_keeps_its_name_whatever_its_case(tmp_path: Path) -> None:
    schema = StructType().add("Reason", LongType()).add("_reason", LongType())
    _, names = failures(frame(schema), name="job", dead_letter=tmp_path)
    assert names == ["Reason", "_reason", "__reason", "error", "attempts", "at"]


def test_a_letter_that_is_no_row_is_said_and_not_left_out(tmp_path: Path) -> None:
    keep(tmp_path, {"n": 7}, "r/0")
    keep(tmp_path, {"n": object()}, "r/1")
    with pytest.raises(SourceError, match=r"1 of the letters of job .*flowctl dlq show job"):
        failures(frame(), name="job", dead_letter=tmp_path)
    rows, _ = failures_of_write(frame(), "job", str(tmp_path), {"r/0"}, 1)
    assert [row[0] for row in rows] == [7], "that of another write does not matter"
    with pytest.raises(ConfigError, match=r"df: a row of job that failed has other columns: 'n'"):
        failures_of_write(frame(StructType()), "job", str(tmp_path), {"r/0"}, 1)


def test_letters_that_can_not_be_read_are_no_empty_result(tmp_path: Path) -> None:
    (tmp_path / "job.jsonl").mkdir()
    with pytest.raises(SourceError, match="letters of job can't be read"):
        failures(frame(), name="job", dead_letter=tmp_path)


def test_a_moment_without_a_zone_is_utc_from_a_run_and_local_from_a_task(tmp_path: Path) -> None:
    """Old Parquet files (INT96) have no zone; ``createDataFrame`` takes what has none for local."""
    noon = datetime(2026, 11, 27, 12)
    schema = StructType().add("n", TimestampType())
    keep(tmp_path, {"n": noon})
    keep(tmp_path, {"n": noon}, epoch=3)
    rows, _ = failures(frame(schema), name="job", dead_letter=tmp_path)
    assert [row[0] for row in rows] == [noon, noon.replace(tzinfo=timezone.utc)]


def test_values_of_a_job_that_reads_rows_itself_become_those_of_spark() -> None:
    """It has maps as lists of pairs, moments in UTC, and intervals as microseconds."""
    kind = (
        StructType()
        .add("keys", MapType(LongType(), SCHEMA))
        .add("none", MapType(LongType(), SCHEMA))
    )
    kind = kind.add("local", TimestampNTZType()).add("lasted", DayTimeIntervalType())
    noon = datetime(2026, 11, 27, 12)
    value = {"keys": [(1, {"n": 2})], "none": [], "lasted": 1_500_000}
    row = row_of({**value, "local": noon.replace(tzinfo=timezone.utc)}, kind)
    assert (row.keys, row.none, row.local) == ({1: Row(n=2)}, {}, noon)
    assert row.lasted == timedelta(seconds=1.5)


def test_only_partitions_of_the_write_count_and_missing_letters_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(tmp_path, {"n": 1}, "r/0")
    keep(tmp_path, {"n": 2}, "r/00")
    rows, _ = failures_of_write(frame(), "job", str(tmp_path), {"r/0", "r/1"}, 1)
    assert [row[0] for row in rows] == [1] and "letters_gone" not in caplog.text
    elsewhere = str(tmp_path / "elsewhere")
    assert failures_of_write(frame(), "job", elsewhere, {"r/0"}, 1)[0] == []
    assert "letters_gone" in caplog.text and "does not see" in caplog.text


def test_a_store_of_ones_own_may_give_its_letters(tmp_path: Path) -> None:
    keep(tmp_path, {"n": 7})
    [letter] = FileDeadLetter(tmp_path).letters("job")
    store: Any = SimpleNamespace(letters=lambda job: [letter])
    rows, _ = failures(frame(), name="job", dead_letter=store)
    assert rows[0][0] == 7


def test_counts_without_a_write_say_where_failures_are() -> None:
    with pytest.raises(ConfigError, match="failures: a copy of the counts"):
        _ = Written(rows=3).failures
