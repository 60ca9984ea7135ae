"""What a core of ranges and its bolts say to each other.  All frozen; threads may share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from flowctl.core.records import Emission, Position, Record, RevokeOrder


class RangeEmission(Emission, frozen=True, gc=False):
    """One sending of one range: a bolt reads ``[start, stop)`` itself; ``records`` is empty."""

    start: int
    stop: int
    identity: str


class SplitOrder(RevokeOrder, frozen=True, gc=False):
    """Ask ``bolt`` to give back the end of a range: all but the share ``keep`` of the unclaimed.

    ``request`` numbers the questions: one that is asked again gets the same answer.
    """

    request: int
    keep: float

    @property
    def tuple_id(self) -> int:
        """The range; the only one in ``tuple_ids``."""
        return self.tuple_ids[0]


class SplitAnswered(msgspec.Struct, frozen=True, gc=False):
    """The range of ``bolt`` ends at ``stop`` now; 0: the bolt does not know the range."""

    bolt: str
    epoch: int
    tuple_id: int
    request: int
    stop: int


class RejectedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a range that ``process`` can't use, and why."""

    position: int
    value: Any
    reason: str


class Progress(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A bolt has processed all records that begin in ``[start, done_through)``.

    ``records``, the durations, ``rejected``, ``left_out`` and ``receipts`` are of that part alone.
    ``read_s``: how long ``process`` waited for the source; ``call_s``: what a call costs whatever
    its size, where batches have more records for it, else 0; the others as in
    :class:`flowctl.core.records.Ack`.
    """

    bolt: str
    epoch: int
    tuple_id: int
    attempt: int
    start: int
    done_through: int
    records: int
    read_s: float = 0.0
    wait_s: float = 0.0
    service_s: float = 0.0
    sink_s: float | None = None
    idle_total_s: float | None = None
    rejected: Sequence[RejectedRecord] = ()
    left_out: int = 0
    receipts: Sequence[bytes] = ()
    call_s: float = 0.0


class RangeFailed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """``[start, stop)``, a part of a range, was not processed; the bolt goes on behind it.

    ``records`` are in that part; ``record`` is the only one, where it is one.  ``record_at``: the
    position of the record that was being worked on, if known.  ``is_refused``: the target had no
    room, and asked to be left alone for ``after_s``.  ``is_read_error``: the source could not be
    read.  ``is_data_error``: what was raised is about a value, so the target is not to blame.
    """

    bolt: str
    epoch: int
    tuple_id: int
    start: int
    stop: int
    records: int
    reason: str
    record: Record | None = None
    record_at: Position | None = None
    is_refused: bool = False
    after_s: float | None = None
    is_read_error: bool = False
    is_data_error: bool = False


class Receipts(msgspec.Struct, frozen=True, gc=False):
    """What ``process`` gave to be kept with the ``records`` in ``[start, stop)``, now done.

    But the positions ``apart`` are not: they were rejected, and wait for the dead letter.
    """

    partition: str
    start: int
    stop: int
    records: int
    receipts: Sequence[bytes]
    apart: Sequence[int] = ()
