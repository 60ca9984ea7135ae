"""The spout's end of one bolt's connection."""

from __future__ import annotations

from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import (
    AckFrame,
    DetailedAckFrame,
    FailFrame,
    Heartbeat,
    Revoked,
    SettledFrame,
    ToSpout,
)
from flowctl.wire.stream import Stream
from flowctl.wire.values import keep_hook


class Connection:
    """One bolt that was welcomed."""

    __slots__ = (
        "bolt",
        "closing",
        "epoch",
        "is_gone",
        "reader",
        "stream",
        "waits_to_write",
        "writer",
    )

    def __init__(self, bolt: str, epoch: int, stream: Stream, frame_bytes_max: int) -> None:
        self.bolt = bolt
        self.epoch = epoch
        self.stream = stream
        # No Hello here: a second one is a breach of protocol like any unknown frame.
        decoder = decoder_of(
            AckFrame | DetailedAckFrame | SettledFrame | FailFrame | Heartbeat | Revoked,
            keep_hook,  # what a topology's bolt emits goes on to others
        )
        self.reader: FrameReader[ToSpout] = FrameReader(decoder, frame_bytes_max)
        self.writer = FrameWriter(frame_bytes_max)
        self.waits_to_write = False
        self.closing = False  # we have ended it: what still comes is read and dropped
        self.is_gone = False
