"""What one caller learns of a call's cost from calls one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from random import Random

import pytest

from flowctl.core.cost import CallCost

SIZES = [200, 20] * 10


def learned(
    call_s: float, record_s: float, sizes: Iterable[int], *, noise: float = 0.0, seed: int = 1
) -> CallCost:
    """What is known after calls of ``sizes``, of which each takes ``noise`` more or less."""
    chance = Random(seed)
    times = [
        (records, (call_s + record_s * records) * exp(chance.gauss(0, noise))) for records in sizes
    ]
    cost = CallCost(*times[0], drift=0.01)
    for records, service_s in times[1:]:
        cost.took(records, service_s)
    return cost


@pytest.mark.parametrize("call_s", [0.1, 1.0, 10.0])
def test_calls_of_two_sizes_tell_a_call_from_its_records(call_s: float) -> None:
    cost = learned(call_s, 0.01, SIZES)
    assert cost.call_s == pytest.approx(call_s, rel=0.15)
    assert cost.of(100) == pytest.approx(call_s + 1.0, rel=0.1)
    assert 0.5 * call_s < cost.sure_call_s < call_s


def test_calls_of_one_size_tell_nothing_for_sure() -> None:
    cost = learned(1.0, 0.01, [100] * 50, noise=0.1)
    assert cost.sure_call_s == 0
    assert cost.of(100) == pytest.approx(2.0, rel=0.1)
    assert cost.most_record_s(100) == pytest.approx(cost.of(100) / 100)


def test_what_is_sure_is_seldom_more_than_there_is() -> None:
    over = sum(
        learned(0.3, 0.001, SIZES, noise=0.2, seed=seed).sure_call_s > 0.3 for seed in range(200)
    )
    assert over <= 10


def test_records_that_become_dearer_change_nothing_about_calls() -> None:
    cost = learned(1.0, 0.01, SIZES)
    for _ in range(3):
        cost.took(100, 1.0 + 5 * 0.01 * 100)
    assert cost.record_s == pytest.approx(0.05, rel=0.1)
    assert cost.call_s == pytest.approx(1.0, rel=0.2)


def test_a_call_that_cost_nothing_may_cost_something_later() -> None:
    cost = learned(0.0, 0.3, [1, 2] * 30)
    assert cost.sure_call_s == 0
    for _ in range(60):
        cost.took(1, 0.3)
        cost.took(2, 0.3)
    assert cost.sure_call_s > 0.15


def test_records_that_differ_widely_are_noise_and_not_taken_for_calls() -> None:
    even, odd = (
        [learned(0.3, 0.01, SIZES, noise=noise, seed=seed).sure_call_s for seed in range(50)]
        for noise in (0.1, 0.8)
    )
    assert sum(odd) < 0.5 * sum(even)


def test_one_who_knows_that_calls_differ_little_hears_of_a_change_at_once() -> None:
    """Where more counts as noise, a change by half is told only by several calls."""
    after = []
    for noise in (0.15, 0.45):
        cost = CallCost(100, 1.0, drift=0.01, noise=noise)
        chance = Random(1)
        for _ in range(40):
            cost.took(100, exp(chance.gauss(0, 0.6)))
        for _ in range(2):
            cost.took(100, 3.0)
        after.append(cost.of(100))
    assert after[0] > after[1]


def test_what_two_calls_show_is_taken_over() -> None:
    cost = learned(0.0, 0.02, [100] * 20)
    cost.learn_split((100, 2.0), (200, 2.0))
    assert cost.call_s == pytest.approx(2.0, rel=0.02)
    cost.learn_split((100, 2.0), (200, 3.0))
    assert (cost.call_s, cost.record_s) == pytest.approx((1.0, 0.01))


def test_after_the_split_was_forgotten_the_next_call_tells_it() -> None:
    cost = learned(0.0, 0.02, [100] * 20)
    cost.forget_split(100, 2.0)
    assert cost.of(100) == pytest.approx(2.0)
    cost.took(200, 2.0)
    assert cost.call_s > 1.0


def test_calls_that_take_no_time_are_no_error() -> None:
    cost = CallCost(5, 0.0, drift=0.01)
    cost.took(5, 0.0)
    assert cost.of(100) == 0
    cost.took(5, 1.0)
    assert cost.of(5) > 0
