"""One connection through Redis: a socket on this machine, and two streams, one per direction.

The entries of a stream are numbered by its only writer.  So an entry that is written twice, because
it was unknown whether the first write arrived, is refused by Redis; and one that Redis has lost is
noticed by the reader, which then ends the connection: bytes are never lost nor doubled in silence.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any, Final

# 32 entries of 32 KiB: at most 1 MiB per direction waits in Redis.  Frames by reference have some
# hundred bytes, so this is never felt; a writer that is faster than its reader waits.
CHUNK_BYTES: Final = 32 << 10
ENTRIES_MAX: Final = 32
# What nobody reads any more is gone after this long: the run has ended, or a process has died.
KEY_TTL_S: Final = 60
# How long the other side's end is awaited after ours.  It takes two round trips.
_LINGER_S: Final = 10.0
_DATA: Final = b"d"  # the field of an entry; empty: the end of this direction


class Duct:
    """``inbound`` is the key of the stream that is read here, ``outbound`` of the one written.

    :meth:`collect` and :meth:`confirm` are for the thread that writes, :meth:`deliver` for the one
    that reads.
    """

    def __init__(self, sock: socket.socket, *, inbound: bytes, outbound: bytes) -> None:
        self.sock: socket.socket = sock
        self.inbound: bytes = inbound
        self.outbound: bytes = outbound
        self.waiting: bytes | None = None  # taken from the socket, not confirmed by Redis yet
        self.has_heard_end: bool = False
        self._written = 0  # number of the last entry that is confirmed
        self._read = 0  # number of the last entry that was read
        self._ended_at_s: float | None = None  # when the end of the outbound stream was confirmed
        self._is_deaf = False  # the local side takes no more: what comes is dropped

    @property
    def has_said_end(self) -> bool:
        """Whether the end of the outbound stream is confirmed."""
        return self._ended_at_s is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do, or the other side does not answer."""
        if self._ended_at_s is None:
            return False
        return self.has_heard_end or time.monotonic() - self._ended_at_s > _LINGER_S

    @property
    def read_id(self) -> bytes:
        """The entry after which to read."""
        return b"0-%d" % self._read

    def collect(self) -> None:
        """Take what the local side sends; the socket is readable."""
        try:
            self.waiting = self.sock.recv(CHUNK_BYTES)
        except OSError:
            self.waiting = b""

    def write(self, pipe: Any) -> None:
        """Add what waits to a pipeline: three commands."""
        pipe.xadd(self.outbound, {_DATA: self.waiting}, id=b"0-%d" % (self._written + 1))
        pipe.expire(self.outbound, KEY_TTL_S)
        pipe.xlen(self.outbound)

    def confirm(self) -> None:
        """What waits is in Redis."""
        self._written += 1
        if not self.waiting:
            self._ended_at_s = time.monotonic()
        self.waiting = None

    def deliver(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Hand ``entries`` to the local side, which may take its time."""
        for entry_id, fields in entries:
            number = int(entry_id.partition(b"-")[2])
            if number != self._read + 1:  # some are lost: the stream can't go on
                self.break_off()
                return
            self._read = number
            data = fields.get(_DATA, b"")
            if not data:
                self.has_heard_end = True
                self._shutdown(socket.SHUT_WR)
                return
            if not self._is_deaf:
                try:
                    self.sock.sendall(data)
                except OSError:
                    self._is_deaf = True

    def break_off(self) -> None:
        """End the connection for the local side; what it says last still goes out."""
        self.has_heard_end = True
        self._shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket."""
        self.sock.close()

    def _shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(how)
