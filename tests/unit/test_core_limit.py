"""How much a target takes at once, as far as its refusals show it."""

from __future__ import annotations

from math import inf

import pytest

from flowctl.core.limit import RefusedLimit


def fallen(level: int, refused: int) -> RefusedLimit:
    limit = RefusedLimit()
    limit.fall(0.0, level, refused)
    return limit


def test_nothing_limits_before_the_first_refusal() -> None:
    limit = RefusedLimit()
    limit.took(1_000)
    assert limit.most == inf


def test_what_a_round_took_is_the_limit() -> None:
    assert fallen(16, 6).most == 10
    assert not fallen(16, 6).is_confirmed


def test_refusals_that_come_one_by_one_give_the_same_limit() -> None:
    limit = fallen(16, 1)
    for _ in range(5):
        limit.fall_on(0.1, 1)
    assert limit.most == 10


def test_one_round_halves_at_most_and_leaves_one() -> None:
    assert fallen(16, 16).most == 8
    assert fallen(1, 1).most == 1


def test_a_level_that_was_refused_is_tried_again_after_a_while_and_some_calls() -> None:
    limit = fallen(16, 6)
    limit.took(150)
    assert not limit.rise(1.4)
    assert limit.rise(1.6)
    assert (limit.most, limit.moved_at_s) == (11, 1.6)
    limit = fallen(16, 6)
    limit.took(149)
    assert not limit.rise(59.0), "calls are slow"
    assert limit.rise(60.0)


@pytest.mark.parametrize(("refused", "doubts"), [(1, 0), (2, 0), (6, 1)])
def test_who_takes_less_than_it_took_until_now_may_have_a_rate(refused: int, doubts: int) -> None:
    """Ten at once were taken; of eleven less than nine are: it is not their number."""
    limit = fallen(16, 6)
    limit.took(150)
    assert limit.rise(2.0)
    limit.fall(3.0, 11, refused)
    assert limit.doubts == doubts


def test_each_try_is_twice_the_last_one_until_something_is_refused() -> None:
    limit = fallen(16, 6)
    limit.took(150)
    assert [limit.rise(2.0 + step) and limit.most for step in range(4)] == [11, 13, 17, 25]
    limit.fall(7.0, 25, 1)
    limit.took(150)
    assert limit.rise(9.0)
    assert limit.most == 25


def test_after_a_round_that_was_refused_as_a_whole_it_is_soon_near_that_level() -> None:
    limit = fallen(16, 16)
    assert [limit.rise(1.0) and limit.most for _ in range(4)] == [12, 14, 15, False]


def test_a_limit_that_comes_out_twice_is_confirmed() -> None:
    limit = fallen(16, 6)
    limit.took(150)
    assert limit.rise(2.0)
    limit.fall(5.0, 11, 1)
    assert (limit.most, limit.is_confirmed) == (10, True)
    limit.fall(6.0, 10, 4)
    assert not limit.is_confirmed


def test_what_is_known_exactly_may_fall_by_more_than_half() -> None:
    limit = RefusedLimit(down_most=0.0, hold_s=1.0, hold_calls=0)
    limit.fall(0.0, 10, 1)
    assert limit.most == 9
    limit.fall(0.5, 3, 1)
    assert limit.most == 2
    assert not limit.rise(1.4)
    assert limit.rise(1.5)
