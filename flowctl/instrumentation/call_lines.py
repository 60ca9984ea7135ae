"""Calls as lines of text: long calls, expensive calls, paced targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from flowctl.core.pacing.figures import TargetView
from flowctl.core.positions import show_records
from flowctl.instrumentation.numbers import clock, counted, percent
from flowctl.instrumentation.snapshot import DearCall, LongCallView, Report, Snapshot

# If there are more, the target hangs, and the others say the same.
_CALLS_SHOWN_MAX: Final = 3


def call_lines(
    calls: Sequence[LongCallView], now: Callable[[], datetime] = datetime.now
) -> list[str]:
    """Return ``b3 works on record 50 of a.parquet since 14:02:10 (2:10)`` for the longest calls."""
    lines = [_long_line(call, now()) for call in calls[:_CALLS_SHOWN_MAX]]
    left = len(calls) - len(lines)
    return [*lines, f"and {counted(left, 'call')} more that take long"] if left else lines


def ended_lines(report: Report) -> list[str]:
    """Return the summary's lines about such calls."""
    overdue = report.calls_overdue
    lines = [f"{counted(overdue, 'call')} took longer than call.timeout_s"] if overdue else []
    stuck = [_where(call) for call in report.long_calls]
    if stuck:
        left = len(stuck) - _CALLS_SHOWN_MAX
        more = f", and {counted(left, 'more call')}" if left > 0 else ""
        lines.append(f"not back at the end: {'; '.join(stuck[:_CALLS_SHOWN_MAX])}{more}")
    return lines


def _long_line(call: LongCallView, now: datetime) -> str:
    since = now - timedelta(seconds=call.for_s)
    records = show_records(call.first, call.last)
    return (
        f"{call.bolt} works on {records} of {call.partition} since {since:%H:%M:%S}"
        f" ({clock(call.for_s)})"
    )


def _where(call: LongCallView) -> str:
    records = show_records(call.first, call.last)
    return f"{call.bolt} on {records} of {call.partition} ({clock(call.for_s)})"


def dear_call(told: DearCall | None) -> list[str]:
    """Return why tuples are as large as they are, if calls and not records cost most; else no
    line.
    """
    if told is None:
        return []
    records = counted(told.records, "record")
    return [f"a call costs {told.call_s:.2g} s whatever its size: {told.unit} hold about {records}"]


# A job calls one or two targets; of more, only the most used are shown, so that the bolts keep
# their place on the screen.
_TARGETS_SHOWN_MAX: Final = 4


def target_lines(snapshot: Snapshot) -> list[str]:
    """Return a line for each target that bolts pace: its limit, why, and what the run uses."""
    targets = snapshot.targets
    shown = sorted(targets, key=lambda target: -target.used)[:_TARGETS_SHOWN_MAX]
    lines = [_target_line(target) for target in targets if target in shown]
    left = len(targets) - len(shown)
    return [*lines, f"and {counted(left, 'target')} more"] if left else lines


def _target_line(target: TargetView) -> str:
    return "  ".join([f"target {target.target}", *target_facts(target)])


def target_facts(target: TargetView) -> list[str]:
    """Return the limit of a paced target and why, and what the run uses of it."""
    why = target.reason
    if target.alone:
        learn = "process learns" if target.alone == 1 else "processes learn"
        why += f"; {target.alone} {learn} alone"
    return [
        f"limit {target.limit} ({why})",
        f"used {target.used:.1f}",
        f"{percent(target.refused_share, digits=1)} refused",
        f"waited {clock(target.waited_s)}",
    ]
