"""ParquetRanges: which rows and columns are read, and what is refused by name."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow")

import pyarrow
from pyarrow import compute, parquet

from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record, Span
from flowctl.errors import ConfigError, SourceError
from flowctl_files import ParquetRanges
from flowctl_files._layouts import Field, Fields
from flowctl_files._parquet_blocks import RowsBlock

ROWS = 1_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = pyarrow.table({"n": range(ROWS), "word": [f"w{n}" for n in range(ROWS)]})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, row_group_size=100)
    return path


def blocks_of(source: ParquetRanges) -> list[RowsBlock]:
    reader = source.reader()
    return [
        block
        for name, extent in source.extents(Checkpoint()).items()
        for block in reader.open(name, extent.start, extent.stop, extent.identity)
    ]


def values_of(source: ParquetRanges) -> list[object]:
    blocks = blocks_of(source)
    return [r.value for block in blocks for r in block.batch_records(0, len(block))]


def test_columns_come_without_a_copy_and_rows_only_if_somebody_wants_them(path):
    [block, *_] = blocks_of(ParquetRanges(path))
    batch = Batch(block.batch_records(10, 20), _span(), bolt="b1", attempt=1)
    arrow = batch.to_arrow()
    assert arrow.column("n").to_pylist() == [*range(10, 20)]
    whole = block.batch_records(0, len(block)).to_arrow()
    addresses = [each.column("n").buffers()[1].address for each in (arrow, whole)]
    assert addresses[0] == addresses[1]
    assert batch.to_pandas()["word"].tolist() == [f"w{n}" for n in range(10, 20)]
    assert batch.has_columns and list(batch.values)[3] == {"n": 13, "word": "w13"}
    assert batch[3] == Record(13, {"n": 13, "word": "w13"})
    batch.reject(batch[3], "no")
    assert batch.rejected == {3: "no"}


def test_a_batch_by_value_has_columns_too():
    rows = [Record(n, {"n": n}) for n in range(3)]
    assert Batch(rows, _span(), bolt="b1", attempt=1).to_arrow().to_pydict() == {"n": [0, 1, 2]}
    lines = [Record(n, f"line {n}") for n in range(2)]
    assert Batch(lines, _span(), bolt="b1", attempt=1).to_pandas()["value"].tolist() == [
        "line 0",
        "line 1",
    ]


def _by_value(*values):
    records = [Record(number, value) for number, value in enumerate(values)]
    return Batch(records, _span(), bolt="b1", attempt=1)


def test_columns_that_only_later_rows_have_are_there_too():
    made = _by_value({"a": 1}, {"a": 2, "b": "kept"}).to_arrow()
    assert made.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "kept"}]


def test_rows_of_spark_are_rows_of_named_columns():
    row = pytest.importorskip("pyspark.sql").Row
    made = _by_value(row(id=1, at=row(x=2)), row(id=3, at=None)).to_arrow()
    assert made.to_pylist() == [{"id": 1, "at": {"x": 2}}, {"id": 3, "at": None}]


def test_whole_numbers_beside_nulls_stay_what_they_are_in_pandas():
    ids = [2**53 + 1, None]
    frame = _by_value(*({"id": each, "n": 1} for each in ids)).to_pandas()
    assert frame["id"].dtype == "Int64" and frame["n"].dtype == "int64"
    assert frame["id"].astype(object).where(frame["id"].notna(), None).tolist() == ids


def test_only_wanted_columns_and_row_groups_are_read(path):
    plain = ParquetRanges(path, columns=["word"], filter=[("n", ">=", 950)])
    assert values_of(plain) == [{"word": f"w{n}"} for n in range(950, ROWS)]
    # Statistics leave one row group of ten: blocks of the others are never made.
    assert sum(len(block) > 0 for block in blocks_of(plain)) == 1
    expression = ParquetRanges(path, filter=(compute.field("n") == 7) | (compute.field("n") == 8))
    assert [value["n"] for value in values_of(expression)] == [7, 8]
    positions = [block.position(i) for block in blocks_of(expression) for i in range(len(block))]
    assert positions == [7, 8]


def test_directories_are_columns_and_files_that_they_rule_out_are_not_read(tmp_path):
    for year, month in (("2025", "01"), ("2026", "02"), ("__HIVE_DEFAULT_PARTITION__", "a%20b")):
        folder = tmp_path / f"year={year}" / f"month={month}"
        folder.mkdir(parents=True)
        parquet.write_table(pyarrow.table({"n": [1]}), folder / "part-0.parquet")
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "_temporary" / "part-9.parquet").write_bytes(b"half written")
    assert values_of(ParquetRanges(tmp_path)) == [
        {"n": 1, "year": 2025, "month": "01"},
        {"n": 1, "year": 2026, "month": "02"},
        {"n": 1, "year": None, "month": "a b"},
    ]
    one = ParquetRanges(tmp_path, filter=[("year", "==", 2026)], columns=["year"])
    assert len(one.extents(Checkpoint())) == 1
    assert values_of(one) == [{"year": 2026}]
    by_pattern = ParquetRanges(f"{tmp_path}/year=2026/*/*.parquet")
    assert values_of(by_pattern) == [{"n": 1, "month": "02"}]


def test_a_file_that_changed_is_refused(path):
    source = ParquetRanges(path)
    [(name, extent)] = source.extents(Checkpoint()).items()
    parquet.write_table(pyarrow.table({"n": [1]}), path)
    with pytest.raises(SourceError, match="changed during the run"):
        list(source.reader().open(name, 0, extent.stop, extent.identity))
    with pytest.raises(SourceError, match="another file"):
        ParquetRanges(path).extents(Checkpoint({name: PartitionCheckpoint(5)}))


def test_a_file_that_changes_while_it_is_read_gives_no_more_rows(tmp_path):
    """The kind: any block may become the range's last, after a split."""
    path = tmp_path / "many.parquet"
    parquet.write_table(pyarrow.table({"n": range(30)}), path, row_group_size=10)
    source = ParquetRanges(path)
    [(name, extent)] = source.extents(Checkpoint()).items()
    blocks = source.reader().open(name, 0, extent.stop, extent.identity)
    assert next(blocks).stop == 10
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="changed during the run"):
        next(blocks)


def test_what_is_no_parquet_and_what_is_no_column_are_named(path, tmp_path):
    (tmp_path / "b.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(SourceError, match=r"b\.parquet: can't be read as Parquet"):
        ParquetRanges(tmp_path / "b.parquet").extents(Checkpoint())
    with pytest.raises(SourceError, match="there is no column 'm'") as caught:
        ParquetRanges(path, columns=["m"]).extents(Checkpoint())
    assert "'n', 'word'" in caught.value.remedy
    with pytest.raises(SourceError, match="there is no column 'm'"):
        ParquetRanges(path, filter=[("m", "=", 1)]).extents(Checkpoint())
    with pytest.raises(ConfigError, match="filter: "):
        ParquetRanges(path, filter=[("n", "~", 1)])
    with pytest.raises(ConfigError, match="not a list of names"):
        ParquetRanges(path, columns="n")


def test_the_files_of_a_delta_table_are_those_of_its_newest_version(path, tmp_path, monkeypatch):
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    for name in ("old", "new"):
        parquet.write_table(pyarrow.table({"name": [name]}), table / f"{name}.parquet")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match="deltalake, which lists its files, is not installed"):
        ParquetRanges(table).extents(Checkpoint())
    features: list[str] = []
    configuration: dict[str, str] = {"delta.columnMapping.mode": "none"}
    fake = SimpleNamespace(
        DeltaTable=lambda path: SimpleNamespace(
            protocol=lambda: SimpleNamespace(reader_features=features),
            metadata=lambda: SimpleNamespace(configuration=configuration),
            file_uris=lambda: [str(table / "new.parquet")],
        )
    )
    monkeypatch.setitem(sys.modules, "deltalake", fake)
    assert values_of(ParquetRanges(table)) == [{"name": "new"}]
    features.append("deletionVectors")
    with pytest.raises(ConfigError, match="deletionVectors"):
        ParquetRanges(table).extents(Checkpoint())
    features.clear()
    configuration["delta.columnMapping.mode"] = "name"  # of reader version 2, which lists none
    with pytest.raises(ConfigError, match="columnMapping"):
        ParquetRanges(table).extents(Checkpoint())


def test_a_delta_table_whose_files_were_written_again_is_refused(tmp_path, monkeypatch):
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    files = [tmp_path / "t" / f"{n}.parquet" for n in range(3)]
    for path in files:
        parquet.write_table(pyarrow.table({"n": [1, 2]}), path)
    listed = files[:1]
    table = SimpleNamespace(
        protocol=lambda: SimpleNamespace(reader_features=None),
        metadata=lambda: SimpleNamespace(configuration={}),
        file_uris=lambda: [str(path) for path in listed],
    )
    monkeypatch.setitem(sys.modules, "deltalake", SimpleNamespace(DeltaTable=lambda path: table))
    monkeypatch.chdir(tmp_path)
    done = Checkpoint({str(files[0]): PartitionCheckpoint(0, 1)})
    listed = files[:2]  # what was added is read too
    assert len(ParquetRanges("t").extents(done)) == 2
    listed = files[1:]
    (tmp_path / "link").symlink_to("t")
    for name in ("link", "t"):
        with pytest.raises(SourceError, match=r"0\.parquet, of which .* no longer part") as refused:
            ParquetRanges(name).extents(done)
    assert "another name" in refused.value.remedy
    nothing_done = Checkpoint({str(files[0]): PartitionCheckpoint()})
    assert len(ParquetRanges("t").extents(nothing_done)) == 2


def test_an_iceberg_table_needs_its_library(tmp_path, monkeypatch):
    (tmp_path / "metadata").mkdir()
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    for given in (tmp_path, tmp_path / "metadata" / "v1.metadata.json"):
        with pytest.raises(ConfigError, match="pyiceberg, which lists its files, is not") as caught:
            ParquetRanges(given).extents(Checkpoint())
        assert "flowctl-spark[iceberg]" in caught.value.remedy


def test_a_snapshot_is_of_an_iceberg_table(path):
    with pytest.raises(ConfigError, match=r"snapshot_id: .* is not an Iceberg table"):
        ParquetRanges(path, snapshot_id=1).extents(Checkpoint())


def _with_ids(**ids: int | None) -> pyarrow.Schema:
    return pyarrow.schema(
        pyarrow.field(
            name,
            pyarrow.int32(),
            metadata=None if number is None else {"PARQUET:field_id": str(number)},
        )
        for name, number in ids.items()
    )


def test_fields_of_a_table_are_found_by_their_ids():
    fields = Fields(
        [
            Field(1, "a", pyarrow.int64(), cast=pyarrow.int64()),
            Field(2, "b", pyarrow.int32()),
            Field(3, "c", pyarrow.string(), default="none"),
        ]
    )
    schema = _with_ids(b=1, a=2)
    layout = fields.of("f", schema)
    assert layout.in_file({"a"}) == ["b"]
    assert layout.in_file({"c"}) == ["b"]  # any: to count the rows
    assert not layout.is_plain({"a"})
    rows = layout.rows(pyarrow.record_batch([[1, 2], [3, 4]], schema=schema))
    assert rows.to_pydict() == {"a": [1, 2], "b": [3, 4], "c": ["none"] * 2}
    assert rows.schema.field("a").type == pyarrow.int64()
    assert fields.of("f", _with_ids(b=2)).is_plain({"b"})


@pytest.mark.parametrize(
    "ids", [{"a": 1, "b": 1}, {"a": 1, "b": None}, {"a": None, "old": None}], ids=repr
)
def test_columns_that_can_not_be_told_apart_are_refused(ids):
    fields = Fields([Field(1, "a", pyarrow.int32(), aliases=frozenset({"a", "old"}))])
    with pytest.raises(SourceError, match="not clear which column is which"):
        fields.of("f", _with_ids(**ids))


def test_the_reader_travels_without_the_list_of_files(tmp_path):
    for n in range(20):
        parquet.write_table(pyarrow.table({"n": [n]}), tmp_path / f"{n}.parquet")
    source = ParquetRanges(tmp_path)
    source.extents(Checkpoint())
    reader = copy.deepcopy(source.reader())
    assert "7.parquet" not in repr(vars(reader))


def _span() -> Span:
    return Span("j", "p", 0, 1, 1)


def table_in(folder: Path, rows: list[int]) -> None:
    folder.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"n": rows}), folder / "a.parquet")


def test_directories_with_an_underscore_are_passed_over_unless_they_are_columns(tmp_path):
    table_in(tmp_path / "_year=2025", [1])
    table_in(tmp_path / "_temporary", [2])
    assert values_of(ParquetRanges(tmp_path)) == [{"n": 1, "_year": 2025}]


@pytest.mark.parametrize("pattern", ["year=202?", "year=202[56]", "year=*", "*"])
def test_columns_in_directories_are_the_same_whatever_pattern_names_them(tmp_path, pattern):
    table_in(tmp_path / "year=2025", [1])
    table_in(tmp_path / "year=2026", [2])
    assert values_of(ParquetRanges(tmp_path / pattern / "*.parquet")) == [
        {"n": 1, "year": 2025},
        {"n": 2, "year": 2026},
    ]


def test_a_file_that_two_paths_lead_to_is_read_once(tmp_path):
    table_in(tmp_path / "t" / "year=2025", [1])
    (tmp_path / "link").symlink_to(tmp_path / "t")
    several = [tmp_path / "link", tmp_path / "t", tmp_path / "t" / "*" / "a.parquet"]
    assert [value["n"] for value in values_of(ParquetRanges(several))] == [1]


def test_a_directory_may_be_called_as_a_pattern(tmp_path):
    table_in(tmp_path / "t[1]", [1])
    table_in(tmp_path / "t1", [2])
    assert values_of(ParquetRanges(tmp_path / "t[1]")) == [{"n": 1}]


@pytest.mark.parametrize("wanted", [[("n", "=", "1")], compute.field("n") == "1"])
def test_a_filter_of_another_type_than_the_column_is_named_with_the_file(path, wanted):
    with pytest.raises(SourceError, match=r"a\.parquet: the filter can't be applied: .*int64"):
        values_of(ParquetRanges(path, filter=wanted))


@pytest.mark.parametrize("wanted", ["n > 3", ("n", ">", 3)])
def test_what_is_no_filter_is_refused(path, wanted):
    with pytest.raises(ConfigError, match=r"filter: .* can't be used: it is a"):
        ParquetRanges(path, filter=wanted)


@pytest.mark.parametrize("given", ["12", 1.0, True, [1]])
def test_the_id_of_a_snapshot_is_a_number(path, given):
    with pytest.raises(ConfigError, match=r"snapshot_id: .* the id of a snapshot is an int"):
        ParquetRanges(path, snapshot_id=given)


def test_damage_on_a_disk_is_not_tried_again(path):
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.parquet: can't be read as Parquet"):
        values_of(ParquetRanges(path))
