"""What a core and its bolts say to each other: the core's own values, and the frames of the wire.

What goes to a bolt names it, as its address.  A message from a bolt does not: the receiver knows
the connection it came from, so no bolt can speak for another, or for an epoch that is over.

Each is an array whose first element is its tag, so the order of fields counts.  A change here is a
change of the wire: it raises :data:`flowctl.wire.frames.PROTOCOL_VERSION`.  All are frozen; threads
may share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from flowctl.core.pacing.figures import TargetFigures
from flowctl.core.positions import show
from flowctl.core.records import Position, Record
from flowctl.core.trees.settlement import Settlement
from flowctl.core.tuples import Ids


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message, or a part of one."""


# -- to a bolt -----------------------------------------------------------------------------------


class Emission(Message, frozen=True, tag=3):
    """One sending of one tuple to one bolt.

    ``attempt`` is the 1-based count of sendings of this tuple in this run.  ``given_up``: as in
    :class:`flowctl.core.records.PartitionCheckpoint`.
    """

    tuple_id: int
    bolt: str
    attempt: int
    partition: str
    records: Sequence[Record]
    acked_through: Position | None
    size_bytes: int
    given_up: Position | None = None


class RangeEmission(Emission, frozen=True, tag=13):
    """One sending of one range: the bolt reads the records that begin in ``[start, stop)`` itself.

    ``records`` is empty.  ``identity`` is that of :class:`flowctl.core.ranges.extent.Extent`.
    ``tells_saved``: a :class:`flowctl.wire.frames.Saved` follows each report that asks for it.
    """

    start: int = 0
    stop: int = 0
    identity: str = ""
    tells_saved: bool = False


class Revoke(Message, frozen=True, tag=7):
    """Asks a bolt to give back those of these tuples that it has not begun."""

    bolt: str
    tuple_ids: Ids


class Split(Message, frozen=True, tag=14):
    """Asks a bolt to give back the end of a range.

    ``keep`` is the share (0 to 1) of the unclaimed part that it may keep.  ``request`` numbers the
    requests: a repeated one gets the same answer.
    """

    bolt: str
    tuple_id: int
    request: int
    keep: float


# Tag 9 was version 1's Ping.
class End(Message, frozen=True, tag=10):
    """No more work: drop what is queued and disconnect."""

    bolt: str


Order: TypeAlias = Revoke | Split | End

# -- from a bolt ---------------------------------------------------------------------------------


class Ack(Message, frozen=True, tag=4):
    """A tuple was processed.  Durations only: no clocks need to agree.

    ``wait_s`` queued at the bolt, ``service_s`` in ``process``, ``idle_total_s`` the bolt's
    cumulative idle time when this tuple began, ``sink_s`` the part of the service in which a
    sink was waited for (None: ``process`` does not report it).
    Only a bolt that is driven by hand leaves the durations None.
    """

    tuple_id: int
    attempt: int
    wait_s: float | None = None
    service_s: float | None = None
    idle_total_s: float | None = None
    sink_s: float | None = None


class SettledAck(Ack, frozen=True, tag=11):
    """An ack of a topology's bolt, with what the bolt emitted for the tuple."""

    settlement: Settlement = Settlement()


class Rejected(Message, frozen=True):
    """One record of a tuple that ``process`` can't use, and why.

    ``index`` counts from 0 within the tuple.
    """

    index: int
    reason: str


class DetailedAck(Ack, frozen=True, tag=12):
    """An ack with details about single records; most acks have none.

    ``rejected`` are records of the tuple that ``process`` could not use, each index once, in order;
    ``left_out`` counts those whose effect the sink had already.
    """

    rejected: Sequence[Rejected] = []
    left_out: int = 0


class Fail(Message, frozen=True, tag=5):
    """``process`` raised.

    ``record_index`` is the record being worked on, if known; ``is_fenced`` says that the sink
    refused this driver because a newer one owns it: the run must stop, not retry.  ``is_refused``
    says that the target had no room or was unavailable (congestion, not a fault of the records);
    ``after_s`` is how long it asked to be left alone [s], None if it did not say.  ``is_fatal``
    says that no tuple can be processed this way (``process`` returns a coroutine): the run must
    stop; ``error`` then holds the problem and, after a newline, the remedy, and ``after_s`` says
    that it is a quota, which is used up for so long; 0: what may be spent is spent.
    ``is_data_error`` says that judged by its type the exception is about a value, not about a
    target; ``is_content`` that it is about what was sent, by its type or by the target's answer.
    ``newest_epoch`` is the newer driver's, if the sink that fenced us knows it.
    ``is_overdue``: it took longer than the bound of a call allows, and may not be back yet.
    ``is_read_error``, of ranges only: the source could not be read, so ``process`` never saw the
    records.
    """

    tuple_id: int
    attempt: int
    error: str
    traceback: str = ""
    record_index: int | None = None
    is_fenced: bool = False
    is_refused: bool = False
    after_s: float | None = None
    is_fatal: bool = False
    is_data_error: bool = False
    newest_epoch: int | None = None
    is_overdue: bool = False
    is_read_error: bool = False
    is_content: bool = False

    def reason(self, at: Position | None) -> str:
        """Return the error and ``at``, the place of the record that was worked on, if known.

        A refusal is no record's fault, so it names none.
        """
        if at is None or self.is_refused:
            return self.error
        return f"{self.error}, at record {show(at)}"


class Revoked(Message, frozen=True, tag=8):
    """These tuples were given back and will not be processed; the bolt had begun the others."""

    tuple_ids: Ids


class LongCall(Message, frozen=True):
    """A call of ``process`` that has been running for ``for_s`` [s].

    It is working on a record between ``first`` and ``last`` of ``partition``; the two are equal if
    the record is known.
    """

    partition: str
    first: Position
    last: Position
    for_s: float


class Heartbeat(Message, frozen=True, tag=6):
    """A sign of life from the bolt's own thread, every ``heartbeat_s``, and what it holds.

    ``begun``: the tuples that its slots are at work on, if there are several slots: what was sent
    before one of them and is neither here nor acked was lost.  ``arrived``: how many tuples came on
    this connection; None: it doesn't count them.  ``prolonged``: inputs of a topology's bolt that
    take longer, reported since the last heartbeat.  ``targets``: what its process knows of the
    targets that it paces, about once a second.  ``calls``: those that take long.
    """

    busy_slots: int
    queued: int
    begun: Ids = []
    arrived: int | None = None
    prolonged: Ids = []
    targets: Sequence[TargetFigures] = []
    calls: Sequence[LongCall] = []

    @property
    def holds(self) -> int:
        """The number of tuples that the bolt has, begun or not."""
        return self.busy_slots + self.queued


class SplitAnswer(Message, frozen=True, tag=15):
    """The range now ends at ``stop``; the part above goes back to the spout.

    If ``stop`` did not change, nothing was given back; 0: the bolt no longer knows the range, which
    is finished.
    """

    tuple_id: int
    request: int
    stop: int


class RejectedRecord(Message, frozen=True):
    """One record of a range that ``process`` can't use, and why; the spout has not seen it."""

    position: int
    value: Any
    reason: str


class Processed(Message, frozen=True):
    """The outcome of some records of a range.

    ``read_s``: how long ``process`` waited for the source; ``wait_s`` the range was queued (0 from
    the second report on); ``service_s`` in ``process``, ``sink_s`` of that in a sink (None: not
    measured).  ``rejected`` and ``left_out`` as in :class:`DetailedAck`.  ``receipts`` are what
    ``process`` gave to be kept with the records.  ``call_s`` is what a call of ``process`` costs
    whatever its size [s], where batches have more records for it; else 0.  ``is_urgent``: the next
    batch is a short one, and if these records are not saved when that ends, the one after it has to
    wait.  ``is_awaited``: a :class:`flowctl.wire.frames.Saved` should tell when they are.
    """

    records: int = 0
    read_s: float = 0.0
    wait_s: float = 0.0
    service_s: float = 0.0
    sink_s: float | None = None
    rejected: Sequence[RejectedRecord] = []
    left_out: int = 0
    receipts: Sequence[bytes] = []
    call_s: float = 0.0
    is_urgent: bool = False
    is_awaited: bool = False

    def plus(self, later: Processed) -> Processed:
        """Both together."""
        no_sink = self.sink_s is None and later.sink_s is None
        return Processed(
            records=self.records + later.records,
            read_s=self.read_s + later.read_s,
            wait_s=self.wait_s + later.wait_s,
            service_s=self.service_s + later.service_s,
            sink_s=None if no_sink else (self.sink_s or 0.0) + (later.sink_s or 0.0),
            rejected=[*self.rejected, *later.rejected],
            left_out=self.left_out + later.left_out,
            receipts=[*self.receipts, *later.receipts],
            call_s=later.call_s,  # known so far
            is_urgent=later.is_urgent,
            is_awaited=later.is_awaited,
        )


class Progress(Message, frozen=True, tag=16):
    """Every record that begins in ``[start, done_through)`` is processed: ``did`` says how.

    Sent for a range not more often than every 100 ms, and when it ends.  Together with its
    :class:`RangeFail` messages, progress covers the whole range once it is finished.
    ``idle_total_s`` is as in :class:`Ack`.
    """

    tuple_id: int
    attempt: int
    start: int
    done_through: int
    idle_total_s: float
    did: Processed


class RangeFail(Message, frozen=True, tag=17):
    """``[start, stop)``, a part of a range, failed as ``fail`` says; the bolt goes on behind it.

    ``records`` are in that part; where ``fail.is_read_error``, none was seen, and ``stop`` is the
    end of the range.  ``record_at`` is the position of the record being worked on, if known.
    ``record`` is the record itself if the part holds just one: the spout has not seen it, and may
    have to put it aside.
    """

    fail: Fail
    start: int
    stop: int
    records: int
    record_at: Position | None = None
    record: Record | None = None

    @property
    def tuple_id(self) -> int:
        """The range."""
        return self.fail.tuple_id

    @property
    def attempt(self) -> int:
        """Which sending of it."""
        return self.fail.attempt
