"""The literal rule (aiad) and the fixed window, by themselves and behind the core."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest

from flowctl.core.cost import ServiceModel
from flowctl.core.messages import Emission
from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window import AckSample, WindowPolicy, make_policy
from tests.core_driver import Driver, FifoBolts

FAST_S, SLOW_S = 0.1, 5.0  # below and above the threshold of 1 s that these tests set


def aiad(growth: Literal["round", "ack"] = "ack", **values: float) -> WindowPolicy:
    settings = {"threshold_s": 1.0, "initial": 2, **values}
    return make_policy(WindowSettings(policy="aiad", growth=growth, **settings))  # type: ignore[arg-type]


def sample(
    rtt_s: float, *, now_s: float = 10.0, wait_s: float | None = None, limited: bool = True
) -> AckSample:
    return AckSample(now_s, now_s - rtt_s, rtt_s, wait_s, None, 1, limited, ServiceModel())


@pytest.mark.req("S4")
def test_each_ack_in_range_adds_a_step() -> None:
    policy = aiad()
    trace = [(policy.on_ack(sample(FAST_S)), policy.window)[1] for _ in range(5)]
    assert trace == [3, 4, 5, 6, 7]


@pytest.mark.req("S5")
def test_each_ack_over_the_threshold_takes_a_step_down_to_one() -> None:
    policy = aiad(initial=4)
    trace = [(policy.on_ack(sample(SLOW_S)), policy.window)[1] for _ in range(5)]
    assert trace == [3, 2, 1, 1, 1]


def test_the_step_is_a_setting() -> None:
    policy = aiad(initial=5, step=2)
    policy.on_ack(sample(FAST_S))
    assert policy.window == 7
    policy.on_ack(sample(SLOW_S))
    assert policy.window == 5


def test_equality_with_the_threshold_is_normal() -> None:
    assert aiad(threshold_s=1.0).on_ack(sample(1.0)) is Signal.IN_RANGE
    assert aiad(threshold_s=1.0).on_ack(sample(1.0001)) is Signal.OVER


@pytest.mark.req("S6")
@pytest.mark.parametrize("growth", ["round", "ack"])
def test_an_expiry_takes_one_at_once(growth: Literal["round", "ack"]) -> None:
    policy = aiad(growth, initial=5, step=3)
    policy.on_expired(10.0, 9.0)
    assert policy.window == 4  # one, whatever the step


def test_per_ack_each_expiry_counts_per_round_those_sent_together_count_once() -> None:
    by_ack, by_round = aiad("ack", initial=9), aiad("round", initial=9)
    for policy in (by_ack, by_round):
        policy.on_expired(10.0, 9.0)
        policy.on_expired(10.1, 9.1)
        policy.on_expired(10.2, 9.2)
    assert (by_ack.window, by_round.window) == (6, 8)
    by_round.on_expired(12.0, 10.5)  # sent after the last decrease: news
    assert by_round.window == 7


def test_the_window_stays_within_its_bounds() -> None:
    policy = aiad(max=3)
    for _ in range(9):
        policy.on_ack(sample(FAST_S))
    assert policy.window == 3
    for _ in range(9):
        policy.on_expired(10.0, 9.0)
    assert policy.window == 1


def test_a_window_that_nobody_fills_does_not_grow() -> None:
    policy = aiad()
    assert policy.on_ack(sample(FAST_S, limited=False)) is Signal.IN_RANGE
    assert policy.window == 2


def test_per_round_the_majority_decides_and_acks_of_the_round_before_say_nothing() -> None:
    policy = aiad("round", initial=5)
    policy.on_ack(AckSample(1.0, 0.5, 0.5, None, None, 1, True, ServiceModel()))
    assert policy.window == 6
    # Sent before the change at 1.0: no verdict yet, but over the threshold.
    for now_s in (1.6, 1.7, 1.8):
        assert (
            policy.on_ack(AckSample(now_s, 0.5, now_s - 0.5, None, None, 1, True, ServiceModel()))
            is None
        )
    # Sent after it, and itself in range: three of four were over.
    assert (
        policy.on_ack(AckSample(2.0, 1.5, 0.5, None, None, 1, True, ServiceModel())) is Signal.OVER
    )
    assert policy.window == 5


def test_the_relative_threshold_compares_with_what_it_takes_without_a_queue() -> None:
    policy = aiad("ack", threshold_s=None)  # type: ignore[arg-type]
    assert policy.on_ack(sample(1.0, wait_s=0.5)) is Signal.IN_RANGE  # as long as the rest
    assert policy.on_ack(sample(1.0, wait_s=0.6)) is Signal.OVER
    assert policy.threshold_s == pytest.approx(0.8)


def test_without_telemetry_the_smallest_rtt_of_the_last_seconds_is_the_base() -> None:
    policy = aiad("ack", threshold_s=None)  # type: ignore[arg-type]
    policy.on_ack(sample(0.1, now_s=1.0))
    assert policy.on_ack(sample(0.3, now_s=2.0)) is Signal.OVER
    # The path has become longer for good: after ten to twenty seconds that is the base.
    assert policy.on_ack(sample(0.3, now_s=12.0)) is Signal.OVER
    assert policy.on_ack(sample(0.3, now_s=23.0)) is Signal.IN_RANGE


def test_a_fixed_window_never_moves() -> None:
    policy = make_policy(WindowSettings(policy="fixed", initial=5), learned=9.0)
    policy.on_ack(sample(FAST_S))
    policy.on_ack(sample(SLOW_S))
    policy.on_expired(1.0, 0.0)
    assert policy.window == 5
    assert make_policy(WindowSettings(policy="fixed", initial=5, max=3)).window == 3


@pytest.mark.req("S15")
def test_the_first_window_is_the_configured_one_or_what_the_bolt_had_before_it_went() -> None:
    assert make_policy(WindowSettings(policy="aiad", initial=3)).window == 3
    assert make_policy(WindowSettings(policy="aiad", initial=3), learned=17.5).window == 17.5
    assert make_policy(WindowSettings(policy="aiad", max=8), learned=17.5).window == 8


# -- behind the core: what a window does over round trips ---------------------------------


def windows_per_round_trip(growth: str, round_trips: int) -> list[int]:
    """Every tuple is acked 0.1 s after it was sent, however many there are."""
    driver = Driver("a", window_growth=growth, window_threshold_s=1.0, window_initial=2)
    driver.offer(5_000)
    trace = [driver.window("a")]
    flying: list[Emission] = driver.emit()
    for _ in range(round_trips):
        driver.clock.advance(0.1)
        for emission in flying:
            driver.ack(emission)
        trace.append(driver.window("a"))
        flying = driver.emit()
    return trace


@pytest.mark.req("S4", "S17")
def test_per_round_the_window_is_linear_in_time() -> None:
    assert windows_per_round_trip("round", 8) == [2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_per_ack_the_documents_letter_doubles_each_round_trip() -> None:
    assert windows_per_round_trip("ack", 6) == [2, 4, 8, 16, 32, 64, 128]


@pytest.mark.req("S15", "S17")
def test_there_is_no_slow_start() -> None:
    windows = windows_per_round_trip("round", 20)
    assert max(after - before for before, after in itertools.pairwise(windows)) == 1


@pytest.mark.req("S2")
def test_a_slowed_bolt_does_not_change_the_others_window() -> None:
    def trace_of_b(*bolts: str) -> list[tuple[float, int]]:
        driver = Driver(*bolts)
        driver.offer(20_000)
        services = {"a": lambda now_s: 0.004 if now_s < 1 else 0.2, "b": lambda now_s: 0.01}
        fifo = FifoBolts(driver, {bolt: services[bolt] for bolt in bolts})
        while len(fifo.windows["b"]) < 400:
            fifo.run(1)
        return fifo.windows["b"]

    alone = trace_of_b("b")
    assert len({window for _, window in alone}) > 1  # it does move
    assert trace_of_b("a", "b") == alone


@pytest.mark.req("S19")
@pytest.mark.parametrize("tells", [True, False])
def test_of_12_bolts_one_ten_times_slower_gets_its_share_of_the_capacity(tells: bool) -> None:
    names = [f"b{i}" for i in range(12)]
    driver = Driver(*names)
    driver.offer(20_000)
    services = {name: (lambda now_s: 0.01) for name in names}
    services["b3"] = lambda now_s: 0.1
    fifo = FifoBolts(driver, services, tells=tells)
    fifo.run(6_000)
    capacity = 0.1 / 11.1
    assert driver.core.bolts["b3"].acked / 6_000 == pytest.approx(capacity, rel=0.2)
    assert driver.window("b3") <= 4  # it does not hoard
    # All eleven others were busy all the time: no slower than dealing out would have been.
    assert driver.clock() == pytest.approx(6_000 * 0.01 / 11.1, rel=0.02)
