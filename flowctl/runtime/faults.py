"""Messages for a failure of ``process`` or its sink: which record, what, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from flowctl.core.buffer import size_of_record
from flowctl.core.events import TargetWentDown, TupleGaveUp
from flowctl.core.failures import NOTHING_SUCCEEDED
from flowctl.core.messages import Fail
from flowctl.core.positions import show, show_records
from flowctl.core.records import Record
from flowctl.errors import (
    DeadlineError,
    FencedError,
    FlowctlError,
    ProcessError,
    QuotaUsedUpError,
    SourceError,
    SpentError,
    TargetDownError,
    UnrunnableError,
)
from flowctl.instrumentation.numbers import clock, count, counted, percent
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.instrumentation.text import printable
from flowctl.wire.not_encodable import CARRIED, NotCarriedError
from flowctl.wire.values import enc_hook

# What msgspec raises for a value that msgpack can't hold.
NOT_MSGPACK: Final = (TypeError, OverflowError, ValueError, RecursionError)


def unsendable_at(records: Sequence[Record]) -> int | None:
    """Return the index of the first record that can't be put on the wire."""
    encode = msgspec.msgpack.Encoder(enc_hook=enc_hook).encode
    for index, record in enumerate(records):
        try:
            size_of_record(record)
            encode(record)
        except NOT_MSGPACK:
            return index
    return None


def unsendable_error(partition: str, records: Sequence[Record], why: object) -> SourceError:
    """Return the error that names the record, or the tuple if it is too large as a whole."""
    index = unsendable_at(records)
    if index is None:
        where = show_records(records[0].position, records[-1].position)
        return SourceError(
            f"{partition}, {where}: {getattr(why, 'problem', why)}",
            remedy=getattr(why, "remedy", ""),
        )
    record = records[index]
    kind = type(record.value).__name__
    return SourceError(
        f"{partition}, record {show(record.position)}: this {kind} can't be sent to a bolt"
        f" ({getattr(why, 'problem', why)}).",
        remedy=f"Use {CARRIED}.",
    )


def refused_error(partition: str, record: Record, why: NotCarriedError) -> SourceError:
    """Return the error that names a record whose value can't arrive as it is, and the part."""
    return SourceError(
        f"{partition}, record {show(record.position)}: {why.problem}",
        remedy=why.remedy
        or "Fix the source and run again: everything before this record is done. To go on without"
        " such records: flowctl run --dead-letters .flowctl/dead-letters.",
    )


def fenced_error(fail: Fail) -> FencedError:
    """Return the error of a driver whose write the sink refused."""
    return FencedError(
        f"the sink refused this driver's write: {fail.error.rstrip('.')}.",
        remedy="A newer driver of this job is running; let it continue.",
        newest_epoch=fail.newest_epoch,
    )


def fatal_error(bolt: str, fail: Fail) -> FlowctlError:
    """Return the error for work that no bolt can do: it ends the run, and the next run begins with
    that work."""
    problem, _, remedy = fail.error.partition("\n")
    if fail.is_read_error:
        return SourceError(f"{problem} (bolt {bolt})", remedy=remedy)
    if fail.after_s is not None:  # a quota, for all bolts
        kind = SpentError if fail.after_s == 0 else QuotaUsedUpError
        return kind(problem, remedy=remedy)
    field, _, problem = problem.partition(": ")
    return UnrunnableError(field, f"{problem} (bolt {bolt})", remedy=remedy)


def gave_up_error(gave_up: TupleGaveUp, fail: Fail | None) -> ProcessError | SourceError:
    """Return the error that ends the run; ``fail`` is the last one, if that caused it."""
    bolts = ", ".join(gave_up.bolts)
    if fail is not None and fail.is_read_error:
        return SourceError(
            f"{gave_up.partition} could not be read from {show(gave_up.first)} on, on {bolts},"
            f" {gave_up.attempts} times: {printable(gave_up.reason).rstrip('.')}.",
            remedy="Run again when the source can be read: what is done is not repeated.",
        )
    where = f"{gave_up.partition}, {show_records(gave_up.first, gave_up.last)}: process"
    if gave_up.first == "":  # a topology's on_end, which is called without a record
        where = gave_up.partition
    if NOTHING_SUCCEEDED in gave_up.reason:
        remedy = (
            "Look at process and at what it calls, and run again: the job continues with this"
            " record, and none was set aside. If these records are to blame after all, because an"
            " earlier run has done all others, let process set them aside:"
            " batch.reject(record, error)."
        )
    else:
        remedy = (
            "Fix process or the record and run again: the job continues with this record,"
            " and what is done is not repeated. To set such records aside and go on without"
            " them, give the job dead_letter='.flowctl/dead-letters', or flowctl run"
            " --dead-letters .flowctl/dead-letters."
        )
    traceback = f"\n{fail.traceback.rstrip()}\n" if fail and fail.traceback else ""
    return ProcessError(
        f"{where} failed {counted(gave_up.attempts, 'time')}, on {bolts}:"
        # A single line: what follows the first line of a problem is its traceback.
        f" {printable(gave_up.reason).rstrip('.')}.{traceback}",
        remedy=remedy,
    )


def target_down_error(down: TargetWentDown, now_s: float) -> TargetDownError:
    """Return the error that ends a run whose target was down for too long."""
    remedy = (
        "Run again when the target is back: progress is saved, and nothing was given up."
        " To wait longer, raise retry.give_up_after_s."
    )
    if not down.has_refused:
        remedy += (
            " If process itself failed, correct it and run again; the last failure says where."
            " Errors about a value (ValueError, KeyError …) never mean that a target is down."
        )
    return TargetDownError(
        f"nothing has succeeded for {now_s - down.at_s:.0f} s. The last failure: {down.reason}.",
        remedy=remedy,
    )


def deadline_error(deadline_s: float, records: int, run: Snapshot) -> DeadlineError:
    """Return the error of a run that reached its deadline; ``records`` are saved, of all runs."""
    done = f"{counted(records, 'record')} done and saved"
    if run.progress is not None:
        done = f"{percent(run.progress)} of the input is done, {count(records)} records; saved"
    left = "" if run.eta_s is None else f", and some {clock(run.eta_s)} of work left"
    return DeadlineError(
        f"the deadline of {clock(deadline_s)} was reached: {done}{left}.",
        remedy="Run again: it goes on with what is left.",
    )


def emptied_store_error(problem: str, *, newest: int, known: int) -> FencedError:
    """Return the error for a sink that knows ``newest``, while the store knows only ``known``."""
    return FencedError(
        f"{problem} The checkpoint store knows no driver of epoch {newest}; its newest is"
        f" {known}: it was emptied, or a driver's clock was once wrong.",
        remedy=f"Start the job again: its epoch will be above {newest}, so the sink will accept it."
        " Only if another driver of this job writes there, with its own store, stop one of them.",
        newest_epoch=newest,
    )
