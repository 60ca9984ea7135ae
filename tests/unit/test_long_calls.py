"""Calls that take long, for people: in the views, in the log, in the summary."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import msgspec
import pytest

from flowctl.config import Settings
from flowctl.core.messages import LongCall
from flowctl.delivery.options import for_apply
from flowctl.errors import ConfigError
from flowctl.instrumentation.call_lines import call_lines, ended_lines
from flowctl.instrumentation.plain import PlainView
from flowctl.instrumentation.run_events import RunEvents
from flowctl.instrumentation.snapshot import LongCallView
from flowctl.runtime.control import LongCalls
from flowctl.runtime.launch import report_of_no_run
from tests.unit.test_view_live import snapshot

CALL = LongCallView(bolt="b3", partition="a.parquet", first=50, last=50, for_s=130.0)


def test_the_views_say_which_bolt_works_on_which_record_since_when() -> None:
    """Kind: a call that never returns and is never named."""
    now = datetime(2026, 11, 27, 2, 12, 10)
    said = "b3 works on record 50 of a.parquet since 02:10:00 (2:10)"
    assert call_lines([CALL], lambda: now) == [said]
    others = [msgspec.structs.replace(CALL, bolt=f"b{n}", last=60) for n in range(4, 10)]
    lines = call_lines([CALL, *others], lambda: now)
    assert lines[1].startswith("b4 works on records 50 to 60 of a.parquet since")
    assert lines[3:] == ["and 4 calls more that take long"]


def test_plain_lines_and_the_log_say_so() -> None:
    shown, logged = io.StringIO(), []

    class Logger:
        def log(self, level: int, event: str, /, **fields: Any) -> None:
            logged.append((event, fields.get("bolt"), fields.get("first")))

    found = msgspec.structs.replace(snapshot(), long_calls=(CALL,))
    PlainView(shown).update(found)
    assert "b3 works on record 50 of a.parquet since" in shown.getvalue()
    events = RunEvents("job", Settings(), logger=Logger(), clock=lambda: 0.0)
    events.look(found)
    events.look(found)
    assert logged == [("call_takes_long", "b3", 50)], "once"


def test_the_summary_names_calls_that_are_not_back_and_counts_those_that_took_too_long() -> None:
    report = msgspec.structs.replace(
        report_of_no_run("job", OSError("x")), long_calls=(CALL,), calls_overdue=2
    )
    assert ended_lines(report) == [
        "2 calls took longer than call.timeout_s",
        "not back at the end: b3 on record 50 of a.parquet (2:10)",
    ]


def test_a_call_is_told_until_its_bolt_says_otherwise_or_is_gone() -> None:
    calls, told = LongCalls(), [LongCall("p", 1, 1, 31.0)]
    calls.take("b1", told, 100.0)
    assert [view.for_s for view in calls.views(110.0)] == [41.0]
    calls.left("b1", is_stuck=True)
    calls.joined("b1")
    assert calls.views(110.0), "its thread is still in that call, whoever took its place"
    calls.returned("b1")
    assert not calls.views(110.0)
    calls.take("b1", told, 100.0)
    calls.left("b1", is_stuck=False)
    assert not calls.views(110.0), "its process is gone, and the call with it"


def test_apply_takes_the_bound_of_a_call_and_what_else_settings_say() -> None:
    made = for_apply("j", {"call_timeout_s": 60, "settings": {"retry.attempts_max": 2}})
    assert made["settings"].call.timeout_s == 60
    assert made["settings"].retry.attempts_max == 2, "what is not given stays as it is"
    assert for_apply("j", {"attempts_max": 3})["settings"].retry.attempts_max == 3
    assert for_apply("j", {"fail_over": "1%"})["settings"].loss.fail_over == "1%"
    assert for_apply("j", {})["settings"].call.timeout_s is None
    with pytest.raises(ConfigError, match="timeout_s"):
        for_apply("j", {"call_timeout_s": 0})
