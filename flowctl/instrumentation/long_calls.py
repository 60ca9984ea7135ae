"""Calls of ``process`` that take long, for people: a line for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from flowctl.core.positions import show_records
from flowctl.instrumentation.numbers import clock, counted
from flowctl.instrumentation.snapshot import LongCallView, Report

# If there are more, the target hangs, and the others say the same.
_SHOWN_MAX: Final = 3


def call_lines(
    calls: Sequence[LongCallView], now: Callable[[], datetime] = datetime.now
) -> list[str]:
    """Return ``b3 works on record 50 of a.parquet since 14:02:10 (2:10)`` for the longest ones."""
    lines = [_line(call, now()) for call in calls[:_SHOWN_MAX]]
    left = len(calls) - len(lines)
    return [*lines, f"and {counted(left, 'call')} more that take long"] if left else lines


def ended_lines(report: Report) -> list[str]:
    """Return what the summary says of such calls."""
    overdue = report.calls_overdue
    lines = [f"{counted(overdue, 'call')} took longer than call.timeout_s"] if overdue else []
    stuck = [_where(call) for call in report.long_calls]
    if stuck:
        more = (
            f", and {counted(len(stuck) - _SHOWN_MAX, 'more call')}" if stuck[_SHOWN_MAX:] else ""
        )
        lines.append(f"not back at the end: {'; '.join(stuck[:_SHOWN_MAX])}{more}")
    return lines


def _line(call: LongCallView, now: datetime) -> str:
    since = now - timedelta(seconds=call.for_s)
    records = show_records(call.first, call.last)
    return (
        f"{call.bolt} works on {records} of {call.partition} since {since:%H:%M:%S}"
        f" ({clock(call.for_s)})"
    )


def _where(call: LongCallView) -> str:
    records = show_records(call.first, call.last)
    return f"{call.bolt} on {records} of {call.partition} ({clock(call.for_s)})"
