"""flow_sink and flow_batch without a session: what workers do, and what is refused by name."""

from __future__ import annotations

import pickle
import sqlite3
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from flowctl.bolts.batch import Batch
from flowctl.delivery.tally import Tally
from flowctl.errors import (
    ConfigError,
    FencedError,
    JobError,
    MissingExtraError,
    ProcessError,
    RetryLater,
    TargetDownError,
    TooManyLostError,
    UnrunnableError,
)
from flowctl.pacing.api import paced
from flowctl_files import FileDeadLetter
from flowctl_sql import SqlSink
from pyspark_flowctl import flow_batch, flow_sink
from pyspark_flowctl.arrow_rows import letter_row, plain_row, row_of
from pyspark_flowctl.features import converts_arrow
from tests.search_service import Cluster, serve

ROWS = [Row(n=number, name=f"row {number}") for number in range(60)]


def test_rows_come_as_they_are_and_the_position_is_their_number() -> None:
    sink = flow_sink(_Remembers("rows"), target="t")
    pickle.loads(pickle.dumps(sink))(ROWS)  # as on a worker
    seen = _Remembers.seen.pop("rows")
    assert [(position[-1], row) for position, row in seen] == list(enumerate(ROWS))


def test_a_target_that_is_a_function_of_the_row_travels_with_the_job() -> None:
    sink = flow_sink(_Remembers("mod"), name="job", target=lambda row: f"t{row['n'] % 2}", calls=2)
    pickle.loads(pickle.dumps(sink))(ROWS)
    assert sorted(row.n for _, row in _Remembers.seen.pop("mod")) == list(range(60))
    assert repr(sink) == "flow_sink(target='job')"
    with pytest.raises(ConfigError, match="name: is missing: target= is a function"):
        flow_sink(_Remembers("mod"), target=lambda row: "t")
    with pytest.raises(ConfigError, match="spend_max: is counted for one target"):
        flow_sink(_Remembers("mod"), name="job", target=lambda row: "t", spend_max="$2")


class _Remembers:
    """A function of a batch that is found by name, so what it saw is seen here."""

    seen: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, batch: Batch) -> None:
        self.seen.setdefault(self.name, []).extend((r.position, r.value) for r in batch)


class _Spans(_Remembers):
    def __call__(self, batch: Batch) -> None:
        self.seen.setdefault(self.name, []).append(batch.span)


def test_a_sink_gets_dicts_and_is_closed(tmp_path: Path) -> None:
    database = tmp_path / "out.db"
    sink = SqlSink(
        f"sqlite:///{database}", table="t", schema="CREATE TABLE t (n INTEGER, name TEXT)"
    )
    flow_sink(sink=sink, target="db", run="2026-11-22")(ROWS)
    flow_sink(sink=sink, target="db", run="2026-11-22")(ROWS)  # the same rows by name
    with sqlite3.connect(database) as connection:
        found = connection.execute("SELECT n, name FROM t ORDER BY n").fetchall()
    assert found == [tuple(row) for row in ROWS]


@pytest.mark.parametrize("inner", [False, True])
def test_two_columns_of_one_name_are_refused_where_one_would_be_lost(inner: bool) -> None:
    twice = Row("id", "id")(1, 2)
    with pytest.raises(UnrunnableError, match="df: two columns are called 'id'"):
        plain_row(Row(inside=[twice]) if inner else twice)


def test_without_a_run_each_action_is_another() -> None:
    for _ in range(2):
        flow_sink(_Spans("spans"), target="t")(ROWS[:3])
    spans = _Spans.seen.pop("spans")
    assert spans[0].partition != spans[1].partition
    assert spans[0].job == "t"


def test_a_bulk_sink_that_refuses_a_twentieth_of_the_items_gets_each_once() -> None:
    from flowctl_http import BulkSink

    asked: Counter[str] = Counter()

    def judge(action: str, id: str, document: Any) -> tuple[int, str, str]:
        asked[id] += 1
        # As a coin would, but the same in every run: the first time that one in twenty is asked.
        is_refused = asked[id] == 1 and hash((int(id) * 2654435761) % 2**32) % 20 == 0
        return (429, "es_rejected_execution_exception", "full") if is_refused else (201, "", "")

    cluster = Cluster(judge)
    rows = [Row(id=number, v="x") for number in range(1_000)]
    with serve(cluster.answer) as service:
        sink = BulkSink(service.url, index="i", id="id")
        flow_sink(sink=sink, target="bulk-unit", rows_max=200)(rows)
    assert cluster.accepted == Counter(str(number) for number in range(1_000))
    refused = sum(times - 1 for times in asked.values())
    assert 20 < refused < 100
    assert cluster.items == 1_000 + refused, "no item that was accepted was sent again"


def test_lost_rows_are_kept_as_dicts_and_shown_by_name(tmp_path: Path) -> None:
    def write(batch: Batch) -> None:
        for record in batch:
            if record.value.n == 7:
                batch.reject(record, "no seven")

    flow_sink(write, target="t", name="orders", dead_letter=tmp_path)(ROWS)
    [letter] = FileDeadLetter(tmp_path).file_of("orders").read().of("orders")
    assert letter.value == {"n": 7, "name": "row 7"}
    assert letter.reason == "rejected: no seven" and letter.position[-1] == 7


def test_letters_that_were_marked_are_written_by_the_next_action(tmp_path: Path) -> None:
    """Of two, one fails again: it stays a letter; the other comes as the Row that it was."""
    days = [Row(n=n, day=date(2026, 11, n), at=Row(x=n)) for n in range(1, 9)]
    mended = tmp_path / "mended"
    sink = flow_sink(_NotYet("letters", mended), target="t", name="orders", dead_letter=tmp_path)
    sink(days)
    file = FileDeadLetter(tmp_path).file_of("orders")
    marked, number = file.redrive("orders")
    assert marked == 2
    mended.touch()
    sink(days[:1])
    (partition, third), (_, first) = _Remembers.seen.pop("letters")
    assert (partition, third, first) == (f"redrive:{number}", days[2], days[0])
    [letter] = file.read().of("orders")
    assert letter.value["n"] == 7 and letter.redrives == 1 and letter.redrive is None
    assert letter.value["day"] == date(2026, 11, 7)
    sink(days[:1])
    assert len(_Remembers.seen.pop("letters")) == 1, "a letter is written once"


def test_letters_of_a_job_without_a_name_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = flow_sink(_NotYet("unnamed", tmp_path), target="t", dead_letter=tmp_path)
    sink([Row(n=3), Row(n=7)])
    file = FileDeadLetter(tmp_path).file_of("t")
    assert file.redrive("t")[0] == 1
    sink([Row(n=1)])
    assert [value.n for _, value in _Remembers.seen.pop("unnamed")] == [1]
    assert len(file.read().of("t")) == 1 and "letters_wait" in caplog.text


def test_a_redriven_row_has_the_types_of_its_columns() -> None:
    day = Row(n=1, at=Row(x=1), tags={"a": 1}, parts=[Row(x=2)])
    number = LongType()
    inner = StructType().add("x", number)
    schema = StructType().add("n", number).add("at", inner)
    schema = schema.add("tags", MapType(StringType(), number)).add("parts", ArrayType(inner))
    for kept in (letter_row(day), plain_row(day)):  # now, and in letters of older versions
        back = row_of(kept, schema)
        assert back == day and type(back.tags) is dict and back.parts[0].x == 2


def test_a_redriven_map_is_a_dict_also_if_nobody_knows_the_types(tmp_path: Path) -> None:
    row = Row(n=3, tags={"a": Row(x=1)}, none={}, keyed={Row(x=1): [{2: "b"}]})
    mended = tmp_path / "mended"
    sink = flow_sink(_NotYet("maps", mended), target="t", name="maps", dead_letter=tmp_path)
    sink([row])
    assert FileDeadLetter(tmp_path).file_of("maps").redrive("maps")[0] == 1
    mended.touch()
    sink([])
    [(_, back)] = _Remembers.seen.pop("maps")
    assert back == row and back.tags["a"].x == 1 and type(back.none) is dict
    assert back.keyed == {Row(x=1): [{2: "b"}]}


def test_a_letter_of_another_job_may_hold_any_tuple() -> None:
    assert row_of({"n": (1, 2)}, None).n == (1, 2)


class _NotYet(_Remembers):
    """Never takes 7, and 3 only if ``mended`` exists."""

    def __init__(self, name: str, mended: Path) -> None:
        super().__init__(name)
        self.mended = mended

    def __call__(self, batch: Batch) -> None:
        seen = self.seen.setdefault(self.name, [])
        for record in batch:
            if record.value.n == 7 or (record.value.n == 3 and not self.mended.exists()):
                batch.reject(record, "not yet")
            else:
                seen.append((batch.span.partition, record.value))


def test_a_share_may_be_lost() -> None:
    def write(batch: Batch) -> None:
        batch.reject(0)

    flow_sink(write, target="t", fail_over="50%", rows_max=2)(ROWS)
    with pytest.raises(TooManyLostError):
        flow_sink(write, target="t", fail_over="49%", rows_max=2)(ROWS)


def test_cost_and_refusal_are_functions_of_the_user() -> None:
    def refuse(error: BaseException) -> float | None:
        return 0.001 if "slow down" in str(error) else None

    def write(batch: Batch) -> None:
        if not _Remembers.seen.setdefault("calls", []):
            _Remembers.seen["calls"].append(1)
            raise ValueError("slow down")

    sink = flow_sink(
        write, target="costly", refusal=refuse, cost=lambda batch: len(batch) / 10, weight=2
    )
    sink(ROWS)
    assert _Remembers.seen.pop("calls") == [1]


def test_a_sink_may_be_given_in_the_place_of_a_function() -> None:
    class Sink:
        def write(self, rows: Any, *, batch: Batch) -> None:
            _Remembers.seen.setdefault("written", []).extend(rows)

    flow_sink(Sink(), target="positional")(ROWS[:10])
    assert len(_Remembers.seen.pop("written")) == 10


def test_what_was_not_taken_goes_again_alone() -> None:
    def write(batch: Batch) -> None:
        _Remembers.seen.setdefault("sizes", []).append(len(batch))
        if len(batch) > 1:
            raise RetryLater("full", again=[0], after_s=0)

    flow_sink(write, target="again", rows_max=10)(ROWS[:10])
    assert _Remembers.seen.pop("sizes") == [10, 1]


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "fn", "neither fn nor sink"),
        ({"fn": print, "sink": object()}, "fn", "both"),
        ({"sink": object()}, "sink", "no method write"),
        ({"fn": 7}, "fn", "can't be called"),
        ({"fn": lambda rows, epoch: None}, "fn", "can't be called with the batch"),
        ({"fn": print, "target": ""}, "target", "it is empty"),
        ({"fn": print, "target": None}, "target", "is missing"),
        ({"fn": print, "rows_max": 0}, "rows_max", "whole number"),
        ({"fn": print, "call_max_s": -1}, "call_max_s", "greater than 0"),
        ({"fn": print, "call_max_s": float("inf")}, "call_max_s", "finite"),
        ({"fn": print, "rows_max": True}, "rows_max", "whole number"),
        ({"fn": print, "call_timeout_s": 0}, "call_timeout_s", "greater than 0"),
        ({"fn": print, "attempts_max": 1.5}, "attempts_max", "whole number"),
        ({"fn": print, "fail_over": "much"}, "fail_over", "neither a count nor a share"),
        ({"fn": print, "dead_letter": 7}, "dead_letter", "is not a dead letter"),
        ({"fn": print, "leave": 2}, "leave", "below 1"),
        ({"fn": print, "weigth": 2}, "weigth", "is not a parameter"),
        (
            {"fn": print, "rows": 2},
            "rows",
            "fn, sink, target, redis, name, run, rows_max",
        ),
        ({"fn": print, "cost": 7}, "cost", "can't be called"),
        ({"fn": print, "redis": "localhost"}, "redis", "not a Redis URL"),
    ],
)
def test_what_can_not_work_is_refused_by_name(
    given: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        flow_sink(**{"target": "t", **given})
    assert caught.value.field == field and words in str(caught.value) and caught.value.remedy


def options_of(options: dict[str, str]) -> Any:
    """The sink that options of ``format("flowctl")`` ask for."""
    pytest.importorskip("pyspark.sql.datasource", reason="formats need Spark 4.0")
    from pyspark_flowctl.sink_writers import sink_of

    return sink_of(options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "process"),
        ({"process": "print"}, "process"),
        ({"process": "no.such:thing", "target": "t"}, "process"),
        ({"process": "builtins:nothing", "target": "t"}, "process"),
        ({"process": "builtins:print"}, "target"),
        ({"process": "builtins:print", "target": "t", "rows_mox": "1"}, "rows_mox"),
        ({"process": "builtins:print", "target": "t", "rows_max": "x"}, "rows_max"),
        ({"process": "builtins:print", "target": "t", "path": "/data/out"}, "path"),
        ({"process": "builtins:print", "target": "t", "run": ""}, "run"),
        ({"process": "builtins:print", "target": "t", "dead_letter": ""}, "dead_letter"),
        ({"process": "flowctl_sql:SqlSink", "target": "t"}, "sink"),
    ],
)
def test_options_that_can_not_work_are_refused_by_name(options: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_of(options)
    assert caught.value.field == field and caught.value.remedy


def test_options_are_those_of_flow_sink_in_any_case() -> None:
    options = {"Process": "builtins:print", "TARGET": "t", "rows_Max": "7", "leave": ".2"}
    task = options_of({**options, "queryName": "by .queryName()"}).task
    assert (task.target, task.rows_max, task.leave) == ("t", 7, 0.2)


def test_a_sink_may_ask_for_more_rows_a_call_than_others() -> None:
    class Table:
        rows_per_write = 10_000

        def write(self, rows: Any, *, batch: Batch) -> None:
            pass

    assert flow_sink(sink=Table(), target="t").task.rows_max == 10_000
    assert flow_sink(Table(), target="t").task.rows_max == 10_000
    assert flow_sink(sink=Table(), target="t", rows_max=7).task.rows_max == 7
    assert flow_sink(print, target="t").task.rows_max == 500


def test_a_generator_is_refused() -> None:
    def write(batch: Batch) -> Any:
        yield from batch

    with pytest.raises(ConfigError, match="generator function"):
        flow_sink(write, target="t")


def test_what_can_not_travel_is_named() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match="because of variable 'connection'"):
        flow_sink(lambda batch: connection.execute("x"), target="t")
    connection.close()


def test_a_module_that_only_the_driver_has_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = flow_sink(print, target="t")
    missing = b"cof_the_driver_only\nwrite\n."  # a pickle that refers to it by name
    monkeypatch.setitem(sink.task.parts, "fn", missing)
    with pytest.raises(UnrunnableError, match=r"fn: .*'of_the_driver_only'.*pyFiles") as caught:
        sink(ROWS)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_the_next_job_of_a_worker_may_give_the_target_another_weight() -> None:
    """The process lives on; its rows were taken for bad ones."""
    for weight in (1, 2, 1):
        flow_sink(_Remembers("weights"), target="weighed", weight=weight)(ROWS)
    assert len(_Remembers.seen.pop("weights")) == 3 * len(ROWS)


def test_another_weight_while_the_target_is_called_ends_the_task_and_blames_no_row() -> None:
    sink = flow_sink(_Remembers("never"), target="busy", weight=2)
    with paced("busy", name="busy"), pytest.raises(ConfigError, match="weight: this process alr"):
        sink(ROWS)


has_formats = pytest.mark.skipif(
    not converts_arrow(), reason="Python can add formats since Spark 4.0"
)


class _Frame:
    """A DataFrame whose job fails as Spark says it, many lines long."""

    columns: ClassVar[list[str]] = ["n"]
    schema = StructType().add("n", LongType())

    def __init__(self, said: str) -> None:
        self.said = said

    def toDF(self, *names: str) -> _Frame:
        return self

    def mapInArrow(self, *_: object) -> _Frame:
        return self

    @property
    def rdd(self) -> SimpleNamespace:
        """What Spark 3.5 gives rows by."""
        return SimpleNamespace(mapPartitions=self.mapInArrow)

    def collect(self) -> None:
        raise RuntimeError(
            "Job aborted: Task 0 failed 4 times: Traceback (most recent call last):\n"
            '  File "x.py", line 1, in f\nValueError: seven\n\nThe above exception was the direct'
            " cause of the following exception:\n\nTraceback (most recent call last):\n"
            f"{self.said}\n\n\tat org.apache.spark.X.y(X.scala:1)\n\tat org.apache.spark.Z\n"
        )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ProcessError("row 7 failed: ValueError: a\nb.", remedy="Fix it."), ProcessError),
        (UnrunnableError("fn", "it: returns 7.", remedy="Return."), UnrunnableError),
        (TargetDownError("t refused every call.", remedy="Wait."), TargetDownError),
        (FencedError("replaced.", remedy="Stop.", newest_epoch=3), JobError),
        (MissingExtraError("redis", "redis", "redis"), ConfigError),
    ],
)
def test_a_write_that_failed_says_why_and_nothing_else(error: Exception, kind: type) -> None:
    """The sentence was the last of 236 lines."""
    frame = _Frame(f"flowctl.errors.{type(error).__name__}: {error}")
    with pytest.raises(kind) as caught:
        flow_sink(print, target="t").write(frame)
    assert (type(caught.value), str(caught.value)) == (kind, str(error))
    assert "Task 0 failed" in str(caught.value.__cause__)


def test_another_error_of_spark_passes() -> None:
    with pytest.raises(RuntimeError, match="Task 0 failed"):
        flow_sink(print, target="t").write(_Frame("ValueError: flowctl.errors.ProcessError: no"))


@pytest.mark.parametrize("used", ["a Python without flowctl", "none"])
def test_workers_whose_python_has_no_flowctl_are_told_of_before_they_start(
    used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYSPARK_PYTHON was not set, and the environment not activated: four tracebacks."""
    python = tmp_path / "python3"
    if used != "none":
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
    context = SimpleNamespace(
        master="local[2]", pythonExec=str(python), environment={}, _python_includes=[]
    )
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", context)
    with pytest.raises(ConfigError, match="PYSPARK_PYTHON: Spark's workers run") as caught:
        flow_sink(print, target="t")
    assert f"PYSPARK_PYTHON={sys.executable}" in caught.value.remedy
    for name, fine in (("pythonExec", sys.executable), ("master", "spark://host:7077")):
        monkeypatch.setattr(context, name, fine)
        flow_sink(print, target="t")
        monkeypatch.undo()
        monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", context)


def test_the_wrong_place_is_told() -> None:
    with pytest.raises(ConfigError, match="was given to foreachBatch"):
        flow_sink(print, target="t")(ROWS, 3)
    with pytest.raises(ConfigError, match="was given to foreach"):
        flow_sink(print, target="t")(ROWS[0])
    with pytest.raises(ConfigError, match="was not called by foreachBatch"):
        flow_batch(print, target="t")(iter(ROWS))
    with pytest.raises(ConfigError, match="is for flow_sink"):
        flow_batch(print, target="t", run="x")


def test_redis_is_that_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://of-the-driver:6379/0")
    assert flow_sink(print, target="t").task.redis == "redis://of-the-driver:6379/0"
    assert flow_sink(print, target="t", redis="redis://mine").task.redis == "redis://mine"


@has_formats
def test_spark_finds_the_format_and_a_broken_install_breaks_no_other_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    import pyspark_flowctl

    assert pyspark_flowctl.DefaultSource.name() == "flowctl"
    monkeypatch.setitem(sys.modules, "pyspark_flowctl.data_source", None)
    assert not hasattr(pyspark_flowctl, "DefaultSource"), "Spark asks exactly this"


@has_formats
def test_a_mode_that_would_replace_rows_is_refused() -> None:
    """Spark gives the whole result with each batch then: it would be in the target again."""
    from pyspark.sql.types import LongType, StructField, StructType

    from pyspark_flowctl.data_source import FlowctlSource

    schema = StructType([StructField("n", LongType())])
    source = FlowctlSource({"process": "os:getcwd", "target": "t"})
    with pytest.raises(ConfigError, match=r"complete gives .*outputMode\('append'\)"):
        source.streamWriter(schema, overwrite=True)
    with pytest.raises(ConfigError, match=r"overwrite would .*mode\('append'\)"):
        source.writer(schema, overwrite=True)


@has_formats
@pytest.mark.parametrize("way", ["writer", "streamWriter"])
def test_rows_without_columns_are_refused_as_spark_would_give_none_of_them(way: str) -> None:
    from pyspark_flowctl.data_source import FlowctlSource

    source = FlowctlSource({"process": "os:getcwd", "target": "t"})
    with pytest.raises(ConfigError, match="df: it has no columns"):
        getattr(source, way)(StructType([]), overwrite=False)


def test_tallies_add_up() -> None:
    total = Tally(rows=3, written=3)
    total.add(Tally(rows=2, written=1, rejected=1))
    assert (total.rows, total.written, total.lost) == (5, 4, 1)


def test_errors_of_a_missing_client_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from flowctl_http import HttpSink

    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match="httpx is not installed") as caught:
        HttpSink("http://localhost", client=lambda: None)
    assert caught.value.extra == "http"
    HttpSink("http://localhost")  # its own client is Python's


def test_a_sink_says_how_many_calls_of_a_partition_it_takes(tmp_path: Path) -> None:
    from flowctl_http import HttpSink
    from flowctl_sql import SqlSink

    sink = SqlSink(f"sqlite:///{tmp_path}/t.db", table="t")
    with pytest.raises(ConfigError, match="SqlSink takes 1 at once of each partition, got 2"):
        flow_sink(sink, target="db", calls=2)
    assert flow_sink(sink, target="db").task.calls == 1
    assert flow_sink(HttpSink("http://here"), target="api", calls=32).task.calls == 32
