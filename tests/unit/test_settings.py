"""Settings: what is out of range is refused by name, with the range."""

from __future__ import annotations

import math

import pytest

from flowctl.bolts.local import LocalBolts
from flowctl.config import CheckpointSettings, Settings
from flowctl.core.settings import LONG_SECONDS_MAX, SECONDS_MAX
from flowctl.errors import ConfigError
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer

DEFAULTS = {
    f"{section}.{name}": value
    for section in Settings.__struct_fields__
    for name in getattr(Settings(), section).__struct_fields__
    for value in [getattr(getattr(Settings(), section), name)]
}
SECONDS = [name for name in DEFAULTS if name.endswith("_s")]


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
    rare = few.with_overrides({"timeout.heartbeat_s": 2, "timeout.silence_s": 20})
    assert rare.for_bolts(2_000) == rare
    assert rare.for_bolts(3_000).timeout.silence_s == 20, "what is longer stays"


@pytest.mark.parametrize("name", SECONDS)
def test_no_wait_of_seconds_is_one_that_the_system_does_not_know(name: str) -> None:
    poll_max_s = (2**31 - 1) / 1000
    assert SECONDS_MAX < LONG_SECONDS_MAX < poll_max_s
    Settings().with_overrides({name: SECONDS_MAX})


@pytest.mark.parametrize("name", [n for n in DEFAULTS if n.endswith(("_ms", "_us"))])
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
        ("window.polcy", "window.policy"),
        ("windows.policy", "window.policy"),
        ("policy", "window.policy"),
        ("checkpoint.interval", "checkpoint.interval_s"),
    ],
)
def test_a_misspelt_name_says_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match="no such setting") as caught:
        Settings().with_overrides({name: "1"})
    assert "Did you mean" in caught.value.remedy and meant in caught.value.remedy
    assert "buffer.bytes_max" not in caught.value.remedy


def test_a_name_like_none_lists_all() -> None:
    with pytest.raises(ConfigError, match="no such setting") as caught:
        Settings().with_overrides({"zzz": "1"})
    assert all(name in caught.value.remedy for name in DEFAULTS)


def test_enums_list_their_values() -> None:
    with pytest.raises(ConfigError, match=r"window\.policy: 'magic'.* just_full, rtt_only, vegas"):
        Settings().with_overrides({"window.policy": "magic"})


def test_a_wrong_share_of_losses_is_answered_with_what_is_possible() -> None:
    with pytest.raises(ConfigError, match="'5%%' is not possible") as refused:
        Settings().with_overrides({"loss.fail_over": "5%%"})
    assert "a count of records (100), a share of them (0.1%) or none" in refused.value.remedy


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 is not the name of a setting"):
        Settings().with_overrides({1: 2})  # type: ignore[dict-item]
