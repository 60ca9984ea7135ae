"""Paced targets for people: a line for each, in the live view and in plain lines."""

from __future__ import annotations

from typing import Final

from flowctl.core.pacing.figures import TargetView
from flowctl.instrumentation.numbers import clock, counted, percent
from flowctl.instrumentation.snapshot import Snapshot

# A job calls one or two; of more the most used, and the bolts keep their place on the screen.
_SHOWN_MAX: Final = 4


def target_lines(snapshot: Snapshot) -> list[str]:
    """Return a line for each target that bolts pace: its limit, why, and what the run uses."""
    targets = snapshot.targets
    shown = sorted(targets, key=lambda target: -target.used)[:_SHOWN_MAX]
    lines = [_line(target) for target in targets if target in shown]
    left = len(targets) - len(shown)
    return [*lines, f"and {counted(left, 'target')} more"] if left else lines


def _line(target: TargetView) -> str:
    why = target.reason
    if target.alone:
        learn = "process learns" if target.alone == 1 else "processes learn"
        why += f"; {target.alone} {learn} alone"
    facts = [
        f"target {target.target}",
        f"limit {target.limit} ({why})",
        f"used {target.used:.1f}",
        f"{percent(target.refused_share, digits=1)} refused",
        f"waited {clock(target.waited_s)}",
    ]
    return "  ".join(facts)
