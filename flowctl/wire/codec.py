"""Frames to bytes and back: a four-byte big-endian length, then msgpack.

:class:`FrameWriter` appends frames to one outbox, :class:`FrameReader` takes whatever bytes arrived
and returns the frames that are complete.  Neither is thread-safe; both take time linear in the
number of bytes, however they are cut.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from flowctl.errors import SourceError, WireError
from flowctl.wire.not_encodable import CARRIED
from flowctl.wire.values import enc_hook, unpack_hook

LENGTH: Final = struct.Struct(">I")
LENGTH_BYTES: Final = LENGTH.size
# A limit against defects and strangers: far above any record that should go through a driver.
FRAME_BYTES_MAX: Final = 256 << 20
_NO_LENGTH_YET: Final = bytes(LENGTH_BYTES)
_SAME_VERSION: Final = "Install the same flowctl-spark version on the driver and the workers."

T = TypeVar("T")


def decoder_of(
    frame_types: Any, ext_hook: Callable[[int, memoryview], Any] = unpack_hook
) -> msgspec.msgpack.Decoder[Any]:
    """Return a decoder that takes exactly ``frame_types`` (a frame class or a union of some).

    ``ext_hook`` is :func:`flowctl.wire.values.unpack_hook` if values are needed, ``keep_hook`` if
    they are only passed on.
    """
    return msgspec.msgpack.Decoder(frame_types, ext_hook=ext_hook)


def decode_frame(decoder: msgspec.msgpack.Decoder[T], body: bytes | memoryview) -> T:
    """Decode one frame's body; raise :class:`WireError` for anything that is not a frame."""
    try:
        return decoder.decode(body)
    # RecursionError: lists nested too deeply.  ValueError: bytes that are not UTF-8.
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        # The bytes may be a user's data: only the decoder's message goes into the error.
        raise WireError(f"A frame can't be read: {error}.", remedy=_SAME_VERSION) from None


def check_length(length: int, frame_bytes_max: int) -> None:
    """Raise :class:`WireError` for a frame that is empty or longer than ``frame_bytes_max``."""
    if not 0 < length <= frame_bytes_max:
        raise WireError(
            f"A peer announced a frame of {length} bytes; {frame_bytes_max} are allowed.",
            remedy="Find out what else connects to the port.",
        )


class FrameReader(Generic[T]):
    """Cuts a stream of bytes into frames.

    A frame whose announced length is over ``frame_bytes_max`` raises :class:`WireError` as soon as
    its length is read, so no more than that is ever kept.  After an error the reader can't be used
    any more.
    """

    __slots__ = ("_decode", "_decoder", "_frame_bytes_max", "_need", "kept")

    def __init__(self, decoder: msgspec.msgpack.Decoder[T], frame_bytes_max: int) -> None:
        self._decoder = decoder
        self._decode = decoder.decode
        self._frame_bytes_max = frame_bytes_max
        # The beginning of at most one frame; _need is how long it must get before it is parsed.
        self.kept: bytearray = bytearray()
        self._need = LENGTH_BYTES

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here without cutting a frame."""
        return not self.kept

    def feed(self, data: bytes | bytearray | memoryview) -> list[T]:
        """Return the frames that ``data`` completes.  ``data`` may be reused afterwards."""
        # The hot loop of both sides: no calls per frame except unpack, slice and decode.
        view = memoryview(data)
        frames: list[T] = []
        start = self._complete_kept(view, frames) if self.kept else 0
        decode, unpack, limit = self._decode, LENGTH.unpack_from, self._frame_bytes_max
        end = len(view)
        body = start + LENGTH_BYTES
        try:
            while body <= end:
                stop = body + unpack(view, start)[0]
                if stop - body > limit:
                    check_length(stop - body, limit)
                if stop > end:
                    self._need = LENGTH_BYTES + stop - body
                    break
                frames.append(decode(view[body:stop]))
                start = stop
                body = start + LENGTH_BYTES
        except (msgspec.MsgspecError, RecursionError, ValueError):
            decode_frame(self._decoder, view[body:stop])  # raises the same error, with our message
            raise
        if start < end:  # the beginning of the next frame
            self.kept += view[start:]
        return frames

    def _complete_kept(self, view: memoryview, frames: list[T]) -> int:
        """Finish the frame that was begun earlier; return where the next one starts."""
        kept = self.kept
        start = 0
        while True:
            stop = start + self._need - len(kept)
            kept += view[start:stop]
            start = min(stop, len(view))
            if len(kept) < self._need:
                return start
            if self._need > LENGTH_BYTES:
                break
            (length,) = LENGTH.unpack_from(kept)
            check_length(length, self._frame_bytes_max)
            self._need = LENGTH_BYTES + length
        self.kept = bytearray()
        self._need = LENGTH_BYTES
        frames.append(decode_frame(self._decoder, memoryview(kept)[LENGTH_BYTES:]))
        return start


class FrameWriter:
    """Appends frames to ``outbox``; the sender takes bytes from its front."""

    __slots__ = ("_encode_into", "_frame_bytes_max", "outbox")

    def __init__(self, frame_bytes_max: int) -> None:
        self._encode_into = msgspec.msgpack.Encoder(enc_hook=enc_hook).encode_into
        self._frame_bytes_max = frame_bytes_max
        self.outbox: bytearray = bytearray()

    def append(self, frame: msgspec.Struct) -> None:
        """Append ``frame``.

        Raises :class:`flowctl.errors.SourceError`, with the outbox as it was, when a record
        can't be put into msgpack or the frame is over ``frame_bytes_max``.
        """
        outbox = self.outbox
        start = len(outbox)
        outbox += _NO_LENGTH_YET
        try:
            self._encode_into(frame, outbox, -1)
            length = len(outbox) - start - LENGTH_BYTES
            if length > self._frame_bytes_max:
                raise SourceError(
                    f"A tuple takes {length} bytes; {self._frame_bytes_max} are allowed.",
                    remedy="Shorten the record, or pass its place in its stead.",
                )
        except (TypeError, OverflowError, ValueError, RecursionError) as error:
            del outbox[start:]
            raise SourceError(
                f"A record can't be sent: {error}.",
                remedy=f"Use {CARRIED}.",
            ) from None
        except BaseException:
            del outbox[start:]
            raise
        LENGTH.pack_into(outbox, start, length)

    def take(self) -> bytearray:
        """Return all that is in the outbox, and start a new one."""
        taken = self.outbox
        self.outbox = bytearray()
        return taken
