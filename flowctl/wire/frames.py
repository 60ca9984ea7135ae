"""The messages between spout and bolt: typed, msgpack, each preceded by a four-byte length.

A frame is an array whose first element is the tag, so it is short and its bytes are the same on
every run.  The version is in the first frame of each side; a change that an older peer could
misread raises it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from flowctl.core.records import Position, Record, Rejected
from flowctl.core.trees.settlement import Settlement

PROTOCOL_VERSION: Final = 2  # version 1 had no DetailedAckFrame, and other fails and heartbeats


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
    sink that fenced us knows it.
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


class Heartbeat(_Frame, frozen=True, array_like=True, gc=False, tag=6):
    """Bolt → spout, every ``heartbeat_s``, from its own thread.

    ``prolonged``: inputs of a topology's bolt that take longer, reported since the last heartbeat.
    """

    busy_slots: int
    queued: int
    prolonged: list[int] = []  # last, so that peers without it still understand each other


class Revoke(_Frame, frozen=True, array_like=True, gc=False, tag=7):
    """Spout → bolt: give these back unless you have begun them."""

    tuple_ids: list[int]


class Revoked(_Frame, frozen=True, array_like=True, gc=False, tag=8):
    """Bolt → spout: these were given back and will not be processed; the others had begun."""

    tuple_ids: list[int]


# Tag 9 was version 1's Ping.
class End(_Frame, frozen=True, array_like=True, gc=False, tag=10):
    """Spout → bolt: no more work; drop what is queued and disconnect."""


ToBolt: TypeAlias = Welcome | TupleFrame | Revoke | End
ToSpout: TypeAlias = (
    Hello | AckFrame | DetailedAckFrame | SettledFrame | FailFrame | Heartbeat | Revoked
)
