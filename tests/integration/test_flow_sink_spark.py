"""Rows of a real Spark session through flow_sink, flow_batch and format("flowctl")."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from fault_parts import QUICK_JVM, run_as_program

from flowctl.cli.main import cli
from flowctl.errors import ConfigError, TooManyLostError
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_batch, flow_sink
from tests import sink_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(sink_jobs_dir: Path) -> Path:
    for path in sink_jobs_dir.glob("*.txt"):
        path.unlink()
    return sink_jobs_dir


def ids(folder: Path) -> Counter[int]:
    return Counter(int(row[0]) for row in sink_jobs.written(folder))


@pytest.mark.parametrize("way", ["foreachPartition", "write"])
def test_foreach_partition_writes_every_row_and_a_retried_task_repeats_its_names(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    database, flag = tmp_path / "out.db", tmp_path / "failed"
    sink = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (id INTEGER)")

    def write(batch: Any) -> None:
        sink.write([{"id": record.value.id} for record in batch], batch=batch)
        if 60 in [record.position[-1] for record in batch] and not flag.exists():
            flag.touch()  # the task dies although its rows are written: Spark runs it again
            os._exit(1)

    df = spark.range(0, 2_000, 1, 4)
    given = flow_sink(write, target="retried", rows_max=100)
    if way == "write":
        tally = given.write(df)
        assert (tally.rows, tally.written) == (2_000, 2_000) and tally.left_out > 0
    else:
        df.foreachPartition(given)
    with sqlite3.connect(database) as connection:
        found = Counter(number for (number,) in connection.execute("SELECT id FROM t"))
    assert flag.exists() and found == Counter(range(2_000))


def test_write_returns_the_counts_of_all_partitions(spark: SparkSession, folder: Path) -> None:
    df = spark.range(0, 1_000, 1, 2)
    tally = flow_sink(sink_jobs.pick, target="counted", fail_over="1%").write(df)
    assert (tally.rows, tally.written, tally.rejected) == (1_000, 990, 10)
    assert ids(folder) == Counter(range(1_000))
    with pytest.raises(TooManyLostError, match="10 of 1000 rows"):
        flow_sink(sink_jobs.pick, target="counted", fail_over="0.9%").write(df)
    df = df.coalesce(1)  # a second task may go on writing after the first has failed
    with pytest.raises(TooManyLostError, match=r"^a row was rejected \(a round number\)") as caught:
        flow_sink(sink_jobs.pick, target="counted").write(df)
    assert "Traceback" in str(caught.value.__cause__)


def test_write_takes_any_names_and_refuses_no_columns(spark: SparkSession, folder: Path) -> None:
    df = spark.range(6).selectExpr("id", "id AS `a.b`", "id AS twice", "id AS twice")
    sink = flow_sink(sink_jobs.append, target="odd")
    assert (sink.write(df).rows, ids(folder)) == (6, Counter(range(6)))
    with pytest.raises(ConfigError, match="no columns"):
        sink.write(df.select())


_TYPES = """
    CAST(id AS BYTE) b, CAST(id AS SHORT) s, CAST(id AS INT) i, -id * 1000000007 l,
    CAST(id / 3 AS FLOAT) f, IF(id % 5 = 0, double('NaN'), id / 7) d,
    CAST(id / 9 AS DECIMAL(38, 18)) dec, CAST(-id AS DECIMAL(3, 0)) whole, id % 2 = 0 flag,
    concat('ä\\\\n', id, decode(X'F09F9880', 'utf-8')) text, CAST(concat('x', id) AS BINARY) bytes,
    date_add(DATE'1969-12-30', CAST(id AS INT)) day, timestamp_micros(id * 86399999999 - 7) at,
    CAST(timestamp_micros(id * 7) AS TIMESTAMP_NTZ) local,
    make_dt_interval(id, 1, 2, 3.000004) lasted, array(id, NULL, id + 1) list,
    map(CAST(id AS STRING), array(named_struct('x', id))) named,
    named_struct('x', id, 'y', '') pair,
    IF(id % 3 = 0, NULL, named_struct('z', array(map(id, X'00')))) deep, CAST(NULL AS STRING) none,
    IF(id % 2 = 0, NULL, CAST(id AS STRING)) some, CAST('' AS CHAR(3)) fixed, id AS `a.b`
"""


def test_each_way_gives_the_values_and_types_that_plain_spark_gives(
    spark: SparkSession, folder: Path
) -> None:
    """Kind: what a function gets must not depend on the door."""
    note = sink_jobs.note
    df = spark.range(0, 40, 1, 3).selectExpr(*_split(_TYPES))
    df.foreachPartition(lambda rows: note("plain", rows))
    sink = {
        way: flow_sink(lambda batch, way=way: note(way, [r.value for r in batch]), target="types")
        for way in ("foreach", "write")
    }
    df.foreachPartition(sink["foreach"])
    assert sink["write"].write(df).written == 40
    options = {"process": "tests.sink_jobs:note_format", "target": "types"}
    df.write.format("flowctl").options(**options).mode("append").save()
    plain = sink_jobs.noted(folder, "plain")
    assert len(plain) == 40
    for way in ("foreach", "write", "format"):
        assert sink_jobs.noted(folder, way) == plain, way


def test_a_sink_that_takes_arrow_gets_the_columns_of_spark(
    spark: SparkSession, folder: Path
) -> None:
    df = spark.range(0, 1_000, 1, 2).selectExpr("id", "CAST(id AS STRING) AS `a.b`")
    assert flow_sink(sink=sink_jobs.arrow, target="arrow").write(df).written == 1_000
    options = {"process": "tests.sink_jobs:arrow", "target": "arrow"}
    df.write.format("flowctl").options(**options).mode("append").save()
    assert ids(folder) == Counter(dict.fromkeys(range(1000), 2))


def _split(expressions: str) -> list[str]:
    """At commas that are in no brackets."""
    found, depth = [""], 0
    for char in expressions:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return found


def stream(spark: SparkSession, source: Path) -> Any:
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))


def files(folder: Path, batches: int) -> Path:
    folder.mkdir()
    for number in range(batches):
        rows = [json.dumps({"id": number * 100 + row}) for row in range(100)]
        (folder / f"{number}.json").write_text("\n".join(rows))
    return folder


def test_for_each_batch_names_rows_by_query_and_batch(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    query = (
        stream(spark, files(tmp_path / "in", 2))
        .writeStream.foreachBatch(flow_batch(sink_jobs.append, target="streamed"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert ids(folder) == Counter(range(200))
    rows = sink_jobs.written(folder)
    assert {partition for _, partition, _ in rows} == {f"{query.id}/0"}
    assert {place.split(",")[0] for *_, place in rows} == {"(0", "(1"}


def test_the_format_is_found_without_registration(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    process = "tests.sink_jobs:append"
    df = spark.range(0, 500, 1, 2)
    df.write.format("flowctl").option("process", process).option("target", "named").mode(
        "append"
    ).save()
    assert ids(folder) == Counter(range(500))
    with pytest.raises(Exception, match="process: is missing"):
        df.write.format("flowctl").mode("append").save()


def test_a_stream_writes_by_the_format(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    query = (
        stream(spark, files(tmp_path / "in", 2))
        .writeStream.format("flowctl")
        .option("process", "tests.sink_jobs:append")
        .option("target", "named-stream")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert ids(folder) == Counter(range(200))
    assert {partition for _, partition, _ in sink_jobs.written(folder)} == {f"{query.id}/0"}


@pytest.mark.on_change("spark", "delivery")
def test_a_producer_is_a_stream_that_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two queries over one checkpoint: the source grows between them, each row comes once."""
    lines = tmp_path / "in.log"
    seen: list[int] = []

    def collect(batch_df: Any, batch_id: int) -> None:
        seen.extend(row.n for row in batch_df.collect())

    for grown in (300, 450):
        lines.write_text("".join(f"{number}\n" for number in range(grown)))
        query = (
            spark.readStream.format("flowctl")
            .schema("n long")
            .option("producer", "flowctl_files:TextLines")
            .option("producer.paths", str(lines))
            .option("process", "tests.sink_jobs:numbers")
            .option("tasks", 1)
            .load()
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sorted(seen) == list(range(grown))


def numbers_of(spark: SparkSession, place: Path, name: str, **options: object) -> list[int]:
    """Run a stream of that name until nothing is left; return what it gave out."""
    seen: list[int] = []

    def collect(batch_df: Any, batch_id: int) -> None:
        seen.extend(row.n for row in batch_df.collect())

    source = spark.readStream.format("flowctl").schema("n long, twice long")
    letters = place / "letters"
    for option, value in {"name": name, "dead_letter": letters, "tasks": 1, **options}.items():
        source = source.option(option, str(value))
    written = source.load().writeStream.foreachBatch(collect)
    written = written.option("checkpointLocation", str(place / name))
    written.trigger(availableNow=True).start().awaitTermination()
    return sorted(seen)


@pytest.mark.on_change("spark", "delivery")
def test_letters_of_a_stream_are_processed_by_a_query_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As docs/streaming.md has it: mark them, run the query, drop them."""

    def dlq(*words: str) -> Any:
        arguments = ["dlq", *words, "--dir", str(tmp_path / "letters")]
        done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.output) if "--json" in words else done.output

    numbers = {"producer": "tests.stream_parts:Numbers", "producer.count": 250}
    rejecting = {**numbers, "process": "tests.stream_parts:odd_only"}
    assert numbers_of(spark, tmp_path, "orders", **rejecting) == list(range(1, 250, 2))
    dlq("redrive", "orders")
    again = {
        "producer": "flowctl_files:MarkedLetters",
        "producer.job": "orders",
        "producer.directory": tmp_path / "letters",
    }
    mended = {**again, "process": "tests.stream_parts:double"}
    assert numbers_of(spark, tmp_path, "mended", **mended) == [0, 100, 200]
    still_bad = {**again, "process": "tests.stream_parts:odd_only"}
    assert numbers_of(spark, tmp_path, "still-bad", **still_bad) == []
    kept = dlq("show", "still-bad", "--json")
    assert sorted(letter["value"] for letter in kept) == [0, 100, 200]
    dlq("drop", "orders", "--marked", "--yes")
    assert [job["job"] for job in dlq("list", "--json")["jobs"]] == ["still-bad"]


@pytest.mark.on_change("spark", "delivery")
@pytest.mark.slow
def test_on_spark_connect() -> None:
    """In a process of its own: one process holds one kind of session."""
    run_as_program(__file__)


def on_connect(folder: Path) -> None:
    """The same on Spark Connect, where foreachBatch runs on a session of its own."""
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    out = folder / "out"
    out.mkdir()
    os.environ["SINK_JOBS_DIR"] = str(out)
    session = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .getOrCreate()
    )

    df = session.range(0, 300, 1, 3)
    df.foreachPartition(flow_sink(sink_jobs.append, target="connect"))
    assert ids(out) == Counter(range(300))
    tally = flow_sink(sink_jobs.append, target="connect").write(df)
    assert (tally.rows, tally.written) == (300, 300)

    for path in out.glob("*.txt"):
        path.unlink()
    query = (
        stream(session, files(folder / "in", 2))
        .writeStream.foreachBatch(flow_batch(sink_jobs.append, target="connect", name="orders"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    assert ids(out) == Counter(range(200))
    assert {partition for _, partition, _ in sink_jobs.written(out)} == {"orders/0"}
    session.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        on_connect(Path(temporary))
    print("fine")
