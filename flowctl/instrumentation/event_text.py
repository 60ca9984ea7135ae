"""Core events as structlog events and as readable sentences.

The names and fields of :data:`NAMES` are public: dashboards and alerts rely on them.
"""

from __future__ import annotations

import enum
import logging
from typing import Any, Final, Protocol

import msgspec

from flowctl.core import events as ev
from flowctl.core.positions import show
from flowctl.instrumentation import numbers
from flowctl.logs import with_job

_MAY_BE_PROCESS: Final = (
    "hardly a failure says that it is full or away: if process itself is wrong, Ctrl-C ends the"
    " run, and what is done stays done"
)

NAMES: Final[dict[type[ev.FlowEvent], str]] = {
    ev.BoltAdded: "bolt_added",
    ev.BoltRemoved: "bolt_removed",
    ev.PeerDropped: "peer_dropped",
    ev.WindowChanged: "window_changed",
    ev.SinkCapChanged: "sink_cap_changed",
    ev.StateChanged: "state_changed",
    ev.TupleExpired: "tuple_expired",
    ev.TupleMoved: "tuple_moved",
    ev.TupleLost: "tuple_lost",
    ev.TupleHedged: "tuple_hedged",
    ev.TupleFailed: "tuple_failed",
    ev.TupleGaveUp: "tuple_gave_up",
    ev.TupleDeadLettered: "tuple_dead_lettered",
    ev.TupleDropped: "tuple_dropped",
    ev.TupleRefused: "tuple_refused",
    ev.TupleCut: "tuple_cut",
    ev.RangeSplit: "range_split",
    ev.RecordsRejected: "records_rejected",
    ev.TargetWentDown: "target_down",
    ev.TargetCameBack: "target_back",
    ev.EmitUndelivered: "emit_undelivered",
    ev.TreesHeldUp: "trees_held_up",
    ev.PartitionTakenAway: "partition_taken_away",
    ev.PartitionGiven: "partition_given",
    ev.IntakePaused: "intake_paused",
    ev.IntakeResumed: "intake_resumed",
}

# What a run reports besides; the views show all of it.
RUN_EVENTS: Final = frozenset(
    {
        "failures_repeated",
        "limit_changed",
        "progress",
        "run_finished",
        "run_started",
        "tuples_resized",
    }
)

# Events that need attention are warnings, those that end the run errors; window changes are detail.
_LEVELS: Final[dict[type[ev.FlowEvent], int]] = {
    ev.BoltRemoved: logging.WARNING,
    ev.PeerDropped: logging.WARNING,
    ev.TupleFailed: logging.WARNING,
    ev.TupleGaveUp: logging.ERROR,
    ev.TupleDeadLettered: logging.ERROR,
    ev.TupleDropped: logging.WARNING,
    ev.TargetWentDown: logging.ERROR,
    ev.TargetCameBack: logging.WARNING,
    ev.TupleRefused: logging.DEBUG,  # one per call while a target is full: counted, not shown
    ev.TupleCut: logging.DEBUG,
    ev.RangeSplit: logging.DEBUG,
    ev.RecordsRejected: logging.DEBUG,
    ev.EmitUndelivered: logging.WARNING,
    ev.TreesHeldUp: logging.WARNING,
    ev.WindowChanged: logging.DEBUG,
    ev.IntakePaused: logging.DEBUG,
    ev.IntakeResumed: logging.DEBUG,
}


class EventLogger(Protocol):
    """The part of a structlog logger that is used here."""

    def log(self, level: int, event: str, /, **fields: Any) -> Any: ...


def name_of(event: ev.FlowEvent) -> str:
    """Return the stable name of ``event``'s class."""
    return NAMES[type(event)]


def fields_of(event: ev.FlowEvent) -> dict[str, Any]:
    """Return the fields of ``event`` as plain values: states by name, bolts as a list."""
    fields = msgspec.structs.asdict(event)
    return {key: _plain(value) for key, value in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def level_of(event: ev.FlowEvent) -> int:
    """Return the level of the standard library's ``logging`` that suits ``event``."""
    return _LEVELS.get(type(event), logging.INFO)


def log_event(logger: EventLogger, event: ev.FlowEvent, *, level: int | None = None) -> None:
    """Log ``event`` with its stable name, fields and level, or another ``level``."""
    fields = with_job(fields_of(event))
    logger.log(level_of(event) if level is None else level, name_of(event), **fields)


def log_repeats(logger: EventLogger, event: ev.FlowEvent, count: int) -> None:
    """Log that there were ``count`` more like ``event``, whose fields are those of the last one."""
    fields = with_job(fields_of(event))
    logger.log(level_of(event), "failures_repeated", of=name_of(event), count=count, **fields)


def sentence(event: ev.FlowEvent) -> str:
    """Return what happened and why, in one line; "" if it is of no interest to a person."""
    match event:
        case ev.StateChanged():
            return f"{event.bolt}  {_why(event)}  {event.before.value} → {event.after.value}"
        case ev.SinkCapChanged():
            return f"shared target  {event.reason}  {_cap(event.before)} → {_cap(event.after)}"
        case ev.TupleExpired():
            waited = numbers.duration(event.rto_s)
            return f"{event.bolt}  tuple {event.tuple_id} expired: no ack within {waited}"
        case ev.TupleLost():
            return f"{event.bolt}  tuple {event.tuple_id} never arrived"
        case ev.TupleHedged():
            slow = event.slow_bolt
            return f"{event.bolt}  idle: runs tuple {event.tuple_id} too, {slow} is late with it"
        case ev.TupleMoved():
            return f"{event.moved_from}  tuple {event.tuple_id} sent again to {event.bolt}"
        case ev.RangeSplit():
            return f"{event.bolt}  gave back its range from {event.partition} {event.at} on"
        case ev.BoltRemoved():
            moved = numbers.counted(event.moved, "tuple")
            return f"{event.bolt}  lost: {event.reason}; {moved} to other bolts"
        case ev.BoltAdded():
            return f"{event.bolt}  back" if event.epoch > 1 else ""
        case _:
            return _failure(event)


def repeated(event: ev.FlowEvent, count: int) -> str:
    """Return in one line that there were ``count`` more like ``event``, the last of them."""
    return f"{numbers.count(count)} more like this: {sentence(event)}"


def _cap(cap: int | None) -> str:
    return "no cap" if cap is None else f"{numbers.counted(cap, 'tuple')} in flight"


def _failure(event: ev.FlowEvent) -> str:
    match event:
        case ev.PeerDropped():
            return f"peer {event.bolt} broke the protocol: {event.reason}: dropped"
        case ev.TupleFailed():
            return f"{event.bolt}  tuple {event.tuple_id} failed ({_where(event)}): {event.reason}"
        case ev.TupleGaveUp():
            tries = numbers.counted(event.attempts, "attempt")
            where = _where(event)
            return f"tuple {event.tuple_id} given up after {tries} ({where}): {event.reason}"
        case ev.TupleDeadLettered():
            return f"tuple {event.tuple_id} is in the dead letter ({_where(event)})"
        case ev.TupleDropped():
            return f"{event.bolt}  tuple {event.tuple_id} dropped ({_where(event)}): {event.reason}"
        case ev.RecordsRejected():
            what = numbers.counted(len(event.positions), "record")
            first = f"{event.partition} {show(event.positions[0])}"
            return f"{event.bolt}  rejected {what} ({first}): {event.reasons[0]}"
        case _:
            return _standstill(event)


def _where(event: ev.TupleFailed | ev.TupleGaveUp | ev.TupleDeadLettered | ev.TupleDropped) -> str:
    if event.first == event.last:
        return f"{event.partition} {show(event.first)}"
    return f"{event.partition} {show(event.first)} to {show(event.last)}"


def down_reason(down: ev.TargetWentDown) -> str:
    """Return the newest failure, and what else it may mean."""
    return down.reason if down.has_refused else f"{down.reason}; {_MAY_BE_PROCESS}"


def _standstill(event: ev.FlowEvent) -> str:
    """Return the line about the target, a topology without progress, or partitions."""
    match event:
        case ev.TargetWentDown():
            why = down_reason(event)
            return f"the target is down: nothing succeeds, testing now and then ({why})"
        case ev.TargetCameBack():
            down = numbers.duration(event.down_s)
            tested = numbers.counted(event.asked, "time")
            if event.reason:
                return (
                    f"the target was not down after all ({down}, tested {tested}): {event.reason}"
                )
            return f"the target is back after {down}, tested {tested}"
        case ev.EmitUndelivered():
            return (
                f"{event.bolt}  {numbers.counted(event.emits, 'emit')} undelivered: {event.reason}"
            )
        case ev.TreesHeldUp():
            quiet = numbers.duration(event.quiet_s)
            held = "; ".join(event.held)
            return f"no root was done for {quiet}, {event.roots} are pending: {held}"
        case ev.PartitionTakenAway():
            return f"{event.partition} taken away at {show(event.position)}"
        case ev.PartitionGiven():
            return f"{event.partition} given to this driver, continuing from {show(event.position)}"
        case _:
            return ""


def _why(event: ev.StateChanged) -> str:
    if event.ack_rtt_s is None or event.threshold_s is None:
        return event.reason
    sign = ">" if event.ack_rtt_s > event.threshold_s else "≤"
    rtt, threshold = numbers.duration(event.ack_rtt_s), numbers.duration(event.threshold_s)
    return f"rtt {rtt} {sign} {threshold}"
