"""ParquetRows holds to what every producer must do, and names what is wrong with a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl.ports import FlowProducer
from flowctl.testing.producer_conformance import ProducerConformance
from flowctl_files import ParquetRows


def write(path: Path, rows: int, *, group: int = 3) -> Path:
    table = pyarrow.table(
        {"n": list(range(rows)), "text": [f"t{n}" if n % 2 else None for n in range(rows)]},
        schema=pyarrow.schema({"n": pyarrow.int64(), "text": pyarrow.string()}),
    )
    pyarrow.parquet.write_table(table, path, row_group_size=group)
    return path


@pytest.mark.req("S22")
class TestParquetRows(ProducerConformance):
    """Several row groups, one row, none, and a batch that ends within a row group."""

    @pytest.fixture(autouse=True)
    def source(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("flowctl_files._by_value._BATCH_RECORDS", 4)
        self.path = tmp_path
        for name, rows in (("a", 11), ("b", 1), ("c", 0), ("d", 7)):
            write(tmp_path / f"{name}.parquet", rows)

    def producer(self) -> FlowProducer:
        return ParquetRows(self.path / "*.parquet")


def read(producer: ParquetRows, checkpoint: Checkpoint | None = None) -> list[Record]:
    producer.open(checkpoint or Checkpoint())
    found: list[Record] = []
    while (chunk := producer.poll(1000)) is not None:
        found += chunk.records
    producer.close()
    return found


def test_a_row_is_a_dict_and_its_position_is_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 2)
    assert read(ParquetRows(path)) == [
        Record(0, {"n": 0, "text": None}),
        Record(1, {"n": 1, "text": "t1"}),
    ]
    assert read(ParquetRows(path, columns=["n"])) == [Record(0, {"n": 0}), Record(1, {"n": 1})]


def test_row_groups_that_are_done_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 9_000, group=3_000)
    data = bytearray(path.read_bytes())
    data[4:2_000] = b"\0" * 1_996  # the first group is damaged: who reads it fails
    path.write_bytes(data)
    with pytest.raises(SourceError, match="can't be read as Parquet"):
        read(ParquetRows(path))
    done = Checkpoint({str(path): PartitionCheckpoint(position=2_999, records=3_000)})
    assert [record.position for record in read(ParquetRows(path), done)] == list(
        range(3_000, 9_000)
    )


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 5)
    name = str(path)
    with pytest.raises(SourceError, match="no column 'm'") as caught:
        read(ParquetRows(path, columns=["n", "m"]))
    assert "'n', 'text'" in caught.value.remedy
    with pytest.raises(SourceError, match="done through 7, but ends at 5 now"):
        read(ParquetRows(path), Checkpoint({name: PartitionCheckpoint(position=7)}))
    with pytest.raises(SourceError, match="not one of this source"):
        read(ParquetRows(path), Checkpoint({name: PartitionCheckpoint(position=(1, 2))}))
    path.write_text("not Parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: can't be read as Parquet"):
        read(ParquetRows(path))
    with pytest.raises(SourceError, match="no such file"):
        read(ParquetRows(tmp_path / "none.parquet"))
    with pytest.raises(ConfigError, match="not a list of names"):
        ParquetRows(path, columns="n")


def test_an_error_stays_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 9_000)
    data = bytearray(path.read_bytes())
    data[4:2_000] = b"\0" * 1_996
    path.write_bytes(data)
    producer = ParquetRows(path)
    producer.open(Checkpoint())
    for _ in range(2):
        with pytest.raises(SourceError):
            producer.poll(10)


def test_pyarrow_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = ParquetRows(write(tmp_path / "a.parquet", 1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"flowctl-spark\[parquet\]"):
        producer.open(Checkpoint())
