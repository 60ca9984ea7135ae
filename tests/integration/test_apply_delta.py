"""``apply(…, mode="append")``: rows into a Delta table, each once; and such a table as a source."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError, InfrastructureError, SourceError
from flowctl_apply import apply_parquet
from flowctl_files import ParquetRanges

SCHEMA = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
needs_delta = pytest.mark.skipif(find_spec("deltalake") is None, reason="needs deltalake")


def label(batch: Batch) -> Iterator[tuple[int, str]]:
    for record in batch:
        yield record.value["id"], f"#{record.value['id']}"


def nothing(batch: Batch) -> None:
    pass


def run(tmp_path: Path, first: int = 0, *, name: str = "labels", **options: Any) -> Any:
    given = tmp_path / f"given-{first}.parquet"
    if not given.exists():
        pyarrow.parquet.write_table(pyarrow.table({"id": range(first, first + 1_000)}), given)
    options = {"schema": SCHEMA, "mode": "append", "bolts": 2, "view": "off", **options}
    fn = options.pop("fn", label)
    return apply_parquet(given, fn, name=name, out=tmp_path / "table", **options)


def deltalake() -> Any:
    return importlib.import_module("deltalake")


def ids_in(tmp_path: Path) -> list[int]:
    """What readers of the table find."""
    table = deltalake().DeltaTable(tmp_path / "table")
    found: list[int] = pyarrow.dataset.dataset(table.file_uris()).to_table()["id"].to_pylist()
    assert sum(pyarrow.table(table.get_add_actions())["num_records"].to_pylist()) == len(found)
    return sorted(found)


def test_without_its_library_it_is_refused_before_any_work(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match="deltalake, which writes to Delta tables") as refused:
        run(tmp_path)
    assert "pip install deltalake" in refused.value.remedy
    assert not (tmp_path / "table").exists()
    with pytest.raises(ConfigError, match="mode: 'overwrite' is not known"):
        run(tmp_path, mode="overwrite")


@needs_delta
def test_each_row_is_in_the_table_once_however_often_the_job_is_started(tmp_path) -> None:
    assert run(tmp_path).rows == 1_000
    assert ids_in(tmp_path) == list(range(1_000))
    assert run(tmp_path).was_done
    assert ids_in(tmp_path) == list(range(1_000)), "it was added before"
    run(tmp_path, 1_000, name="more", files=1)
    run(tmp_path, name="none", fn=nothing)
    assert ids_in(tmp_path) == list(range(2_000)), "beside what others have added"


@needs_delta
def test_a_partitioned_table_gets_each_row_once_in_its_partition(tmp_path, monkeypatch) -> None:
    """Killed between the commit and what follows it, and started again, too."""
    empty = SCHEMA.empty_table()
    deltalake().write_deltalake(tmp_path / "table", empty, partition_by=["label"])

    def by_seven(batch: Batch) -> Iterator[tuple[int, str]]:
        for record in batch:
            yield record.value["id"], f"#{record.value['id'] % 7}"

    whole = deltalake().write_deltalake

    def killed(*given: Any, **named: Any) -> None:
        whole(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deltalake(), "write_deltalake", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, fn=by_seven)
    assert run(tmp_path, fn=by_seven).was_done
    table = deltalake().DeltaTable(tmp_path / "table")
    rows = pyarrow.table(deltalake().QueryBuilder().register("t", table).execute("SELECT * FROM t"))
    found = sorted(zip(*(rows[name].to_pylist() for name in ("id", "label")), strict=True))
    assert found == [(n, f"#{n % 7}") for n in range(1_000)]
    assert len(table.partitions()) == 7


@needs_delta
@pytest.mark.parametrize("files", [None, 1])
def test_of_a_table_that_grew_its_new_rows_are_done_and_added_once(
    tmp_path, monkeypatch, files
) -> None:
    """A round whose commit was not made is added when there is even more."""
    source, done = tmp_path / "source", []

    def noted(batch: Batch) -> Iterator[tuple[int, str]]:
        done.extend(record.value["id"] for record in batch)
        return label(batch)

    def grow(first: int) -> Any:
        rows = pyarrow.table({"id": range(first, first + 100)})
        deltalake().write_deltalake(str(source), rows, mode="append")
        return apply_parquet(
            source, noted, schema=SCHEMA, name="labels", out=tmp_path / "table", mode="append",
            bolts=2, view="off", files=files, keep_results=True,
        )  # fmt: skip

    assert grow(0).rows == 100
    assert grow(100).rows == 200
    with monkeypatch.context() as patch, pytest.raises(InfrastructureError, match="is away"):
        patch.setattr("flowctl_apply._delta.DeltaAppend.append", _away)
        grow(200)
    assert len(ids_in(tmp_path)) == 200
    assert grow(300).rows == 400
    assert ids_in(tmp_path) == sorted(done) == list(range(400))


def _away(_: Any) -> None:
    raise InfrastructureError("the table is away.", remedy="Wait.")


@needs_delta
def test_a_run_that_ended_before_the_commit_is_added_by_the_next(tmp_path, monkeypatch) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(deltalake().DeltaTable, "create_write_transaction", die)
        with pytest.raises(InfrastructureError, match="the store is away"):
            run(tmp_path)
    assert deltalake().DeltaTable(tmp_path / "table").file_uris() == []
    assert run(tmp_path).was_done
    assert ids_in(tmp_path) == list(range(1_000))


@needs_delta
@pytest.mark.parametrize(
    ("columns", "how", "said"),
    [
        ({"id": [1], "label": [2]}, {}, "its column 'label'"),
        ({"id": [1]}, {}, "its column 'label'"),
        (
            {"id": [1], "label": ["a"], "day": ["b"]},
            {"partition_by": "day"},
            "partitioned by 'day', which is not in the schema",
        ),
    ],
)
def test_a_table_that_takes_no_such_rows_is_refused_before_any_work(
    tmp_path: Path, columns: Any, how: Any, said: str
) -> None:
    deltalake().write_deltalake(tmp_path / "table", pyarrow.table(columns), **how)
    with pytest.raises(ConfigError, match=said):
        run(tmp_path)
    assert not list((tmp_path / "table").glob("part-labels*"))


@needs_delta
def test_a_name_whose_rows_are_there_is_not_begun_again(tmp_path) -> None:
    """Its files would be taken for leftovers."""
    run(tmp_path)
    shutil.rmtree(tmp_path / "table" / "_flowctl")
    with pytest.raises(ConfigError, match=r"name: .* holds rows of an earlier job 'labels'"):
        run(tmp_path)
    assert ids_in(tmp_path) == list(range(1_000))


@needs_delta
def test_of_a_table_the_rows_of_its_newest_version_are_read(tmp_path) -> None:
    place = tmp_path / "source"
    write = deltalake().write_deltalake
    write(place, pyarrow.table({"n": [1, 2, 3]}))
    write(place, pyarrow.table({"n": [4]}), mode="append")
    deltalake().DeltaTable(place).delete("n = 1")
    source = ParquetRanges(place)
    found = [
        record.value["n"]
        for name, extent in source.extents(Checkpoint()).items()
        for block in source.reader().open(name, extent.start, extent.stop, extent.identity)
        for record in block.batch_records(0, len(block))
    ]
    assert sorted(found) == [2, 3, 4]


@needs_delta
def test_a_table_that_was_compacted_since_is_not_read_again(tmp_path) -> None:
    for n in range(3):
        deltalake().write_deltalake(tmp_path / "t", pyarrow.table({"n": [n]}), mode="append")
    names = ParquetRanges(tmp_path / "t").extents(Checkpoint())
    done = Checkpoint({name: PartitionCheckpoint(0, 1) for name in names})
    assert ParquetRanges(tmp_path / "t").extents(done) == names
    deltalake().DeltaTable(tmp_path / "t").optimize.compact()
    with pytest.raises(SourceError, match="no longer part of the Delta table"):
        ParquetRanges(tmp_path / "t").extents(done)
