"""Figures of a running topology, and the report of its run: plain values."""

from __future__ import annotations

from typing import Final

import msgspec

from flowctl.instrumentation.numbers import count, counted
from flowctl.instrumentation.snapshot import Report

_TASKS_TOLD: Final = 3  # tasks shown of those that reported errors; the report has all


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one stage, in records.

    ``waiting_*`` are in the stage's buffer in the hub.  ``at_bolts_max`` is the most that were sent
    and not acked, as the sum of its cores' maxima.  ``held_now`` are acked as tuples but not
    settled by the bolt.
    """

    stage: str
    records: int
    waiting_now: int
    waiting_max: int
    at_bolts_max: int
    held_now: int


class TreeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The trees of a run.

    ``ledger_now`` counts entries in the XOR ledgers, ``orphans`` messages about trees that were
    done, and ``dropped_emits`` emits of inputs that another copy had settled.
    ``undelivered_emits`` had no subscriber to their stream, or no receiver could be chosen.
    """

    complete: int
    failed: int
    expired: int
    replayed: int
    pending_now: int
    ledger_now: int
    orphans: int
    dropped_emits: int
    undelivered_emits: int = 0


class TaskErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The errors that one task reported (``report_error``) or died of; ``latest``: the last 20."""

    task: str
    count: int
    latest: tuple[str, ...]


class TopologyReport(Report, frozen=True, kw_only=True):  # type: ignore[misc]
    """A :class:`Report` in which records are roots, and tuples are counted over all stages."""

    stages: tuple[StageFigures, ...] = ()
    trees: TreeFigures | None = None
    errors: tuple[TaskErrors, ...] = ()
    # The holders of pending roots, if the run was interrupted after a long time without progress.
    held_up: tuple[str, ...] = ()

    def first(self) -> list[str]:
        """Lines about expired trees, which cost work or records without an error to report."""
        if self.trees is None or not self.trees.expired:
            return []
        became = "sent again" if self.trees.replayed else "dropped"
        return [
            f"{counted(self.trees.expired, 'tree')} expired without a fault and were {became}:"
            " bolts held inputs, or said nothing, for longer than the trees' time. Raise"
            " Topology(tree_timeout_s=…), ack sooner, or call out.prolong(given)"
        ]

    def more(self) -> list[str]:
        """Lines about the ends of trees, and the tasks that reported errors."""
        found = []
        if self.trees is not None:
            trees = self.trees
            found.append(
                f"trees {count(trees.complete)} complete · {count(trees.expired)} expired"
                f" · {count(trees.failed)} failed · {count(trees.replayed)} sent again"
            )
            if trees.undelivered_emits:
                found.append(f"{counted(trees.undelivered_emits, 'emit')} that nobody received")
        if self.held_up:
            found.append(f"it waited for: {'; '.join(self.held_up)}")
        for task in self.errors[:_TASKS_TOLD]:
            latest = f", the last {task.latest[-1]}" if task.latest else ""
            found.append(f"{task.task} reported {counted(task.count, 'error')}{latest}")
        if len(self.errors) > _TASKS_TOLD:
            found.append(f"and {count(len(self.errors) - _TASKS_TOLD)} more tasks reported errors")
        return found
