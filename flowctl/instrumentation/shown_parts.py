"""What writes without a driver of flowctl's show: partitions of Spark in the place of bolts.

``flow_sink``, batches of streams and ``format("flowctl")`` run in Spark's tasks.  Each task keeps
what it did beside the target that it shares with others; whoever looks puts that together as what a
run shows, so that ``flowctl top`` and the page of all jobs show it by the same views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowctl.core.events import BoltState
from flowctl.core.pacing.figures import StoredTarget, TargetView
from flowctl.instrumentation.diagnosis import verdict_of_calls
from flowctl.instrumentation.numbers import counted
from flowctl.instrumentation.shown import SILENT_S, Shown
from flowctl.instrumentation.snapshot import BoltView, Report, Snapshot
from flowctl.instrumentation.task_part import Part
from flowctl.instrumentation.text import shown_command

# -- For who looks ----------------------------------------------------------------------------


def shown_of(
    parts: Sequence[Part], now_s: float, stored: StoredTarget | None = None
) -> Shown | None:
    """Return the newest write of a job as what a run shows; None: there is none.

    ``stored``: what is known of its target.  A write is over once all its partitions are and no
    other began for :data:`SILENT_S`: only Spark knows how many there are.
    """
    if not parts:
        return None
    newest = max(parts, key=lambda part: part.at_unix_ms)
    parts = [part for part in parts if part.action == newest.action]
    at_work = [part for part in parts if not part.is_over]
    told: dict[str, Any] = {}
    if not at_work and now_s - newest.at_unix_ms / 1000 > SILENT_S:
        told["report"] = _report(parts)
    return Shown(
        job=newest.job,
        headline=f"writes into {newest.target}",
        driver=f"Spark's tasks (write {newest.action})",
        at_unix_ms=newest.at_unix_ms,
        elsewhere="Which rows failed, and why, is in the workers' logs, and of those in the dead"
        f" letter in: {shown_command(['flowctl', 'dlq', 'show', newest.job])}",
        snapshot=_snapshot(parts, now_s, stored),
        **told,
    )


def _numbers(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what snapshot and report share."""
    began_ms = min(part.began_unix_ms for part in parts)
    elapsed_s = max(0.001, (max(part.at_unix_ms for part in parts) - began_ms) / 1000)
    total = {name: sum(part.count(name) for part in parts) for name in _COUNTED}
    done = sum(part.settled for part in parts)
    return {
        "job": parts[0].job,
        "elapsed_s": elapsed_s,
        "records_acked": done,
        "records_per_s": done / elapsed_s,
        "records_saved": sum(part.settled for part in parts if part.is_over and not part.error),
        "records_rejected": total["rejected"],
        "records_dead_lettered": total["gave_up"],
        "records_left_out": total["left_out"],
        "tuples_emitted": total["calls"],
        "tuples_acked": total["calls"] - total["refused"] - total["failed"],
        "tuples_failed": total["failed"],
        "calls_refused": total["refused"],
    }


_COUNTED: Final = ("rejected", "gave_up", "left_out", "calls", "refused", "failed")


def _snapshot(parts: Sequence[Part], now_s: float, stored: StoredTarget | None) -> Snapshot:
    at_work = [part for part in parts if not part.is_over]
    ended = len(parts) - len(at_work)
    failed = sum(bool(part.error) for part in parts)
    note = f"{counted(ended, 'partition')} ended"
    note += f", {failed} of them failed" if failed else ""
    done = sum(part.settled for part in parts) or 1
    snapshot = Snapshot(
        phase="running",
        bolts=tuple(
            _bolt(part, done, now_s)
            for part in sorted(parts, key=lambda part: (len(part.name), part.name))
            if part in at_work or part.error
        ),
        kill_reruns=sum(part.count("rows") for part in at_work),
        note=f"{note}; how many there are is in Spark's UI",
        targets=() if stored is None else (_target(at_work, stored),),
        **_numbers(parts),
    )
    return msgspec.structs.replace(
        snapshot,
        verdict=verdict_of_calls(
            snapshot,
            slots_s=sum(part.for_s for part in at_work),
            called_s=_sum(at_work, "called_s"),
            waited_s=_sum(at_work, "waited_s"),
        ),
    )


def _bolt(part: Part, done: int, now_s: float) -> BoltView:
    is_up = not part.error and now_s - part.at_unix_ms / 1000 <= SILENT_S
    called_s, waited_s = part.counts.get("called_s", 0.0), part.counts.get("waited_s", 0.0)
    calls, in_flight = part.count("calls"), part.count("rows") > part.settled
    return BoltView(
        name=f"p{part.name}",
        state=BoltState.BUSY if not is_up else BoltState.NORMAL,
        up=is_up,
        window=1,
        in_flight=int(in_flight),
        ack_rtt_p50_s=None,
        service_p50_s=called_s / calls if calls else None,
        acked=calls - part.count("refused") - part.count("failed"),
        share=part.settled / done,
        records_acked=part.settled,
        records_per_s=part.settled / part.for_s,
        refused=waited_s > called_s and part.count("refused") > 0,
    )


def _target(at_work: Sequence[Part], stored: StoredTarget) -> TargetView:
    calls = sum(part.count("calls") for part in at_work)
    refused = sum(part.count("refused") for part in at_work)
    return TargetView(
        target=stored.target,
        limit=stored.limit,
        reason=stored.reason,
        used=stored.used,
        calls_per_s=stored.calls_per_s,
        refused_share=refused / calls if calls else 0.0,
        waited_s=_sum(at_work, "waited_s"),
    )


def _report(parts: Sequence[Part]) -> Report:
    failed = [part for part in parts if part.error]
    error = f"{counted(len(failed), 'partition')} failed: {failed[0].error}" if failed else None
    lost = any(part.count("kept") for part in parts)
    return Report(
        outcome="failed" if failed else "finished",
        error=error,
        dead_letters_hint=shown_command(["flowctl", "dlq", "show", parts[0].job]) if lost else "",
        **_numbers(parts),
    )


def _sum(parts: Sequence[Part], name: str) -> float:
    return sum(part.counts.get(name, 0.0) for part in parts)
