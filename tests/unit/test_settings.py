"""Settings: what is out of range is refused by name, with the range."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from flowctl.bolts.local import LocalBolts
from flowctl.config import CONSTANTS, CheckpointSettings, Settings, kinds, name_of
from flowctl.core.ranges.core import RangeCore
from flowctl.core.settings import LONG_SECONDS_MAX, SECONDS_MAX
from flowctl.errors import ConfigError
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer

SECONDS = [name for name in kinds() if name.endswith("_s")]
USERS = [name for name in kinds() if not name.startswith("lab.")]


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", ["inf", "1e10", "nan", "-1", "0", math.inf, math.nan])
def test_seconds_are_finite_and_bounded(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings().with_overrides({name: value})
    said = str(caught.value)
    assert said.startswith(f"{name}: ") and "above 0 and at most " in said
    assert caught.value.exit_code == 2


def test_many_bolts_say_less_often_that_they_are_alive() -> None:
    few = Settings()
    assert few.for_bolts(250) == few
    timeout = few.for_bolts(1_000).timeout
    assert (timeout.heartbeat_s, timeout.suspect_s) == (1.0, 1.0)
    assert (timeout.silence_s, timeout.silence_max_s) == (3.0, 4.0)
    assert few.for_bolts(1_000).checked().with_overrides({}) == few.for_bolts(1_000)
    rare = few.with_overrides({"lab.timeout.heartbeat_s": 2, "lab.timeout.silence_s": 20})
    assert rare.for_bolts(500) == rare
    assert rare.for_bolts(2_000).timeout.heartbeat_s == 2
    assert rare.for_bolts(3_000).timeout.silence_s == 20, "what is longer stays"


@pytest.mark.parametrize(
    ("bolts", "report_s", "range_s"),
    [(12, 0.1, 2.0), (500, 0.1, 2.0), (5_000, 1.0, 4.0), (50_000, 2.0, 8.0)],
)
def test_many_bolts_of_ranges_report_more_rarely_on_longer_ranges(
    bolts: int, report_s: float, range_s: float
) -> None:
    settings = Settings().for_bolts(bolts)
    assert settings.timeout.report_s == pytest.approx(report_s)
    assert RangeCore(settings).range_s == pytest.approx(range_s)


@pytest.mark.parametrize("name", SECONDS)
def test_no_wait_of_seconds_is_one_that_the_system_does_not_know(name: str) -> None:
    poll_max_s = (2**31 - 1) / 1000
    assert SECONDS_MAX < LONG_SECONDS_MAX < poll_max_s
    Settings().with_overrides({name: SECONDS_MAX})


@pytest.mark.parametrize("name", [n for n in kinds() if n.endswith(("_ms", "_us"))])
def test_short_waits_are_bounded_too(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: .* at most"):
        Settings().with_overrides({name: "100000000000"})


def test_settings_put_together_by_constructors_are_checked_before_a_run() -> None:
    store = MemoryCheckpointStore()
    settings = Settings(checkpoint=CheckpointSettings(interval_s=math.inf))
    spout = FlowControlSpout(
        name="job",
        producer=ListProducer(1),
        bolts=LocalBolts(lambda batch: None, count=1),
        checkpoint=store,
        settings=settings,
    )
    hand = ManualSpout(name="job", producer=ListProducer(1), checkpoint=store, settings=settings)
    with pytest.raises(ConfigError, match=r"checkpoint\.interval_s: inf .* at most 3600"):
        spout.run(view="off")
    with pytest.raises(ConfigError, match=r"checkpoint\.interval_s"):
        hand.open({"b1": 1})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("window.polcy", "lab.window.policy"),
        ("windows.policy", "lab.window.policy"),
        ("policy", "lab.window.policy"),
        ("checkpoint.interval", "checkpoint.interval_s"),
    ],
)
def test_a_misspelt_name_says_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="no such setting") as caught:
        Settings().with_overrides({name: "1"})
    assert "Did you mean" in caught.value.remedy and meant in caught.value.remedy
    assert "buffer.bytes_max" not in caught.value.remedy


def test_a_name_like_none_lists_those_that_users_set() -> None:
    with pytest.raises(ConfigError, match="no such setting") as caught:
        Settings().with_overrides({"zzz": "1"})
    assert caught.value.remedy == f"Known: {', '.join(sorted(USERS))}."
    assert len(USERS) <= 28


@pytest.mark.parametrize("name", [n for n in kinds() if n.startswith("lab.")])
def test_a_name_without_its_lab_says_where_the_setting_is(name: str) -> None:
    with pytest.raises(ConfigError, match="only experiments change this") as caught:
        Settings().with_overrides({name.removeprefix("lab."): "1"})
    assert f"Its name is {name} (docs/dev/lab.md)" in caught.value.remedy


@pytest.mark.parametrize("name", [*CONSTANTS, *(f"lab.{name}" for name in CONSTANTS)])
def test_what_was_a_setting_and_is_a_constant_says_where_its_reason_is(name: str) -> None:
    with pytest.raises(ConfigError, match="this is a constant: ") as caught:
        Settings().with_overrides({name: "1"})
    constant, _, rest = str(caught.value).partition("constant: ")[2].partition(" in flowctl/")
    path = Path(__file__).parents[2] / "flowctl" / rest.partition(".py")[0]
    text = path.with_suffix(".py").read_text(encoding="utf-8")
    assert constant.partition(",")[0] in text or "heartbeat" in constant


def test_each_setting_can_be_given_by_its_name() -> None:
    defaults = msgspec.to_builtins(Settings())
    for name in kinds():
        section, field = name.removeprefix("lab.").split(".")
        given = Settings().with_overrides({name: defaults[section][field]})
        assert given == Settings()
        assert name_of(section, field) == name


def test_enums_list_their_values() -> None:
    with pytest.raises(ConfigError, match=r"window\.policy: 'magic'.* just_full, rtt_only, vegas"):
        Settings().with_overrides({"lab.window.policy": "magic"})


def test_a_wrong_share_of_losses_is_answered_with_what_is_possible() -> None:
    with pytest.raises(ConfigError, match="'5%%' is not possible") as refused:
        Settings().with_overrides({"loss.fail_over": "5%%"})
    assert "a count of records (100), a share of them (0.1%) or none" in refused.value.remedy


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 is not the name of a setting"):
        Settings().with_overrides({1: 2})  # type: ignore[dict-item]
