"""Jobs as shipped, drawn at random, and the yardsticks beside them."""

from __future__ import annotations

from statistics import fmean

import pytest
from msgspec.structs import replace

from flowctl.cli.main import main
from flowctl.config import Settings
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.engine import Simulation
from flowctl_lab.simulation.generated import declaration, generate, names, scenario_of
from flowctl_lab.simulation.policies import settings_for
from flowctl_lab.simulation.scenario import Death, Loss, Scenario, Sink
from flowctl_lab.simulation.yardsticks import CHUNKS, best_fixed_s

pytestmark = pytest.mark.on_change()

JOB = Scenario(
    name="job", what="", bolts=4, records=960, tuple_s=0.01, record_s=0.01, service_cv=0.0
)


def test_a_name_is_enough_to_draw_a_scenario_again() -> None:
    for name in names(20, 3):
        assert scenario_of(name) == scenario_of(name)
        assert scenario_of(name).name == name
    assert len({replace(scenario_of(name), name="") for name in names(20, 3)}) == 20
    assert scenario_of("homog") is CATALOGUE["homog"]


def test_the_drawn_jobs_reach_what_is_promised() -> None:
    drawn = [generate(1, index) for index in range(400)]
    assert min(s.bolts for s in drawn) == 1
    assert max(s.bolts for s in drawn) > 150
    assert min(s.records for s in drawn) == 24
    assert min(s.record_s for s in drawn) < 2e-5
    assert max(s.record_s for s in drawn) > 200
    assert min(s.tuple_s for s in drawn) == 0
    assert max(s.tuple_s for s in drawn) > 0.8
    for seen in ("loss", "deaths", "pauses", "jitter_s", "end_late_s", "connects_s"):
        assert any(getattr(s, seen) for s in drawn), seen
        assert not all(getattr(s, seen) for s in drawn), seen
    assert {s.pareto for s in drawn} >= {0.0, 1.1, 2.5}
    assert {len(s.joins_s) for s in drawn} == {1, 2, 3}


def test_a_job_has_the_settings_that_are_shipped() -> None:
    assert settings_for(JOB, Settings()) == Settings()


def test_the_yardsticks_know_what_a_job_needs() -> None:
    """960 records of 10 ms on four bolts, 10 ms a call: 2.4 s, and 60 calls each in 240 chunks."""
    outcome = Simulation(JOB, Settings(), 1).run()
    assert outcome.finished
    assert outcome.chunks_s == pytest.approx(2.4 + CHUNKS / 4 * (0.01 + 0.002), rel=0.01)
    assert outcome.greedy_s is not None
    assert 2.4 + 0.02 < outcome.greedy_s < 2.4 + 0.1
    assert outcome.bound_s == pytest.approx(2.4 + 0.01 + 0.002)


def test_the_yardsticks_do_not_know_which_new_bolts_are_fast() -> None:
    """Two records for three bolts, the second of a quarter of the speed: it is taken, too."""
    few = replace(JOB, bolts=3, speeds=(1.0, 0.25, 1.0), records=2)
    outcome = Simulation(few, Settings(), 1).run()
    for yardstick_s in (outcome.greedy_s, outcome.chunks_s):
        assert yardstick_s == pytest.approx(4 * 0.02 + 0.002)


def test_the_yardsticks_lose_what_the_run_does() -> None:
    """Each tuple that reaches the second bolt in vain is noticed a heartbeat later."""
    lossy = replace(JOB, bolts=2, records=24, loss=Loss(bolts=(1,), share=0.999))
    outcome = Simulation(lossy, Settings(), 1).run()
    plain = Simulation(replace(lossy, loss=None), Settings(), 1).run()
    for lost_s, plain_s in ((outcome.greedy_s, plain.greedy_s), (outcome.chunks_s, plain.chunks_s)):
        assert lost_s is not None
        assert plain_s is not None
        assert lost_s > 1.5 * plain_s, "one bolt does nearly all"


def test_the_yardsticks_give_each_bolt_a_record_before_any_gets_two() -> None:
    """The slow bolt is the last one: it is not left out because others have more slots."""
    few = replace(JOB, bolts=3, slots=2, speeds=(1.0, 1.0, 0.25), records=4)
    outcome = Simulation(few, Settings(), 1).run()
    assert outcome.greedy_s == pytest.approx(4 * 0.02 + 0.002)


def test_spouts_of_one_job_do_not_all_begin_with_the_same_bolts() -> None:
    """Two spouts with two records each and four bolts: each bolt gets one."""
    two = replace(JOB, records=2, joins_s=(0.0, 0.0))
    outcome = Simulation(two, Settings(), 1).run()
    assert outcome.makespan_s < 0.03


def test_a_run_may_take_as_long_as_its_dearest_record_at_the_slowest_bolt() -> None:
    slow = replace(JOB, speeds=(1.0, 1.0, 1.0, 0.01))
    for skewed in (replace(slow, pareto=1.1), replace(slow, data_cv=3.0)):
        assert skewed.limit_s > 960 * 0.01 / 0.01


def test_the_yardsticks_lose_what_a_bolt_was_at_work_on() -> None:
    dying = replace(JOB, deaths=(Death(bolt=0, at_s=1.0),))
    before, after = (Simulation(job, Settings(), 1).run() for job in (JOB, dying))
    for one, other in ((before.greedy_s, after.greedy_s), (before.chunks_s, after.chunks_s)):
        assert one is not None
        assert other is not None
        assert one * 1.15 < other < one * 1.5  # three bolts do the last 1.4 s of four


def test_bolts_that_come_late_do_not_get_the_rest_one_after_the_other() -> None:
    """46 bolts come within 2 s, a call costs .25 s and all records together take .3 s.  Bolts that
    had not answered held up the others, until one at a time each got a record: 8.1 s."""
    job = scenario_of("random:7100:29")
    outcome = Simulation(job, Settings(), 7100).run()
    assert outcome.finished
    assert outcome.greedy_s is not None
    assert outcome.makespan_s < outcome.greedy_s


def test_calls_of_a_second_are_made_as_rarely_as_the_best_size_makes_them() -> None:
    """Halves of what was left: .84 and .85 of the best fixed size.  With one call in 20 s of work
    more or less a seed's share is .82 to .95, so it is the mean that counts."""
    job = Scenario(name="grid", what="", tuple_s=1.0, record_s=0.001, records=200_000)
    shares = [
        best_fixed_s(job, seed) / Simulation(job, Settings(), seed).run().makespan_s
        for seed in (11, 21, 22, 31)
    ]
    assert fmean(shares) >= 0.9


def test_the_bound_has_the_luck_of_the_run() -> None:
    """What is short by chance does not count for the driver, nor the other way round."""
    noisy = replace(JOB, service_cv=1.0, one_way_s=0.0, tuple_s=0.0)
    simulation = Simulation(noisy, Settings(), 5)
    outcome = simulation.run()
    assert simulation.drawn_s != pytest.approx(simulation.asked_s, rel=1e-3)
    expected_s = simulation.drawn_s / simulation.asked_s * 2.4
    assert outcome.efficiency == pytest.approx(expected_s / outcome.makespan_s)


def test_a_slot_is_taken_while_its_tuple_is_in_the_sink() -> None:
    plain = replace(CATALOGUE["homog"], tuples=240, service_cv=0.0)
    in_sink = replace(plain, sink=Sink(slots=12, record_s=plain.tuple_mean_s / 100))
    bounds = [Simulation(s, Settings(), 1).run().bound_s for s in (plain, in_sink)]
    assert bounds[1] - plain.round_trip_s == pytest.approx(2 * (bounds[0] - plain.round_trip_s))


def test_the_end_may_be_told_late() -> None:
    """The job is done when all is acked; the spout ends when it knows."""
    late = replace(JOB, records=24, end_late_s=5.0)
    simulation = Simulation(late, Settings(), 1)
    outcome = simulation.run()
    assert outcome.makespan_s < 1.0
    assert simulation.loop.now_s >= 5.0


def test_a_failing_run_prints_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--random", "3", "--seed", "5", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "3 scenarios, 3 finished, 0 records lost." in told
    # One record a tuple is slower than any chunks.
    slow = ["simulate", "random:5:1", "--set", "tuple.records_max=1", "--jobs", "1", "--check"]
    main(slow)
    told = capsys.readouterr().out
    assert "random:5:1" in told


def test_a_declaration_says_what_differs() -> None:
    told = declaration(replace(JOB, speeds=(1.0, 1.0, 0.25, 0.25)))
    assert "bolts=4" in told
    assert "speeds=[2 x 1, 2 x 0.25]" in told
    assert "one_way_s" not in told
