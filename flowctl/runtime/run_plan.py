"""The parts of one run, and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from flowctl.config import Settings
from flowctl.core.driver import DriverCore
from flowctl.core.records import Checkpoint
from flowctl.instrumentation.snapshot import Report
from flowctl.ports import (
    BoltNotice,
    Bolts,
    CheckpointStore,
    DeadLetter,
    FlowProducer,
    SpoutListener,
)
from flowctl.range_ports import RangeProducer, ReceiptLog


def _as_it_is(report: Report) -> Report:
    return report


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one run; they remain the caller's.

    ``make_core`` returns the deciding core, given this run's settings, the checkpoint that the
    store holds and numbers from 0 to 1 for the jitter of back-offs; it is called once.
    ``on_notice`` gets each notice about a bolt, and ``extend`` completes the report for kinds of
    jobs that have more to report; both are called by the thread that called
    :meth:`FlowControlSpout.run`. ``on_news`` gets what a :class:`flowctl.core.driver.TellingCore`
    reports, from the sender's thread; it must not block. ``receipts`` keeps what ``process`` gave
    to be kept, where bolts read the source themselves. After ``deadline_s`` the run saves and
    ends.
    """

    job: str
    producer: FlowProducer | RangeProducer
    bolts: Bolts
    store: CheckpointStore
    settings: Settings
    make_core: Callable[[Settings, Checkpoint, Callable[[], float]], DriverCore]
    dead_letter: DeadLetter | None = None
    listener: SpoutListener | None = None
    on_notice: Callable[[BoltNotice], None] | None = None
    on_news: Callable[[object], None] | None = None
    extend: Callable[[Report], Report] = _as_it_is
    receipts: ReceiptLog | None = None
    deadline_s: float | None = None


class Ending(NamedTuple):
    """How a run ended; ``error`` is None if it finished."""

    report: Report
    error: BaseException | None
