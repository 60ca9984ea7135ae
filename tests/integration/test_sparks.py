"""One job for each door, on whatever Spark is there: what works on 4.3 runs unchanged on 3.5.

``make sparks`` runs this file on each Spark.  Where one lacks what a door needs, its test shows
what is said, in one line, and that it names what works instead (tests/sparks.py has the table).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import __version__ as version

from flowctl import FlowControlSpout
from flowctl.errors import ConfigError, UnrunnableError
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines, TextRanges
from flowctl_storm import SparkStages, Topology
from pyspark_flowctl import SparkBolts, apply, flow_batch, flow_sink
from tests import sink_jobs
from tests.sparks import has

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.on_change("spark", "delivery", "apply")]

ROWS = 600
OURS = "tests.sink_jobs:append"
# On a slow machine an idle bolt would do the last records once more.
ONCE = {"hedge.enabled": False}


@pytest.fixture
def out(sink_jobs_dir: Path) -> Path:
    for path in sink_jobs_dir.glob("*.txt"):
        path.unlink()
    return sink_jobs_dir


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 3).selectExpr("id", "CAST(id AS STRING) text")


@pytest.fixture
def lines(tmp_path: Path) -> str:
    path = tmp_path / "in.log"
    path.write_text("".join(f"{number}\n" for number in range(ROWS)))
    return str(path)


def ids(out: Path) -> Counter[int]:
    return Counter(int(line[0]) for line in sink_jobs.written(out))


def writing(place: Path) -> Any:
    """A function that adds each record to a file of its process."""
    folder = str(place)

    def write(batch: Any) -> None:
        with open(f"{folder}/{os.getpid()}.txt", "a") as file:
            for record in batch:
                file.write(f"{record.value}\n")

    return write


@pytest.mark.parametrize("source", [TextLines, TextRanges], ids=["by_value", "by_ranges"])
def test_bolts_process_all_records(spark: SparkSession, out: Path, lines: str, source: Any) -> None:
    report = FlowControlSpout(
        name=f"bolts-{source.__name__}",
        producer=source(lines),
        bolts=SparkBolts(writing(out), count=3),
        checkpoint=MemoryCheckpointStore(),
        settings=ONCE,
    ).run(view="off")

    assert (report.outcome, report.records_acked) == ("finished", ROWS)
    assert ids(out) == Counter(range(ROWS))


def test_stages_process_all_trees(spark: SparkSession, out: Path, lines: str) -> None:
    folder = str(out)

    def same(given: Any, out: Any) -> None:
        out([given.value])

    def write(given: Any, out: Any) -> None:
        with open(f"{folder}/{os.getpid()}.txt", "a") as file:
            file.write(f"{given.value[0]}\n")

    made = Topology("two-stages")
    made.spout("lines", TextLines(lines))
    made.bolt("same", same).shuffle("lines")
    made.bolt("write", write).shuffle("same")

    job = made.job(SparkStages(spark=spark), checkpoint=MemoryCheckpointStore(), settings=ONCE)
    report = job.run(view="off")

    assert report.outcome == "finished"
    assert ids(out) == Counter(range(ROWS))


def test_bolts_start_a_session_of_their_own(tmp_path: Path, lines: str) -> None:
    """Its JVM, its Java and the daemon that workers are forked from are ours then."""
    code = f"""
from flowctl import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines
from pyspark_flowctl import SparkBolts
from tests.integration.test_sparks import ONCE, writing
from pathlib import Path
FlowControlSpout(name="own", producer=TextLines({lines!r}), checkpoint=MemoryCheckpointStore(),
    bolts=SparkBolts(writing(Path({str(tmp_path)!r})), count=2), settings=ONCE).run(view="off")
"""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "adapters", Path(__file__).parent)))
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})

    assert ids(tmp_path) == Counter(range(ROWS))


def test_rows_in_rows_out(spark: SparkSession, df: DataFrame, tmp_path: Path) -> None:
    """A DataFrame that is copied first, and the Parquet files that it was written to."""

    def score(batch: Any) -> Any:
        for record in batch:
            yield record.value["id"], record.value["text"] + "!"

    df.write.parquet(str(tmp_path / "in"))
    for number, given in enumerate((df, spark.read.parquet(str(tmp_path / "in")))):
        made = apply(
            given, score, schema="id long, label string", name=f"a{number}", out=tmp_path / "out",
            files=1,
        )  # fmt: skip

        assert sorted(made.collect()) == [(n, f"{n}!") for n in range(ROWS)]
        assert len(made.inputFiles()) == 1


def test_a_schema_that_is_none_is_named(df: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="schema"):
        apply(df, print, schema="id lon g", name="wrong", out=tmp_path)


def test_each_partition_is_written(df: DataFrame, out: Path) -> None:
    df.foreachPartition(flow_sink(sink_jobs.append, target="each"))

    assert ids(out) == Counter(range(ROWS))


def test_a_dataframe_is_written_and_counted(df: DataFrame, out: Path) -> None:
    odd = df.withColumnRenamed("text", "a.b")  # a dot in a name is one

    tally = flow_sink(sink_jobs.append, target="counted").write(odd)

    assert (tally.rows, tally.written) == (ROWS, ROWS)
    assert ids(out) == Counter(range(ROWS))


def refuse_columns(batch: Any) -> None:
    raise UnrunnableError("df", "there is no column id.", remedy="Add one.")


def test_a_failed_write_says_why_in_our_words(df: DataFrame) -> None:
    with pytest.raises(UnrunnableError, match="no column id"):
        flow_sink(refuse_columns, target="failed").write(df)


def test_calls_are_paced_in_a_partition(df: DataFrame, out: Path) -> None:
    def write(rows: Any) -> None:
        from flowctl import paced

        with open(f"{os.environ['SINK_JOBS_DIR']}/{os.getpid()}.txt", "a") as file:
            for row in rows:
                with paced("service"):
                    file.write(f"{row.id}\n")

    df.foreachPartition(write)

    assert ids(out) == Counter(range(ROWS))


def run_stream(stream: Any, place: Path) -> None:
    options = stream.option("checkpointLocation", str(place / "checkpoint"))
    options.trigger(availableNow=True).start().awaitTermination()


def streamed(df: DataFrame, place: Path) -> Any:
    df.write.parquet(str(place / "in"))
    return df.sparkSession.readStream.schema(df.schema).parquet(str(place / "in")).writeStream


def test_each_batch_of_a_stream_is_written(df: DataFrame, out: Path, tmp_path: Path) -> None:
    stream = streamed(df, tmp_path).foreachBatch(flow_batch(sink_jobs.append, target="batches"))

    run_stream(stream, tmp_path)

    assert ids(out) == Counter(range(ROWS))


def test_the_format_writes_a_dataframe(df: DataFrame, out: Path) -> None:
    write = df.write.format("flowctl").option("process", OURS).option("target", "format")
    if not has(version, '`df.write.format("flowctl")`'):
        with pytest.raises(Exception, match="Failed to find the data source: flowctl"):
            write.mode("append").save()
        return

    write.mode("append").save()

    assert ids(out) == Counter(range(ROWS))


def test_the_format_writes_a_stream(df: DataFrame, out: Path, tmp_path: Path) -> None:
    write = streamed(df, tmp_path).format("flowctl").option("process", OURS)
    write = write.option("target", "stream")
    if not has(version, '`writeStream.format("flowctl")`'):
        with pytest.raises(Exception, match="Failed to find the data source: flowctl"):
            run_stream(write, tmp_path)
        return

    run_stream(write, tmp_path)

    assert ids(out) == Counter(range(ROWS))


def test_the_format_reads_a_stream(
    spark: SparkSession, out: Path, tmp_path: Path, lines: str
) -> None:
    """Before 4.2 a stream can't say how much it takes: the error names what works instead."""
    read = spark.readStream.format("flowctl").schema("n long")
    read = read.option("producer", "flowctl_files:TextLines").option("producer.paths", lines)
    read = read.option("process", "tests.sink_jobs:numbers")
    if not has(version, '`df.write.format("flowctl")`'):
        with pytest.raises(Exception, match="Failed to find the data source: flowctl"):
            read.load()
        return
    seen: list[int] = []
    if not has(version, '`readStream.format("flowctl")`'):
        with pytest.raises(Exception, match=r"needs Spark 4\.2 .*FlowControlSpout and SparkBolts"):
            run_stream(read.load().writeStream.foreachBatch(lambda df, _: None), tmp_path)
        return

    run_stream(
        read.load().writeStream.foreachBatch(lambda df, _: seen.extend(r.n for r in df.collect())),
        tmp_path,
    )

    assert sorted(seen) == list(range(ROWS))
