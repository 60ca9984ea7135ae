"""The messages between spout and bolt: typed, msgpack, each preceded by a four-byte length.

A frame is an array whose first element is the tag, so it is short and its bytes are the same on
every run.  The version is in the first frame of each side; a change that an older peer could
misread raises it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.records import Position, Record, Rejected
from flowctl.core.trees.settlement import Settlement

# Version 1 had no DetailedAckFrame, and other fails and heartbeats; version 2 had no ranges; in
# version 3 heartbeats did not tell what was begun.
PROTOCOL_VERSION: Final = 4


class _Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class Hello(_Frame, frozen=True, array_like=True, gc=False, tag=1):
    """Bolt → spout, first frame."""

    version: int
    bolt: str
    slots: int
    pid: int
    host: str


class Welcome(_Frame, frozen=True, array_like=True, gc=False, tag=2):
    """Spout → bolt, the answer: ``epoch`` counts the connections of this bolt.

    ``job_epoch`` is the driver's generation, for :class:`flowctl.core.records.Span`.
    """

    version: int
    epoch: int
    job_epoch: int


class TupleFrame(_Frame, frozen=True, array_like=True, gc=False, tag=3):
    """Spout → bolt: a tuple to process."""

    tuple_id: int
    attempt: int
    partition: str
    acked_through: Position | None
    records: list[Record]


class AckFrame(_Frame, frozen=True, array_like=True, gc=False, tag=4):
    """Bolt → spout: processed.  Durations as in :class:`flowctl.core.records.Ack`."""

    tuple_id: int
    attempt: int
    wait_s: float
    service_s: float
    idle_total_s: float
    sink_s: float | None = None  # last, so that peers without it still understand each other


class SettledFrame(AckFrame, frozen=True, array_like=True, gc=False, tag=11):
    """Bolt of a topology → hub: an ack, with what the bolt did with the tuple."""

    settlement: Settlement = Settlement()


class DetailedAckFrame(AckFrame, frozen=True, array_like=True, gc=False, tag=12):
    """Bolt → spout: an ack with details about single records; most acks have none.

    As in :class:`flowctl.core.records.Ack`.
    """

    rejected: list[Rejected] = []
    left_out: int = 0


class FailFrame(_Frame, frozen=True, array_like=True, gc=False, tag=5):
    """Bolt → spout: ``process`` raised.

    ``record_index`` is the record being worked on, if known; ``fenced`` says that the sink refused
    this driver because a newer one owns it: the run must stop, not retry. ``refused`` says that the
    target had no room or was unavailable (congestion, not a fault of the records); ``after_s`` is
    how long it asked to be left alone [s], None if it did not say. ``fatal`` says that no tuple can
    be processed this way (``process`` returns a coroutine): the run must stop; ``error`` then holds
    the problem and, after a newline, the remedy. ``is_data_error`` says that judged by its type the
    exception is about a value, not about a target. ``newest_epoch`` is the newer driver's, if the
    sink that fenced us knows it.  ``is_overdue``: it took longer than the bound of a call allows,
    and may not be back yet.
    """

    tuple_id: int
    attempt: int
    error: str
    traceback: str
    record_index: int | None
    fenced: bool
    refused: bool = False
    after_s: float | None = None
    fatal: bool = False
    is_data_error: bool = False
    newest_epoch: int | None = None
    is_overdue: bool = False


class LongCall(_Frame, frozen=True, array_like=True, gc=False):
    """A call of ``process`` that takes long: for ``for_s`` by now [s].

    It works on a record from ``first`` to ``last`` of ``partition``; both are the same if it is
    known which.
    """

    partition: str
    first: Position
    last: Position
    for_s: float


class Heartbeat(_Frame, frozen=True, array_like=True, gc=False, tag=6):
    """Bolt → spout, every ``heartbeat_s``, from its own thread.

    ``prolonged``: inputs of a topology's bolt that take longer, reported since the last heartbeat.
    ``begun``: the tuples that its slots are at work on, if there are several slots: what was sent
    before one of them and is neither here nor acked was lost.  ``targets``: what its process knows
    of the targets that it paces, about once a second.  ``arrived``: how many tuples came on this
    connection; -1: it doesn't count them.  ``calls``: those that take long.
    """

    busy_slots: int
    queued: int
    prolonged: list[int] = []
    begun: list[int] = []
    # Those that came later are last: peers without them still understand each other.
    targets: list[TargetFigures] = []
    arrived: int = -1
    calls: list[LongCall] = []


class Revoke(_Frame, frozen=True, array_like=True, gc=False, tag=7):
    """Spout → bolt: give these back unless you have begun them."""

    tuple_ids: list[int]


class Revoked(_Frame, frozen=True, array_like=True, gc=False, tag=8):
    """Bolt → spout: these were given back and will not be processed; the others had begun."""

    tuple_ids: list[int]


# Tag 9 was version 1's Ping.
class End(_Frame, frozen=True, array_like=True, gc=False, tag=10):
    """Spout → bolt: no more work; drop what is queued and disconnect."""


class RangeFrame(_Frame, frozen=True, array_like=True, gc=False, tag=13):
    """Spout → bolt: read the records that begin in ``[start, stop)`` and process them.

    ``identity`` is that of :class:`flowctl.core.ranges.extent.Extent`.  ``tells_saved``: a
    :class:`Saved` follows each report that asks for it.
    """

    tuple_id: int
    attempt: int
    partition: str
    start: int
    stop: int
    identity: str
    acked_through: Position | None
    tells_saved: bool = False


class SplitFrame(_Frame, frozen=True, array_like=True, gc=False, tag=14):
    """Spout → bolt: give back the end of a range.

    ``keep`` is the share of what it has not claimed that the bolt may keep (0 to 1).  ``request``
    numbers the requests: one that is sent again gets the same answer.
    """

    tuple_id: int
    request: int
    keep: float


class SplitAnswer(_Frame, frozen=True, array_like=True, gc=False, tag=15):
    """Bolt → spout: the range now ends at ``stop``; what is above it is the spout's again.

    As before: nothing was given back.  0: the bolt no longer knows the range, which is finished.
    """

    tuple_id: int
    request: int
    stop: int


class RejectedAt(_Frame, frozen=True, array_like=True, gc=False):
    """One record of a range that ``process`` can't use, and why; the spout has not seen it."""

    position: Position
    value: Any
    reason: str


class ProgressFrame(_Frame, frozen=True, array_like=True, gc=False, tag=16):
    """Bolt → spout: every record that begins in ``[start, done_through)`` is processed.

    Sent for a range not more often than every 100 ms, and when it ends.  ``records``, ``rejected``,
    ``left_out`` and the durations [s] are of that part alone: ``read_s`` process waited for the
    source, ``wait_s`` the range was queued (0 from the second report on), ``service_s`` in
    ``process``, ``sink_s`` of that in a sink (None: not measured).  ``idle_total_s`` is as in
    :class:`AckFrame`.  ``receipts`` are what ``process`` gave to be kept with the records.
    ``call_s`` is what a call of ``process`` costs whatever its size [s], where batches have more
    records for it; else 0.  ``is_urgent``: the next batch is a short one, and if this part is not
    saved when that ends, the one after it has to wait.  ``is_awaited``: a :class:`Saved` should
    tell when it is.
    Together with its :class:`RangeFail` frames, progress covers the whole range once it is
    finished.
    """

    tuple_id: int
    attempt: int
    start: int
    done_through: int
    records: int
    read_s: float
    wait_s: float
    service_s: float
    sink_s: float | None
    idle_total_s: float
    rejected: list[RejectedAt] = []
    left_out: int = 0
    receipts: list[bytes] = []
    call_s: float = 0.0
    is_urgent: bool = False
    is_awaited: bool = False


class Saved(_Frame, frozen=True, array_like=True, gc=False, tag=18):
    """Spout → bolt: so many of the :class:`ProgressFrame` of this connection are saved.

    Only to bolts that ask for it.
    """

    reports: int


class RangeFail(_Frame, frozen=True, array_like=True, gc=False, tag=17):
    """Bolt → spout: ``[start, stop)``, a part of a range, failed; the bolt goes on behind it.

    As :class:`FailFrame`.  ``is_read_error``: the source could not be read, so ``process`` never
    saw the records, ``records`` is 0 and ``stop`` is the end of the range.  ``record_at`` is the
    position of the record being worked on, if known.  ``record`` is the record itself if the part
    holds just one: the spout has not seen it, and may have to put it aside.
    """

    tuple_id: int
    attempt: int
    start: int
    stop: int
    records: int
    error: str
    traceback: str
    fenced: bool
    refused: bool = False
    after_s: float | None = None
    fatal: bool = False
    is_data_error: bool = False
    newest_epoch: int | None = None
    is_read_error: bool = False
    record_at: Position | None = None
    record: Record | None = None
    is_overdue: bool = False


class Dying(_Frame, frozen=True, array_like=True, gc=False, tag=19):
    """Bolt → spout, the last frame of a bolt that ``process`` ends: why.

    ``is_told``: what ended it was reported as failed, so nothing else that it holds is to blame.
    ``is_stuck``: its threads are still in calls, and it comes back when these return.
    """

    reason: str
    is_told: bool = False
    is_stuck: bool = False


ToBolt: TypeAlias = Welcome | TupleFrame | Revoke | End | RangeFrame | SplitFrame | Saved
# What a bolt sends after its Hello.
Reported: TypeAlias = (
    AckFrame
    | DetailedAckFrame
    | SettledFrame
    | FailFrame
    | Heartbeat
    | Revoked
    | SplitAnswer
    | ProgressFrame
    | RangeFail
    | Dying
)
ToSpout: TypeAlias = Hello | Reported
