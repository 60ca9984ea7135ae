"""What ``apply`` refuses before it takes a name, and what a job that was begun takes no more.

The kind: options are checked before anything is written, by one list for both doors; and a name is
taken only by a job that could begin.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint
from flowctl.delivery.options import for_apply
from flowctl.errors import ConfigError, FencedError, FlowctlError, UnrunnableError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl_apply import Applied, apply_parquet
from flowctl_apply._job import Input, Job
from flowctl_apply.parquet_apply import run_job
from flowctl_files.parquet_ranges import ParquetRanges

SCHEMA = pyarrow.schema([("id", pyarrow.int64())])
Door = Callable[..., Any]


def same(batch: Batch) -> list[tuple[int]]:
    if any(record.value["id"] >= float(os.environ.get("KILLED_AT", "inf")) for record in batch):
        raise UnrunnableError("fn", "is killed.")
    return [(record.value["id"],) for record in batch]


def other(batch: Batch) -> list[tuple[int]]:
    return [(-record.value["id"],) for record in batch]


CALLED: list[int] = []


def noting(batch: Batch) -> list[tuple[int]]:
    CALLED.extend(record.value["id"] for record in batch)
    return [(record.value["id"],) for record in batch]


def write_rows(directory: Path, *ids: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table({"id": ids}), directory / f"{ids[0]}.parquet")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in", 1, 2, 3)
    return tmp_path


def run(place: Path, fn: Any = same, **options: Any) -> Applied:
    given = {"schema": SCHEMA, "name": "scores", "bolts": 2, "view": "off", **options}
    return apply_parquet(place / "in", fn, out=place / "out", **given)


def ids(applied: Applied) -> list[int]:
    files = [file.removeprefix("file://") for file in applied.files]
    return sorted(n for file in files for n in pyarrow.parquet.read_table(file)["id"].to_pylist())


def spark_door(place: Path, **options: Any) -> Any:
    pytest.importorskip("pyspark")
    from pyspark_flowctl import apply

    given = {"schema": "id long", "name": "scores", "out": place / "out", **options}
    return apply(str(place / "in"), same, **given)


def test_without_a_checkpoint_its_results_are_all_that_is_kept(place: Path) -> None:
    """A checkpoint elsewhere would count rows whose results were removed with ``out``."""
    assert ids(run(place)) == [1, 2, 3]
    assert not Path(os.environ["FLOWCTL_CHECKPOINTS"]).exists()
    shutil.rmtree(place / "out")
    again = run(place)
    assert (ids(again), again.was_done) == ([1, 2, 3], False)


@pytest.mark.parametrize("door", [run, spark_door])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"budget": 1}, "budget: is about a target"),
        ({"rows_max": 1}, "rows_max: is not a parameter.*schema, .*target, .*bolts"),
        ({"bolts": 0}, "bolts: 0 is not a count"),
        ({"bolts": "two"}, "bolts: 'two' is not a count"),
        ({"slots": 0}, "slots: 0 is not a count"),
        ({"files": 0}, "files: 0 is not a count"),
        ({"files": "3"}, "files: '3' is not a count"),
        ({"mode": "overwrite"}, "mode: 'overwrite' is not known"),
        ({"checkpoint": "localhost"}, "checkpoint: "),
        ({"dead_letter": 7}, "dead_letter: int is not a dead letter"),
        ({"settings": {"window.maxx": 3}}, "window.maxx"),
        ({"view": "loud"}, "view: 'loud' is not a view"),
    ],
)
def test_a_wrong_option_is_named_before_the_name_is_taken(
    place: Path, door: Door, options: dict[str, Any], problem: str
) -> None:
    """Kind: both doors take the same options, by one list, and check them before they write."""
    with pytest.raises(ConfigError, match=problem):
        door(place, **options)
    assert not (place / "out").exists()
    assert ids(run(place, other)) == [-3, -2, -1]


@pytest.mark.parametrize("schema", ["id long", None, {"id": "int64"}, pyarrow.schema([])])
def test_a_schema_that_is_none_is_named(place: Path, schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"schema: .*pyarrow\.schema\(\["):
        run(place, schema=schema)
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"columns": ["nobody"]}, {"columns": "id"}, {"checkpoint": "redis://127.0.0.1:1/0"}],
    ids=["no such column", "a text", "no such server"],
)
def test_a_job_that_could_not_begin_leaves_its_name_free(
    place: Path, wrong: dict[str, Any]
) -> None:
    """Kind: a name is taken only by a job that could begin; fn and columns may differ now."""
    with pytest.raises(FlowctlError):
        run(place, **wrong)
    assert ids(run(place, other)) == [-3, -2, -1]


@pytest.mark.parametrize("name", ["theirs.parquet", "day=1/theirs.parquet"])
def test_a_directory_that_holds_other_parquet_is_refused(place: Path, name: str) -> None:
    """Kind: whoever reads the directory of a finished job reads its rows, and no others."""
    path = place / "out" / name
    write_rows(path.parent, 7, 8)
    (path.parent / "7.parquet").rename(path)
    with pytest.raises(ConfigError, match=f"out: .* holds {name}, .*") as error:
        run(place)
    assert "another directory" in error.value.remedy
    path.unlink()
    assert ids(run(place)) == [1, 2, 3]


def test_results_whose_notes_were_removed_are_not_swept(place: Path) -> None:
    """Kind: as above; the files of an earlier job of that name were removed at the end."""
    files = run(place).files
    shutil.rmtree(place / "out" / "_flowctl")
    with pytest.raises(ConfigError, match=r"out: .* holds part-scores"):
        run(place)
    assert all(Path(file.removeprefix("file://")).exists() for file in files)


def test_a_job_beside_another_one_and_files_of_others_below_are_taken(place: Path) -> None:
    run(place)
    write_rows(place / "out" / "elsewhere", 7)
    (place / "out" / "_hidden.parquet").write_bytes(b"no reader reads it")
    assert ids(run(place, name="two")) == [1, 2, 3]


@pytest.mark.parametrize("files", [None, 1])
def test_a_finished_job_does_the_files_that_were_added_and_no_others(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: Any
) -> None:
    """Kind: what is named as the result is that of the input that was given."""
    assert ids(run(place, files=files)) == [1, 2, 3]
    write_rows(place / "in", 4, 5)
    monkeypatch.setattr(f"{__name__}.CALLED", called := [])
    more = run(place, noting, files=files, view="plain", keep_results=True)
    assert (ids(more), more.was_done) == ([1, 2, 3, 4, 5], False)
    assert sorted(called) == [4, 5]
    assert "has 1 file more since: 2 rows to do" in capsys.readouterr().err
    assert run(place, noting, keep_results=True).was_done
    write_rows(place / "in", 6, 7, 8)
    assert ids(run(place, noting, files=files, keep_results=True)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(called) == 5


def test_a_round_that_is_killed_goes_on_where_it_was(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(place)
    write_rows(place / "in", 4, 5, 6)
    monkeypatch.setenv("KILLED_AT", "6")
    with pytest.raises(FlowctlError, match="is killed"):
        run(place)
    monkeypatch.delenv("KILLED_AT")
    write_rows(place / "in", 7)
    assert ids(run(place)) == [1, 2, 3, 4, 5, 6, 7]
    assert run(place).was_done


def test_a_finished_job_refuses_more_input_if_what_it_has_done_is_another_now(place: Path) -> None:
    run(place)
    write_rows(place / "in", 4, 5)
    pyarrow.parquet.write_table(pyarrow.table({"id": [7]}), place / "in" / "1.parquet")
    with pytest.raises(ConfigError, match=r"df: .*1\.parquet is not the file of the first run"):
        run(place)
    (place / "in" / "1.parquet").unlink()
    with pytest.raises(ConfigError, match=r"df: .*1\.parquet is gone"):
        run(place)
    shutil.rmtree(place / "in")
    assert run(place).was_done, "the input of a finished job may be removed"


def test_a_round_that_can_not_begin_leaves_the_finished_job_as_it_was(place: Path) -> None:
    run(place)
    write_rows(place / "in", 4, 5)
    with pytest.raises(FlowctlError):
        run(place, checkpoint="redis://127.0.0.1:1/0")
    (place / "in" / "4.parquet").unlink()
    again = run(place)
    assert (ids(again), again.was_done) == ([1, 2, 3], True)


def test_files_that_were_added_to_a_list_are_read_when_a_job_goes_on(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: as above; a DataFrame is a list of its files."""
    files = [place / "in" / f"{n}.parquet" for n in (1, 4)]
    given: dict[str, Any] = {"schema": SCHEMA, "name": "scores", "out": place / "out"}
    given |= {"bolts": 1, "view": "off"}
    monkeypatch.setenv("KILLED_AT", "3")
    with pytest.raises(FlowctlError, match="is killed"):
        apply_parquet(files[:1], same, **given)
    monkeypatch.delenv("KILLED_AT")
    write_rows(place / "in", 4, 5)
    assert ids(apply_parquet(files, same, **given)) == [1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match=r"df: .* begun with another DataFrame"):
        apply_parquet(files[1:], same, **given)


def test_a_job_that_goes_on_with_the_copy_of_an_earlier_dataframe_says_so(place: Path) -> None:
    """Kind: as above; rows that only the new DataFrame has are not read."""

    def given(source: str) -> Input:
        return Input(source, write=lambda url: write_rows(Path(url.removeprefix("file://")), 1, 2))

    def job(**options: Any) -> Job:
        return Job(same, SCHEMA, name="scores", out=str(place / "out"), **options)

    begun = job().begin(given("one"))
    with pytest.warns(RuntimeWarning, match="scores goes on with the copy .* earlier DataFrame"):
        assert job(keep_results=True).begin(given("two")) == begun
    run_job(job(), given("one"), for_apply("scores", {"bolts": 1, "view": "off"}))
    with pytest.warns(RuntimeWarning, match="scores was finished with an earlier DataFrame"):
        options = for_apply("scores", {"bolts": 1, "view": "off"})
        run_job(job(keep_results=True), given("two"), options)


def test_a_driver_that_is_late_does_not_end_the_round_that_another_one_has_begun(
    place: Path,
) -> None:
    """It has seen the files of the round before only."""
    late = Job(same, SCHEMA, name="scores", out=str(place / "out"))
    given = Input(str(place / "in"), [str(place / "in")], shape="paths")
    late.begin(given)
    assert ids(run(place)) == [1, 2, 3]
    write_rows(place / "in", 4, 5)
    files = ParquetRanges(str(place / "in")).extents(Checkpoint())
    newer = Job(same, SCHEMA, name="scores", out=str(place / "out"))
    newer.grow(given, {name: one for name, one in files.items() if name.endswith("4.parquet")})
    store = ReceiptStore(MemoryCheckpointStore(), late.results.manifest)
    store.acquire("scores")
    done = {name: one for name, one in files.items() if name.endswith("1.parquet")}
    with pytest.raises(FencedError, match="begun to do what its input has more"):
        late.finish(done, store)
    assert ids(run(place)) == [1, 2, 3, 4, 5]


def test_what_the_next_round_will_read_is_not_swept(place: Path) -> None:
    """Another driver may be about to begin it; a copy of a round that began without it goes."""
    run(place)
    results = Job(same, SCHEMA, name="scores", out=str(place / "out")).results
    for copy in ("round-0-ab", "round-1-cd", "letters-1-ef", "letters-0-ef"):
        results.place.put(f"{results.directory}/{copy}/keys/a.parquet", b"")
    assert results.sweep().copies == ["letters-0-ef", "round-0-ab"]
    assert (place / "out" / results.directory / "round-1-cd/keys/a.parquet").exists()
