"""What a DataFrame is for those who read it without Spark, without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl.errors import ConfigError
from pyspark_flowctl.frames import columns_checked, input_of

TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
PLAN = """== Parsed Logical Plan ==
anything
== Analyzed Logical Plan ==
id: bigint, text: string
{relation}
== Optimized Logical Plan ==
anything
"""


class Conf(dict[str, Any]):
    """The settings of a session."""

    set = dict.__setitem__


class Session:
    """What writes a frame."""

    def __init__(self) -> None:
        self.conf = Conf({TIMESTAMPS: "INT96"})


class Frame:
    """As much of a DataFrame as is asked."""

    def __init__(self, relation: str, files: list[Path]) -> None:
        self.columns = ["id", "text"]
        self.relation = relation
        self.files = files
        self.written: list[Any] = []
        self.sparkSession = Session()

    def explain(self, *, extended: bool) -> None:
        assert extended
        print(PLAN.format(relation=self.relation))

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
    assert frame.sparkSession.conf == {TIMESTAMPS: "INT96"}, "and as it was"


def test_files_that_lack_a_column_of_the_frame_are_no_plain_read(file: Path) -> None:
    frame = Frame("Relation [id#0L,text#1,day#2] parquet", [file])
    frame.columns = ["id", "text", "day"]  # day is the name of a directory
    given = input_of(frame, None)
    assert given.write is not None


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
