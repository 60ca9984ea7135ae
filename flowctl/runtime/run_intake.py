"""What brings in the work of a run: a reader of records, or a source that bolts read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from flowctl.core.records import Checkpoint
from flowctl.ports import Endpoint
from flowctl.range_ports import RangeProducer
from flowctl.runtime.control import RunControl
from flowctl.runtime.range_source import NoLetters, RangeSource
from flowctl.runtime.reader import Reader
from flowctl.runtime.redrive import Redriven, with_letters_first
from flowctl.runtime.run_plan import RunPlan

# While the store is away: what a kill would repeat then, some seconds of a fast job.
_UNSAVED_MAX = 1_000_000


def intake_of(
    plan: RunPlan, control: RunControl, restored: Checkpoint, save_first: Callable[[], bool]
) -> tuple[Reader | RangeSource, Redriven | NoLetters]:
    """Return the thread that brings in work, and the dead letters that come before it."""
    producer, dead_letter = plan.producer, plan.dead_letter
    if isinstance(producer, RangeProducer):
        control.receipt_log = plan.receipts
        source = RangeSource(control, producer, restored=restored, receipts=plan.receipts)
        return source, NoLetters(dead_letter, plan.job)
    letters = with_letters_first(producer, dead_letter, job=plan.job, restored=restored)
    reader = Reader(
        control,
        letters,
        unsaved_max=plan.settings.buffer.uncommitted_max or _UNSAVED_MAX,
        save_first=save_first,
        has_dead_letter=dead_letter is not None,
    )
    return reader, letters


def endpoint_of(
    endpoint: Endpoint, source: Reader | RangeSource, call_timeout_s: float | None
) -> Endpoint:
    """Return ``endpoint`` with the bound of a call, and what bolts need to read the source
    themselves, if they do."""
    reader = source.reader if isinstance(source, RangeSource) else None
    return msgspec.structs.replace(endpoint, reader=reader, call_timeout_s=call_timeout_s)
