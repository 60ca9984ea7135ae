"""Failures by the hundred: one line per kind and interval, with their number."""

from __future__ import annotations

import io
from typing import Any

import pytest
import structlog
from rich.console import Console

from flowctl.core import events as ev
from flowctl.instrumentation.failure_groups import KINDS_MAX, TELL_EVERY_S
from flowctl.instrumentation.live import LiveView
from flowctl.instrumentation.plain import PlainView
from flowctl.instrumentation.views import BaseView
from tests.unit.test_view_plain import REPORT, SNAPSHOT, Time


def failed(number: int, reason: str = "ValueError: bad line {n}, at record {n}") -> ev.TupleFailed:
    return ev.TupleFailed(
        at_s=1.0, bolt="b1", tuple_id=number, attempt=1, partition="p", first=number, last=number,
        reason=reason.format(n=number), retry_at_s=2.0,
    )  # fmt: skip


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines_of(out: io.StringIO, what: str = "ValueError") -> list[str]:
    return [line for line in out.getvalue().splitlines() if what in line]


def test_the_first_of_a_kind_is_shown_at_once_and_the_rest_as_a_number(out: io.StringIO) -> None:
    time = Time()
    view = PlainView(out, clock=time)
    view.start("j", "j")
    for number in range(1, 813):
        view.event(failed(number))
    assert len(lines_of(out)) == 1
    assert "tuple 1 failed" in lines_of(out)[0]
    time.now_s += TELL_EVERY_S - 0.1
    view.update(SNAPSHOT)
    assert len(lines_of(out)) == 1
    time.now_s += 0.1
    view.update(SNAPSHOT)
    view.update(SNAPSHOT)
    assert len(lines_of(out)) == 2
    assert "811 more like this: b1  tuple 812 failed" in lines_of(out)[1]


def test_a_second_of_812_failures_a_second_is_not_more_lines_than_kinds(out: io.StringIO) -> None:
    time = Time()
    view = PlainView(out, clock=time)
    view.start("j", "j")
    seconds = 20
    for number in range(812 * seconds):
        view.event(failed(number, "ValueError: {n}" if number % 2 else "ValueError: no '{n}'"))
        time.now_s += 1 / 812
        view.update(SNAPSHOT)
    view.stop(REPORT)
    assert len(lines_of(out)) <= 2 * (1 + seconds / TELL_EVERY_S + 1)
    numbers = [
        int("".join(filter(str.isdigit, line.split("  ")[1].partition(" more like this")[0])))
        for line in lines_of(out, "more like this")
    ]
    assert sum(numbers) + 2 == 812 * seconds  # each is in a number, or was shown


def test_the_end_tells_what_was_not_told_yet(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    for number in range(3):
        view.event(failed(number))
    view.stop(REPORT)
    assert "2 more like this: b1  tuple 2 failed" in out.getvalue()


def test_another_kind_is_shown_at_once_and_one_that_was_quiet_too(out: io.StringIO) -> None:
    time = Time()
    view = PlainView(out, clock=time)
    view.start("j", "j")
    view.event(failed(1))
    view.event(failed(2, "KeyError: 'a'"))
    view.event(failed(3, "KeyError: 'b'"))
    assert len(lines_of(out)) == len(lines_of(out, "KeyError")) == 1
    for _ in range(3):
        time.now_s += TELL_EVERY_S
        view.update(SNAPSHOT)
    view.event(failed(4))
    assert "tuple 4 failed" in lines_of(out)[-1]


def test_a_reason_of_its_own_for_each_record_is_bounded_too(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    for number in range(500):
        view.event(failed(number, "ValueError: " + "x" * number))
    view.stop(REPORT)
    assert len(lines_of(out)) <= KINDS_MAX + 2


def test_the_log_has_the_first_at_its_level_the_rest_at_debug_and_their_number() -> None:
    time = Time()
    with structlog.testing.capture_logs() as logs:
        view = BaseView(clock=time, logger=structlog.get_logger())
        for number in range(1, 101):
            view.event(failed(number))
        time.now_s += TELL_EVERY_S
        view.update(SNAPSHOT)
    levels = [entry["log_level"] for entry in logs]
    assert levels == ["warning", *["debug"] * 99, "warning"]
    said: dict[str, Any] = logs[-1]
    assert (said["event"], said["of"], said["count"]) == ("failures_repeated", "tuple_failed", 99)
    assert (said["bolt"], said["tuple_id"]) == ("b1", 100)


def test_records_that_are_rejected_are_counted_one_by_one(out: io.StringIO) -> None:
    view = PlainView(out, clock=Time())
    view.start("j", "j")
    for start in (1, 4, 7):
        view.event(
            ev.RecordsRejected(
                at_s=1.0, bolt="b1", tuple_id=start, partition="p",
                positions=(start, start + 1, start + 2), reasons=("no line 1",) * 3,
            )
        )  # fmt: skip
    view.stop(REPORT)
    assert "6 more like this: b1  rejected 3 records (p 7)" in out.getvalue()


def test_a_flood_does_not_push_all_else_off_the_live_view() -> None:
    time = Time()
    console = Console(width=120, height=40, record=True, file=io.StringIO())
    view = LiveView(console=console, clock=time)
    view.start("j", "j")
    view.event(ev.BoltRemoved(at_s=1.0, bolt="b2", epoch=1, moved=2, reason="worker died"))
    for number in range(500):
        view.event(failed(number))
    time.now_s += TELL_EVERY_S
    view.update(SNAPSHOT)
    console.print(view.render(SNAPSHOT))
    text = console.export_text()
    assert "worker died" in text
    assert "499 more like this: b1  tuple 499 failed" in text
