"""What a DataFrame is for those who read it without Spark, without a session."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("pyspark.sql.streaming.datasource", reason="its types are of Spark 4.2")

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from flowctl.errors import ConfigError
from pyspark_flowctl import apply, flow_sink
from pyspark_flowctl.column_types import check_readable, check_sendable
from pyspark_flowctl.dataframes import columns_checked, input_of

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
CALENDAR = "spark.sql.parquet.datetimeRebaseModeInWrite"
PLAN = """== Parsed Logical Plan ==
anything
== Analyzed Logical Plan ==
id: bigint, text: string
{relation}
== Optimized Logical Plan ==
anything
== Physical Plan ==
FileScan parquet [id#0L] Location: InMemoryFileIndex({given} paths)[file:/data]
"""


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


COLUMNS = columns(id=LongType(), text=StringType())
READ = "Relation [id#0L,text#1] parquet"


class Conf(dict[str, Any]):
    """The settings of a session."""

    set = dict.__setitem__


class Session:
    """What writes a frame."""

    def __init__(self) -> None:
        self.conf = Conf({TIMESTAMPS: "INT96", CALENDAR: "LEGACY"})


class Frame:
    """As much of a DataFrame as is asked."""

    def __init__(
        self, relation: str, files: list[Path], schema: StructType = COLUMNS, given: int = 1
    ) -> None:
        self.schema = schema
        self.columns = schema.names
        self.relation = relation
        self.files = files
        self.given = given
        self.written: list[Any] = []
        self.sparkSession = Session()

    def explain(self, *, extended: bool) -> None:
        assert extended
        print(PLAN.format(relation=self.relation, given=self.given))

    def count(self) -> int:
        return sum(pyarrow.parquet.read_metadata(file).num_rows for file in self.files) * self.given

    def inputFiles(self) -> list[str]:
        return [file.as_uri() for file in self.files]

    def select(self, *columns: str) -> Frame:
        self.written.append(columns)
        return self

    @property
    def write(self) -> Frame:
        return self

    def mode(self, how: str) -> Frame:
        assert how == "overwrite"  # what a killed run left
        return self

    def option(self, name: str, value: int) -> Frame:
        assert name == "parquet.block.size"
        return self

    def parquet(self, url: str) -> None:
        self.written.append(url)
        self.written.append(self.sparkSession.conf[TIMESTAMPS])
        assert self.sparkSession.conf[CALENDAR] == "CORRECTED"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a b.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1], "text": ["x"]}), path)
    return path


def test_a_plain_read_of_parquet_is_read_where_it_is(file: Path) -> None:
    given = input_of(Frame("Relation [id#0L,text#1] parquet", [file]), ["id"])
    assert (given.paths, given.write, given.columns) == ([str(file)], None, ["id"])


@pytest.mark.parametrize(
    "relation",
    ["Project [id#0L]\n+- Relation [id#0L,text#1] parquet", "Relation [id#0L,text#1] csv"],
)
def test_everything_else_is_written_once(file: Path, relation: str) -> None:
    frame = Frame(relation, [file])
    given = input_of(frame, ["id"])
    assert not given.paths
    given.write("file:///out")
    assert frame.written == [("`id`",), "file:///out", "TIMESTAMP_MICROS"]
    assert frame.sparkSession.conf == {TIMESTAMPS: "INT96", CALENDAR: "LEGACY"}, "and as it was"


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_file_that_is_written_again_in_place_has_another_mark(file: Path, kind: str) -> None:
    frame = Frame(f"Relation [id#0L,text#1] {kind}", [file, file.with_name("unreachable")])
    before = input_of(frame, None).marks
    assert list(before) == [str(file)]
    assert input_of(frame, None).marks == before
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert input_of(frame, None).marks != before


def test_files_that_lack_a_column_of_the_frame_are_no_plain_read(file: Path) -> None:
    # day is the name of a directory
    frame = Frame(
        "Relation [id#0L,text#1,day#2] parquet",
        [file],
        columns(id=LongType(), text=StringType(), day=LongType()),
    )
    given = input_of(frame, None)
    assert given.write is not None


@pytest.mark.parametrize(
    "second",
    [
        {"id": [2]},
        {"id": [2], "text": ["y"], "more": [1]},
        {"text": ["y"], "id": [2]},
        {"ID": [2], "text": ["y"]},
        {"id": [2], "text": [b"y"]},
    ],
    ids=["lacks one", "has one more", "in another order", "in other case", "of another type"],
)
def test_a_file_whose_columns_are_not_the_frames_is_no_plain_read(
    file: Path, second: dict[str, Any]
) -> None:
    other = file.with_name("b.parquet")
    pyarrow.parquet.write_table(pyarrow.table(second), other)
    assert input_of(Frame(READ, [file, other]), None).write is not None


@pytest.mark.parametrize(
    ("told", "is_copied"),
    [
        ({"org.apache.spark.version": "3.5.1"}, False),
        ({"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}, True),
        ({"org.apache.spark.version": "4.3.0", "org.apache.spark.legacyINT96": ""}, True),
        ({"org.apache.spark.version": "2.4.8"}, True),
    ],
)
@pytest.mark.parametrize("kind", [pyarrow.date32(), pyarrow.timestamp("us", "UTC")])
def test_days_in_the_old_calendar_are_read_by_spark(
    tmp_path: Path, told: dict[str, str], is_copied: bool, kind: pyarrow.DataType
) -> None:
    """Kind: a value that stands in the file as another one than Spark reads."""
    path = tmp_path / "dated.parquet"
    table = pyarrow.table({"id": [1], "day": pyarrow.array([None], kind)})
    pyarrow.parquet.write_table(table.replace_schema_metadata(told), path)
    made = columns(id=LongType(), day=DateType() if kind == pyarrow.date32() else TimestampType())
    given = input_of(Frame("Relation [id#0L,day#1] parquet", [path], made), None)
    assert (given.write is not None) == is_copied
    plain = tmp_path / "plain.parquet"
    table = pyarrow.table({"id": [1], "text": ["x"]}).replace_schema_metadata(told)
    pyarrow.parquet.write_table(table, plain)
    assert input_of(Frame(READ, [plain]), None).write is None, "no column has days"


def test_types_that_are_the_same_in_python_are_a_plain_read(file: Path) -> None:
    table = pyarrow.table(
        {
            "id": pyarrow.array([2], pyarrow.int8()),
            "text": pyarrow.array(["y"]).dictionary_encode(),
        }
    )
    pyarrow.parquet.write_table(table, file)
    assert input_of(Frame(READ, [file]), None).write is None


def test_a_file_that_is_read_twice_gives_its_rows_twice(file: Path) -> None:
    twice = input_of(Frame(READ, [file], given=2), None)
    assert twice.write is not None, "its files hold the rows once"
    assert twice.source != input_of(Frame(READ, [file]), None).source


def test_a_directory_that_was_read_itself_gives_no_column(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "day=1"
    folder.mkdir()
    given = input_of(Frame(READ, [file.rename(folder / "a.parquet")]), None)
    assert (given.write, given.columns) == (None, ["id", "text"])


INSIDE = ArrayType(columns(x=VariantType()))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (columns(v=VariantType()), r"column 'v' is variant.*to_json"),
        (columns(v=INSIDE), r"column 'v' is array<struct<x:variant>>"),
        (StructType([*COLUMNS, *COLUMNS]), r"two columns are called 'id'"),
        (StructType([]), "it has no columns"),
    ],
)
def test_columns_that_a_function_can_not_use_are_refused_by_name(
    given: StructType, problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"df: {problem}"):
        input_of(Frame("Project", [], given), None)


def test_what_is_no_dataframe_is_told() -> None:
    with pytest.raises(ConfigError, match=r"df: a builtins.NoneType is not a DataFrame"):
        input_of(None, None)


@pytest.mark.parametrize(
    "kind", [YearMonthIntervalType(), MapType(LongType(), YearMonthIntervalType())]
)
def test_intervals_that_spark_can_not_give_to_python_are_refused_by_name(kind: DataType) -> None:
    with pytest.raises(ConfigError, match=r"df: column 'y' is .*interval.*CAST"):
        check_sendable(columns(y=kind))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (columns(id=LongType(), ID=LongType()), r"two columns are called 'id' \(Spark ignores"),
        (columns(s=columns(a=LongType(), A=LongType())), r"two columns are called 'a'"),
        (columns(at=ArrayType(TimeType(6))), r"column 'at' is array<time"),
    ],
)
def test_results_that_spark_could_not_read_are_refused_before_any_work(
    schema: StructType, problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"schema: {problem}"):
        check_readable(schema, "schema", lambda name, default: default)


def test_names_may_differ_in_case_where_spark_sees_it() -> None:
    exact = {"spark.sql.caseSensitive": "true"}
    check_readable(columns(id=LongType(), ID=LongType()), "schema", exact.get)


def test_it_is_the_same_in_every_session_and_another_plan_is_another(file: Path) -> None:
    def source(relation: str, files: list[Path]) -> str:
        return input_of(Frame(relation, files), None).source

    two, six = (f"Range (0, 9, step=1, splits=Some({n}))" for n in (2, 6))
    assert source(two, []) == source(six, []) == source("Range (0, 9, step=1, splits=None)", [])
    assert source(two, []) != source("Range (0, 8, step=1, splits=Some(2))", [])
    first = source("Project [f(id#0L)#7 AS x#9L], plan_id=3 Scan@1f2e3d4c", [file])
    assert first == source("Project [f(id#5L)#1 AS x#2L], plan_id=8 Scan@99aa88bb", [file])
    assert first != source("Project [g(id#0L)#7 AS x#9L], plan_id=3 Scan@1f2e3d4c", [file])
    assert first != source("Project [f(id#0L)#7 AS x#9L], plan_id=3 Scan@1f2e3d4c", [])


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    given = input_of([str(tmp_path / "a"), f"file://{tmp_path}/b%20c", "s3a://x/y"], None)
    assert given.paths == [str(tmp_path / "a"), f"{tmp_path}/b c", "s3://x/y"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [(["id", "nope"], "no column 'nope'.*'id', 'text'"), ("id", "not a list"), ([], "not a list")],
)
def test_columns_that_are_not_there_are_refused_by_name(columns: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"columns: .*{problem}"):
        columns_checked(Frame("", []), columns)


def test_a_frame_of_a_session_that_was_stopped_is_refused_before_any_work(tmp_path: Path) -> None:
    """Its schema could not be read either, and was blamed."""
    stopped = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", _jsc=None))
    frame: Any = SimpleNamespace(sparkSession=stopped)
    with pytest.raises(ConfigError, match="df: its Spark session was stopped"):
        apply(frame, len, schema="id long", name="scores", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_frame_of_spark_is_not_written() -> None:
    with pytest.raises(ConfigError, match="df: it is not a DataFrame of Spark, but a Table of pya"):
        flow_sink(len, target="t").write(pyarrow.table({"id": [1]}))
