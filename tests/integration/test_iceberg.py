"""Snapshots of Iceberg tables as a source, with real tables of pyiceberg's SQL catalogue."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="needs pyiceberg: pip install 'flowctl-spark[iceberg]'")

import pyarrow
from pyarrow import compute, parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record as Row
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from flowctl import FlowControlSpout, LocalBolts, Settings
from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint
from flowctl.core.settings import RetrySettings
from flowctl.errors import ConfigError, ProcessError, SourceError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import ParquetRanges

SCHEMA = pyarrow.schema([("n", pyarrow.int32()), ("word", pyarrow.string())])


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    made = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    made.create_namespace("db")
    yield made
    made.close()


@pytest.fixture
def table(catalog: Any) -> Any:
    """Two files: rows 0 to 99, and 100 to 199."""
    made = catalog.create_table("db.t", SCHEMA)
    for first in (0, 100):
        made.append(numbers(first, first + 100))
    return made


def numbers(first: int, stop: int) -> pyarrow.Table:
    rows = {"n": range(first, stop), "word": [f"w{n}" for n in range(first, stop)]}
    return pyarrow.table(rows, schema=SCHEMA)


def values_of(source: ParquetRanges) -> list[dict[str, Any]]:
    """All rows, as the bolts get them."""
    extents, reader = source.extents(Checkpoint()), source.reader()
    return [
        record.value
        for name, extent in extents.items()
        for block in reader.open(name, extent.start, extent.stop, extent.identity)
        for record in block.batch_records(0, len(block))
    ]


def ns_of(source: ParquetRanges) -> list[int]:
    return sorted(value["n"] for value in values_of(source))


def test_one_snapshot_is_read_and_not_what_else_lies_in_its_directory(table, tmp_path):
    before = table.current_snapshot().snapshot_id
    table.delete("n < 150")  # writes one file again, and leaves the old ones where they are
    assert len(list((tmp_path / "wh" / "db" / "t" / "data").iterdir())) == 3
    assert ns_of(ParquetRanges(table)) == [*range(150, 200)]
    assert ns_of(ParquetRanges(table.metadata_location)) == [*range(150, 200)]
    assert ns_of(ParquetRanges(table, snapshot_id=before)) == [*range(200)]
    with pytest.raises(ConfigError, match="has no snapshot 7") as refused:
        values_of(ParquetRanges(table, snapshot_id=7))
    assert str(before) in refused.value.remedy


def test_a_directory_is_read_if_it_says_which_metadata_is_current(table, tmp_path):
    folder = tmp_path / "wh" / "db" / "t"
    with pytest.raises(ConfigError, match="catalogue alone knows") as refused:
        values_of(ParquetRanges(folder))
    assert "load_table" in refused.value.remedy
    metadata = folder / "metadata"
    shutil.copy(table.metadata_location.removeprefix("file://"), metadata / "v2.metadata.json")
    (metadata / "version-hint.text").write_text("2")
    assert ns_of(ParquetRanges(folder)) == [*range(200)]
    table.append(numbers(200, 210))
    # A writer that was killed between the two leaves the hint behind.
    shutil.copy(table.metadata_location.removeprefix("file://"), metadata / "v3.metadata.json")
    assert ns_of(ParquetRanges(f"{folder}/")) == [*range(210)]
    with pytest.raises(ConfigError, match="there are other paths"):
        values_of(ParquetRanges([folder, tmp_path / "a.parquet"]))


def test_a_table_without_rows_has_none(catalog):
    empty = catalog.create_table("db.empty", SCHEMA)
    assert ParquetRanges(empty).extents(Checkpoint()) == {}


def change_columns(table: Any) -> None:
    """``word`` becomes ``text``, a new ``word`` comes, and ``n`` grows wider."""
    with table.update_schema() as update:
        update.rename_column("word", "text")
        update.update_column("n", LongType())
        update.add_column("x", DoubleType())
    with table.update_schema() as update:
        update.add_column("word", StringType())
    row = {"n": [1 << 40], "text": ["new"], "x": [0.5], "word": ["other"]}
    schema = table.schema().as_arrow()
    table.append(pyarrow.table({name: row[name] for name in schema.names}, schema=schema))


def test_columns_go_by_field_id(catalog):
    table = catalog.create_table("db.t", SCHEMA)
    table.append(numbers(0, 2))
    before = table.current_snapshot().snapshot_id
    change_columns(table)
    old = [{"n": n, "text": f"w{n}", "x": None, "word": None} for n in range(2)]
    new = {"n": 1 << 40, "text": "new", "x": 0.5, "word": "other"}
    by_n = functools.partial(sorted, key=lambda value: value["n"])
    assert by_n(values_of(ParquetRanges(table))) == [*old, new]
    # As the snapshot had them, not as they are now.
    assert by_n(values_of(ParquetRanges(table, snapshot_id=before))) == [
        {"n": n, "word": f"w{n}"} for n in range(2)
    ]
    assert values_of(ParquetRanges(table, columns=["text"], filter=[("word", "=", "w1")])) == []
    found = ParquetRanges(table, columns=["text", "n"], filter=compute.field("text") == "w1")
    assert values_of(found) == [{"n": 1, "text": "w1"}]
    assert by_n(values_of(ParquetRanges(table, columns=["n", "x"])))[-1] == {"n": 1 << 40, "x": 0.5}
    assert values_of(ParquetRanges(table, columns=["x"])).count({"x": None}) == 2
    with pytest.raises(SourceError, match="no column 'm'"):
        values_of(ParquetRanges(table, columns=["m"]))


@pytest.mark.parametrize(
    "wanted",
    [
        [("n", "<", 1.5)],
        [("n", "<=", 120), ("n", ">=", 99)],
        [[("n", "=", 7)], [("n", ">", 197)]],
        [("n", "in", [3, 150, 1 << 70])],
        [("n", "!=", 3)],
        [("n", "not in", [3, 4])],
        [("word", "in", {"w7", "w170"})],
        [("word", ">", "w98")],
    ],
)
def test_filters_take_the_rows_that_pyarrow_takes(table, wanted):
    every = pyarrow.concat_tables([numbers(0, 100), numbers(100, 200)])
    try:
        expected = every.filter(parquet.filters_to_expression(wanted))["n"].to_pylist()
    except (pyarrow.ArrowInvalid, OverflowError):
        with pytest.raises((ConfigError, OverflowError)):
            ParquetRanges(table, filter=wanted).extents(Checkpoint())
        return
    assert ns_of(ParquetRanges(table, filter=wanted)) == expected


def test_files_that_the_table_rules_out_are_not_opened(catalog, tmp_path):
    schema = Schema(NestedField(1, "day", StringType()), NestedField(2, "n", IntegerType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    table = catalog.create_table("db.days", schema, partition_spec=spec)
    rows = pyarrow.table({"day": ["a", "b", None], "n": pyarrow.array([1, 2, 3], pyarrow.int32())})
    table.append(rows)
    for path in (tmp_path / "wh").glob("**/data/**/*.parquet"):
        if "day=b" not in str(path):
            path.unlink()
    assert values_of(ParquetRanges(table, filter=[("day", "=", "b")])) == [{"day": "b", "n": 2}]
    assert values_of(ParquetRanges(table, filter=[("n", ">", 1), ("n", "<", 3)])) == [
        {"day": "b", "n": 2}
    ]
    with pytest.raises(SourceError, match="can't be read"):
        values_of(ParquetRanges(table))


def test_dates_and_times_rule_files_out_too(catalog):
    schema = pyarrow.schema([("day", pyarrow.date32()), ("at", pyarrow.timestamp("us"))])
    table = catalog.create_table("db.times", schema)
    for day in (1, 2):
        at = datetime(2026, 11, day, 12)
        table.append(pyarrow.table({"day": [at.date()], "at": [at]}, schema=schema))
    for wanted in ([("day", ">", date(2026, 11, 1))], [("at", ">=", datetime(2026, 11, 2))]):
        source = ParquetRanges(table, filter=wanted)
        assert [value["day"].day for value in values_of(source)] == [2]
        assert len(source.extents(Checkpoint())) == 1


def add_file(table: Any, content: DataFileContent, path: Path) -> None:
    """Commit a file of a kind that pyiceberg doesn't write."""
    data = next(iter(table.scan().plan_files())).file
    rows = {"file_path": [data.file_path], "pos": [0]}
    parquet.write_table(pyarrow.table(rows), path)
    made = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Row(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content is DataFileContent.EQUALITY_DELETES else None,
    )
    made.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(made)


@pytest.mark.parametrize("kind", ["POSITION_DELETES", "EQUALITY_DELETES"])
def test_rows_that_a_delete_file_takes_away_are_not_read_in_silence(table, tmp_path, kind):
    add_file(table, DataFileContent[kind], tmp_path / "deletes.parquet")
    with pytest.raises((ConfigError, SourceError), match="delete") as refused:
        ParquetRanges(table).extents(Checkpoint())
    assert "rewrite_data_files" in refused.value.remedy


def test_files_of_another_shape_are_refused_by_name(catalog, table, tmp_path):
    [first, _] = sorted((tmp_path / "wh" / "db" / "t" / "data").iterdir())
    parquet.write_table(numbers(0, 7), first)
    with pytest.raises(SourceError, match=rf"{first.name}: it has 7 rows .* and the table says"):
        values_of(ParquetRanges(table))
    item = pyarrow.struct([("a", pyarrow.int64())])
    nested = catalog.create_table(
        "db.nested", pyarrow.schema([("n", pyarrow.int64()), ("s", item)])
    )
    nested.append(pyarrow.table({"n": [1], "s": [{"a": 2}]}))
    assert values_of(ParquetRanges(nested)) == [{"n": 1, "s": {"a": 2}}]
    with nested.update_schema() as update:
        update.add_column(("s", "b"), LongType())
    with pytest.raises(ConfigError, match=r"its column 's' is struct.*where the table has"):
        values_of(ParquetRanges(nested))
    assert values_of(ParquetRanges(nested, columns=["n"])) == [{"n": 1}]


def test_files_without_field_ids_go_by_the_table_s_names(catalog, tmp_path):
    path = tmp_path / "given.parquet"
    parquet.write_table(numbers(0, 3), path)
    table = catalog.create_table("db.given", SCHEMA)
    table.add_files([f"file://{path}"])
    with table.update_schema() as update:
        update.rename_column("word", "text")
    assert values_of(ParquetRanges(table)) == [{"n": n, "text": f"w{n}"} for n in range(3)]


class _Broken(RuntimeError):
    pass


def run(table: Any, process: Callable[[Batch], Any], store: Any, **options: Any) -> Any:
    return FlowControlSpout(
        name="job",
        producer=ParquetRanges(table, **options),
        bolts=LocalBolts(process, count=2),
        checkpoint=store,
        settings=Settings(retry=RetrySettings(attempts_max=1)),
    ).run(view="off")


def test_a_job_that_is_started_again_reads_the_snapshot_that_it_began_with(catalog):
    table = catalog.create_table("db.t", SCHEMA)
    table.append(numbers(0, 3_000))
    begun = table.current_snapshot().snapshot_id
    store, done, is_mended = MemoryCheckpointStore(), [], False

    def process(batch: Batch) -> None:
        rows = [(record.value["n"], record.value["word"]) for record in batch]
        if not is_mended and any(n == 2_000 for n, _ in rows):
            raise _Broken
        done.extend(rows)

    with pytest.raises(ProcessError, match="_Broken"):
        run(table, process, store)
    assert 0 < store.load("job").records < 3_000
    is_mended = True
    table.overwrite(numbers(5_000, 5_010))  # none of its files are the table's any more
    with table.update_schema() as update:
        update.rename_column("word", "text")
    with pytest.raises(ConfigError, match=f"not the snapshot that this job began with: {begun}"):
        run(table, process, store, snapshot_id=table.current_snapshot().snapshot_id)
    report = run(table, process, store)
    assert report.outcome == "finished"
    assert sorted(done) == [(n, f"w{n}") for n in range(3_000)]
    assert run(table, process, store).records_acked == 0
    table.maintenance.expire_snapshots().by_id(begun).commit()
    with pytest.raises(SourceError, match=f"no snapshot {begun} any more") as refused:
        run(table, process, store)
    assert "another name" in refused.value.remedy
    assert len(done) == 3_000
