"""What is watched of a bolt's task on its worker: hooks in order, exact counts, sampled times."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.core.trees.settlement import ReportedError, Settlement, Watched
from flowctl.errors import JobError
from flowctl.instrumentation.hooks import TaskHook
from flowctl_storm import Batched, Collector, Input, ManualCollector
from flowctl_storm.plan import input_id_of
from flowctl_storm.worker.tasks import StageCode
from flowctl_storm.worker.watch import BoltWatch, WatchPlan

SOURCES = ["lines", "parse/errors"]
numbers = itertools.count(1)


class Noting(TaskHook):
    """Writes down each call; ``raising`` names the methods that raise then."""

    def __init__(self, name: str, calls: list[Any], raising: Sequence[str] = ()) -> None:
        for method in ("emit", "bolt_execute", "bolt_ack", "bolt_fail"):

            def note(info: Any, method: str = method) -> None:
                what = info.values if method == "emit" else info.message.value
                calls.append((name, method, what, info.task_id))
                if method in raising:
                    raise ValueError(f"{name} at {method}")

            setattr(self, method, note)


def tuple_of(*values: Any, source: int = 0) -> Batch:
    records = [Record(input_id_of(next(numbers), source), value) for value in values]
    span = Span("job", "t", records[0].position, records[-1].position, 1)
    return Batch(records, span, bolt="t.3", attempt=1)


def process(code: Any, **plan: Any) -> Callable[[Batch], Settlement]:
    made: Any = StageCode(code, SOURCES, WatchPlan(**plan)).for_connection("t.3")
    return made


def watched(settlement: Settlement) -> Watched:
    assert settlement.watched is not None
    return settlement.watched


def pairs(given: Input, out: Collector) -> None:
    out(given.value)
    out([given.value], stream="twice")
    if given.value == "bad":
        raise ValueError("bad one")


# -- hooks ---------------------------------------------------------------------------------------


@pytest.mark.req("S63")
def test_several_hooks_around_a_function_hear_of_each_input_in_order() -> None:
    calls: list[Any] = []
    run = process(pairs, hooks=[Noting("a", calls), Noting("b", calls)])
    said = run(tuple_of("x", "bad"))
    told = [("emit", "x"), ("emit", ["x"]), ("bolt_execute", "x"), ("bolt_ack", "x")]
    told.append(("bolt_fail", "bad"))  # what it emitted was taken back, so no hook hears of it
    assert calls == [(name, method, what, 2) for method, what in told for name in "ab"]
    assert [emit.value for emit in said.emits] == ["x", ["x"]]


@pytest.mark.req("S63")
def test_hooks_around_a_batched_bolt_hear_of_its_emits_once_and_of_each_input() -> None:
    calls: list[Any] = []
    run = process(Batched(lambda inputs, out: out(len(inputs))), hooks=[Noting("a", calls)])
    run(tuple_of("x", "y"))
    assert [call[1:3] for call in calls] == [
        ("emit", 2),
        ("bolt_execute", "x"),
        ("bolt_execute", "y"),
        ("bolt_ack", "x"),
        ("bolt_ack", "y"),
    ]


class Pairing:
    """Acks the last input with the next one; fails "bad", takes back what raised."""

    def __init__(self) -> None:
        self.last: Input | None = None

    def execute(self, given: Input, out: ManualCollector) -> None:
        if given.value == "bad":
            out.fail(given)
            return
        if self.last is not None:
            out.emit([self.last.value, given.value], anchors=(self.last, given))
            out.ack(self.last)
        if given.value == "worse":
            raise ValueError("worse")
        self.last = given


@pytest.mark.req("S63", "S67")
def test_a_manual_bolt_is_watched_when_it_settles_also_in_a_later_tuple() -> None:
    calls: list[Any] = []
    run = process(Pairing, hooks=[Noting("a", calls)], is_counting=True)
    first = watched(run(tuple_of("x", "bad")))
    assert (first.executed, first.acked, first.failed) == ({"lines": 2}, {}, {"lines": 1})
    second = watched(run(tuple_of("y", "worse", source=1)))
    assert second.executed == {"parse/errors": 1}
    assert (second.acked, second.failed) == ({"lines": 1}, {"parse/errors": 1})
    assert second.emitted == {"default": 1}
    assert [call[1:3] for call in calls] == [
        ("bolt_execute", "x"),
        ("bolt_execute", "bad"),
        ("bolt_fail", "bad"),
        ("emit", ["x", "y"]),
        ("bolt_execute", "y"),
        ("bolt_ack", "x"),
        ("bolt_fail", "worse"),
    ]


@pytest.mark.req("S63")
@pytest.mark.parametrize("method", ["emit", "bolt_execute", "bolt_ack"])
@pytest.mark.parametrize("code", [pairs, Batched(lambda inputs, out: out("e"))])
def test_what_a_hook_raises_fails_the_input_and_takes_back_its_emits(
    code: Any, method: str
) -> None:
    said = process(code, hooks=[Noting("a", [], raising=[method])])(tuple_of("x"))
    assert [failed.reason for failed in said.failed] == [f"ValueError: a at {method}"]
    assert not said.emits


@pytest.mark.req("S63")
def test_what_a_hook_raises_fails_the_input_of_a_manual_bolt() -> None:
    said = process(Pairing, hooks=[Noting("a", [], raising=["bolt_ack"])])(tuple_of("x", "y"))
    assert [failed.reason for failed in said.failed] == ["ValueError: a at bolt_ack"]
    assert not said.emits and not said.acked
    assert len(said.held) == 1, "x, whose ack was taken back"


@pytest.mark.req("S63", "S68")
def test_what_a_hook_raises_of_a_failed_input_is_reported() -> None:
    said = process(pairs, hooks=[Noting("a", [], raising=["bolt_fail"])])(tuple_of("bad"))
    assert [failed.reason for failed in said.failed] == ["ValueError: bad one"]
    assert watched(said).errors == [ReportedError("ValueError", "a at bolt_fail")]


# -- counts and times ----------------------------------------------------------------------------


@pytest.mark.req("S67", "S61")
def test_counts_are_by_source_component_and_stream_and_begin_anew_with_each_settlement() -> None:
    run = process(pairs, is_counting=True)
    first = watched(run(tuple_of("x", "y", "bad")))
    assert (first.executed, first.acked) == ({"lines": 2}, {"lines": 2})
    assert first.failed == {"lines": 1}
    assert first.emitted == {"default": 2, "twice": 2}
    assert first.host and first.pid
    second = watched(run(tuple_of("z", source=1)))
    assert (second.executed, second.failed) == ({"parse/errors": 1}, {})
    assert (second.host, second.pid) == ("", 0), "told once a connection"


@pytest.mark.req("S62", "S85")
def test_execute_and_process_latency_are_sampled_apart() -> None:
    clock = itertools.count(100.0)
    watch = BoltWatch(WatchPlan(is_counting=True, one_in=4), 0, clock=lambda: next(clock))
    given = [Input(n, "x", "lines") for n in range(400)]
    for each in given:
        watch.begin(each)
        watch.executed(each)
        watch.acked(each)
    told = watch.take([], None)
    assert told is not None
    assert told.executed == told.acked == {"lines": 400}
    assert (told.execute_s["lines"][1], told.process_s["lines"][1]) == (100, 100)
    both = sum(g.came_at_s is not None and g.execute_at_s is not None for g in given)
    assert 0 < both < 100, "each has a sampler of its own"


@pytest.mark.req("S62")
def test_the_time_of_a_held_input_runs_until_its_ack() -> None:
    now_s = [10.0]
    watch = BoltWatch(WatchPlan(is_counting=True, one_in=1), 0, clock=lambda: now_s[0])
    given = Input(1, "x", "lines")
    watch.begin(given)
    now_s[0] = 10.5
    watch.executed(given)
    now_s[0] = 17.0
    watch.acked(given)
    told = watch.take([], None)
    assert told is not None
    assert (told.execute_s, told.process_s) == ({"lines": (0.5, 1)}, {"lines": (7.0, 1)})


@pytest.mark.req("S62")
def test_where_nothing_is_sampled_no_clock_is_read() -> None:
    def clock() -> float:
        raise AssertionError("read")

    watch = BoltWatch(WatchPlan(is_counting=True, one_in=0), 0, clock=clock)
    given = Input(1, "x", "lines")
    watch.begin(given)
    watch.executed(given)
    watch.acked(given)


def test_what_nobody_watches_sends_nothing() -> None:
    assert process(pairs)(tuple_of("x")).watched is None
    assert process(pairs, hooks=[TaskHook])(tuple_of("x")).watched is None


def test_each_process_thread_has_a_watch_and_hooks_of_its_own() -> None:
    made: list[int] = []

    class Mine(TaskHook):
        def __init__(self) -> None:
            made.append(threading.get_ident())

    run = process(pairs, hooks=[Mine], is_counting=True)
    settlements: list[Settlement] = []
    threads = [
        threading.Thread(target=lambda: settlements.append(run(tuple_of("x")))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(tuple_of("x"))
    assert len(made) == 3
    assert [watched(said).executed for said in settlements] == [{"lines": 1}] * 2


# -- what a bolt says ----------------------------------------------------------------------------


@pytest.mark.req("S61", "S68")
@pytest.mark.parametrize("is_counting", [False, True])
def test_a_bolt_counts_measures_and_reports_what_it_likes(is_counting: bool) -> None:
    def own(given: Input, out: Collector) -> None:
        out.count("rows", given.value)
        out.count("calls")
        out.measure("cells", 2 * given.value)
        out.report_error(OSError("redis://user:secret@host is away"))

    told = watched(process(own, is_counting=is_counting)(tuple_of(1, 2)))
    assert told.counts == {"rows": 3, "calls": 2}
    assert told.means == {"cells": (6.0, 2)}
    assert told.errors == [ReportedError("OSError", "redis://***@host is away")] * 2


@pytest.mark.req("S68")
def test_what_is_reported_fails_nothing_and_a_flood_is_only_counted() -> None:
    def complaining(given: Input, out: Collector) -> None:
        for number in range(30):
            out.report_error(ValueError(number))
        out(given.value)

    said = process(complaining)(tuple_of("x"))
    assert not said.failed and len(said.emits) == 1
    assert (len(watched(said).errors), watched(said).errors_left_out) == (20, 10)


@pytest.mark.parametrize("name", [5, None, "a\ud800b"])
def test_a_metric_that_could_not_be_sent_fails_its_input_and_not_the_bolt(name: Any) -> None:
    for call in (lambda out: out.count(name), lambda out: out.measure(name, 1)):
        said = process(lambda given, out, call=call: call(out))(tuple_of("x"))
        assert len(said.failed) == 1
    for by in (0.5, "x", 1 << 63):
        said = process(lambda given, out, by=by: out.count("rows", by))(tuple_of("x"))
        assert len(said.failed) == 1
        assert not watched(said).counts


def test_a_metric_of_ones_own_has_a_name_of_its_own() -> None:
    out = Collector()
    out.measure("seconds", 1)
    for call in (out.count, lambda name: out.measure(name, 1)):
        for name in ("executed", "seconds"):
            if name == "seconds" and call != out.count:
                continue
            with pytest.raises(JobError, match=f"metric '{name}'"):
                call(name)
