"""What a kill of the driver repeats of a range: batches that are begun and not saved.

In virtual time: one slot works through blocks, and what it reports is saved as the checkpointer
does.  Nothing sleeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import inf
from random import Random
from typing import NamedTuple

import pytest

from flowctl.bolts.range_claims import RangeClaims
from flowctl.bolts.range_pace import TARGET_S, BatchPace
from flowctl.core.messages import Processed

RUN_S = 60.0
PATH_S = 0.001  # a report's way to the driver
SAVE_EVERY_S = 0.05  # with the settings as shipped, see Checkpointer
BATCHES_MAX = 2


class Work(NamedTuple):
    """A batch: when it is begun and ended, and up to which record it reaches."""

    begun_s: float
    ended_s: float
    through: int


class Report(NamedTuple):
    """What the driver knows, and from when on."""

    at_s: float
    through: int
    is_urgent: bool


def work(record_s: float, blocks: Iterator[int], noise: float) -> tuple[list[Work], list[Report]]:
    """What a slot does in ``RUN_S``; ``noise``: the share by which a batch's time varies."""
    rng, pace, claims = Random(1), BatchPace(), RangeClaims(0, 1 << 40)
    now_s, position = 0.0, 0
    done: list[Work] = []
    told: list[Report] = []
    while now_s < RUN_S:
        left = next(blocks)
        while left:
            records = pace.next_of(left)
            left -= records
            position += records
            claims.claim(position)
            service_s = records * record_s * rng.uniform(1 - noise, 1 + noise)
            done.append(Work(now_s, now_s + service_s, position))
            now_s += service_s
            pace.took(records, service_s)
            claims.done(Processed(records=records, is_urgent=pace.is_next_short(left)))
            if (progress := claims.progress(now_s)) is not None:
                _, through, did = progress
                told.append(Report(now_s + PATH_S, through, did.is_urgent))
    return done, told


def saves(told: list[Report], took_s: float) -> Iterator[tuple[float, int]]:
    """When something is saved, and up to which record."""
    now_s = begun_s = 0.0
    while now_s < RUN_S:
        hurried_s = min((r.at_s for r in told if r.is_urgent and r.at_s > begun_s), default=inf)
        begun_s = min(now_s + SAVE_EVERY_S, max(hurried_s, now_s + took_s))
        now_s = begun_s + took_s
        yield now_s, max((r.through for r in told if r.at_s <= begun_s), default=0)


def most_unsaved(done: list[Work], saved: list[tuple[float, int]]) -> int:
    """The most batches that were begun and not saved."""
    ends = [batch.through for batch in done]
    times = [at_s for at_s, _ in saved]
    most = 0
    for begun, batch in enumerate(done, start=1):
        number = bisect_right(times, batch.begun_s)
        through = saved[number - 1][1] if number else 0
        if batch.begun_s < RUN_S:
            most = max(most, begun - bisect_right(ends, through))
    return most


def lengths(low: int, high: int) -> Iterator[int]:
    rng = Random(2)
    while True:
        yield rng.randint(low, high)


@pytest.mark.parametrize("save_s", [0.001, 0.003])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("record_s", [0.00024, 0.001, 0.02, 0.05, 0.3])
def test_a_kill_of_the_driver_repeats_at_most_two_batches(
    record_s: float, noise: float, save_s: float
) -> None:
    """Wherever blocks end, when costs are learned, and with trials of few records."""
    fit = max(2, int(TARGET_S / record_s))
    done, told = work(record_s, lengths(fit, 8 * fit), noise)
    assert most_unsaved(done, list(saves(told, save_s))) <= BATCHES_MAX


@pytest.mark.parametrize("left", range(1, 400))
def test_the_end_of_a_block_is_no_short_batch(left: int) -> None:
    pace = BatchPace()
    for _ in range(30):  # a hundred records fit
        pace.took(pace.next_of(1_000), pace.next_of(1_000) * TARGET_S / 100)
    assert pace.records == pace.next_records == 100
    sizes = []
    whole = left
    while left:
        sizes.append(pace.next_of(left))
        left -= sizes[-1]
    assert sum(sizes) == whole
    assert max(sizes) <= 134
    assert min(sizes) >= min(whole, 66)


def test_a_short_batch_that_is_next_is_told_before_it_is_begun() -> None:
    """Else three batches could be unsaved when it ends."""
    pace = BatchPace()
    assert pace.is_next_short(0)
    urgent = []
    for _ in range(400):
        urgent.append(pace.is_next_short(0))
        records = pace.next_records
        assert urgent[-1] == (records * 0.001 < 0.1)
        pace.took(records, records * 0.001)
    assert 3 <= sum(urgent) < 20, "the first ones, and trials"


def test_blocks_of_little_work_hurry_nobody() -> None:
    """Every batch is short then, and no save could keep up."""
    pace = BatchPace()
    for _ in range(100):
        records = pace.next_of(2_700)
        pace.took(records, records * 1e-6)
    hurried = 0
    for _ in range(1_000):
        records = pace.next_of(2_700)
        pace.took(records, records * 1e-6)
        hurried += pace.is_next_short(0)
    assert hurried < 10
