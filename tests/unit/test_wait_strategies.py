"""Wait strategies: what each turn asks for, which one is chosen, and that a stop ends them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flowctl.config import Settings, WaitSettings
from flowctl.errors import ConfigError
from flowctl.testing.clock import ManualClock
from flowctl.waiting.strategies import (
    BLOCKING_MAX_S,
    Blocking,
    Park,
    Progressive,
    WaitInterrupted,
    WaitSituation,
    WaitStrategy,
    make_wait_strategy,
)
from tests.loop_parts import Parked

SPOUT, BOLT, BACKPRESSURE = WaitSituation


def made(situation: WaitSituation, **settings: Any) -> tuple[WaitStrategy, list[float]]:
    park = Parked(ManualClock())
    return make_wait_strategy(WaitSettings(**settings), situation, park=park), park.times_s


def counters(strategy: WaitStrategy, turns: int) -> list[int]:
    found = [0]
    for _ in range(turns):
        found.append(strategy.idle(found[-1]))
    return found[1:]


@pytest.mark.req("S29")
@pytest.mark.parametrize("strategy", [Blocking, Progressive, Park])
def test_an_unknown_situation_is_a_value_error_and_a_config_error(strategy: Any):
    assert [situation.name for situation in WaitSituation] == [
        "SPOUT_WAIT",
        "BOLT_WAIT",
        "BACK_PRESSURE_WAIT",
    ]
    for unknown in ("lunch", None, 3):
        with pytest.raises(ValueError, match="situation") as caught:
            strategy(print).prepare(WaitSettings(), unknown)
        assert isinstance(caught.value, ConfigError)
        assert "'spout', 'bolt', 'backpressure'" in caught.value.remedy
        with pytest.raises(ValueError):
            make_wait_strategy(WaitSettings(), unknown, park=print)
        with pytest.raises(ValueError):
            make_wait_strategy(WaitSettings(), unknown, park=print, is_system=True)


@pytest.mark.req("S32")
def test_progressive_goes_through_its_levels_and_stays_in_the_last():
    strategy, times_s = made(
        BOLT,
        bolt_strategy="progressive",
        bolt_level1_count=2,
        bolt_level2_count=3,
        bolt_level3_sleep_ms=7,
    )
    assert counters(strategy, 8) == [1, 2, 3, 4, 5, 5, 5, 5]
    assert times_s == [0, 0, 1e-9, 1e-9, 1e-9, 0.007, 0.007, 0.007]


@pytest.mark.req("S33")
@pytest.mark.parametrize(("situation", "unslept"), [(SPOUT, 0), (BOLT, 1001), (BACKPRESSURE, 1001)])
def test_the_defaults_of_progressive(situation: WaitSituation, unslept: int):
    strategy, times_s = made(situation, **{f"{situation.value}_strategy": "progressive"})
    assert counters(strategy, unslept + 2)[-1] == unslept
    assert times_s[:1] == ([0] if unslept else [0.001])
    assert set(times_s[1:unslept]) <= {1e-9}
    assert times_s[unslept:] == [0.001, 0.001]


@pytest.mark.req("S30")
def test_idle_keeps_nothing_so_callers_do_not_disturb_each_other():
    strategy, _ = made(BOLT, bolt_strategy="progressive", bolt_level1_count=1, bolt_level2_count=1)
    first, second = counters(strategy, 4), counters(strategy, 4)
    assert first == second == [1, 2, 2, 2]
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(counters(strategy, 50))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [counters(strategy, 50)] * 4
    assert strategy.idle(0) == 1, "the counter is the caller's: 0 begins anew"


@pytest.mark.req("S34")
@pytest.mark.parametrize("situation", WaitSituation)
def test_park_parks_the_time_of_its_situation_and_counts(situation: WaitSituation):
    name = situation.value
    strategy, times_s = made(situation, **{f"{name}_strategy": "park", f"{name}_park_us": 250})
    assert counters(strategy, 3) == [1, 2, 3]
    assert times_s == [0.00025] * 3


@pytest.mark.req("S34")
def test_park_of_0_spins_and_returns_1():
    strategy, times_s = made(SPOUT, spout_strategy="park", spout_park_us=0)
    assert [strategy.idle(counter) for counter in (0, 1, 40)] == [1, 1, 1]
    assert times_s == [0, 0, 0]


@pytest.mark.req("S31")
def test_each_situation_has_its_own_strategy_by_configuration():
    assert all(type(made(situation)[0]) is Blocking for situation in WaitSituation), "ADR 11"
    settings = Settings().with_overrides(
        {
            "lab.wait.bolt_strategy": "park",
            "lab.wait.bolt_park_us": "7",
            "lab.wait.backpressure_strategy": "progressive",
        }
    )
    kinds = [
        type(make_wait_strategy(settings.wait, situation, park=print))
        for situation in WaitSituation
    ]
    assert kinds == [Blocking, Park, Progressive]
    with pytest.raises(ConfigError, match=r"wait\.bolt_strategy"):
        Settings().with_overrides({"lab.wait.bolt_strategy": "hope"})


@pytest.mark.req("S35")
@pytest.mark.parametrize("situation", WaitSituation)
@pytest.mark.parametrize("configured", ["blocking", "progressive", "park"])
def test_parts_of_flowctl_itself_always_park_5_ms(situation: WaitSituation, configured: str):
    park = Parked(ManualClock())
    settings = Settings().with_overrides({f"lab.wait.{situation.value}_strategy": configured}).wait
    strategy = make_wait_strategy(settings, situation, park=park, is_system=True)
    assert counters(strategy, 2) == [1, 2]
    assert park.times_s == [0.005, 0.005]


@pytest.mark.req("S30", "S31")
@pytest.mark.parametrize("situation", WaitSituation)
def test_blocking_waits_until_woken_and_counts(situation: WaitSituation):
    strategy, times_s = made(situation)
    assert counters(strategy, 3) == [1, 2, 3]
    assert times_s == [BLOCKING_MAX_S] * 3


@pytest.mark.req("S45")
@pytest.mark.parametrize("situation", WaitSituation)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": "park"},
        {"strategy": "park", "park_us": 0},
        {"strategy": "progressive", "level1_count": 10},
        {"strategy": "progressive", "level1_count": 0, "level2_count": 10},
        {"strategy": "progressive", "level1_count": 0, "level2_count": 0},
    ],
    ids=str,
)
def test_interruption_is_honoured_in_every_wait(situation: WaitSituation, settings: dict):
    park = Parked(ManualClock())
    named = {f"{situation.value}_{name}": value for name, value in settings.items()}
    strategy = make_wait_strategy(WaitSettings(**named), situation, park=park)
    strategy.idle(0)
    park.is_interrupted = True
    for counter in (0, 5, 5000):
        with pytest.raises(WaitInterrupted):
            strategy.idle(counter)
