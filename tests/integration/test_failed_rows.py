"""The rows that were not written, as a DataFrame: those of one write, and those of a job."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fault_parts import QUICK_JVM, run_as_program

from flowctl.bolts.local import LocalBolts
from flowctl.errors import ConfigError, TooManyLostError
from flowctl_files import FileDeadLetter
from pyspark_flowctl import apply, failures, flow_sink, redrive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ADDED = ["reason", "error", "attempts", "at"]
TYPES = [
    "id", "CAST(id % 100 AS BYTE) b", "CAST(id AS SHORT) s", "CAST(id AS INT) i",
    "CAST(id / 3 AS FLOAT) f", "IF(id % 2 = 0, double('NaN'), id / 7) d",
    "CAST(id / 9 AS DECIMAL(38, 18)) dec", "CAST(-id AS DECIMAL(5, 0)) whole", "id % 2 = 0 flag",
    "concat('ä\\\\n', id, decode(X'F09F9880', 'utf-8')) text",
    "CAST(concat('x', id) AS BINARY) bytes", "date_add(DATE'1969-12-30', CAST(id AS INT)) day",
    "timestamp_micros(id * 8639999999 - 7) moment",
    "CAST(timestamp_micros(id * 7) AS TIMESTAMP_NTZ) local",
    "make_dt_interval(id, 1, 2, 3.000004) lasted", "array(id, NULL, id + 1) list",
    "map(CAST(id AS STRING), array(named_struct('x', id))) named", "map() none_named",
    "named_struct('x', id, 'y', timestamp_micros(id)) pair",
    "IF(id % 3 = 0, NULL, named_struct('z', array(map(id, X'00')))) deep",
    "map(named_struct('k', id), id) keyed", "CAST(NULL AS STRING) none", "id AS `a.b`",
    "CAST(id AS STRING) reason",
]  # fmt: skip


def sink_of(folder: Path, **more: Any) -> Any:
    def write(batch: Any) -> None:
        for record in batch:
            if record.value["id"] == 40:
                raise ValueError("forty")
            if record.value["id"] % 40 == 0:
                batch.reject(record, "a round number")

    given = {"target": "fussy", "name": "orders", "attempts_max": 2, **more}
    return flow_sink(write, dead_letter=folder / "letters", **given)


def texts(df: Any) -> list[str]:
    """The rows as text, so that NaN is equal to itself and types count."""
    return sorted(map(repr, df.collect()))


def test_the_failures_of_a_write_are_its_rows_with_their_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.range(0, 200, 1, 3).selectExpr(*TYPES)
    tally = sink_of(tmp_path).write(df)
    failed = tally.failures
    assert (tally.written, tally.rejected, tally.gave_up, tally.kept) == (195, 4, 1, 5)
    own = failed.select(*(f"`{name}`" for name in df.columns))
    assert own.schema == df.schema
    assert texts(own) == texts(df.where("id % 40 = 0"))
    assert failed.columns[-4:] == ["_reason", *ADDED[1:]], "df has a column reason already"
    said = {row.id: (row._reason, row.error, row.attempts) for row in failed.collect()}
    assert said == {
        40: ("ValueError: forty", "ValueError", 2),
        **dict.fromkeys((0, 80, 120, 160), ("rejected: a round number", None, 1)),
    }
    assert failed.where("at > now() - INTERVAL 1 HOUR AND at <= now()").count() == 5


def test_only_rows_of_this_write_and_only_those_that_are_still_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink, df = sink_of(tmp_path), spark.range(0, 100, 1, 2)
    first, second = sink.write(df), sink.write(df.selectExpr("id + 80 AS id"))
    assert {row.id for row in first.failures.collect()} == {0, 40, 80}
    assert {row.id for row in second.failures.collect()} == {80, 120, 160}
    of_job = failures(df, name="orders", dead_letter=tmp_path / "letters")
    assert of_job.columns == ["id", *ADDED]
    assert sorted(row.id for row in of_job.collect()) == [0, 40, 80, 80, 120, 160]
    file = FileDeadLetter(tmp_path / "letters").file_of("orders")
    assert file.drop("orders", lambda letter: letter.value["id"] == 80) == 2
    assert {row.id for row in first.failures.collect()} == {0, 40}
    good = df.where("id % 40 > 0")
    assert sink.write(good).failures.count() == 0


def test_of_a_write_that_lost_too_many_the_function_gives_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.range(0, 100, 1, 2)
    with pytest.raises(TooManyLostError):
        sink_of(tmp_path, fail_over="1%").write(df)
    found = failures(df, name="orders", dead_letter=tmp_path / "letters")
    assert {row.id for row in found.collect()} == {0, 40, 80}


def test_what_can_not_be_given_is_said(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 100, 1, 2)
    tally = sink_of(tmp_path).write(df)
    with pytest.raises(ConfigError, match=r"dead_letter: .*dead_letter=DIRECTORY"):
        _ = flow_sink(lambda batch: None, target="t").write(df).failures
    where = {"name": "orders", "dead_letter": tmp_path / "letters"}
    with pytest.raises(ConfigError, match="other columns: 'id'"):
        failures(df.toDF("number"), **where)
    with pytest.raises(ConfigError, match="df: it is not a DataFrame of Spark"):
        failures([1], **where)
    with pytest.raises(ConfigError, match=r"dead_letter: .* can't be read"):
        failures(df, name="orders", dead_letter=object())
    assert tally.failures.count() == 3


@pytest.mark.slow
@pytest.mark.on_change("apply", "delivery")
def test_the_failures_of_apply_are_its_rows_with_their_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.range(0, 200, 1, 3).selectExpr(*TYPES)

    def label(batch: Any) -> Any:
        for record in batch:
            if record.value["id"] == 40:
                raise ValueError("forty")
            if record.value["id"] % 40 == 0:
                batch.reject(record, "a round number")
            else:
                yield (record.value["id"],)

    letters = tmp_path / "letters"
    good = apply(
        df, label, schema="id long", name="labels", out=tmp_path / "out", bolts=2, view="off",
        dead_letter=letters, attempts_max=2,
    )  # fmt: skip
    failed = good.failures
    assert texts(failed) == texts(failures(df, name="labels", dead_letter=letters))
    own = failed.select(*(f"`{name}`" for name in df.columns))
    assert good.count() == 195
    assert own.schema == df.schema
    assert texts(own) == texts(df.where("id % 40 = 0"))


CALLED: list[int] = []  # the bolts of the tests below are threads here


def broken(*numbers: int) -> None:
    """What the service behind ``fragile`` can't take now."""
    os.environ["BROKEN"] = " ".join(map(str, numbers))


@pytest.fixture(autouse=True)
def nothing_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "")
    CALLED.clear()


def fragile(batch: Any) -> Any:
    for record in batch:
        if str(record.value.number) in os.environ["BROKEN"].split():
            raise ValueError(f"{record.value.number} is odd")
        CALLED.append(record.value.number)
        yield (record.value.number, "ok")


def label(df: Any, folder: Path, **given: Any) -> Any:
    how: dict[str, Any] = {"schema": "n long, said string", "name": "labels", "view": "off"}
    how |= {"out": folder / "out", "dead_letter": folder / "letters", "attempts_max": 2}
    return apply(df, fragile, bolts=lambda process: LocalBolts(process, count=2), **how | given)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_failures_of_apply_are_done_again_after_the_repair_and_nothing_twice(
    spark: SparkSession, tmp_path: Path, copies: bool
) -> None:
    """Of files that are read where they are, and of a copy, which stays for its letters."""
    broken(3, 400, 999)
    df = spark.range(0, 1_000, 1, 2).selectExpr("id AS number", "id / 7 AS part")
    if not copies:
        df.write.parquet(str(tmp_path / "in"))
        df = spark.read.parquet(str(tmp_path / "in"))
    good = label(df, tmp_path)
    assert good.count() == 997
    bad = good.failures
    assert bad.columns == ["number", "part", *ADDED]
    assert {(row.number, row.error) for row in bad.collect()} == {
        (3, "ValueError"), (400, "ValueError"), (999, "ValueError")
    }  # fmt: skip
    where: dict[str, Any] = {"name": "labels", "dead_letter": tmp_path / "letters"}
    with pytest.raises(ConfigError, match="rows: 1 of them are no letters of 'labels'"):
        redrive(bad.where("number = 3").withColumn("part", bad.part + 1), **where)
    with pytest.raises(ConfigError, match="rows: they do not end with"):
        redrive(df, **where)
    assert redrive(bad.where("number > 3"), **where) == 2
    broken(3, 999)
    CALLED.clear()
    good = label(df, tmp_path)
    assert (good.count(), CALLED) == (998, [400])
    assert {row.number for row in good.failures.collect()} == {3, 999}
    broken()
    assert redrive(good.failures, **where) == 2
    good = label(df, tmp_path)
    assert (good.count(), good.select("n").distinct().count()) == (1_000, 1_000)
    assert good.failures.count() == 0
    assert sorted(CALLED) == [3, 400, 999]
    assert label(df, tmp_path).count() == 1_000
    assert len(CALLED) == 3


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_failures_of_keys_are_all_rows_that_have_them(spark: SparkSession, tmp_path: Path) -> None:
    broken(3, 5)
    df = spark.range(0, 100, 1, 2).selectExpr("id", "id % 10 AS number", "'x' AS at")
    keyed: dict[str, Any] = {"key": "number", "schema": "n long, said string"}
    good = label(df, tmp_path, **keyed)
    assert good.count() == 80
    bad = good.failures
    assert bad.columns == [*df.columns, "reason", "error", "attempts", "_at"]
    assert {(row.number, row.attempts) for row in bad.collect()} == {(3, 2), (5, 2)}
    assert bad.count() == 20
    every = label(df, tmp_path, errors="column", **keyed)
    assert every.columns == [*df.columns, "n", "said", "error"]
    assert every.count() == 100
    assert every.where("error IS NULL AND n = number").count() == 80
    assert every.where("error.error = 'ValueError' AND n IS NULL").count() == 20
    with pytest.raises(ConfigError, match="errors: there is a column 'error' already"):
        label(df.withColumn("error", df.id), tmp_path, errors="column", **keyed)
    broken()
    CALLED.clear()
    assert redrive(good.failures, name="labels", dead_letter=tmp_path / "letters") == 2
    good = label(df, tmp_path, **keyed)
    assert (good.count(), good.where("n = number").count(), sorted(CALLED)) == (100, 100, [3, 5])
    assert good.failures.count() == 0
    assert label(df, tmp_path, errors="column", **keyed).where("error IS NULL").count() == 100


@pytest.mark.long  # half a minute
def test_on_spark_connect() -> None:
    """In a process of its own: one process holds one kind of session."""
    run_as_program(__file__)


def on_connect(folder: Path) -> None:
    """What ``write`` and ``apply`` with a key left out, read, marked and done again."""
    from pyspark.sql import SparkSession

    from pyspark_flowctl.java import ensure_java

    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.extraJavaOptions", QUICK_JVM)
        .getOrCreate()
    )
    wanted = {"id", "d", "dec", "moment", "local", "named", "deep", "reason"}
    TYPES[:] = [each for each in TYPES if each.split()[-1] in wanted]
    test_the_failures_of_a_write_are_its_rows_with_their_types(session, folder)
    rows = failures(
        session.range(0, 200).selectExpr(*TYPES), name="orders", dead_letter=folder / "letters"
    )
    assert redrive(rows, name="orders", dead_letter=folder / "letters") == 5
    tally = flow_sink(
        lambda batch: None, target="t", name="orders", dead_letter=folder / "letters"
    ).write(session.range(1))
    assert (tally.written, tally.redriven) == (1, 5)
    test_failures_of_keys_are_all_rows_that_have_them(session, folder / "keys")
    session.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        on_connect(Path(temporary))
    print("fine")
