"""The spout's end of one bolt's connection."""

from __future__ import annotations

from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import ToSpout
from flowctl.wire.stream import Stream
from flowctl.wire.values import keep_hook


class Connection:
    """One bolt that has received its Welcome."""

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
        self.bolt: str = bolt
        self.epoch: int = epoch
        self.stream: Stream = stream
        # No Hello here: a second one breaks the protocol like any unknown frame.
        decoder = decoder_of(
            ToSpout,
            keep_hook,  # what a topology's bolt emits is passed on to others
        )
        self.reader: FrameReader[ToSpout] = FrameReader(decoder, frame_bytes_max)
        self.writer: FrameWriter = FrameWriter(frame_bytes_max)
        self.waits_to_write: bool = False
        self.closing: bool = False  # we have closed it: what still arrives is read and dropped
        self.is_gone: bool = False
