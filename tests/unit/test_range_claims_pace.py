"""When a bolt reports what it has done of a range."""

from __future__ import annotations

import pytest

from flowctl.bolts.range_claims import PROGRESS_EARLY, PROGRESS_EVERY_S, RangeClaims
from flowctl.core.messages import Processed


def reports(*, batch_s: float, batches: int, follows: bool = False) -> list[float]:
    """Return when reports were made, of batches that take so long."""
    claims = RangeClaims(0, batches + 1)
    if follows:
        claims.follows(0.0)
    told_s = []
    for number in range(1, batches + 1):
        claims.claim(number)
        claims.done(Processed(records=1))
        if claims.progress(number * batch_s) is not None:
            told_s.append(number * batch_s)
    return told_s


def test_the_first_short_batches_are_reported_at_once():
    assert reports(batch_s=0.01, batches=3) == [0.01, 0.02, 0.03]


def test_many_short_batches_are_reported_ten_times_a_second():
    told_s = reports(batch_s=0.005, batches=1_000)
    assert len(told_s) <= 5.0 / PROGRESS_EVERY_S + PROGRESS_EARLY + 1
    assert len(told_s) >= 5.0 / PROGRESS_EVERY_S


def test_each_batch_is_reported_where_a_short_one_is_between_long_ones():
    claims = RangeClaims(0, 100)
    now_s = 0.0
    for number, batch_s in enumerate([0.15, 0.15, 0.06] * 10, start=1):
        now_s += batch_s
        claims.claim(number)
        claims.done(Processed(records=1))
        assert claims.progress(now_s) is not None


def test_the_first_progress_of_a_range_that_follows_another_is_not_urgent():
    assert reports(batch_s=0.01, batches=9, follows=True) == []
    assert reports(batch_s=0.01, batches=12, follows=True)[0] == pytest.approx(PROGRESS_EVERY_S)
