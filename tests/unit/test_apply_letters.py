"""Letters of ``apply`` that are marked: their rows are done again, once, wherever a run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl.bolts.batch import Batch
from flowctl.errors import FlowctlError, SourceError
from flowctl_apply import Applied, apply_parquet
from flowctl_apply._job import Job
from flowctl_files import FileDeadLetter

SCHEMA = pyarrow.schema([("id", pyarrow.int64()), ("day", pyarrow.int64())])
CALLED: list[int] = []


def label(batch: Batch) -> Any:
    for record in batch:
        CALLED.append(record.value["id"])
        if (Path(record.value["place"]) / "broken").exists() and record.value["id"] % 10 == 3:
            batch.reject(record, "the service is broken")
        else:
            yield record.value["id"], int(record.value["day"])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for day in (1, 2):
        rows = {"id": range(day * 100, day * 100 + 20), "place": [str(tmp_path)] * 20}
        (tmp_path / f"in/day={day}").mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / f"in/day={day}/a.parquet")
    (tmp_path / "broken").touch()
    return tmp_path


def run(place: Path, **options: Any) -> Applied:
    CALLED.clear()
    given = {"schema": SCHEMA, "name": "days", "bolts": 2, "view": "off", **options}
    return apply_parquet(
        place / "in", label, out=place / "out", dead_letter=place / "letters", **given
    )


def rows_of(applied: Applied) -> list[tuple[int, int]]:
    files = [file.removeprefix("file://") for file in applied.files]
    tables = [pyarrow.parquet.read_table(file) for file in files]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def mark(place: Path) -> int:
    return FileDeadLetter(place / "letters").file_of("days").redrive("days")[0]


def open_letters(place: Path) -> int:
    return FileDeadLetter(place / "letters").open_letters("days")


WHOLE = [(day * 100 + n, day) for day in (1, 2) for n in range(20)]


def test_rows_that_failed_are_done_again_with_all_their_columns(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(rows_of(run(place))) == 36
    assert run(place).was_done, "nobody has marked them"
    assert mark(place) == 4
    assert len(rows_of(run(place))) == 36, "they fail again, and are letters again"
    assert (sorted(CALLED), open_letters(place)) == ([103, 113, 203, 213], 4)
    assert mark(place) == 4
    (place / "broken").unlink()
    assert rows_of(run(place, view="plain")) == WHOLE
    assert "days: 4 dead letters to do again" in (said := capsys.readouterr().err)
    assert "ranges can't do" not in said
    assert (sorted(CALLED), open_letters(place)) == ([103, 113, 203, 213], 0)
    assert run(place).was_done
    assert rows_of(run(place)) == WHOLE


@pytest.mark.parametrize("where", ["begin", "process", "finish", "on_redriven"])
def test_a_run_that_ends_while_it_does_them_again_loses_none_and_does_none_twice(
    place: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    run(place)
    mark(place)
    (place / "broken").unlink()
    kind: Any = FileDeadLetter if where == "on_redriven" else Job

    def killed(*_: Any, **__: Any) -> Any:
        raise FlowctlError("killed")

    with monkeypatch.context() as patch, pytest.raises(FlowctlError, match="killed"):
        patch.setattr(kind, where, killed)
        run(place)
    before = list(CALLED)
    assert rows_of(run(place)) == WHOLE
    assert sorted(before + CALLED) == [103, 113, 203, 213]
    assert open_letters(place) == 0


def test_a_file_that_came_meanwhile_is_done_too(place: Path) -> None:
    run(place)
    mark(place)
    (place / "broken").unlink()
    rows = {"id": [300], "place": [str(place)]}
    (place / "in/day=3").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(rows), place / "in/day=3/a.parquet")
    assert rows_of(run(place)) == [*WHOLE, (300, 3)]
    assert len(CALLED) == 5
    (place / "in/day=4").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(rows), place / "in/day=4/a.parquet")
    assert rows_of(run(place)) == [*WHOLE, (300, 3), (300, 4)]
    assert len(CALLED) == 1


def test_letters_whose_file_is_gone_leave_the_job_as_it_was(place: Path) -> None:
    run(place)
    mark(place)
    (place / "in/day=1/a.parquet").unlink()
    with pytest.raises(SourceError, match=r"day=1/a\.parquet can't be read"):
        run(place)
    assert open_letters(place) == 4
