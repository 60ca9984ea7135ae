"""What the thread of callbacks tells, of whom, in which order: spouts' hooks, figures, errors."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flowctl.config import MetricsSettings
from flowctl.core.trees.settlement import ReportedError, Watched
from flowctl.instrumentation.hooks import Hooks, TaskHook
from flowctl.instrumentation.task_metrics import Point, TaskInfo
from flowctl.testing.clock import ManualClock
from flowctl_storm.callbacks import CallbackThread, SpoutCallbacks, Told, telling_slow
from flowctl_storm.hub.news import RootEnd
from tests.loop_parts import Log
from tests.topology_driver import Hub, nothing, topology


def end(position: int, reason: str | None = None, age_s: float | None = None) -> RootEnd:
    return RootEnd("s", "p", position, f"v{position}", reason, age_s)


class Noting(TaskHook):
    def __init__(self, name: str, told: list[Any]) -> None:
        for method in ("emit", "spout_ack", "spout_fail"):
            setattr(self, method, lambda info, method=method: told.append((name, method, info)))


class Teller:
    """A thread of callbacks whose work is done by the test, in virtual time."""

    def __init__(self, *, is_debug: bool = False, one_in: int = 1, **callbacks: Any) -> None:
        self.told: list[Any] = []
        self.clock = ManualClock(100.0)
        self.log = Log()
        self.thread = CallbackThread(
            Told(
                {"s": SpoutCallbacks(**callbacks)},
                consumers=[lambda info, points: self.told.append((info, points))],
                is_debug=is_debug,
            ),
            MetricsSettings(interval_s=60.0, sample_one_in=one_in),
            clock=self.clock,
            logger=self.log,
        )

    def run(self) -> None:
        self.thread.messages.put(None)
        self.thread.run()

    def points(self) -> list[tuple[str, dict[str, Any]]]:
        return [(i.component, {p.name: p.value for p in points}) for i, points in self.told]


@pytest.mark.req("S51", "S63", "S82")
def test_an_end_goes_to_the_callback_then_to_hooks_in_order_then_to_metrics() -> None:
    told: list[Any] = []
    hooks = Hooks([Noting("a", told), Noting("b", told)])
    teller = Teller(on_ack=told.append, on_fail=told.append, hooks=hooks)
    acked, failed = end(1, age_s=2.5), end(2, "expired", 30.0)
    teller.thread.emitted("s", "v1")
    teller.thread.ended(acked)
    teller.thread.ended(failed)
    teller.run()
    assert [(name, info.values) for name, _, info in told[:2]] == [("a", "v1"), ("b", "v1")]
    assert told[2] == acked
    assert [(name, method) for name, method, _ in told[3:5]] == [
        ("a", "spout_ack"),
        ("b", "spout_ack"),
    ]
    ack, fail = told[3][2], told[6][2]
    assert (ack.message_id, ack.task_id, ack.delta_s) == (acked, 0, 2.5)
    assert told[5] == failed
    assert (fail.message_id, fail.delta_s, fail.reason) == (failed, 30.0, "expired")
    figures = {"acked": {"default": 1}, "failed": {"default": 1}, "complete_s": {"default": 2.5}}
    assert teller.points() == [("s", figures)]


@pytest.mark.req("S51", "S62")
def test_without_a_sampled_start_there_is_no_time_and_no_metric() -> None:
    told: list[Any] = []
    teller = Teller(one_in=20, hooks=Hooks([Noting("a", told)]))
    teller.thread.ended(end(1))
    teller.thread.ended(end(2, age_s=0.5))
    teller.run()
    assert [info.delta_s for _, _, info in told] == [None, 0.5]
    assert teller.points() == [("s", {"acked": {"default": 20}, "complete_s": {"default": 0.5}})]


@pytest.mark.req("S51")
@pytest.mark.parametrize("is_debug", [False, True])
def test_acks_are_logged_in_debug_mode_only(is_debug: bool) -> None:
    teller = Teller(is_debug=is_debug)
    teller.thread.ended(end(1))
    teller.thread.ended(end(2, "failed"))
    teller.run()
    assert teller.log.events == (["acking_message", "failing_message"] if is_debug else [])


@pytest.mark.req("S54", "S63", "S82")
def test_what_users_code_raises_changes_nothing_for_others() -> None:
    told: list[Any] = []

    def raising(_: Any) -> None:
        raise ValueError("mine")

    hook = TaskHook()
    hook.spout_ack = raising  # type: ignore[method-assign]
    teller = Teller(on_ack=raising, hooks=Hooks([hook]))
    teller.thread._consumers = [raising, lambda info, points: told.append(points)]
    teller.thread.ended(end(1, age_s=1.0))
    teller.run()
    assert [point.name for point in told[0]] == ["acked", "complete_s"]
    failed = [fields["call"] for _, event, fields in teller.log.told if event == "callback_failed"]
    assert failed == ["on_ack of s", "spout_ack of s", "metrics"]


@pytest.mark.req("S54")
def test_a_callback_that_holds_up_the_thread_is_told_once_an_episode() -> None:
    teller = Teller(on_ack=lambda end: teller.clock.advance(end.position))
    for position in (0, 2, 3, 0, 4):
        teller.thread.ended(end(position))
    teller.run()
    slow = [fields for _, event, fields in teller.log.told if event == "call_blocks_loop"]
    assert [(fields["call"], fields["took_s"]) for fields in slow] == [
        ("on_ack of s", 2.0),
        ("on_ack of s", 4.0),
    ]


@pytest.mark.req("S54")
def test_a_translation_that_holds_up_the_hub_is_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def slow(seconds: float) -> str:
        clock.advance(seconds)
        return "made"

    translate = telling_slow("translate of s", slow, clock=clock)
    assert translate(0.1) == "made" and not caplog.records
    assert translate(2.0) == "made"
    assert "call_blocks_loop call='translate of s' took_s=2.0" in caplog.text


@pytest.mark.req("S61")
def test_each_tick_tells_what_there_is_and_a_quiet_task_says_nothing() -> None:
    bring = {
        1: ("a.2", Watched({"s": 3}, {"s": 3}, host="worker", pid=7)),
        2: ("b.1", Watched({"a": 2}, failed={"a": 2}, counts={"rows": 5})),
        3: ("a.2", Watched({"s": 1})),
    }

    def on_ack(ended: RootEnd) -> None:
        teller.thread.watched(*bring[ended.position])  # type: ignore[index]
        teller.clock.advance(61.0 if ended.position == 1 else 60.0)  # a tick

    teller = Teller(on_ack=on_ack)
    for position in bring:
        teller.thread.ended(end(position))
    teller.run()
    at_unix_s = teller.told[0][0].timestamp_unix_s
    first, second, last = teller.told
    assert first == (
        TaskInfo("worker", 7, "a", 1, at_unix_s, 61.0),
        [Point("executed", {"s": 3}), Point("acked", {"s": 3})],
    )
    names = [point.name for point in second[1]]
    assert (second[0].component, names) == ("b", ["executed", "failed", "rows"])
    assert (last[0].component, last[1]) == ("a", [Point("executed", {"s": 1})])
    logged = [fields for _, event, fields in teller.log.told if event == "task_metrics"]
    assert [fields["component"] for fields in logged] == ["a", "b", "a"]
    assert logged[1]["rows"] == 5


@pytest.mark.req("S61", "S68")
def test_what_is_watched_wakes_the_thread_only_now_and_then() -> None:
    teller = Teller()
    for _ in range(1_000):
        teller.thread.watched("a.1", Watched({"s": 1}))
    assert teller.thread.messages.qsize() == 1
    teller.run()
    assert teller.points() == [("a", {"executed": {"s": 1_000}})]


@pytest.mark.req("S61", "S68")
def test_a_metric_that_is_two_things_at_once_is_reported_and_ends_nothing() -> None:
    teller = Teller()
    teller.thread.watched("a.1", Watched({"s": 1}, counts={"rows": 2}))
    teller.thread.watched("a.1", Watched({"s": 1}, means={"rows": (2.0, 1)}))
    teller.run()
    assert teller.points() == [("a", {"executed": {"s": 2}, "rows": 2})]
    (errors,) = teller.thread.errors()
    assert errors.latest == ("ConfigError: name: a.1 has a metric 'rows' already.",)


@pytest.mark.req("S61")
def test_a_tick_comes_while_nothing_else_does() -> None:
    teller = Teller()
    teller.thread.watched("a.1", Watched({"s": 1}))
    teller.thread.watched("a.1", Watched({"s": 1}))
    times = iter([0.0, 0.0, 0.0, 61.0])
    teller.thread._clock = lambda: 100.0 + next(times, 61.0)

    def stop(info: TaskInfo, points: list[Point]) -> None:
        teller.told.append((info, points))
        teller.thread.messages.put(None)

    teller.thread._consumers = [stop]
    teller.thread.run()
    assert teller.told[0][1] == [Point("executed", {"s": 2})]


@pytest.mark.req("S62")
def test_a_spouts_figures_tell_where_it_runs() -> None:
    teller = Teller()
    teller.thread.ended(end(1, age_s=1.0))
    teller.run()
    info = teller.told[0][0]
    assert (info.component, info.task_id, info.pid) == ("s", 0, os.getpid())
    assert info.host


@pytest.mark.req("S68")
def test_errors_that_tasks_report_or_die_of_are_logged_and_kept_for_the_report() -> None:
    teller = Teller()
    errors = [ReportedError("OSError", "away")]
    teller.thread.watched("a.1", Watched(errors=errors, errors_left_out=3))
    teller.thread.died("b.2", "TypeError: no such thing")
    teller.run()
    first, second = teller.thread.errors()
    assert (first.task, first.count, first.latest) == ("a.1", 4, ("OSError: away",))
    assert (second.task, second.latest) == ("b.2", ("died: TypeError: no such thing",))
    told = [fields["error"] for _, event, fields in teller.log.told if event == "task_error"]
    assert sorted(told) == ["OSError: away", "died: TypeError: no such thing"]


# -- what the hub samples --------------------------------------------------------------------------


@pytest.mark.req("S51", "S57", "S62", "S85")
def test_one_root_in_so_many_is_timed_from_its_emission_to_its_end() -> None:
    made = topology()
    made.spout("other", made.producers["s"], on_ack=print)  # else only sampled ones are told
    made.bolt("a", nothing, count=1).shuffle("s").shuffle("other")
    hub = Hub(made, overrides={"lab.metrics.sample_one_in": 4})
    hub.offer(range(100))
    hub.run()
    ages = [end.age_s for end in hub.ends]
    assert len(ages) == 100
    timed = [age_s for age_s in ages if age_s is not None]
    assert len(timed) == 25
    assert all(0 < age_s <= hub.now_s for age_s in timed)


@pytest.mark.req("S51")
def test_without_callbacks_the_hub_tells_of_sampled_roots_only() -> None:
    made = topology()
    made.bolt("a", nothing, count=1).shuffle("s")
    hub = Hub(made, overrides={"lab.metrics.sample_one_in": 4})
    hub.offer(range(100))
    hub.run()
    assert len(hub.ends) == 25
    off = Hub(made, overrides={"metrics.interval_s": "none"})
    off.offer(range(100))
    off.run()
    assert not off.ends


@pytest.mark.req("S58")
def test_without_ackers_a_sampled_root_is_acked_at_once_after_no_time() -> None:
    made = topology(ackers=0)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides={"lab.metrics.sample_one_in": 1})
    hub.offer(range(3))
    hub.emit()
    assert [end.age_s for end in hub.ends] == [0.0, 0.0, 0.0]
