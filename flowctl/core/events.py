"""What the core says it did, and why: frozen records, read with ``TupleCore.poll_event``."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec

from flowctl.core.records import Position


class BoltState(enum.Enum):
    """How a bolt is doing (S116); public in metrics and logs."""

    # A key for every other ack: members are single, and a hash by name is Python code.
    __hash__: Callable[[Any], int] = object.__hash__  # type: ignore[assignment]

    NORMAL = "NORMAL"  # acks in the normal range: the window holds or grows
    SLOW = "SLOW"  # acks over the threshold: the window shrinks
    BUSY = "BUSY"  # a tuple expired, or the bolt is suspect or down


class FlowEvent(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Base of all events; ``at_s`` is the core's own time [s]."""

    at_s: float


class BoltAdded(FlowEvent, frozen=True, gc=False, kw_only=True):
    bolt: str
    epoch: int
    slots: int


class BoltRemoved(FlowEvent, frozen=True, gc=False, kw_only=True):
    """A bolt went; ``moved`` tuples it held go to others."""

    bolt: str
    epoch: int
    moved: int
    reason: str


class PeerDropped(FlowEvent, frozen=True, gc=False, kw_only=True):
    """A bolt, or a process that used its name, reported something impossible: it was
    disconnected.
    """

    bolt: str
    reason: str


class WindowChanged(FlowEvent, frozen=True, gc=False, kw_only=True):
    """``service_s`` and ``path_s`` are the bolt's, as known then: the window follows from them."""

    bolt: str
    before: int
    after: int
    reason: str
    service_s: float = 0.0
    path_s: float = 0.0


class SinkCapChanged(FlowEvent, frozen=True, gc=False, kw_only=True):
    """The most tuples in flight at all bolts together changed, to protect a shared sink; None: no
    cap.

    ``goodput`` is that of the best cap so far, ``best`` the highest that was seen [records/s]; None
    where refusals decided.
    """

    before: int | None
    after: int | None
    reason: str
    goodput: float | None = None
    best: float | None = None


class StateChanged(FlowEvent, frozen=True, gc=False, kw_only=True):
    """``ack_rtt_s`` and ``threshold_s`` are those of the ack that decided, where one did.

    ``silent_s``: how long nothing had been heard, where that decided.
    """

    bolt: str
    before: BoltState
    after: BoltState
    reason: str
    ack_rtt_s: float | None = None
    threshold_s: float | None = None
    silent_s: float | None = None


class TupleExpired(FlowEvent, frozen=True, gc=False, kw_only=True):
    """No ack within the RTO.

    The tuple goes to another bolt; but if this one is alive and has begun it, it is waited for
    once more.
    """

    bolt: str
    tuple_id: int
    attempt: int
    rto_s: float


class TupleLost(FlowEvent, frozen=True, gc=False, kw_only=True):
    """The bolt has finished later tuples, or has nothing to do: the tuple never reached it."""

    bolt: str
    tuple_id: int
    attempt: int


class TupleHedged(FlowEvent, frozen=True, gc=False, kw_only=True):
    """An idle bolt also got a tuple that ``slow_bolt`` would be late with; the first ack counts."""

    tuple_id: int
    bolt: str
    slow_bolt: str
    attempt: int


class TupleMoved(FlowEvent, frozen=True, gc=False, kw_only=True):
    """A tuple was sent again, to ``bolt``; it was sent to ``moved_from`` ``sent_before_s`` ago."""

    tuple_id: int
    bolt: str
    moved_from: str
    attempt: int
    sent_before_s: float = 0.0


class TupleFailed(FlowEvent, frozen=True, gc=False, kw_only=True):
    """``process`` raised, or its worker died; the tuple is sent again at ``retry_at_s``."""

    bolt: str
    tuple_id: int
    attempt: int
    partition: str
    first: Position
    last: Position
    reason: str
    retry_at_s: float


class TupleGaveUp(FlowEvent, frozen=True, gc=False, kw_only=True):
    """The attempts ran out: with a dead letter it goes there and counts as acked.

    Without one the run fails, its position stays before this tuple.
    """

    tuple_id: int
    partition: str
    first: Position
    last: Position
    attempts: int
    bolts: tuple[str, ...]
    reason: str


class TupleDeadLettered(FlowEvent, frozen=True, gc=False, kw_only=True):
    """A tuple that was given up is safe in the dead letter, and so counts as acked (S109, S124)."""

    tuple_id: int
    partition: str
    first: Position
    last: Position
    records: int


class TupleRefused(FlowEvent, frozen=True, gc=False, kw_only=True):
    """The target had no room, or is away: the tuple is sent again; no attempt is counted."""

    bolt: str
    tuple_id: int
    attempt: int
    reason: str
    retry_at_s: float


class TupleCut(FlowEvent, frozen=True, gc=False, kw_only=True):
    """A tuple that failed as a whole goes on as ``pieces``, to find the record that fails."""

    tuple_id: int
    partition: str
    first: Position
    last: Position
    pieces: tuple[int, ...]


class RangeSplit(FlowEvent, frozen=True, gc=False, kw_only=True):
    """An idle bolt needed work: the range of ``bolt`` ends at ``at`` now, ``rest_id`` is above, of
    ``positions``.
    """

    tuple_id: int
    bolt: str
    partition: str
    at: int
    rest_id: int
    positions: int = 0


class RecordsRejected(FlowEvent, frozen=True, gc=False, kw_only=True):
    """``process`` could not use these records of a tuple; the rest of it is acked."""

    tuple_id: int
    bolt: str
    partition: str
    positions: tuple[Position, ...]
    reasons: tuple[str, ...]


class TargetWentDown(FlowEvent, frozen=True, gc=False, kw_only=True):
    """(Nearly) nothing succeeds: one tuple at a time is sent, to see whether it is back.

    ``has_refused``: a failure was one that says "full" or "away".  If none was, it may as well be
    ``process`` that is wrong.
    """

    reason: str
    has_refused: bool = False


class TargetCameBack(FlowEvent, frozen=True, gc=False, kw_only=True):
    """The first success after ``down_s``; ``asked`` tuples were sent meanwhile.

    ``reason``, where nothing has succeeded: why it does not count as down any more.
    """

    down_s: float
    asked: int
    reason: str = ""


class TupleDropped(FlowEvent, frozen=True, gc=False, kw_only=True):
    """A tuple failed, expired or got lost in a mode that sends nothing again (S88): its effect may
    or may not have happened.
    """

    bolt: str
    tuple_id: int
    partition: str
    first: Position
    last: Position
    records: int
    reason: str


class EmitUndelivered(FlowEvent, frozen=True, gc=False, kw_only=True):
    """``emits`` values that a topology's bolt emitted reached no bolt, since this was last
    reported.

    ``source`` is the stage, or ``stage/stream``; ``bolt`` is the last one that emitted one.
    """

    bolt: str
    source: str
    emits: int
    reason: str


class TreesHeldUp(FlowEvent, frozen=True, gc=False, kw_only=True):
    """No root of a topology was done for ``quiet_s``; ``held`` says who holds what, since when."""

    quiet_s: float
    roots: int
    held: tuple[str, ...]


class PartitionTakenAway(FlowEvent, frozen=True, gc=False, kw_only=True):
    """Another driver reads the partition from now on; ``handed_over`` tuples in flight are left to
    it.
    """

    partition: str
    position: Position | None
    handed_over: int


class PartitionGiven(FlowEvent, frozen=True, gc=False, kw_only=True):
    """This driver reads the partition from now on, from just after ``position``."""

    partition: str
    position: Position | None


class IntakePaused(FlowEvent, frozen=True, gc=False, kw_only=True):
    """``offer`` began to refuse: which bound was reached, with ``records`` in the buffer.  One per
    episode (S44).
    """

    reason: str
    records: int = 0


class IntakeResumed(FlowEvent, frozen=True, gc=False, kw_only=True):
    paused_s: float
