"""Rows in, rows out, on threads: each row's result exactly once, also if the driver is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from flowctl.bolts.batch import Batch
from flowctl.config import CheckpointSettings, Settings
from flowctl.core.settings import GuaranteeSettings, RetrySettings
from flowctl.errors import ConfigError, JobError, ProcessError, UnrunnableError
from flowctl_apply import apply_parquet
from flowctl_apply._places import LocalPlace
from flowctl_apply._results import Results
from flowctl_files import FileDeadLetter
from tests.cli_parts import flowctl_here

JOB = Path(__file__).parent / "jobs/apply_rows.py"
SCHEMA = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
FAST = Settings(checkpoint=CheckpointSettings(interval_s=0.05))
PATIENCE_S = 60.0


def written(place: Path, rows: int, *, files: int = 2) -> Path:
    place.mkdir()
    for number in range(files):
        ids = list(range(number * rows // files, (number + 1) * rows // files))
        table = pyarrow.table({"id": ids, "text": [f"#{n}" for n in ids]})
        pyarrow.parquet.write_table(table, place / f"{number}.parquet", row_group_size=300)
    return place


def rows_in(files: Sequence[str]) -> list[dict[str, Any]]:
    return [
        row
        for file in files
        for row in pyarrow.parquet.read_table(file.removeprefix("file://")).to_pylist()
    ]


def run(tmp_path: Path, fn: Any, *, rows: int = 2_000, **options: Any) -> Any:
    place = tmp_path / "in"
    source = place if place.exists() else written(place, rows)
    options = {"name": "scores", "bolts": 2, "settings": FAST, "view": "off", **options}
    return apply_parquet(source, fn, schema=SCHEMA, out=tmp_path / "out", **options)


def results(tmp_path: Path) -> Results:
    return Results(LocalPlace(str(tmp_path / "out")), "scores")


# -- in any form -------------------------------------------------------------------------------


def of_records(batch: Batch) -> Iterator[tuple[int, str]]:
    for record in batch:
        yield record.value["id"], record.value["text"]


def of_arrow(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    return rows.rename_columns(["id", "label"])


def of_pandas(frame: pandas.DataFrame, batch: Batch) -> pandas.DataFrame:
    return frame.rename(columns={"text": "label"})


async def of_async(batch: Batch) -> list[dict[str, Any]]:
    await asyncio.sleep(0)
    return [{"id": record.value["id"], "label": record.value["text"]} for record in batch]


@pytest.mark.parametrize("fn", [of_records, of_arrow, of_pandas, of_async])
def test_each_row_gives_its_row_whatever_the_form(tmp_path: Path, fn: Any) -> None:
    made = run(tmp_path, fn)
    assert rows_in(made.files) == [{"id": n, "label": f"#{n}"} for n in range(2_000)]
    assert not made.was_done
    assert made.report.records_acked == 2_000


def test_rows_may_vanish_and_files_be_merged(tmp_path: Path) -> None:
    made = run(tmp_path, lambda batch: [(r.value["id"], "") for r in batch][:1], files=1)
    assert len(made.files) == 1
    assert len(rows_in(made.files)) == made.rows
    assert [path.name for path in (tmp_path / "out").glob("*.parquet")] == [
        made.files[0].rpartition("/")[2]
    ]


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    def keys(batch: Batch) -> list[tuple[int, str]]:
        return [(record.value["id"], ",".join(record.value)) for record in batch]

    made = run(tmp_path, keys, columns=["id"], rows=50)
    assert {row["label"] for row in rows_in(made.files)} == {"id"}


def test_no_rows_give_no_files(tmp_path: Path) -> None:
    made = run(tmp_path, of_records, rows=0)
    assert (made.files, made.rows, made.was_done) == ([], 0, False)
    assert run(tmp_path, of_records, rows=0).was_done


# -- what goes wrong ---------------------------------------------------------------------------


def test_rejected_rows_are_in_the_dead_letter_and_have_no_result(tmp_path: Path) -> None:
    def picky(batch: Batch) -> list[tuple[int, str]]:
        for index, record in enumerate(batch):
            if record.value["id"] % 100 == 7:
                batch.reject(index, "a seven")
        return [(r.value["id"], "") for r in batch if r.value["id"] % 100 != 7]

    letters = FileDeadLetter(tmp_path / "letters")
    made = run(tmp_path, picky, dead_letter=letters)
    sevens = set(range(7, 2_000, 100))
    assert sorted(row["id"] for row in rows_in(made.files)) == sorted({*range(2_000)} - sevens)
    kept = letters.file_of("scores").read().of("scores")
    assert {letter.value["id"] for letter in kept} == sevens


def test_rows_that_were_rejected_and_kept_nowhere_are_told_by_each_later_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest says so, beside the receipts of their batches: whatever ends the driver."""
    is_well = False

    def picky(batch: Batch) -> list[tuple[int, str]]:
        for index, record in enumerate(batch):
            if record.value["id"] % 100 == 7:
                batch.reject(index, "a seven")
            if record.value["id"] == 1_950 and not is_well:
                raise ValueError("not yet")
        return [(r.value["id"], "") for r in batch if r.value["id"] % 100 != 7]

    settings = Settings(retry=RetrySettings(attempts_max=1))
    with pytest.raises(ProcessError):
        run(tmp_path, picky, settings=settings)
    is_well = True
    made = run(tmp_path, picky, settings=settings, keep_results=True)
    before, now = made.report.records_kept_nowhere_before, made.report.records_kept_nowhere
    assert before > 0 and before + now == made.rows_kept_nowhere == 20
    again = run(tmp_path, picky, keep_results=True, view="plain")
    assert (again.was_done, again.rows_kept_nowhere) == (True, 20)
    assert "20 of the input rejected and kept nowhere" in capsys.readouterr().err
    shown = flowctl_here(tmp_path, "receipts", "show", "scores", "--out", str(tmp_path / "out"))
    assert "20 rejected and kept nowhere" in shown.stdout


def test_a_row_that_always_fails_goes_to_the_dead_letter(tmp_path: Path) -> None:
    def fails(batch: Batch) -> Iterator[tuple[int, str]]:
        for record in batch:
            yield (record.value["id"], "x") if record.value["id"] != 777 else ("?", "x")

    letters = FileDeadLetter(tmp_path / "letters")
    settings = Settings(retry=RetrySettings(attempts_max=2, backoff_first_s=0.01))
    made = run(tmp_path, fails, dead_letter=letters, settings=settings)
    assert {row["id"] for row in rows_in(made.files)} == {*range(2_000)} - {777}
    (letter,) = letters.file_of("scores").read().of("scores")
    assert "column 'id' is int64, and the function returned '?'" in letter.reason


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pyarrow.array([b"fine", b"\xff"]).view(pyarrow.string()), "UnicodeDecodeError"),
        (pyarrow.array([0, 1 << 60]).cast(pyarrow.timestamp("us")), "OverflowError"),
    ],
    ids=["bytes that are no text", "a year that Python has not"],
)
def test_a_row_that_can_not_be_a_record_is_a_fault_of_this_row(
    tmp_path: Path, column: Any, problem: str
) -> None:
    (tmp_path / "in").mkdir()
    table = pyarrow.table({"id": [1, 2], "text": column})
    pyarrow.parquet.write_table(table, tmp_path / "in/a.parquet")
    letters = FileDeadLetter(tmp_path / "letters")
    settings = Settings(retry=RetrySettings(attempts_max=2, backoff_first_s=0.01))
    made = run(
        tmp_path, lambda batch: [(r.value["id"], "") for r in batch], dead_letter=letters,
        settings=settings,
    )  # fmt: skip
    assert [row["id"] for row in rows_in(made.files)] == [1]
    [letter] = letters.file_of("scores").read().of("scores")
    assert letter.position == 1 and problem in letter.reason


def test_other_columns_than_the_schema_end_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="has no column 'label'"):
        run(tmp_path, lambda batch: [{"id": 1} for _ in batch])


def test_a_guarantee_that_would_lose_rows_is_refused(tmp_path: Path) -> None:
    settings = Settings(guarantee=GuaranteeSettings(mode="at_most_once"))
    for given in (settings, {"guarantee.mode": "at_most_once"}):
        with pytest.raises(ConfigError, match="would leave rows without a result"):
            run(tmp_path, of_records, settings=given)
    with pytest.raises(ConfigError, match="a list is not Settings"):
        run(tmp_path, of_records, settings=["lab.window.max=64"])


# -- again -------------------------------------------------------------------------------------


def test_a_run_that_failed_keeps_its_results_and_a_mended_function_does_the_rest(
    tmp_path: Path,
) -> None:
    begun = threading.Lock()
    seen: list[int] = []

    def broken(batch: Batch) -> list[tuple[int, str]]:
        ids = [record.value["id"] for record in batch]
        if max(ids) >= 1_500:
            raise UnrunnableError("model", "has no weights.", remedy="Mend it.")
        return [(n, "first") for n in ids]

    def mended(batch: Batch) -> list[tuple[int, str]]:
        with begun:
            seen.extend(record.value["id"] for record in batch)
        return [(record.value["id"], "second") for record in batch]

    with pytest.raises(Exception, match="has no weights"):
        run(tmp_path, broken)
    kept = sum(entry.records for entry in results(tmp_path).entries())
    with pytest.raises(ConfigError, match="keep_results=True"):
        run(tmp_path, mended)
    made = run(tmp_path, mended, keep_results=True)
    rows = rows_in(made.files)
    assert [row["id"] for row in rows] == list(range(2_000))
    assert len(seen) == len(set(seen)) == 2_000 - kept
    assert {row["id"] for row in rows if row["label"] == "second"} == set(seen)
    assert run(tmp_path, mended, keep_results=True).was_done
    assert len(seen) == 2_000 - kept


def test_killed_at_any_moment_each_row_has_its_result_once_and_none_is_done_twice(
    tmp_path: Path,
) -> None:
    rows = 6_000
    written(tmp_path / "in", rows)
    process = start(tmp_path, "run0")
    until(lambda: accepted_rows(tmp_path) >= rows / 3 or process.poll() is not None)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode < 0, output
    kept, done = set(named(tmp_path)), accepted_rows(tmp_path)
    output, _ = start(tmp_path, "run1").communicate()
    assert f"was done: False, {rows} rows" in output
    found = rows_in([str(tmp_path / "out" / file) for file in named(tmp_path)])
    assert [row["id"] for row in found] == [n for n in range(rows) for _ in range(n % 3)]
    assert kept <= set(named(tmp_path))
    # Less, if bolts had finished files that no receipt named yet: those are adopted.
    assert len(set((tmp_path / "run1").read_text().splitlines())) <= rows - done
    assert {path.name for path in (tmp_path / "out").glob("*.parquet")} == set(named(tmp_path))
    output, _ = start(tmp_path, "run2").communicate()
    assert f"was done: True, {rows} rows" in output
    assert not (tmp_path / "run2").exists()


def named(tmp_path: Path) -> list[str]:
    return [file.file for file in results(tmp_path).files()]


def accepted_rows(tmp_path: Path) -> int:
    return sum(entry.records for entry in results(tmp_path).entries())


def start(tmp_path: Path, run: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(JOB), str(tmp_path / "in"), str(tmp_path / "out"), run],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
