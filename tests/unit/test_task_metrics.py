"""Samplers, hooks, metrics ticks and reported errors of a task."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowctl.errors import ConfigError
from flowctl.instrumentation.error_reports import ErrorReporter
from flowctl.instrumentation.hooks import EmitInfo, Hooks, TaskHook
from flowctl.instrumentation.sampler import EvenSampler, started_at
from flowctl.instrumentation.task_metrics import (
    BoltWatch,
    Count,
    KeyedCounts,
    KeyedMeans,
    Origin,
    SpoutMetrics,
)
from flowctl.instrumentation.ticks import (
    MetricRegistry,
    MetricsSender,
    Point,
    TaskInfo,
    TickSchedule,
)
from flowctl.runtime.replies import EndedRoot, SpoutReplies
from flowctl.testing.clock import ManualClock
from tests.loop_parts import House, Log, Spout

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


@pytest.mark.req("S62")
def test_the_clock_is_read_only_when_the_sampler_fires():
    reads: list[float] = []

    def clock() -> float:
        reads.append(1.5)
        return 1.5

    sampler = EvenSampler(4, chance=random.Random(7))
    starts = [started_at(sampler, clock) for _ in range(40)]
    assert (starts.count(1.5), starts.count(None), len(reads)) == (10, 30, 10)


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
    info = EmitInfo([1], "default", 3, [4, 5])
    hooks.emit(info)
    assert calls[-1] == ("b", "emit", info)
    assert hooks and not Hooks()
    Hooks([TaskHook()]).emit(info)


# -- a spout's acks and fails ------------------------------------------------------------------


class Replied:
    """A spout task's replies, with everything that happens in one list."""

    def __init__(self, **settings: Any) -> None:
        self.happened: list[Any] = []
        self.clock = ManualClock(10.0)
        self.log = Log()
        self.metrics = SpoutMetrics(one_in=20)
        spout = Spout(House(), task_id=3)
        spout.ack = lambda message_id: self.happened.append(("ack", message_id))
        spout.fail = lambda message_id: self.happened.append(("fail", message_id))
        self.replies = SpoutReplies(
            spout,
            hooks=Hooks([Noting("hook", self.happened)]),
            metrics=self.metrics,
            clock=self.clock,
            on_failed=self.happened.append,
            logger=self.log,
            **settings,
        )


@pytest.mark.req("S51", "S63")
def test_an_ack_goes_to_the_spout_then_to_hooks_then_to_metrics():
    replied = Replied()
    replied.replies.ack(EndedRoot("m1", "lines", ["x"], 7.5))
    assert replied.happened[0] == ("ack", "m1")
    _, method, info = replied.happened[1]
    assert (method, info.message_id, info.task_id, info.delta_s) == ("spout_ack", "m1", 3, 2.5)
    assert replied.metrics.acked_counts.get_value_and_reset() == {"lines": 20}
    assert replied.metrics.complete_s.get_value_and_reset() == {"lines": 2.5}


@pytest.mark.req("S51", "S62")
def test_without_a_sampled_start_there_is_no_time_and_no_metric():
    replied = Replied()
    replied.replies.ack(EndedRoot("m1", "lines", ["x"], None))
    replied.replies.fail(EndedRoot("m2", "lines", ["x"], None), reason="expired")
    assert [info.delta_s for _, _, info in replied.happened[1:4:2]] == [None] * 2
    assert replied.metrics.acked_counts.get_value_and_reset() is None
    assert replied.metrics.failed_counts.get_value_and_reset() is None


@pytest.mark.req("S51", "S124")
def test_a_fail_goes_to_the_failure_stream_after_the_spout():
    replied = Replied()
    root = EndedRoot("m1", "lines", ["x"], 9.0)
    replied.replies.fail(root, reason="expired")
    assert [replied.happened[0], replied.happened[2]] == [("fail", "m1"), root]
    assert replied.happened[1][2].reason == "expired"
    assert replied.metrics.failed_counts.get_value_and_reset() == {"lines": 20}


@pytest.mark.req("S51")
@pytest.mark.parametrize("is_debug", [False, True])
def test_acks_are_logged_in_debug_mode_only(is_debug: bool):
    replied = Replied(is_debug=is_debug)
    replied.replies.ack(EndedRoot("m1", "lines", None, None))
    assert replied.log.events == (["acking_message"] if is_debug else [])


# -- a bolt's ----------------------------------------------------------------------------------

LINES, TICKS = Origin("reader", "lines"), Origin("clock", "ticks")


def watch(clock: ManualClock, process_one_in: int = 1, execute_one_in: int = 1, *hooks: TaskHook):
    return BoltWatch(
        5,
        hooks=Hooks(hooks),
        chance=random.Random(7),
        clock=clock,
        process_one_in=process_one_in,
        execute_one_in=execute_one_in,
    )


@pytest.mark.req("S67")
def test_executed_acked_and_failed_are_counted_by_source_component_and_stream():
    bolt = watch(ManualClock(), 0, 0)
    for origin, times in ((LINES, 3), (TICKS, 1)):
        for _ in range(times):
            began = bolt.began()
            bolt.executed("m", origin, began)
            bolt.acked("m", origin, began)
    bolt.failed("m", LINES, bolt.began())
    for counts in (bolt.executed_counts, bolt.acked_counts):
        assert counts.get_value_and_reset() == {"reader:lines": 3, "clock:ticks": 1}
    assert bolt.failed_counts.get_value_and_reset() == {"reader:lines": 1}


@pytest.mark.req("S62", "S63")
@pytest.mark.parametrize(("process", "execute"), [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_process_and_execute_latency_have_a_sampler_each(process: int, execute: int):
    clock = ManualClock()
    calls: list[tuple[str, str, Any]] = []
    bolt = watch(clock, process, execute, Noting("hook", calls))
    began = bolt.began()
    clock.advance(0.5)
    bolt.executed("m", LINES, began)
    clock.advance(1.0)
    bolt.acked("m", LINES, began)
    executed_s, acked_s = (info.delta_s for _, _, info in calls)
    assert executed_s == (0.5 if execute else None)
    assert acked_s == (1.5 if process else None)
    assert bolt.execute_s.get_value_and_reset() == ({LINES.key: 0.5} if execute else None)
    assert bolt.process_s.get_value_and_reset() == ({LINES.key: 1.5} if process else None)


@pytest.mark.req("S63")
def test_a_bolts_hooks_get_the_message_and_the_task():
    calls: list[tuple[str, str, Any]] = []
    bolt = watch(ManualClock(), 0, 0, Noting("hook", calls))
    began = bolt.began()
    bolt.executed("m", LINES, began)
    bolt.acked("m", LINES, began)
    bolt.failed("n", LINES, began)
    assert [(method, info.message, info.task_id) for _, method, info in calls] == [
        ("bolt_execute", "m", 5),
        ("bolt_ack", "m", 5),
        ("bolt_fail", "n", 5),
    ]


# -- metrics ticks -----------------------------------------------------------------------------


@pytest.mark.req("S61")
def test_metrics_are_reset_by_reading_and_null_when_there_was_nothing():
    count, counts, means = Count(), KeyedCounts(), KeyedMeans()
    for metric in (count, counts, means):
        assert metric.get_value_and_reset() is None
    count.add()
    count.add(2)
    counts.add("a")
    counts.add("a", 4)
    counts.add("b")
    means.add("a", 1.0)
    means.add("a", 2.0)
    read = [metric.get_value_and_reset() for metric in (count, counts, means)]
    assert read == [3, {"a": 5, "b": 1}, {"a": 1.5}]
    assert [metric.get_value_and_reset() for metric in (count, counts, means)] == [None] * 3


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
def test_a_metrics_tick_sends_what_there_is_to_say_and_nothing_else():
    registry = MetricRegistry()
    emitted, acked, slow, other = Count(), Count(), Count(), Count()
    registry.register("emitted", emitted, task_id=1, interval_s=10.0)
    registry.register("acked", acked, task_id=1, interval_s=10.0)
    registry.register("emitted", slow, task_id=1, interval_s=60.0)
    registry.register("emitted", other, task_id=2, interval_s=10.0)
    assert registry.intervals_s == [10.0, 60.0]
    sent: list[tuple[TaskInfo, list[Point]]] = []
    sender = MetricsSender(
        registry,
        host="h",
        port=6700,
        component="reader",
        clock_unix_s=lambda: 1_700_000_000.9,
        send=lambda info, points: sent.append((info, points)),
    )
    sender.on_tick(1, 10.0)
    assert sent == [], "no point, no message"
    for metric in (emitted, slow, other):
        metric.add(2)
    sender.on_tick(1, 10.0)
    info = TaskInfo("h", 6700, "reader", 1, 1_700_000_000, 10.0)
    assert sent == [(info, [Point("emitted", 2)])], "the null of acked is dropped"
    sender.on_tick(1, 10.0)
    assert len(sent) == 1
    assert (slow.get_value_and_reset(), other.get_value_and_reset()) == (2, 2), "not read"


@pytest.mark.req("S61")
def test_two_metrics_of_a_task_can_not_have_one_name():
    registry = MetricRegistry()
    registry.register("emitted", Count(), task_id=1, interval_s=10.0)
    with pytest.raises(ConfigError, match="task 1 has a metric 'emitted' already"):
        registry.register("emitted", Count(), task_id=1, interval_s=10.0)


# -- report_error ------------------------------------------------------------------------------


@pytest.mark.req("S68")
def test_a_task_reports_errors_and_goes_on():
    clock, log = ManualClock(3.0), Log()
    reporter = ErrorReporter("loader", 5, clock=clock, logger=log)
    reporter.report_error(ValueError("no such table at postgres://me:secret@db/x"))
    (report,) = reporter.latest
    assert (report.component, report.task_id, report.kind, report.at_s) == (
        "loader",
        5,
        "ValueError",
        3.0,
    )
    assert "secret" not in report.problem + repr(log.told)
    assert log.events == ["task_error"]


@pytest.mark.req("S68")
def test_a_flood_of_errors_is_counted_not_told():
    clock, log = ManualClock(), Log()
    reporter = ErrorReporter("loader", 5, clock=clock, logger=log)
    for number in range(100):
        reporter.report_error(ValueError(number))
    assert (len(log.told), reporter.count) == (5, 100)
    assert reporter.latest[-1].problem == "99"
    clock.advance(10.0)
    reporter.report_error(ValueError("later"))
    assert [fields["left_out"] for _, _, fields in log.told] == [0, 0, 0, 0, 0, 95]
