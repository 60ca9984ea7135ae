"""How a topology stands, and how its run ended: plain values."""

from __future__ import annotations

import msgspec

from flowctl.instrumentation.snapshot import Report


class StageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, in records.

    ``waiting_*``: in its buffer in the hub; ``at_bolts_max``: sent and not acked, each core's most
    added up; ``held_now``: acked as tuples and not settled by the bolt.
    """

    stage: str
    records: int
    waiting_now: int
    waiting_max: int
    at_bolts_max: int
    held_now: int


class TreeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The trees of a run.

    ``ledger_now``: accounts in the XOR ledgers.  ``orphans``: what was said of trees that were
    done.  ``dropped_emits``: of inputs that another copy had settled.
    """

    complete: int
    failed: int
    expired: int
    replayed: int
    pending_now: int
    ledger_now: int
    orphans: int
    dropped_emits: int


class TaskErrors(msgspec.Struct, frozen=True, kw_only=True):
    """What one task reported (``report_error``), and died of; ``latest`` has the last 20."""

    task: str
    count: int
    latest: tuple[str, ...]


class TopologyReport(Report, frozen=True, kw_only=True):
    """As :class:`Report`, where records are roots and tuples those of all stages."""

    stages: tuple[StageFigures, ...] = ()
    trees: TreeFigures | None = None
    errors: tuple[TaskErrors, ...] = ()
