"""The law of a paced target, on samples of closed-form targets: ramp, guard, refusals, headroom."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from flowctl.core.pacing.figures import StoredTarget
from flowctl.core.pacing.law import Bounds, Headroom, Ramp, TargetLaw
from flowctl.core.pacing.leases import RateGate, Sums
from flowctl.core.pacing.sample import Sample
from tests.pacing_parts import CALL_S, TICK_S, Target, law, serial


def test_begins_with_few_and_goes_as_far_as_callers_do() -> None:
    target = Target(law(), callers=64)
    target.run(20.0)
    assert (target.limits[0], target.law.limit >= 64) == (4, True)


def test_stays_where_more_brings_nothing() -> None:
    target = Target(law(), call_s=serial(10))
    target.run(15.0)
    assert target.run(30.0) >= 0.97 * 10 / CALL_S
    assert 9 <= target.law.limit <= 13


def test_a_hard_limit_costs_few_refusals() -> None:
    target = Target(law(), takes=10)
    target.run(5.0)
    start = target.refused
    assert target.run(60.0) >= 0.97 * 10 / CALL_S
    assert target.refused - start <= 0.01 * target.done


def test_follows_a_hard_limit_that_halves_and_comes_back() -> None:
    target = Target(law(), takes=10)
    target.run(20.0)
    target.takes = 5
    target.run(3.0)
    assert target.run(15.0) >= 0.95 * 5 / CALL_S
    target.takes = 10
    target.run(5.0)
    assert target.run(15.0) >= 0.95 * 10 / CALL_S


def test_bounds_hold_whatever_is_learned() -> None:
    target = Target(law(least=12, most=20, start=1), takes=10)
    target.run(10.0)
    assert set(target.limits) <= set(range(12, 21))


def test_what_another_learned_is_where_it_begins() -> None:
    target = Target(law(known=10), takes=10)
    target.run(1.0)
    assert max(target.limits) <= 13


@pytest.mark.parametrize("limit", [{"takes": 10}, {"call_s": serial(10)}])
def test_headroom_is_left_most_of_the_time(limit: dict[str, object]) -> None:
    target = Target(law(leave=0.2), **limit)  # type: ignore[arg-type]
    target.run(20.0)
    mean = target.run(600.0) / (10 / CALL_S)
    assert 0.75 <= mean <= 0.85


def test_a_rest_ends_when_the_target_takes_less() -> None:
    target = Target(law(leave=0.2), takes=10)
    target.run(30.0)
    target.takes = 5
    target.run(10.0)
    assert target.law.limit <= 5


def test_headroom_is_not_kept_of_a_limit_that_one_moment_set_and_nothing_tried_again() -> None:
    target = Target(law(leave=0.2), takes=10, call_s=lambda _: 0.25)
    target.run(3.0)
    target.takes = 5
    target.run(TICK_S)
    target.takes = 10
    target.run(20.0)
    assert 0.75 <= target.run(20.0) / (10 / 0.25) <= 0.85


def test_where_calls_take_seconds_headroom_waits_ten_seconds_for_another_try() -> None:
    target = Target(law(leave=0.5), takes=10, call_s=lambda _: 2.0)
    target.law._take_refusals(0.0, Sample(TICK_S, 1, 1, 2.0, 6, 16, True, False, 6), 0.0)
    target.run(20.0)
    assert target.law.limit <= 5


def test_a_budget_is_used_and_never_more_in_a_second_than_it_and_one_call() -> None:
    gate, begun_s, now_s = RateGate(100.0), [], 0.0
    while now_s < 20.0:
        now_s += gate.wait_s(now_s) + 0.0007  # wakes up late
        gate.begin(now_s, 1.0)
        begun_s.append(now_s)
    assert len(begun_s) >= 0.97 * 100 * 20
    assert max(sum(b <= a < b + 1.0 for a in begun_s) for b in begun_s) <= 101


def test_a_part_of_a_budget_may_be_none_or_change() -> None:
    gate = RateGate(0.0)
    assert gate.wait_s(0.0) == float("inf")
    gate.set_rate(1.0, 0.0)
    gate.begin(0.0, 10.0)
    gate.set_rate(10.0, 0.0)
    assert gate.wait_s(0.0) == pytest.approx(1.0, rel=0.05)
    gate.correct(-5.0)
    assert gate.wait_s(0.0) == pytest.approx(0.5, rel=0.1)


def test_a_call_is_paid_for_even_if_its_part_of_the_budget_comes_and_goes() -> None:
    gate, begun, now_s = RateGate(0.0), 0, 0.0
    while now_s < 60.0:
        gate.set_rate(10.0 if int(now_s / 0.25) % 2 else 0.0, now_s)
        if gate.wait_s(now_s) <= 0:
            gate.begin(now_s, 10.0)
            begun += 1
        now_s += 0.05
    assert 29 <= begun <= 31  # half of the time 10 a second: 5 a second


@pytest.mark.parametrize("is_known", [False, True])
def test_a_start_goes_back_to_what_was_good_and_tries_again_later(is_known: bool) -> None:
    """Where more brings nothing, from the first step on."""
    ramp = Ramp(8.0, is_known=is_known)
    tick, levels = 0, []
    while tick < 4 * 60:
        tick += 1
        sample = Sample(TICK_S, 200, 200.0, 10.0, 0, int(ramp.level), True)
        ramp.on_sample(tick * TICK_S, sample, 0.5, 1_000.0)
        if not levels or levels[-1][1] != ramp.level:
            levels.append((tick * TICK_S, ramp.level))
        if ramp.level == 8.0 and len(levels) >= (3 if is_known else 5):
            assert ramp.is_found
    assert {level for _, level in levels} == ({8.0, 10.0} if is_known else {8.0, 16.0, 10.0})
    tries = [at_s for at_s, level in levels if level == 10.0]
    pauses = [after - before for before, after in pairwise(tries)]
    assert len(pauses) >= 2 and all(one < other for one, other in pairwise(pauses)), "longer"


def test_what_another_limit_let_through_says_nothing_of_a_start() -> None:
    """A refusal set the limit: what was seen under it is forgotten; it begins near it."""
    ramp = Ramp(4.0)
    for tick in range(1, 4):
        ramp.on_sample(tick * TICK_S, Sample(TICK_S, 10, 10.0, 5.0, 0, 4, True), 0.0, 1_000.0)
    ramp.hold_at(10.0, 1.0)
    assert ramp.level == 20.0
    one = Sample(TICK_S, 40, 40.0, 5.0, 0, 20, True)
    ramp.on_sample(1.4, one, 0.5, 1_000.0)
    ramp.on_sample(1.6, one._replace(calls=300), 0.5, 1_000.0)
    assert ramp.level == 20.0, "so few calls say little of so many at once"
    ramp.on_sample(1.8, one, 0.5, 1_000.0)
    assert ramp.level == 25.0, "a quarter more"


def test_a_part_of_a_rate_is_left_too_while_the_law_rests() -> None:
    paced = TargetLaw(Bounds(), leave=0.2, tick_s=TICK_S, known=10, rate=40.0)
    rates = set()
    for tick in range(1, 60):
        share = min(1.0, paced.rate / 40.0)
        sample = Sample(TICK_S, int(10 * share), 10 * share, 1.0, 0, 9, False, True)
        paced.on_sample(tick * TICK_S, sample)
        rates.add(round(paced.rate, 1))
    resting = [rate for rate in rates if rate < 40.0]
    assert resting and min(resting) >= 32.0 and max(resting) <= 0.8 * max(rates)


def test_refusals_of_calls_that_began_before_a_fall_are_no_news() -> None:
    """A refusal takes no more than a second, however long calls take that are accepted."""
    paced = law(known=40)
    falls = []
    for tick in range(1, 13):
        before = paced.limit
        refused = 4 if tick in (4, 6, 8, 11) else 0
        paced.on_sample(
            tick * TICK_S, Sample(TICK_S, 3, 3.0, 9.0, refused, 40, True, False, refused)
        )
        if paced.limit < before:
            falls.append(tick)
    assert falls == [4, 11]


def test_a_round_of_long_calls_is_counted_anew_at_each_level() -> None:
    ramp, levels, owed = Ramp(4.0), [], 0.0
    for tick in range(1, 200):
        owed += ramp.level * TICK_S / 2.5
        calls, owed = int(owed), owed % 1
        sample = Sample(TICK_S, calls, calls, 2.5 * calls, 0, int(ramp.level), True)
        ramp.on_sample(tick * TICK_S, sample, 3.0, 1_000.0)
        if not levels or levels[-1][1] != ramp.level:
            levels.append((tick * TICK_S, ramp.level))
    times = [at_s for at_s, _ in levels]
    assert [level for _, level in levels][:4] == [4.0, 16.0, 64.0, 256.0]
    assert all(after - before >= 3.0 for before, after in pairwise(times[1:4])), "a lag at least"


def test_a_start_gets_no_higher_than_it_may() -> None:
    ramp = Ramp(8.0)
    for tick in range(1, 200):
        calls = int(10 * ramp.level)
        ramp.on_sample(tick * TICK_S, Sample(TICK_S, calls, calls, 5.0, 0, 99, True), 0.5, 20.0)
        assert ramp.level <= 20.0
    assert ramp.level == 20.0


def test_how_late_a_change_is_seen_follows_from_what_calls_take() -> None:
    paced = law()
    assert paced.lag_s == 2 * TICK_S
    lags = []
    for mean_s in (0.4, 0.8):
        paced.on_sample(1.0, Sample(TICK_S, 10, 10.0, 10 * mean_s))
        lags.append(paced.lag_s - 2 * TICK_S)
    assert lags == pytest.approx([0.4, 0.5])
    paced.on_sample(2.0, Sample(TICK_S))
    assert paced.lag_s - 2 * TICK_S == pytest.approx(0.5), "no call tells nothing"


def test_a_server_that_was_emptied_shows_no_less_than_nothing() -> None:
    peaks = {"in_flight": 3, "is_held": True, "is_rate_held": False, "resting": 1}
    done = Sums(calls=7, cost=8.0, call_s=9.0, refused=2)
    assert Sample.of(1.0, done, **peaks) == Sample(1.0, 7, 8.0, 9.0, 2, 3, True, False, 1)
    emptied = Sums().minus(done)
    assert Sample.of(1.0, emptied, **peaks) == Sample(1.0, 0, 0.0, 0.0, 0, 3, True, False, 1)


def test_where_callers_were_the_limit_the_part_is_one_of_the_limit() -> None:
    headroom = Headroom(0.2)
    quiet = Sample(TICK_S, 5, 5.0, 0.25, 0, 2)
    tick = 0
    while not headroom.is_resting:
        tick += 1
        headroom.on_learned(tick * TICK_S, 10, quiet, is_found=True, is_sure=True)
    assert headroom.part(10) == 8.0
    assert headroom.rest(tick * TICK_S + 1.0, quiet, 0.5)
    assert headroom.part(10) == 8.0


def test_callers_that_do_nothing_but_wait_show_that_the_target_is_the_limit() -> None:
    for in_flight, call_s, is_bound in ((1, 0.2, True), (1, 0.1, False), (4, 0.8, True)):
        sample = Sample(TICK_S, 5, 5.0, call_s, 0, in_flight)
        assert sample.is_bound is is_bound
        assert sample._replace(is_held=True).is_bound
    assert not Sample(TICK_S).is_bound
    assert Sample(TICK_S).mean_s == 0.0


def test_a_budget_lets_all_in_as_more_permits_bring_no_more_calls() -> None:
    paced = law()
    for tick in range(100):
        sample = Sample(TICK_S, 25, 25, 0.5, 0, paced.limit, paced.limit < 32, True)
        paced.on_sample(tick * TICK_S, sample)
    assert paced.limit >= 32


def test_headroom_is_a_part_of_what_fills_the_target_not_of_a_limit_above_it() -> None:
    headroom = Headroom(0.2)
    full = Sample(TICK_S, 25, 25, 25 * 0.125, 0, 12, True)  # 100 calls/s at a limit of 12.5
    for tick in range(20):
        if not headroom.is_resting:
            headroom.on_learned(tick * TICK_S, 12, full, is_found=True, is_sure=True)
    assert headroom.part(12.5) == pytest.approx(0.8 * 12.5)
    calm = Sample(TICK_S, 20, 20, 20 * 0.1, 0, 8, True)  # a call takes .1 s if nobody queues
    for tick in range(20, 30):
        assert headroom.rest(tick * TICK_S, calm, 0.5)
    assert headroom.part(12.5) == pytest.approx(0.8 * 10.0)


def resting(goodput: float, call_s: float, limit: int = 10) -> Headroom:
    """At rest, after it learned that ``limit`` gives ``goodput``, with quick calls."""
    headroom = Headroom(0.2)
    calls = int(goodput * TICK_S)
    full = Sample(TICK_S, calls, calls, calls * call_s, 0, limit, True)
    tick = 0
    while not headroom.is_resting:
        tick += 1
        headroom.on_learned(tick * TICK_S, limit, full, is_found=True, is_sure=True)
    return headroom


def test_a_part_that_is_no_whole_number_is_used_over_time() -> None:
    headroom = resting(goodput=92.0, call_s=0.1)
    calm = Sample(TICK_S, 18, 18, 1.8, 0, 8, True)
    used = []
    for tick in range(20, 120):  # less than a rest
        assert headroom.rest(tick * TICK_S, calm, 0.5)
        used.append(headroom.whole(tick * TICK_S, 10))
    assert set(used) == {7, 8}
    assert sum(used) / len(used) == pytest.approx(0.8 * 9.2, rel=0.03)
    moves = sum(one != other for one, other in pairwise(used))
    assert moves <= len(used) / 4, "a worker hears of one before the next"


def test_one_sample_of_slow_calls_does_not_end_a_rest_and_three_do() -> None:
    headroom = resting(goodput=100.0, call_s=0.1)
    calm, slow = (Sample(TICK_S, 10, 10, 10 * call_s, 0, 8, True) for call_s in (0.1, 0.2))
    ticks = iter(range(20, 100))
    for sample in [calm] * 8 + [slow, calm, slow, slow]:
        assert headroom.rest(next(ticks) * TICK_S, sample, 0.5)
    assert not headroom.rest(next(ticks) * TICK_S, slow, 0.5)


def test_a_rest_ends_when_calls_that_had_become_quicker_are_slow_again() -> None:
    """The target was busy as the rest began: the quick calls since are what it is compared with."""
    headroom = resting(goodput=100.0, call_s=0.1)
    first, quick = (Sample(TICK_S, 10, 10, 10 * call_s, 0, 8, True) for call_s in (0.1, 0.05))
    ticks = iter(range(20, 100))
    for sample in [first] + [quick] * 16 + [first] * 2:
        assert headroom.rest(next(ticks) * TICK_S, sample, 0.5)
    assert not headroom.rest(next(ticks) * TICK_S, first, 0.5)


def test_what_is_seen_before_the_rest_has_reached_all_callers_does_not_count() -> None:
    headroom = resting(goodput=100.0, call_s=0.1)
    began_s = headroom._since_s
    refused = Sample(TICK_S, 10, 10, 1.0, 3, 8, True)
    assert headroom.rest(began_s + 0.4, refused, 0.5), "of calls that began at full load"
    assert headroom.rest(began_s + 0.6, Sample(TICK_S), 0.5), "nobody called"
    assert not headroom.rest(began_s + 0.6, refused, 0.5)


def test_a_cost_that_is_corrected_while_there_is_no_budget_is_paid_later() -> None:
    gate = RateGate(10.0)
    gate.begin(0.0, 10.0)
    gate.set_rate(0.0, 0.0)
    gate.correct(5.0)
    gate.set_rate(10.0, 0.0)
    assert gate.wait_s(0.0) == pytest.approx(1.5, rel=0.05)
    gate.set_rate(float("inf"), 0.0)
    gate.correct(5.0)
    gate.set_rate(10.0, 0.0)
    assert gate.wait_s(0.0) == pytest.approx(1.5, rel=0.05), "without a bound nothing is owed"


def test_what_is_owed_is_paid_at_the_new_rate_however_low() -> None:
    for rate, wait_s in ((100.0, 0.1), (1.0, 10.0), (0.5, 20.0)):
        gate = RateGate(10.0)
        gate.begin(0.0, 10.0)
        gate.set_rate(rate, 0.0)
        assert gate.wait_s(0.0) == pytest.approx(wait_s, rel=0.05)
        assert gate.wait_s(wait_s * 1.1) == 0.0
    gate = RateGate(10.0)
    gate.begin(0.0, 10.0)
    gate.set_rate(20.0, 5.0)
    assert gate.wait_s(5.0) == 0.0, "it was paid by then"


def test_a_correction_counts_as_the_call_itself_would_have() -> None:
    gate = RateGate(10.0)
    gate.begin(0.0, 10.0)
    once_s = gate.wait_s(0.0)
    gate.correct(10.0)
    assert gate.wait_s(0.0) - once_s == pytest.approx(gate.wait_s(0.0) / 2, rel=0.03)
    other = RateGate(10.0)
    other.begin(0.0, 20.0)
    assert gate.wait_s(0.0) == pytest.approx(other.wait_s(0.0))


def test_a_target_of_which_nothing_is_known_of_late_is_not_used() -> None:
    stored = StoredTarget(
        target="t", limit=4, reason="start", budget=None, leased=0, seen_s=0.0, recent=Sums(),
        recent_s=0.0, jobs={}, claims=(), operator={},
    )  # fmt: skip
    assert (stored.used, stored.calls_per_s, stored.cost_per_s) == (0.0, 0.0, 0.0)
    known = replace(stored, recent=Sums(calls=20, cost=60.0, call_s=10.0), recent_s=5.0)
    assert (known.used, known.calls_per_s, known.cost_per_s) == (2.0, 4.0, 12.0)
