"""The simulator's parts, each alone: speed profiles, time, channels, the sink, measures, oracle."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.errors import ConfigError, InternalError
from flowctl_lab.simulation import policies
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.loop import EventLoop
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.measure import Use, jain, quantile
from flowctl_lab.simulation.network import Channel, Sending
from flowctl_lab.simulation.oracle import Oracle, best_cap
from flowctl_lab.simulation.profile import Profile, Spells
from flowctl_lab.simulation.scenario import Death, Scenario, Sink, Slow
from flowctl_lab.simulation.sink import SharedSink
from flowctl_lab.simulation.workload import Workload

STEPS = st.lists(
    st.tuples(st.floats(0.01, 3.0), st.sampled_from([0.0, 0.2, 1.0, 2.0])), min_size=1, max_size=6
)


def stairs(steps: list[tuple[float, float]]) -> Profile:
    """Each speed for its duration, then speed 1 for ever."""
    edges, speeds, at_s = [], [], 0.0
    for for_s, speed in steps:
        edges.append(at_s + for_s)
        speeds.append(speed)
        at_s += for_s

    def speed_at(when_s: float) -> float:
        for edge, speed in zip(edges, speeds, strict=True):
            if when_s < edge:
                return speed
        return 1.0

    return Profile(edges, speed_at)


@given(STEPS, st.floats(0.0, 15.0), st.floats(0.001, 10.0))
def test_a_profile_finishes_when_the_work_is_done(
    steps: list[tuple[float, float]], at_s: float, work: float
) -> None:
    profile = stairs(steps)
    end_s = profile.finish(at_s, work)
    assert end_s >= at_s
    assert profile.done(end_s) - profile.done(at_s) == pytest.approx(work, abs=1e-9)


@given(STEPS, st.floats(0.0, 15.0), st.floats(0.0, 5.0))
def test_a_profile_never_undoes_work(
    steps: list[tuple[float, float]], at_s: float, more_s: float
) -> None:
    profile = stairs(steps)
    done = profile.done(at_s + more_s) - profile.done(at_s)
    assert -1e-9 <= done <= 2.0 * more_s + 1e-9


def test_work_begun_before_a_freeze_ends_after_it() -> None:
    frozen = Profile((2.0, 3.0), lambda at_s: 0.0 if 2.0 <= at_s < 3.0 else 1.0)
    assert frozen.finish(1.5, 1.0) == pytest.approx(3.5)
    assert frozen.finish(2.5, 0.25) == pytest.approx(3.25)


def test_work_on_a_dead_machine_never_ends() -> None:
    assert Profile((1.0,), lambda at_s: 1.0 if at_s < 1.0 else 0.0).finish(0.5, 1.0) == float("inf")


def test_spells_that_overlap_are_one() -> None:
    spells = Spells([(5.0, 6.0), (1.0, 2.0), (1.5, 3.0)])
    assert list(spells) == [(1.0, 3.0), (5.0, 6.0)]
    assert [spells.over_at(at_s) for at_s in (0.5, 1.0, 2.9, 3.0, 5.5)] == [0.5, 3.0, 3.0, 3.0, 6.0]


def test_equal_times_run_in_the_order_they_were_set() -> None:
    loop, seen = EventLoop(), []
    for number in range(5):
        loop.at(1.0, lambda at_s, what, _: seen.append(what), number)
    loop.run(2.0)
    assert seen == [0, 1, 2, 3, 4]


def test_virtual_time_never_goes_back() -> None:
    loop = EventLoop()
    loop.at(1.0, lambda at_s, *_: loop.at(0.5, lambda *_: None))
    with pytest.raises(InternalError, match="went back"):
        loop.run(2.0)


def test_jitter_keeps_the_order() -> None:
    loop, got = EventLoop(), []
    channel = Channel(loop, 0.001, 0.004, Random(1))
    for number in range(200):
        channel.send(number * 1e-5, lambda at_s, what, _: got.append((at_s, what)), number)
    loop.run(1.0)
    assert [what for _, what in got] == list(range(200))
    assert all(at_s >= 0.001 + what * 1e-5 for at_s, what in got)


def _through_sink(sink: Sink, callers: int) -> list[float]:
    loop, left = EventLoop(), []
    shared = SharedSink(loop, sink)
    for number in range(callers):
        sending = Sending(0, number, 1, 0, 100)
        shared.enter(0.0, sending, lambda at_s, *_: left.append(at_s))
    loop.run(100.0)
    return left


def test_a_serial_sink_serves_one_after_the_other() -> None:
    assert _through_sink(Sink(slots=1, record_s=0.001), 3) == pytest.approx([0.1, 0.2, 0.3])


def test_a_sink_degrades_above_its_knee() -> None:
    sink = Sink(slots=12, record_s=0.001, knee=6, slope=0.25)
    assert _through_sink(sink, 8) == pytest.approx([0.1] * 6 + [0.125, 0.15])


def test_a_sink_slows_down_later() -> None:
    sink = Sink(slots=1, record_s=0.001, later_s=0.05, later_speed=0.5)
    assert _through_sink(sink, 1) == pytest.approx([0.15])


def test_jain_and_quantiles() -> None:
    assert jain([5, 5, 5]) == pytest.approx(1.0)
    assert jain([1, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0.88, 0.12]) == pytest.approx(0.63, abs=0.01)
    assert quantile([], 0.5) == 0.0
    assert quantile(list(range(100)), 0.99) == 99


def _parts(scenario: Scenario) -> tuple[list[Machine], list[Workload]]:
    machines = [Machine(scenario, 1, bolt) for bolt in range(scenario.bolts)]
    return machines, [Workload(scenario, 1, 0)]


def _bound(**changes: Any) -> float:
    base = Scenario(name="t", what="", service_cv=0.0, tuples=1_200)
    scenario = msgspec.structs.replace(base, **changes)
    return Oracle(scenario, 1, *_parts(scenario)).bound_s


def test_the_oracle_knows_the_capacity() -> None:
    assert _bound() == pytest.approx(1.0 + 0.002)  # 1,200 tuples of 10 ms on 12 bolts
    assert _bound(slots=2) == pytest.approx(0.5 + 0.002)
    assert _bound(one_way_s=0.05) == pytest.approx(1.1)
    # Bolt 0 dead from 0.5 s on: 6 of 12 s are done by then, 11 bolts do the rest.
    assert _bound(deaths=(Death(0, 0.5),)) == pytest.approx(0.5 + 6 / 11 + 0.002)
    slow = Slow(tuple(range(12)), 0.5, 0.0, 0.5)
    assert _bound(slow=(slow,)) == pytest.approx(1.25 + 0.002)
    # 120,000 records through a sink of 60,000 a second.
    assert _bound(sink=Sink(slots=1, record_s=1 / 60_000)) == pytest.approx(2.0 + 0.002)


def test_the_oracle_waits_for_arrivals() -> None:
    applim = CATALOGUE["applim"]
    assert Oracle(applim, 1, *_parts(applim)).bound_s > 8 * 2.4  # the ninth burst begins then


def test_the_best_cap_of_the_knee_is_that_of_the_specification() -> None:
    scenario = msgspec.structs.replace(CATALOGUE["sinkknee"], tuples=2_000)
    assert best_cap(scenario, Workload(scenario, 1, 0))[0] == 7


def test_use_is_the_share_of_what_was_there() -> None:
    scenario = Scenario(name="t", what="", bolts=2, slow=(Slow((1,), 0.5, 0.0, 99.0),))
    machines = [Machine(scenario, 1, bolt) for bolt in range(2)]
    use = Use(machines, [(0, 0.0, 1.0), (1, 1.0, 2.0)], slots=1)
    assert use.shares(0.0, 2.0, 2) == pytest.approx([1 / 1.5, 0.5 / 1.5])
    assert use.total([(1, 1.0, 2.0)]) == pytest.approx(0.5)


def test_costs_depend_on_data_and_sending_alone() -> None:
    scenario = CATALOGUE["heavy"]
    one, other = Workload(scenario, 7, 0), Workload(scenario, 7, 0)
    assert one.cost_s(500, 100, 1) == other.cost_s(500, 100, 1) != one.cost_s(500, 100, 2)
    assert Workload(scenario, 8, 0).cost_s(500, 100, 1) != one.cost_s(500, 100, 1)
    # Skew belongs to the records: two halves cost what the whole does, beside noise and overhead.
    assert one._skew(500, 100) == pytest.approx((one._skew(500, 50) + one._skew(550, 50)) / 2)


def test_service_times_have_the_declared_mean_and_spread() -> None:
    workload = Workload(Scenario(name="t", what="", service_cv=0.5), 1, 0)
    costs = [workload.cost_s(100 * block, 100, 1) for block in range(20_000)]
    mean = sum(costs) / len(costs)
    deviation = (sum((cost - mean) ** 2 for cost in costs) / len(costs)) ** 0.5
    assert mean == pytest.approx(0.010, rel=0.02)
    assert deviation / mean == pytest.approx(0.5, rel=0.05)


def test_policies_by_name() -> None:
    scenario = CATALOGUE["highbdp"]
    assert policies.settings_of("fixed:16", scenario).window.initial == 16
    tuned = policies.settings_of("aiad_tuned", scenario).window
    assert tuned.threshold_s == pytest.approx(2 * 0.11)
    changed = policies.settings_of("aiad", scenario, {"lab.window.step": "3"})
    assert changed.window.step == 3
    with pytest.raises(ConfigError, match="no policy 'reno'"):
        policies.settings_of("reno", scenario)
