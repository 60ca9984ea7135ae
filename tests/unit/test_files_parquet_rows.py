"""ParquetRows recognises the files of which rows are done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl import Batch, FlowControlSpout, LocalBolts
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import ConfigError, SourceError
from flowctl_files import ParquetRanges, ParquetRows


def write(path: Path, rows: list[int]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": rows}), path)


def read(path: Path, before: Checkpoint, *, rows: int = 1_000) -> tuple[list[int], Checkpoint]:
    """Read up to ``rows`` rows; return them, and the checkpoint with all of them done."""
    producer = ParquetRows(path)
    producer.open(before)
    saved = before.partitions.get(str(path), PartitionCheckpoint())
    values: list[int] = []
    while len(values) < rows and (chunk := producer.poll(rows - len(values))) is not None:
        values += [record.value["n"] for record in chunk.records]
        position = chunk.records[-1].position if chunk.records else saved.position
        done = saved.records + len(chunk.records)
        saved = PartitionCheckpoint(position, done, end=chunk.end, mark=chunk.mark)
    producer.close()
    return values, Checkpoint({str(path): saved})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "a.parquet", [1, 2, 3])
    return tmp_path / "a.parquet"


def test_a_file_that_was_written_again_is_refused_by_name(path: Path) -> None:
    _, done = read(path, Checkpoint())
    size = path.stat().st_size
    write(path, [4, 5, 6])
    assert path.stat().st_size == size, "only its modification time differs"
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"a\.parquet: all of it .* written again") as caught:
        read(path, done)
    assert f"rewind JOB --partition {path} --start --sink FILE.py:SINK" in caught.value.remedy


def test_one_of_which_a_part_is_done_is_refused_too(path: Path) -> None:
    values, done = read(path, Checkpoint(), rows=2)
    assert (values, done.partitions[str(path)].end) == ([1, 2], None)
    assert read(path, done)[0] == [3], "unchanged, it is read on"
    write(path, [4, 5, 6, 7, 8])
    with pytest.raises(SourceError, match=r"a part of it .* written again .* bytes .* is now"):
        read(path, done)


def test_one_that_is_written_again_after_the_job_began_is_refused_too(path: Path) -> None:
    _, done = read(path, Checkpoint(), rows=2)
    producer = ParquetRows(path)
    producer.open(done)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match=r"a\.parquet: it changed during the run"):
        producer.poll(10)


def test_one_that_is_done_and_unchanged_is_not_opened(path: Path) -> None:
    _, done = read(path, Checkpoint())
    as_it_was = path.stat()
    path.write_bytes(b"x" * as_it_was.st_size)  # who opens it fails
    os.utime(path, ns=(as_it_was.st_atime_ns, as_it_was.st_mtime_ns))
    assert read(path, done)[0] == []


def test_after_a_rewind_it_is_read_whatever_it_is_now(path: Path) -> None:
    read(path, Checkpoint())
    write(path, [4])
    assert read(path, Checkpoint({str(path): PartitionCheckpoint()}))[0] == [4]


def test_a_checkpoint_of_before_this_was_saved_is_read_on(path: Path) -> None:
    old = Checkpoint({str(path): PartitionCheckpoint(position=0, records=1)})
    assert read(path, old)[0] == [2, 3]


def run(producer: ParquetRows | ParquetRanges) -> list[dict[str, int]]:
    values: list[dict[str, int]] = []

    def process(batch: Batch) -> None:
        values.extend(record.value for record in batch)

    bolts = LocalBolts(process, count=1)
    FlowControlSpout(name="test", producer=producer, bolts=bolts).run(view="off")
    return values


@pytest.mark.parametrize("kind", [ParquetRows, ParquetRanges])
def test_two_columns_of_one_name_are_refused(
    tmp_path: Path, kind: type[ParquetRows] | type[ParquetRanges]
) -> None:
    columns = [pyarrow.array([1]), pyarrow.array([2]), pyarrow.array([3])]
    table = pyarrow.Table.from_arrays(columns, names=["n", "n", "m"])
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"b\.parquet: 2 columns are called 'n'.*\['m'\]"):
        run(kind(tmp_path / "b.parquet"))
    assert run(kind(tmp_path / "b.parquet", columns=["m"])) == [{"m": 3}]


def test_of_one_that_is_written_again_while_it_is_read_no_new_row_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": range(6)}), path, row_group_size=3)
    producer = ParquetRows(path)
    producer.open(Checkpoint())
    chunk = producer.poll(10)
    assert chunk is not None and [record.value["n"] for record in chunk.records] == [0, 1, 2]
    write(path, [4, 5, 6, 7, 8, 9])
    os.utime(path, ns=(1, 1))
    for _ in range(2):
        with pytest.raises(SourceError, match=r"a\.parquet: it changed during the run"):
            producer.poll(10)


def test_a_job_may_change_from_by_value_to_by_reference(path: Path) -> None:
    _, part = read(path, Checkpoint(), rows=2)
    extent = ParquetRanges(path).extents(part)[str(path)]
    assert (extent.start, extent.stop) == (0, 3)
    saved = part.partitions[str(path)]
    assert (saved.position, saved.mark) == (1, extent.identity)
    write(path, [4, 5, 6, 7])
    with pytest.raises(SourceError, match="written again"):
        ParquetRanges(path).extents(part)


def test_a_name_with_a_colon_is_a_file_and_no_url(path: Path) -> None:
    path = path.rename(path.with_name("10:30.parquet"))
    assert read(path, Checkpoint())[0] == [1, 2, 3]


def test_a_value_that_python_does_not_have_is_named_with_row_and_column(path: Path) -> None:
    days = pyarrow.array([0, 10**8], pyarrow.int32()).cast(pyarrow.date32())
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2], "day": days}), path)
    with pytest.raises(SourceError, match=r"a\.parquet, row 1: the value in column 'day'"):
        read(path, Checkpoint())
    producer = ParquetRows(path, columns=["n"])
    producer.open(Checkpoint())
    chunk = producer.poll(10)
    assert chunk is not None
    assert [record.value for record in chunk.records] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("columns", [(), [], "n", 5, [1], iter(())])
@pytest.mark.parametrize("source", [ParquetRows, ParquetRanges])
def test_columns_that_are_no_list_of_names_are_refused(source: Any, columns: Any) -> None:
    with pytest.raises(ConfigError, match=r"columns: .* is not a list of names"):
        source("a.parquet", columns=columns)
