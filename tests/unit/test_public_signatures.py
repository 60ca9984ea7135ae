"""Each public callable, called wrongly: an error of ours names the argument, or it works.

Kind: what a newcomer types wrong ends in a bare ``TypeError`` or ``AttributeError`` from inside, or
is taken in silence and fails later, far from the mistake.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow
import pytest

import flowctl
import flowctl_apply
import flowctl_aws
import flowctl_files
import flowctl_http
import flowctl_kafka
import flowctl_redis
import flowctl_sql
import flowctl_storm
import pyspark_flowctl
from flowctl import testing
from flowctl.errors import FlowctlError
from flowctl.testing.stores import MemoryCheckpointStore


def process(batch: Any) -> None:
    """What users give."""


def connect() -> None:
    """Of a database, a client."""


def rows_of_spark() -> Any:
    """As much of a DataFrame as is asked of one whose rows have no letters."""
    session = SimpleNamespace(createDataFrame=lambda rows, schema: rows)
    return SimpleNamespace(mapInArrow=None, schema=[], columns=[], sparkSession=session)


BOLTS = flowctl.LocalBolts(process, count=1)
SCHEMA = pyarrow.schema([("n", pyarrow.int64())])
STORE = MemoryCheckpointStore()
SPOUT: dict[str, Any] = {"name": "job", "producer": [1], "checkpoint": STORE}
# Each with what is enough for it to work.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "FlowControlSpout": (flowctl.FlowControlSpout, {**SPOUT, "bolts": BOLTS}),
    "ManualSpout": (flowctl.ManualSpout, SPOUT),
    "LocalBolts": (flowctl.LocalBolts, {"process": process, "count": 1}),
    "DetachedRun": (flowctl.DetachedRun, {"name": "job", "command": ["flowctl", "run", "job.py"]}),
    "FileCheckpointStore": (flowctl.FileCheckpointStore, {}),
    "Records": (flowctl.Records, {"values": [1]}),
    "Topology": (flowctl_storm.Topology, {"name": "t"}),
    "paced": (flowctl.paced, {"target": "pg"}),
    "RetryLater": (flowctl.RetryLater, {"reason": "busy"}),
    "FileDeadLetter": (flowctl_files.FileDeadLetter, {}),
    "JsonLinesDeadLetter": (flowctl_files.JsonLinesDeadLetter, {}),
    "MarkedLetters": (flowctl_files.MarkedLetters, {"job": "job"}),
    "ParquetRanges": (flowctl_files.ParquetRanges, {"paths": "a.parquet"}),
    "ParquetRows": (flowctl_files.ParquetRows, {"paths": "a.parquet"}),
    "TextLines": (flowctl_files.TextLines, {"paths": "a.txt"}),
    "TextRanges": (flowctl_files.TextRanges, {"paths": "a.txt"}),
    "BulkSink": (flowctl_http.BulkSink, {"url": "http://here", "index": "i"}),
    "AnthropicBatch": (
        flowctl_http.AnthropicBatch,
        {"request": process, "result": process, "headers": {}},
    ),
    "OpenAIBatch": (
        flowctl_http.OpenAIBatch,
        {"request": process, "result": process, "headers": {}},
    ),
    "HttpSink": (flowctl_http.HttpSink, {"url": "http://here"}),
    "KafkaRanges": (flowctl_kafka.KafkaRanges, {"topics": "t", "servers": "here:1"}),
    "DynamoSink": (flowctl_aws.DynamoSink, {"table": "t"}),
    "KinesisSink": (flowctl_aws.KinesisSink, {"stream": "s", "partition_key": "k"}),
    "KafkaSink": (flowctl_kafka.KafkaSink, {"topic": "t", "servers": "here:1"}),
    "KafkaTopics": (flowctl_kafka.KafkaTopics, {"topics": "t", "servers": "here:1"}),
    "by_topic": (flowctl_kafka.by_topic, {"translators": {"t": flowctl_kafka.value_of}}),
    "RedisCheckpointStore": (flowctl_redis.RedisCheckpointStore, {"url": "redis://here"}),
    "SqlRanges": (flowctl_sql.SqlRanges, {"connect": connect, "table": "t", "key": "k"}),
    "SqlSink": (flowctl_sql.SqlSink, {"url": "sqlite:///a.db", "table": "t"}),
    "SparkBolts": (pyspark_flowctl.SparkBolts, {"process": process}),
    "SparkStages": (flowctl_storm.SparkStages, {}),
    "flow_sink": (pyspark_flowctl.flow_sink, {"fn": process, "target": "pg"}),
    "flow_batch": (pyspark_flowctl.flow_batch, {"fn": process, "target": "pg"}),
    "failures": (
        pyspark_flowctl.failures,
        {"df": rows_of_spark(), "name": "job", "dead_letter": "letters"},
    ),
    "redrive": (
        pyspark_flowctl.redrive,
        {"rows": rows_of_spark(), "name": "job", "dead_letter": "letters"},
    ),
    "batch": (testing.batch, {"values": [1]}),
    "apply_parquet": (
        flowctl_apply.apply_parquet,
        {"paths": "a.parquet", "fn": process, "schema": SCHEMA, "name": "job", "out": "out"},
    ),
}
OBJECT = object()
WRONG: list[Any] = [
    None, OBJECT, "nonsense {x}", "", b"b", -1, 0, 1.5, math.nan, 10**30, True, [OBJECT],
    {"nonsense": 1}, Path, lambda: None,
]  # fmt: skip
PACKAGES = (
    flowctl, flowctl_apply, flowctl_aws, flowctl_files, flowctl_http, flowctl_kafka,
    flowctl_redis, flowctl_sql, flowctl_storm, pyspark_flowctl, testing,
)  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_named_or_works(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an error from inside, and never a thing that is of no use in silence."""
    monkeypatch.chdir(tmp_path)
    call, given = CALLS[name]
    found, usual = [], error_of(call, given)
    for argument in inspect.signature(call).parameters.values():
        if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            continue
        for value in WRONG:
            error = error_of(call, {**given, argument.name: value})
            said = wrongly_said(error, value, argument)
            if said and (error is None or str(error) != str(usual)):
                found.append(f"{argument.name}={value!r}: {said}")
    assert not found, "\n".join(found)


def error_of(call: Callable[..., Any], given: dict[str, Any]) -> Exception | None:
    try:
        call(**given)
    except Exception as error:
        return error
    return None


def wrongly_said(error: Exception | None, value: Any, argument: inspect.Parameter) -> str | None:
    """What is wrong with the answer; None: nothing."""
    if error is None:
        is_any = "Any" in str(argument.annotation).split(" | ")
        return "taken in silence" if value is OBJECT and not is_any else None
    if not isinstance(error, FlowctlError):
        return f"{type(error).__name__}: {error}"
    named = {argument.name.rstrip("s"), *(value if isinstance(value, dict) else ())}
    # What names the value names the argument too: "no such file: nonsense".
    is_value = isinstance(value, str) and bool(value) and value in str(error)
    is_named = is_value or any(name in str(error).lower() for name in named)
    return None if is_named else f"does not name it: {error}"


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_name_is_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, given = CALLS[name]
    with pytest.raises((FlowctlError, TypeError), match="nonsense"):
        call(**given, nonsense=1)


def test_each_public_callable_is_tried() -> None:
    """But for what is only read, or only written by users: values, errors, protocols, settings."""
    public = {
        name: getattr(package, name)
        for package in PACKAGES
        for name in package.__all__
        if callable(getattr(package, name))
    }
    assert set(CALLS) <= set(public)
    left = {
        name
        for name, value in public.items()
        if name not in CALLS
        and not (isinstance(value, type) and is_only_a_value(value))
        and not getattr(value, "__module__", "").startswith(("types", "typing"))
    }
    # Those that ours call, that take nothing, or that run a job at once.
    assert left == {
        "apply", "Batch", "Batched", "Collector", "ensure_java", "Input", "key_and_value",
        "LocalStages", "ManualCollector", "MemoryCheckpointStore", "run_local", "TaskHook",
        "TopologyJob", "value_of",
    }  # fmt: skip


def is_only_a_value(kind: type) -> bool:
    values = (BaseException, Enum, msgspec.Struct, tuple)
    return issubclass(kind, values) or getattr(kind, "_is_protocol", False)
