"""A limit in a time: what decides that a refusal was one of rate, and what is learned of it."""

from __future__ import annotations

from math import inf

import pytest

from flowctl.core.pacing.law import Bounds, TargetLaw
from flowctl.core.pacing.rate import LearnedRate, State
from flowctl.core.pacing.sample import Sample
from flowctl_lab.simulation.law_catalogue import LAWS, SETTINGS, measured
from flowctl_lab.simulation.law_report import is_met, report_of, runs_of
from tests.pacing_parts import CALL_S, Target

TICK_S, LAG_S = 0.25, 0.6
QUICK = ["rate with short calls", "bucket", "a header tells", "a header lies"]
# Gates are for means: a run is chaotic, and one alone changes with the last digit of a sum.
SEEDS = (1, 2)


class Rated:
    """A target that takes so many calls a second, whoever calls."""

    def __init__(self, takes: float, tries: float) -> None:
        self.takes, self.tries = takes, tries
        self.rate = LearnedRate()
        self.now_s = 100.0
        self.owed = self.bad = 0.0

    def run(self, seconds: float) -> tuple[int, int]:
        """Go on; return how many calls were taken and refused."""
        done = refused = 0
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            called = min(self.tries, self.rate.most) * TICK_S
            taken = min(called, self.takes * TICK_S)
            self.owed += taken
            calls = int(self.owed)
            self.owed -= calls
            self.bad += called - taken
            bad = int(self.bad)
            self.bad -= bad
            is_held = self.rate.most < self.tries
            sample = Sample(TICK_S, calls, float(calls), 0.1 * calls, bad, 9, True, is_held)
            self.rate.on_sample(self.now_s, sample, LAG_S)
            done, refused = done + calls, refused + bad
        return done, refused

    def experiment(self) -> None:
        self.run(3.0)
        self.rate.begin(self.now_s, LAG_S)


def test_without_an_experiment_nothing_bounds() -> None:
    rated = Rated(40.0, 100.0)
    rated.run(5.0)
    assert (rated.rate.most, rated.rate.state) == (inf, State.FREE)


def test_an_experiment_calls_a_little_less_than_succeeded_and_its_end_proves_a_rate() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    assert rated.rate.most == pytest.approx(0.9 * 40.0)
    rated.run(5.0)
    assert rated.rate.state is State.HELD
    assert rated.rate.most == pytest.approx(40.0, rel=0.12)


def test_a_rate_is_used_with_few_refusals() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    rated.run(20.0)
    done, refused = rated.run(300.0)
    assert done >= 0.95 * 40.0 * 300.0
    assert refused <= 0.02 * done


def test_where_refusals_go_on_it_was_the_number_and_that_is_not_asked_again_soon() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    for _ in range(20):
        rated.now_s += TICK_S
        sample = Sample(TICK_S, 8, 8.0, 0.8, 2, 9, True, True)
        rated.rate.on_sample(rated.now_s, sample, LAG_S)
    assert (rated.rate.state, rated.rate.most) == (State.FREE, inf)
    assert not rated.rate.may_try(rated.now_s + 290.0)
    assert rated.rate.may_try(rated.now_s + 300.0)


def test_a_rate_that_falls_to_a_third_is_followed_at_once_and_one_that_rises_soon() -> None:
    rated = Rated(60.0, 200.0)
    rated.experiment()
    rated.run(60.0)
    rated.takes = 20.0
    rated.run(5.0)
    done, refused = rated.run(100.0)
    assert done >= 0.9 * 20.0 * 100.0
    assert refused <= 0.02 * done
    rated.takes = 60.0
    rated.run(150.0)
    assert rated.run(60.0)[0] >= 0.9 * 60.0 * 60.0


def test_a_rate_that_was_a_little_too_high_falls_to_what_was_taken() -> None:
    """A window of a second refuses all that comes at its end: a quarter of a second says little."""
    rate = LearnedRate(50.0)
    now_s, left, lowest = 100.0, 50, inf
    for tick in range(400):
        now_s += TICK_S
        left = left if tick % 4 else 50
        called = round(rate.most * TICK_S)
        calls = min(called, left)
        left -= calls
        sample = Sample(TICK_S, calls, float(calls), 0.1, called - calls, 9, True, True)
        rate.on_sample(now_s, sample, LAG_S)
        lowest = min(lowest, rate.most)
    assert 45.0 < lowest < 50.0


def test_a_window_that_closes_as_an_experiment_begins_is_no_number() -> None:
    """One call that was on its way succeeds; then nothing does."""
    rated = Rated(40.0, 100.0)
    rated.experiment()
    for calls, refused in [(1, 2), *[(0, 4)] * 12]:
        rated.now_s += TICK_S
        sample = Sample(TICK_S, calls, float(calls), 0.1, refused, 9, True, True)
        rated.rate.on_sample(rated.now_s, sample, LAG_S)
    assert rated.rate.is_closed


def test_where_all_is_refused_one_call_at_a_time_asks_whether_it_is_over() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    rated.takes = 0.0
    rated.run(3.0)
    assert rated.rate.is_closed
    rates = [rated.rate.most]
    for _ in range(round(60.0 / TICK_S)):
        rated.run(TICK_S)
        rates += [rated.rate.most] if rated.rate.most != rates[-1] else []
    assert [1 / rate for rate in rates] == [2, 4, 5], "each after twice as long, up to 5 s"
    rated.takes = 40.0
    rated.run(10.0)
    assert rated.rate.most == inf, "it was away: what came before says nothing"


def test_after_an_outage_a_rate_is_what_it_was() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    rated.run(10.0)
    before = rated.rate.most
    rated.takes = 0.0
    rated.run(23.0)
    assert rated.rate.is_closed
    rated.takes = 40.0
    rated.run(8.0)
    assert rated.rate.state is State.HELD
    assert rated.rate.most == pytest.approx(before, rel=0.1)


def test_a_target_that_opened_once_and_refuses_all_again_is_closed_without_an_experiment() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    rated.takes = 0.0
    rated.run(40.0)  # as long as no usual window is
    rated.takes, rated.tries = 40.0, 30.0
    rated.run(10.0)
    assert rated.rate.state is State.FREE
    rated.takes = 0.0
    rated.run(5.0)
    assert rated.rate.is_closed


def test_after_an_outage_a_target_takes_at_once_what_it_took() -> None:
    """It takes 16 at once, is away for 23 s, and then takes them again."""
    target = Target(TargetLaw(Bounds(), tick_s=TICK_S), takes=16)
    target.run(30.0)
    target.takes = 0
    target.run(23.0)
    target.takes = 16
    assert target.run(2.0) >= 0.8 * 16 / CALL_S
    assert target.run(20.0) >= 0.95 * 16 / CALL_S


def test_what_succeeded_from_one_end_of_a_window_to_the_next_is_its_rate() -> None:
    """60 a minute, used up in the first seconds: one more each second is taken, no more."""
    rate = LearnedRate()
    now_s, used = 0.0, 0

    def tick(calls: int, refused: int) -> None:
        nonlocal now_s
        now_s += TICK_S
        in_all = Sample(TICK_S, calls, float(calls), 0.1 * calls, refused, 4, True, True)
        rate.on_sample(now_s, in_all, LAG_S)

    while used < 60:
        tick(5, 0)
        used += 5
    tick(0, 5)
    rate.begin(now_s, LAG_S)
    while now_s < 59.0:
        asks = rate.is_closed and int(now_s / 4) != int((now_s + TICK_S) / 4)
        tick(0, 5 if not rate.is_closed else int(asks))
    while now_s < 62.0:
        tick(0, 0)
    tick(1, 0)
    assert rate.state is State.HELD
    assert rate.most == pytest.approx(1.0, rel=0.04)


def test_a_rate_that_nobody_reaches_is_forgotten() -> None:
    rated = Rated(40.0, 100.0)
    rated.experiment()
    rated.run(5.0)
    rated.tries = 10.0
    rated.run(11.0)
    assert rated.rate.most == inf


def test_who_takes_over_goes_on_at_the_rate_that_was_learned() -> None:
    law = TargetLaw(Bounds(), tick_s=TICK_S, known=8, rate=12.0)
    for tick in range(60):
        law.on_sample(1_000.0 + TICK_S * tick, Sample(TICK_S, 3, 3.0, 0.3, 0, 8, True, True))
    assert law.rate == pytest.approx(12.0, rel=0.001)
    for tick in range(60, 112):
        law.on_sample(1_000.0 + TICK_S * tick, Sample(TICK_S, 3, 3.0, 0.3, 0, 8, True, True))
    assert 12.0 < law.rate < 15.0, "after as many calls as any rate, it tries a little more"


def test_what_a_target_tells_is_taken_at_once_and_no_longer_than_it_tells() -> None:
    law = TargetLaw(Bounds(), tick_s=TICK_S)
    quiet = Sample(TICK_S, 3, 3.0, 0.3, 0, 4, True, True)
    law.on_sample(1_000.0, quiet._replace(told_rate=7.0))
    assert law.rate == 7.0
    law.on_sample(1_000.25, quiet)
    assert law.rate == inf


def test_a_target_that_tells_that_nothing_is_left_refuses_no_number() -> None:
    told, untold = (TargetLaw(Bounds(start=9), tick_s=TICK_S) for _ in range(2))
    refused = Sample(TICK_S, 3, 3.0, 0.3, 6, 9, True, True, 6)
    told.on_sample(1_000.0, refused._replace(told_rate=0.1))
    untold.on_sample(1_000.0, refused)
    assert told.limit >= 9 > untold.limit


def test_long_calls_that_take_no_longer_are_four_times_as_many_after_each_round() -> None:
    law = TargetLaw(Bounds(), tick_s=TICK_S)
    limits, now_s = [law.limit], 0.0
    while now_s < 75.0:
        now_s += TICK_S
        calls = law.limit if not now_s % 20.0 else 0
        law.on_sample(now_s, Sample(TICK_S, calls, calls, 20.0 * calls, 0, law.limit, True))
        if law.limit != limits[-1]:
            limits.append(law.limit)
    assert limits[:3] == [4, 16, 64]


@pytest.mark.parametrize("name", QUICK)
def test_targets_with_a_rate_are_used_with_few_refusals(name: str) -> None:
    setting = SETTINGS[name]
    assert is_met(setting, [measured(setting, LAWS["flowctl"], seed) for seed in SEEDS])


def test_calls_that_differ_widely_do_not_look_like_a_queue() -> None:
    """The longest are chance: a limit that took them for a queue was a third of what fits."""
    setting = SETTINGS["lognormal"]
    assert is_met(setting, [measured(setting, LAWS["flowctl"], seed) for seed in (3, 8, 15)])


def test_the_table_names_what_was_missed() -> None:
    runs = runs_of(["collapse at once"], ["flowctl", "Vegas"], processes=1)
    assert "| collapse at once: " in report_of(runs, ["flowctl", "Vegas"])


def test_the_first_calls_after_an_outage_are_not_taken_for_a_rate() -> None:
    """The kind: an experiment without a rate.  With few callers an outage refuses few calls: they
    look like those of a rate, and in an experiment all calls at one a second succeed once it ends.
    """
    rate, now_s = LearnedRate(), 0.0

    def sampled(calls: int, refused: int = 0) -> None:
        nonlocal now_s
        now_s += 0.5
        rate.on_sample(now_s, Sample(0.5, calls, 150.0 * calls, refused=refused), lag_s=1.0)

    for _ in range(30):
        sampled(5)
    for _ in range(6):
        sampled(0, refused=1)
    rate.begin(now_s, lag_s=1.0)
    assert rate.is_closed
    for _ in range(4):
        sampled(0, refused=1)
    sampled(1)  # it is back
    for _ in range(20):
        sampled(5)
    assert (rate.state, rate.most) == (State.FREE, inf)
