"""``apply(…, key=…)``: equal keys are paid once, and each row gets the result of its key."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.errors import ConfigError, FlowctlError
from pyspark_flowctl import apply

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BAD = "bad"
PAID: list[Any] = []  # the bolts are threads here


def shout(batch: Batch) -> Iterator[tuple[str | None]]:
    for record in batch:
        text = record.value.text
        PAID.append(text)
        if text == BAD:
            batch.reject(record, "not nice")
        else:
            yield (text and text.upper(),)


def paid() -> Counter[Any]:
    now = Counter(PAID)
    PAID.clear()
    return now


def run(df: DataFrame, tmp_path: Path, fn: Any = shout, **given: Any) -> DataFrame:
    how: dict[str, Any] = {"key": "text", "schema": "said string", "name": "shouts", "view": "off"}
    how |= {"out": tmp_path / "out", "bolts": lambda process: LocalBolts(process, count=2)}
    return apply(df, fn, **how | given)


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_equal_keys_are_paid_once_and_only_new_ones_later(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paid()
    df = spark.range(0, 1_000, 1, 2).selectExpr(
        "id", "IF(id % 10 = 0, NULL, concat('t', id % 7)) AS text", "id % 3 AS `a.b`"
    )
    made = run(df, tmp_path, view="plain")
    assert paid() == Counter([None, *(f"t{n}" for n in range(7))])
    assert "1 000 rows with 8 different keys (text); 8 to do" in capsys.readouterr().err
    assert made.columns == ["id", "text", "a.b", "said"]
    assert made.count() == 1_000
    assert made.where("NOT said <=> upper(text)").count() == 0
    assert run(df, tmp_path).count() == 1_000
    assert not paid(), "the job is finished"
    more = df.unionByName(spark.sql("SELECT 5000L AS id, 'new' AS text, 0L AS `a.b`"))
    assert run(more, tmp_path).where("id = 5000").first().said == "NEW"
    assert paid() == Counter(["new"])
    fewer = run(df.where("id < 50"), tmp_path, files=1)
    assert fewer.count() == 50, "a DataFrame with other rows is no other job"
    with pytest.raises(ConfigError, match=r"fn: .* begun with another function"):
        run(df, tmp_path, lambda batch: [("?",) for _ in batch])
    with pytest.raises(ConfigError, match=r"schema: .* begun with text: string, said: string"):
        run(df, tmp_path, key="id")
    assert not paid()


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_a_key_without_a_result_is_paid_once_and_its_rows_have_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    paid()
    df = spark.sql("SELECT id, IF(id % 2 = 0, 'bad', 'good') AS text FROM range(100)")
    made = run(df, tmp_path, dead_letter=tmp_path / "letters")
    assert {row.said for row in made.collect()} == {"GOOD"}
    assert made.count() == 50
    assert run(df, tmp_path, dead_letter=tmp_path / "letters").count() == 50
    assert paid() == Counter(["bad", "good"])


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_a_row_whose_key_came_after_the_look_fails_the_query_and_is_not_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = run(
        spark.range(5).selectExpr("id", "reflect('java.lang.System', 'nanoTime') AS text"), tmp_path
    )
    with pytest.raises(Exception, match="a row whose text it did not have when apply looked"):
        made.count()


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_keys_are_equal_as_spark_groups_them(spark: SparkSession, tmp_path: Path) -> None:
    pairs = "(double('NaN'), 0.0d), (double('NaN'), -0.0d), (1.5d, 0.0d), (null, 0.0d), (null, 0d)"
    df = spark.sql(f"SELECT * FROM VALUES {pairs} AS t(a, b)")
    seen: list[Any] = []

    def number(batch: Batch) -> list[tuple[int]]:
        seen.extend(batch.values)
        return [(1,) for _ in batch]

    made = run(df, tmp_path, number, key=["a", "b"], schema="one int")
    assert (made.count(), len(seen)) == (5, 3)
    kinds = (
        "CAST(id % 3 AS DECIMAL(38, 18)) dec", "date_add(DATE'0001-01-01', CAST(id % 3 AS INT)) d",
        "timestamp_micros(id % 3 * 8639999999 - 7) ts", "id % 2 = 0 flag",
        "CAST(timestamp_micros(id % 3) AS TIMESTAMP_NTZ) n", "encode(string(id % 3), 'utf-8') b",
        "named_struct('x', id % 3, 'y', array(float(id % 3), NULL, float('NaN'))) pair",
    )  # fmt: skip
    every = spark.range(60).selectExpr("id", *kinds)
    key = every.columns[1:]
    made = run(every, tmp_path, number, key=key, schema="one int", name="kinds")
    assert made.where("one = 1").count() == 60
    assert len(seen) == 3 + 6


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_what_is_no_key_is_named_before_the_name_is_taken(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = spark.sql("SELECT 1L AS id, 'a' AS text, map(1, 2) AS m, INTERVAL '1' DAY AS i")
    for given, problem in (
        ({"key": "nobody"}, "key: the DataFrame has no column 'nobody'. .*'id', 'text'"),
        ({"key": []}, r"key: \[\] names no column"),
        ({"key": ["id", "id"]}, "key: 'id' is in it twice"),
        ({"key": "m"}, "key: column 'm' is map<int,int>, of which Spark can't tell"),
        ({"key": ["id", "i"]}, "key: column 'i' is interval"),
        ({"columns": ["id"]}, "key: the DataFrame has no column 'text'"),
        ({"schema": "ID long"}, "schema: 'ID' is a column of df"),
        ({"mode": "append"}, "mode: with key="),
    ):
        with pytest.raises(ConfigError, match=problem):
            run(df, tmp_path, **given)
    with pytest.raises(ConfigError, match="df: it is not a DataFrame"):
        run(str(tmp_path), tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_a_round_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """A run that ended in its round, and one before it had begun it."""
    paid()
    df = spark.sql("SELECT concat('t', id % 20) AS text FROM range(100)")
    limit = {"n": 12}

    def halting(batch: Batch) -> list[tuple[str]]:
        for record in batch:
            PAID.append(record.value.text)
            if len(PAID) > limit["n"]:
                raise PermissionError("the budget is spent")
        return [(record.value.text.upper(),) for record in batch]

    with pytest.raises(FlowctlError, match="the budget is spent"):
        run(df, tmp_path, halting, keep_results=True)
    limit["n"] = 1_000
    more = df.union(spark.sql("SELECT 'new' AS text"))
    made = run(more, tmp_path, halting, keep_results=True)
    assert made.where("said = upper(text)").count() == 101
    again = [text for text, times in paid().items() if times > 1]
    assert len(again) <= 16, "the batches under way, of two bolts, not what was done"


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_what_another_job_has_paid_is_taken_from_the_cache(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paid()
    df = spark.sql("SELECT id, IF(id % 9 = 0, NULL, concat('t', id % 100)) AS text FROM range(500)")
    cache = {"cache": tmp_path / "cache"}
    run(df, tmp_path, name="first", **cache)
    assert paid().total() == 101
    more = df.where("id < 300").union(spark.sql("SELECT 900L, 'new'"))
    made = run(more, tmp_path, name="second", view="plain", **cache)
    assert paid() == Counter(["new"])
    assert "1 to do, 101 of the cache" in capsys.readouterr().err
    assert made.where("said <=> upper(text)").count() == 301
    assert run(more, tmp_path, name="second", **cache).count() == 301
    # The results of a job are its own, whatever becomes of the cache.
    shutil.rmtree(tmp_path / "cache")
    assert run(more, tmp_path, name="second").where("said <=> upper(text)").count() == 301
    run(df, tmp_path, name="third", out=tmp_path / "other", **cache)
    assert paid().total() == 101
    # Another function, or value that it uses, has results of its own.
    monkeypatch.setattr(f"{__name__}.BAD", "t1")
    run(df, tmp_path, name="fourth", **cache)
    assert paid().total() == 101


@pytest.mark.slow
@pytest.mark.on_change("apply")
def test_a_cache_is_bounded_and_its_parts_are_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid()
    monkeypatch.setattr("pyspark_flowctl.result_cache._PARTS_MAX", 2)
    clock = SimpleNamespace(time=lambda: 86_400.0)
    monkeypatch.setattr("pyspark_flowctl.result_cache.time", clock)

    def texts(*named: str, **bounds: Any) -> int:
        df = spark.createDataFrame([(text,) for text in named], "text string")
        job = f"job-{texts.jobs}"  # type: ignore[attr-defined]
        texts.jobs += 1  # type: ignore[attr-defined]
        made = run(df, tmp_path, name=job, cache=tmp_path / "cache", **bounds)
        assert made.where("said = upper(text)").count() == len(named)
        return paid().total()

    texts.jobs = 0  # type: ignore[attr-defined]
    assert [texts("a"), texts("b", "a"), texts("c"), texts("d")] == [1, 1, 1, 1]
    assert len(list(tmp_path.glob("cache/*/*.added"))) <= 3
    assert texts("a", "b", "c", "d") == 0
    clock.time = lambda: 3 * 86_400.0
    assert texts("a", "e", cache_days=1) == 2
    assert texts("a", "e", "b", cache_days=9) == 1, "what was too old is gone"
    assert texts("f", cache_gb=1e-6) == 1
    size_bytes = sum(path.stat().st_size for path in tmp_path.glob("cache/*/*/*.parquet"))
    assert size_bytes < 5_000
    for given, problem in (({"cache_days": 1}, "cache_days: is about a cache"),):
        with pytest.raises(ConfigError, match=problem):
            run(spark.sql("SELECT 'a' AS text"), tmp_path, **given)
    with pytest.raises(ConfigError, match="cache: is about rows with equal keys"):
        run(spark.sql("SELECT 'a' AS text"), tmp_path, key=None, cache="c")
