"""The results of the demo in a few lines; every figure is measured."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from flowctl.instrumentation.numbers import count, counted, duration, percent
from flowctl_lab.demo import journal
from flowctl_lab.demo.demo_job import Outcome
from flowctl_lab.demo.kill import Kill
from flowctl_lab.demo.plan import SLOW_FACTOR, Plan
from flowctl_lab.demo.verify import Verdict


class Share(NamedTuple):
    """The slow bolt's share of the records begun, and of all bolts' capacity."""

    slow_for_s: float
    records: float
    capacity: float


def share_of_slow_bolt(plan: Plan, directory: Path, epoch: int) -> Share:
    """Measure, from the journal of run ``epoch``, the slow bolt's records and its capacity."""
    entries = list(journal.entries(directory, epoch))
    total = sum(len(entry.records) for entry in entries)
    slow = sum(len(entry.records) for entry in entries if entry.bolt == plan.slow_bolt)
    started_s = journal.started_unix_s(directory, epoch)
    worked_s = max(entry.began_unix_s for entry in entries) - started_s
    slow_for_s = max(0.0, min(worked_s, plan.slow_to_s) - min(worked_s, plan.slow_from_s))
    could = worked_s - slow_for_s * (1 - 1 / SLOW_FACTOR)
    everyone = (plan.bolts - 1) * worked_s + could
    return Share(slow_for_s, slow / total, could / everyone if everyone else 1 / plan.bolts)


def slow_line(plan: Plan, share: Share, outcome: Outcome) -> str:
    """Return the line about the slow bolt."""
    changes = counted(outcome.state_changes.get(plan.slow_bolt, 0), "change")
    return (
        f"{plan.slow_bolt} was {SLOW_FACTOR}x slower for {duration(share.slow_for_s)}: "
        f"{percent(share.records, digits=1)} of the records, "
        f"{percent(share.capacity, digits=1)} of the capacity "
        f"(an equal split: {percent(1 / plan.bolts, digits=1)}) · {changes} of state"
    )


def kill_line(kill: Kill, outcome: Outcome, verdict: Verdict) -> str:
    """Return the line about the records that ran again after the kill."""
    report = outcome.report
    return (
        f"killed at {percent(kill.at)} · resumed at {count(report.resumed_records)}, "
        f"skipped {count(report.records_skipped)} already acked, "
        f"ran {count(kill.ran_again)} again (at most {count(kill.bound)}: begun, not yet saved)"
        f" · lost {count(verdict.lost)} · doubled in the sink {count(verdict.doubled)} (checked)"
    )


def verdict_lines(plan: Plan, verdict: Verdict, began_s: float) -> list[str]:
    """Return the comparison of sink and input; ``began_s``: the demo's start."""
    source, sink = verdict.input, verdict.sink
    lines = [
        f"input  {count(source.rows)} lines in {plan.files} files"
        f" · checksum {source.checksum:016x}",
        f"sink   {count(sink.rows)} rows of SQLite · checksum {sink.checksum:016x}",
    ]
    counts = f"lost {count(verdict.lost)} · doubled in the sink {count(verdict.doubled)}"
    if verdict.exact:
        lines.append(f"EXACT  {counts} (checked) · {duration(time.monotonic() - began_s)} in all")
    else:
        lines.append(f"NOT EXACT  {counts} · the sink differs from the input")
    return lines
