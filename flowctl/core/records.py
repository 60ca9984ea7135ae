"""What flows: records, tuples on their way, acks, and what is kept of them.

All types but :class:`Batch`, which belongs to one call of ``process``, are frozen
:class:`msgspec.Struct`.  Threads may share them, as nobody changes the dicts, lists and values that
they hold.  The wire sends records and rejections as they are; tuples and acks travel in frames of
their own (docs/adr/0002-wire.md says why).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, overload

import msgspec

from flowctl.core.settlement import Settlement
from flowctl.errors import UnrunnableError

# The source's own place of a record (S12), not a tuple's number: an offset, (byte, line), a key,
# a time with a tie-break.  Opaque to flowctl; totally ordered within its partition; the
# positions of one partition are all of one shape.  No bytes: msgspec can't tell them from str in
# a typed union; a hex string sorts the same.
PositionPart: TypeAlias = int | float | str | None
Position: TypeAlias = int | float | str | tuple[PositionPart, ...]


class _Nothing:
    """See :data:`NOTHING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOTHING"


# The value of a record that a translator found nothing in: it is not sent, and counts as acked at
# once, so that its position does not hold up the checkpoint (S107).
NOTHING: Final = _Nothing()


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record of a source partition.

    ``position`` is the source's own place; ``value`` arrives as it is or is refused: None, bool,
    int, float, str, bytes, list, tuple, dict, set, frozenset, dates and times, Decimal, UUID
    (:mod:`flowctl.wire.values`).
    """

    position: Position
    value: Any


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which records a tuple holds: the key by which a sink recognises a repeat.

    ``first`` and ``last`` are inclusive positions.  A tuple that is sent again within a run
    keeps its span; after a restart the same records may be cut differently, so a sink must
    remember *which positions are covered*, not equal spans.  ``epoch`` is the generation of
    the driver that sent it: a sink refuses one older than the newest it has seen.
    ``acked_through`` is the partition's cumulative ack when the tuple was sent: everything up
    to it has been processed, so a sink may merge its memory of spans up to there.
    """

    job: str
    partition: str
    first: Position
    last: Position
    epoch: int
    acked_through: Position | None = None


class Rejected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record of a tuple that ``process`` can't use, and why.

    ``index`` counts from 0 within the tuple.
    """

    index: int
    reason: str


class Batch(Sequence[Record]):
    """What ``process`` gets: the records of one tuple, in source order, and its span.

    Not thread-safe.  ``reading_index`` is the index of the record that iteration handed out
    last (None before the first and after the end): when ``process`` raises, it names the
    record that was being worked on.  ``sink_s`` is the time spent under :meth:`in_sink` so far
    [s]; None: none was.  ``rejected`` maps the index of each rejected record to its reason;
    ``left_out`` counts the records whose effect a sink already had from an earlier attempt.

    ``clock`` gives monotonic seconds; whoever runs ``process`` brings it.  Without it nothing is
    measured, as in tests with a batch made by hand.  ``tell_prolonged`` is the bolt's link, for the
    collectors of topologies: it tells the hub that an input of this batch takes longer.
    """

    __slots__ = (
        "_clock", "_in_sink", "_records", "attempt", "bolt", "left_out", "reading_index",
        "rejected", "sink_s", "span", "tell_prolonged",
    )  # fmt: skip

    def __init__(
        self,
        records: Sequence[Record],
        span: Span,
        *,
        bolt: str,
        attempt: int,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._records = records
        self._clock = clock
        self._in_sink = False
        self.sink_s: float | None = None
        self.span = span
        self.bolt = bolt
        self.attempt = attempt
        self.reading_index: int | None = None
        self.rejected: dict[int, str] = {}
        self.left_out = 0
        self.tell_prolonged: Callable[[int, Batch], None] | None = None

    def __iter__(self) -> Iterator[Record]:
        for index, record in enumerate(self._records):
            self.reading_index = index
            yield record
        self.reading_index = None

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]

    def reject(self, record: Record | int, reason: object = "rejected") -> None:
        """Settle one record that can't be used; the rest of the batch goes on.

        ``record`` is a record of this batch or its index (0 is the first, -1 the last).
        ``reason`` is text or an exception.  When ``process`` returns, the record is counted as
        rejected and goes to the dead letter, if the job has one; it is not tried again.  If
        ``process`` raises, nothing is settled: the record may be rejected again next time.

        A record that was rejected before keeps its first reason.  Anything but a record of this
        batch, or its index, ends the run (:class:`flowctl.errors.UnrunnableError`): that is a
        mistake in ``process``, and no record's fault.
        """
        index = record if isinstance(record, int) else self._index_of(record)
        if index < 0:
            index += len(self._records)
        if not 0 <= index < len(self._records):
            raise _not_in_batch(f"{record} is not an index", len(self._records))
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason
        self.rejected.setdefault(index, str(text))

    def _index_of(self, record: Record) -> int:
        reading = self.reading_index
        if reading is not None and self._records[reading] is record:
            return reading
        for index, candidate in enumerate(self._records):
            if candidate is record:
                return index
        if record not in self._records:  # an equal copy will do
            raise _not_in_batch(f"{type(record).__name__} is not a record", len(self._records))
        return self._records.index(record)

    @contextmanager
    def in_sink(self) -> Iterator[None]:
        """Around the calls that wait for a sink which other bolts use too, such as a database.

        The spout learns from it when the sink, not the bolts, is the bottleneck, and sends less
        at once.  May be used several times a batch; one within another counts once.
        """
        if self._clock is None or self._in_sink:
            yield
            return
        self._in_sink = True
        begun_at_s = self._clock()
        try:
            yield
        finally:
            self._in_sink = False
            self.sink_s = (self.sink_s or 0.0) + self._clock() - begun_at_s


def _not_in_batch(what: str, records: int) -> UnrunnableError:
    return UnrunnableError(
        "batch.reject",
        f"{what} of this batch of {records}.",
        remedy="Give a record of the batch or its index, and a reason: batch.reject(record, why).",
    )


class Emission(msgspec.Struct, frozen=True, gc=False):
    """One sending of one tuple to one bolt; what ``SpoutCore.poll_emit`` returns.

    ``attempt`` is the 1-based count of sendings of this tuple in this run.
    """

    tuple_id: int
    bolt: str
    attempt: int
    partition: str
    records: Sequence[Record]
    acked_through: Position | None
    size_bytes: int


class RevokeOrder(msgspec.Struct, frozen=True, gc=False):
    """Ask ``bolt`` to give these tuples back if it has not begun them."""

    bolt: str
    tuple_ids: list[int]


class Ack(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A bolt has processed a tuple.  Durations only: no clocks need to agree.

    ``wait_s`` queued at the bolt, ``service_s`` in ``process``, ``idle_total_s`` the bolt's
    cumulative idle time when this tuple began, ``sink_s`` the part of the service in which a
    sink was waited for (None: ``process`` does not tell).
    A bolt without telemetry leaves the durations None.  ``settlement`` is what a topology's bolt
    made of the tuple; None: nothing but processed it.  ``rejected`` are records of the tuple that
    ``process`` could not use, each index once, in order; ``left_out`` counts those whose effect the
    sink had already.
    """

    bolt: str
    epoch: int
    tuple_id: int
    attempt: int
    wait_s: float | None = None
    service_s: float | None = None
    idle_total_s: float | None = None
    sink_s: float | None = None
    settlement: Settlement | None = None
    rejected: Sequence[Rejected] = ()
    left_out: int = 0


class AckOutcome(enum.Enum):
    """What an ack (or fail) meant.  All but ACKED are counted, none is an error."""

    ACKED = "acked"  # in time, from the bolt that holds the tuple
    LATE = "late"  # after expiry, but first: it completes the tuple, replays are dropped
    DUPLICATE = "duplicate"  # the tuple was already complete
    UNKNOWN = "unknown"  # no such tuple, or from an epoch that is over
    FAILED = "failed"  # a fail was taken: the tuple goes again
    REFUSED = "refused"  # the target has no room now: the tuple goes again, no attempt is counted
    DROPPED = "dropped"  # a fail was taken where nothing is sent again (core/guarantee.py)
    GAVE_UP = "gave_up"  # a fail was taken and the attempts ran out


class AckedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of acked records above the cumulative ack; both ends inclusive."""

    first: Position
    last: Position
    records: int


class PartitionCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """How far one source partition is done.

    ``position`` is that of the highest contiguous acked record (None: none yet),
    ``records`` how many records that is since the partition's beginning, ``acked`` the
    selective acks above it, in order, disjoint.
    """

    position: Position | None = None
    records: int = 0
    acked: tuple[AckedRange, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """What a restart goes on from: how far each partition is done."""

    partitions: dict[str, PartitionCheckpoint] = {}

    @property
    def records(self) -> int:
        """Records done, cumulative and selective together."""
        return sum(
            p.records + sum(span.records for span in p.acked) for p in self.partitions.values()
        )
