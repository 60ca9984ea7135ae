"""One table of options for all doors: what they take, what their pages say."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowctl import Limits, paced
from flowctl.core.settings import LONG_SECONDS_MAX
from flowctl.delivery.options import (
    APPLY,
    BATCH,
    DOORS,
    OPTIONS,
    PACED,
    READ,
    SINK,
    ApplyOptions,
    SinkOptions,
    checked,
    documented,
    for_apply,
    names_of,
)
from flowctl.errors import ConfigError
from flowctl_apply import apply_parquet
from pyspark_flowctl import apply, flow_batch, flow_sink
from pyspark_flowctl.stream_options import StreamOptions

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_says_what_the_table_says() -> None:
    """``make options`` writes it."""
    page = runpy.run_path(str(ROOT / ".ci" / "options_page.py"))["page"]
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == page()


def test_an_option_is_there_once() -> None:
    names = [option.name for option in OPTIONS]
    assert len(set(names)) == len(names)
    assert all(set(option.doors) <= DOORS.keys() for option in OPTIONS)


@pytest.mark.parametrize(
    ("door", "takes"), [(SINK, SinkOptions.__annotations__), (APPLY, ApplyOptions.__annotations__)]
)
def test_the_type_checker_knows_the_options_of_a_door(door: str, takes: dict[str, Any]) -> None:
    assert takes.keys() == set(names_of(door))


def test_a_stream_has_a_field_for_each_of_its_options() -> None:
    fields = set(StreamOptions.__struct_fields__) - {"producer", "arguments", "process"}
    assert fields == set(names_of(READ))


def test_paced_takes_what_the_table_says_with_the_same_defaults() -> None:
    parameters = inspect.signature(paced).parameters
    table = {option.name: option.default for option in OPTIONS if PACED in option.doors}
    assert parameters.keys() == table.keys()
    told = {"name": ""}  # a name that is not given
    for name, parameter in parameters.items():
        if name != "target":
            assert parameter.default == told.get(name, table[name]), name


@pytest.mark.parametrize(
    ("door", "call"),
    [(SINK, flow_sink), (BATCH, flow_batch), (APPLY, apply), (APPLY, apply_parquet)],
)
def test_help_tells_each_option(door: str, call: Callable[..., Any]) -> None:
    said = inspect.getdoc(call)
    assert said is not None
    for name in names_of(door):
        assert f"\n    {name}: " in said


def test_a_door_tells_its_own_options_and_stays_what_it_is() -> None:
    def door() -> None:
        """What it does.

        More of it.
        """

    assert documented(SINK, PACED)(door) is door
    said = door.__doc__ or ""
    assert said.startswith("What it does.\n\nMore of it.\n\nOptions:\n    target: a name, ")
    told = [line.split(":")[0].strip() for line in said.splitlines()[5:]]
    assert told == [name for name in _names() if name in {*names_of(SINK), *names_of(PACED)}]
    assert "`" not in said
    assert "\n    rows_max: a whole number; " in said
    assert said.count("(default ") == len(told)


def _names() -> list[str]:
    return [option.name for option in OPTIONS]


@pytest.mark.parametrize(
    ("name", "value", "used"),
    [
        ("cache", Path("/results"), "/results"),
        ("cache", "s3://bucket/results", "s3://bucket/results"),
        ("errors", "column", "column"),
        ("mode", "append", "append"),
        ("table", "catalog.namespace.table", "catalog.namespace.table"),
        ("deadline_s", LONG_SECONDS_MAX, float(LONG_SECONDS_MAX)),
        ("bolts", "auto", "auto"),
        ("bolts", 3, 3),
        ("bolts", print, print),
        ("dead_letter", Path("/letters"), "/letters"),
    ],
)
def test_an_option_is_used_as_it_is_meant(name: str, value: Any, used: Any) -> None:
    found = checked(APPLY, {name: value})[name]
    assert (type(found), found) == (type(used), used)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache", ""),
        ("cache", 5),
        ("errors", "row"),
        ("mode", "overwrite"),
        ("table", 5),
        ("table", ""),
        ("deadline_s", LONG_SECONDS_MAX + 1),
        ("slots", 0),
        ("bolts", 0),
        ("bolts", "many"),
    ],
)
def test_what_an_option_can_not_be_is_said_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as told:
        checked(APPLY, {name: value})
    assert told.value.field == name
    assert told.value.remedy


@pytest.mark.parametrize(
    ("given", "key", "field"),
    [
        ({"cache": "/results"}, None, "cache"),
        ({"errors": "column"}, None, "errors"),
        ({"cache_days": 3}, "text", "cache_days"),
        ({"cache_gb": 3}, "text", "cache_gb"),
    ],
)
def test_what_is_about_keys_or_a_cache_asks_for_one(
    given: dict[str, Any], key: str | None, field: str
) -> None:
    with pytest.raises(ConfigError, match="is about") as told:
        for_apply("j", given, key=key)
    assert told.value.field == field
    assert for_apply("j", {"cache": "/results", **given}, key="text")[field] == given[field]


def test_the_redis_that_is_given_comes_before_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "redis://of-all:1/0")
    told = for_apply("j", {"target": "redis-first", "redis": "redis://own:1/0"})["paced"]
    assert told.settings.redis == "redis://own:1/0"
    assert (
        for_apply("j", {"target": "redis-second"})["paced"].settings.redis == "redis://of-all:1/0"
    )


# What no door can use, for each option that more than one door takes.
WRONG: dict[str, Any] = {
    "target": 5,
    "redis": "",
    "attempts_max": 0,
    "call_timeout_s": -1,
    "dead_letter": "",
    "fail_over": "many",
    "refusal": 5,
    "cost": 5,
    "budget": -1,
    "weight": 0,
    "leave": 1,
    "limits": Limits(in_flight_min=0),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_door_refuses_a_wrong_value_by_name(name: str, tmp_path: Path) -> None:
    """Kind: options that nobody checks, or that each door checks in its own way."""
    import pyarrow as pa

    given: dict[str, Any] = {"target": "t", name: WRONG[name]}
    parquet = {"schema": pa.schema([("id", pa.int64())]), "name": "n", "out": str(tmp_path)}
    doors: dict[str, Callable[[], Any]] = {
        SINK: lambda: flow_sink(print, **given),
        BATCH: lambda: flow_batch(print, **given),
        APPLY: lambda: apply_parquet("in.parquet", print, **parquet, **given),
    }
    for door, call in doors.items():
        assert name in names_of(door)
        with pytest.raises(ConfigError) as told:
            call()
        assert told.value.field == name, door
    assert not list(tmp_path.iterdir()), "an option is checked before anything is written"


def test_what_is_about_a_target_asks_for_one(tmp_path: Path) -> None:
    import pyarrow as pa

    with pytest.raises(ConfigError, match=r"budget: is about a target\. Name the target"):
        apply_parquet(
            "in.parquet", print, schema=pa.schema([("id", pa.int64())]), name="n", out=tmp_path,
            budget=5,
        )  # fmt: skip
