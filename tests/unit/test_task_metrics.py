"""Samplers, hooks, metrics ticks and reported errors of a task."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from flowctl.core.trees.settlement import Watched
from flowctl.errors import ConfigError
from flowctl.instrumentation.hooks import EmitInfo, Hooks, TaskHook, check_hooks, make_hooks
from flowctl.instrumentation.task_metrics import (
    BoltMetrics,
    Count,
    ErrorReporter,
    EvenSampler,
    KeyedCounts,
    KeyedMeans,
    Mean,
    MetricRegistry,
    Point,
    TickSchedule,
)
from flowctl.testing.clock import ManualClock
from tests.loop_parts import Log

# -- samplers ----------------------------------------------------------------------------------


@pytest.mark.req("S62")
@pytest.mark.parametrize("one_in", [1, 2, 20])
def test_a_sampler_fires_exactly_once_in_each_run(one_in: int):
    sampler = EvenSampler(one_in, chance=random.Random(7))
    places = set()
    for _ in range(200):
        fired = [sampler() for _ in range(one_in)]
        assert fired.count(True) == 1
        places.add(fired.index(True))
    assert places == set(range(one_in)), "at any place: work with that period is not missed"


@pytest.mark.req("S62")
def test_a_sampler_of_0_never_fires_and_below_0_is_refused():
    sampler = EvenSampler(0, chance=random.Random(7))
    assert not any(sampler() for _ in range(100))
    with pytest.raises(ConfigError):
        EvenSampler(-1, chance=random.Random(7))


# -- hooks -------------------------------------------------------------------------------------


class Noting(TaskHook):
    """Writes down each call: the hook's name, its method, the info."""

    def __init__(self, name: str, calls: list[tuple[str, str, Any]]) -> None:
        for method in ("emit", "spout_ack", "spout_fail", "bolt_execute", "bolt_ack", "bolt_fail"):
            setattr(self, method, lambda info, method=method: calls.append((name, method, info)))


@pytest.mark.req("S63")
def test_several_hooks_of_a_task_are_called_in_order_with_info_objects():
    calls: list[tuple[str, str, Any]] = []
    hooks = Hooks([Noting("a", calls), Noting("b", calls)])
    methods = ("emit", "spout_ack", "spout_fail", "bolt_execute", "bolt_ack", "bolt_fail")
    for method in methods:
        getattr(hooks, method)(method)
    assert calls == [(name, method, method) for method in methods for name in ("a", "b")]
    info = EmitInfo([1], "default", 3, None)
    hooks.emit(info)
    assert calls[-1] == ("b", "emit", info)
    assert hooks and not Hooks()
    Hooks([TaskHook()]).emit(info)


@pytest.mark.req("S63")
def test_a_hook_may_be_given_as_what_makes_it():
    calls: list[tuple[str, str, Any]] = []
    given = [partial(Noting, "made", calls), Noting("given", calls), TaskHook]
    check_hooks("bolt", given)
    for _ in range(2):
        make_hooks(given).emit(EmitInfo(1, "default", 0, None))
    assert [name for name, _, _ in calls] == ["made", "given"] * 2
    with pytest.raises(ConfigError, match="a str is not a hook"):
        check_hooks("bolt", ["x"])


# -- metrics ticks -----------------------------------------------------------------------------


@pytest.mark.req("S61")
def test_metrics_are_reset_by_reading_and_null_when_there_was_nothing():
    count, mean, counts, means = Count(), Mean(), KeyedCounts(), KeyedMeans()
    for metric in (count, mean, counts, means):
        assert metric.get_value_and_reset() is None
    count.add()
    count.add(2)
    mean.add(4.0)
    mean.add(5.0, 2)
    counts.add("a")
    counts.add("a", 4)
    counts.add("b")
    means.add("a", 1.0)
    means.add("a", 2.0)
    read = [metric.get_value_and_reset() for metric in (count, mean, counts, means)]
    assert read == [3, 3.0, {"a": 5, "b": 1}, {"a": 1.5}]
    assert [metric.get_value_and_reset() for metric in (count, mean, counts, means)] == [None] * 4


@pytest.mark.req("S61")
def test_ticks_recur_each_interval_and_missed_ones_come_as_one():
    schedule = TickSchedule([10.0, 60.0, 10.0], now_s=5.0)
    assert schedule.next_deadline_s() == 15.0
    assert schedule.due(14.9) == []
    assert schedule.due(15.0) == [10.0]
    assert schedule.due(15.0) == []
    assert schedule.due(66.0) == [10.0, 60.0]
    assert schedule.next_deadline_s() == 75.0, "in step with the first one"
    assert TickSchedule([], now_s=0.0).next_deadline_s() is None
    with pytest.raises(ConfigError):
        TickSchedule([0.0], now_s=0.0)


@pytest.mark.req("S61")
def test_a_tick_reads_the_metrics_of_its_task_and_interval_and_drops_nulls():
    registry = MetricRegistry()
    emitted, acked, slow, other = Count(), Count(), Count(), Count()
    registry.register("emitted", emitted, task="a.1", interval_s=10.0)
    registry.register("acked", acked, task="a.1", interval_s=10.0)
    registry.register("emitted", slow, task="a.1", interval_s=60.0)
    registry.register("emitted", other, task="a.2", interval_s=10.0)
    assert (registry.intervals_s, registry.tasks(10.0)) == ([10.0, 60.0], ["a.1", "a.2"])
    assert registry.points(task="a.1", interval_s=10.0) == []
    for metric in (emitted, slow, other):
        metric.add(2)
    assert registry.points(task="a.1", interval_s=10.0) == [Point("emitted", 2)]
    assert registry.points(task="a.1", interval_s=10.0) == []
    assert (slow.get_value_and_reset(), other.get_value_and_reset()) == (2, 2), "not read"


@pytest.mark.req("S61")
def test_two_metrics_of_a_task_can_not_have_one_name():
    registry = MetricRegistry()
    registry.register("emitted", Count(), task="a.1", interval_s=10.0)
    with pytest.raises(ConfigError, match=r"a\.1 has a metric 'emitted' already"):
        registry.register("emitted", Count(), task="a.1", interval_s=10.0)


@pytest.mark.req("S61")
def test_what_settlements_bring_is_added_up_and_a_users_metric_registered_when_it_is_new():
    registry = MetricRegistry()
    bolt = BoltMetrics(partial(registry.register, task="a.1", interval_s=60.0))
    bolt.take_in(
        Watched({"s": 2}, {"s": 1}, {"s": 1}, {}, {"s": (0.5, 1)}, means={"rows": (4.0, 2)})
    )
    bolt.take_in(Watched({"s": 1, "t": 1}, execute_s={"s": (1.5, 1)}, counts={"own": 3}))
    bolt.take_in(Watched(means={"rows": (2.0, 1)}, counts={"own": 1}))
    assert {p.name: p.value for p in registry.points(task="a.1", interval_s=60.0)} == {
        "executed": {"s": 3, "t": 1},
        "acked": {"s": 1},
        "failed": {"s": 1},
        "execute_s": {"s": 1.0},
        "rows": 2.0,
        "own": 4,
    }
    assert registry.points(task="a.1", interval_s=60.0) == []


# -- reported errors ---------------------------------------------------------------------------


@pytest.mark.req("S68")
def test_a_flood_of_errors_is_counted_not_told():
    clock, log = ManualClock(3.0), Log()
    reporter = ErrorReporter("loader.2", clock=clock, logger=log)
    for number in range(100):
        reporter.report("ValueError", str(number))
    assert (len(log.told), reporter.count) == (5, 100)
    assert reporter.latest[-1] == "ValueError: 99"
    reporter.left_out(7)
    clock.advance(10.0)
    reporter.report("ValueError", "later")
    assert log.events == ["task_error"] * 6
    assert [fields["left_out"] for _, _, fields in log.told] == [0, 0, 0, 0, 0, 102]
    assert log.told[-1][2]["task"] == "loader.2"
