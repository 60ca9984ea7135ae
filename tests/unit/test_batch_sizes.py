"""Sizes of a stream's batches in virtual time, under noise: beside sizes that know what costs what.

The target changes in the middle of a batch, which nobody can cut.  No sizes keep batches within a
bound that the noise itself leaves, so where it does, the measure is who knows the costs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from flowctl.delivery.batch_rows import BatchRows

TARGET_S = 8.0
ROW_S = 0.0025
SLOWER = 5
PHASE = 7  # batches, the first of which is that of the change
ROWS_MAX = 10**6
Noise = Callable[[random.Random], float]


def ten_percent(chance: random.Random) -> float:
    return chance.uniform(0.9, 1.1)


def fifteen_percent(chance: random.Random) -> float:
    return math.exp(chance.gauss(0, 0.15))


class Target(NamedTuple):
    """What a batch costs: ``fixed_s``, and ``row_s`` for each row; ``is_uneven``: some cost 20."""

    chance: random.Random
    noise: Noise
    fixed_s: float
    row_s: float = ROW_S
    is_uneven: bool = False

    def batch_s(self, rows: int, factor: float = 1.0) -> float:
        work = float(rows)
        if self.is_uneven:  # a twentieth of them costs 20 times as much
            dear = sum(self.chance.random() < 0.05 for _ in range(rows))
            work = (rows + 19 * dear) / 1.95
        row_s = factor * self.row_s * work * self.noise(self.chance)
        return self.fixed_s * self.noise(self.chance) + row_s

    def known(self, factor: float) -> int:
        """How many rows who knows everything would take."""
        return int((TARGET_S - self.fixed_s) / (factor * self.row_s))


def changes(target: Target, known: Callable[[float], int] | None = None) -> Iterator[list[float]]:
    """Run batches before, while and after it is slower; yield the times after each change.

    Their sizes are those of :class:`BatchRows`, or ``known`` for a target so many times as slow.
    """
    sizes = BatchRows(target_s=TARGET_S, rows=200, rows_max=ROWS_MAX)

    def batch(before: float, after: float, share: float = 0.0) -> float:
        rows = known(after) if known else sizes.rows
        took_s = target.batch_s(rows, share * before + (1 - share) * after)
        sizes.took(rows, took_s)
        return took_s

    for _ in range(14):
        batch(1, 1)
    for before, after in ((1, SLOWER), (SLOWER, 1)):
        first_s = batch(before, after, target.chance.random())
        yield [first_s, *(batch(after, after) for _ in range(PHASE - 1))]


def inside(times: list[float]) -> list[bool]:
    """Of the third batch after the one of the change, and all later ones."""
    return [0.7 * TARGET_S <= took_s <= 1.3 * TARGET_S for took_s in times[3:]]


@pytest.mark.parametrize("fixed_s", [0.3, 1.5, 3.0])
def test_three_batches_after_each_change_all_take_the_time_wanted(fixed_s: float) -> None:
    for seed in range(100):
        target = Target(random.Random(seed), ten_percent, fixed_s)
        for times in changes(target):
            assert all(inside(times)), (seed, times)


@pytest.mark.parametrize("is_uneven", [False, True])
@pytest.mark.parametrize("fixed_s", [0.3, 1.5])
def test_under_more_noise_they_are_nearly_as_good_as_known_costs(
    fixed_s: float, is_uneven: bool
) -> None:
    shares = []
    for is_known in (True, False):
        found: list[bool] = []
        for seed in range(100):
            target = Target(random.Random(seed), fifteen_percent, fixed_s, 0.04, is_uneven)

            for times in changes(target, target.known if is_known else None):
                found += inside(times)
        shares.append(sum(found) / len(found))
    assert shares[1] >= shares[0] - (0.12 if is_uneven else 0.08), shares


def test_sizes_do_not_oscillate() -> None:
    """Without noise they stand still, also if the first measured batch had all of the rows."""
    sizes = BatchRows(target_s=TARGET_S, rows=3_000, rows_max=ROWS_MAX)
    rows = []
    for step in range(60):
        row_s = ROW_S * (SLOWER if 20 <= step < 40 else 1)
        rows.append(sizes.rows)
        sizes.took(sizes.rows, 1.5 + row_s * sizes.rows)
    for settled in (rows[10:20], rows[25:40], rows[45:]):
        assert max(settled) <= 1.02 * min(settled), settled


def test_a_large_backlog_is_read_in_batches_near_the_time_wanted() -> None:
    """Five million rows of .07 ms, .6 s a batch, 5 s wanted."""
    late: list[float] = []
    for seed in range(5):
        target = Target(random.Random(seed), fifteen_percent, 0.6, 7e-5)
        sizes = BatchRows(target_s=5.0, rows=500, rows_max=100_000)
        times, left = [], 5_000_000
        while left > 0:
            rows = min(left, sizes.rows)
            times.append(target.batch_s(rows))
            left -= rows
            if len(times) > 1:  # the first is no sample
                sizes.took(rows, times[-1])
        late += times[5:]
    late.sort()
    assert late[int(0.95 * len(late))] <= 1.5 * 5.0
    assert sum(late) / len(late) == pytest.approx(5.0, rel=0.1), "nor smaller than wanted"


@pytest.mark.parametrize("restart_every", [0, 12])
@pytest.mark.parametrize("start", [1, 200])
@pytest.mark.parametrize("fixed_s", [1.5, 2.0, 3.0])
def test_where_spark_takes_all_of_the_time_wanted_batches_do_not_stay_tiny(
    fixed_s: float, start: int, restart_every: int
) -> None:
    """2 s are wanted: with one row each they took as long, and told nothing else."""
    should = max(2.0 - fixed_s, fixed_s / 2) / ROW_S
    shares = []
    for seed in range(20):
        target = Target(random.Random(seed), fifteen_percent, fixed_s)
        sizes = BatchRows(target_s=2.0, rows=start, rows_max=ROWS_MAX)
        rows = []
        for step in range(120):
            rows.append(sizes.rows)
            if restart_every and step % restart_every == 0:
                sizes = BatchRows(target_s=2.0, rows=sizes.rows, rows_max=ROWS_MAX)
            elif step:
                sizes.took(sizes.rows, target.batch_s(sizes.rows))
        shares.append(sorted(rows[60:])[30] / should)
    assert sorted(shares)[10] >= 0.5, shares
    assert min(shares) >= 0.1, shares


def test_rows_that_do_take_the_time_are_seldom_doubled() -> None:
    """A record takes a second, and 10 s are wanted."""
    target = Target(random.Random(1), fifteen_percent, 0.5, 1.0)
    sizes = BatchRows(target_s=10.0, rows=200, rows_max=ROWS_MAX)
    late = 0
    for step in range(500):
        took_s = target.batch_s(sizes.rows)
        late += step > 10 and took_s > 1.6 * 10.0
        sizes.took(sizes.rows, took_s)
    assert late <= 0.02 * 500, "of which noise alone makes a few"


@pytest.mark.parametrize("fixed_s", [9.0, 20.0])
def test_spark_becomes_slower_than_a_batch_should_take(fixed_s: float) -> None:
    """Sizes fall first, as if the rows cost more, and come back when that wins nothing."""
    target = Target(random.Random(1), ten_percent, fixed_s)
    sizes = BatchRows(target_s=TARGET_S, rows=200, rows_max=ROWS_MAX)
    rows = []
    for step in range(80):
        rows.append(sizes.rows)
        before = target._replace(fixed_s=1.0)
        sizes.took(sizes.rows, (before if step < 15 else target).batch_s(sizes.rows))
    should = fixed_s / 2 / ROW_S
    later = sorted(rows[-20:])
    assert 0.5 * should <= later[10] <= 2 * should, rows
