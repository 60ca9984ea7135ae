"""A connected socket that never blocks, with or without TLS, behind the same three calls."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import ssl


# The longest wait of a stream that is made for waiting [s]: a bolt's thread that gets no tuples for
# this long lets another thread wait, which costs a change of threads and no more.
AWAIT_S: Final = 0.02


class Stream(Protocol):
    """The connection that both sides read and write after the handshake.

    One thread may receive while another sends; two may not send at once.
    """

    def fileno(self) -> int:
        """The descriptor to wait on."""

    def recv_into(self, buffer: memoryview) -> int | None:
        """Fill the front of ``buffer``; return how many bytes, 0 at the end, None if there are none
        now."""

    def send(self, data: bytearray) -> int:
        """Hand bytes from the front of ``data`` to the kernel; return 0 if it accepts none now.

        After a 0 the next call must begin with the same bytes (TLS requires it).
        """

    def pending(self) -> bool:
        """Whether bytes are buffered inside, where a wait on the descriptor would not see them."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Return an option of the socket; from any thread."""

    def shutdown(self, how: int) -> None:
        """As for a socket, but without errors on a connection that is gone."""

    def close(self) -> None: ...


class WaitingStream(Stream, Protocol):
    """A stream on which a thread may also wait."""

    def await_into(self, buffer: memoryview) -> int | None:
        """Like :meth:`recv_into`, but wait for bytes, ``AWAIT_S`` at most; for one thread."""


def stream_of(sock: socket.socket, *, tls: bool) -> Stream:
    """Make ``sock`` non-blocking and take ownership of it."""
    sock.setblocking(False)
    return TlsStream(sock) if tls else PlainStream(sock)


def waiting_stream_of(sock: socket.socket, *, tls: bool) -> WaitingStream:
    """Like :func:`stream_of`, for a bolt."""
    if not tls:
        return BlockingStream(sock)
    sock.setblocking(False)
    return TlsStream(sock)


class PlainStream:
    """Plain TCP."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview) -> int | None:
        try:
            return self._sock.recv_into(buffer)
        except BlockingIOError:
            return None

    def send(self, data: bytearray) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def pending(self) -> bool:
        return False

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        return self._sock.getsockopt(level, option, size)

    def shutdown(self, how: int) -> None:
        _shutdown(self._sock, how)

    def close(self) -> None:
        self._sock.close()


class BlockingStream(PlainStream):
    """Plain TCP whose socket blocks, so that a wait and the read after it are one system call."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        sock.setblocking(True)
        timeout = struct.pack("@ll", *divmod(int(AWAIT_S * 1e6), 1_000_000))  # a struct timeval
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def recv_into(self, buffer: memoryview) -> int | None:
        try:
            return self._sock.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def send(self, data: bytearray) -> int:
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def await_into(self, buffer: memoryview) -> int | None:
        try:
            return self._sock.recv_into(buffer)
        except BlockingIOError:
            return None


class TlsStream:
    """TLS: each call may need the other direction first; OpenSSL allows one caller at a time."""

    def __init__(self, sock: socket.socket) -> None:
        import ssl

        assert isinstance(sock, ssl.SSLSocket)
        self._sock: ssl.SSLSocket = sock
        self._lock = threading.Lock()
        self._blocked = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._readable: Any = None

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview) -> int | None:
        """Receive one TLS record at a time, at most 16 KB."""
        try:
            with self._lock:
                return self._sock.recv_into(buffer)
        except self._blocked:
            return None

    def await_into(self, buffer: memoryview) -> int | None:
        """Wait outside of a read, as no thread could send during one."""
        if self._readable is None:
            self._readable = select.poll()
            self._readable.register(self.fileno(), select.POLLIN)
        return self.recv_into(buffer) if self._readable.poll(AWAIT_S * 1e3) else None

    def send(self, data: bytearray) -> int:
        """Send one TLS record after the other, until the kernel accepts no more."""
        sent = 0
        with self._lock, memoryview(data) as view:
            try:
                while sent < len(view):
                    sent += self._sock.send(view[sent:])
            except self._blocked:
                pass
        return sent

    def pending(self) -> bool:
        with self._lock:
            return self._sock.pending() > 0

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        return self._sock.getsockopt(level, option, size)

    def shutdown(self, how: int) -> None:
        # Not SSLSocket.shutdown: it drops the TLS state, and another thread may be inside.
        _shutdown(self._sock, how)

    def close(self) -> None:
        with self._lock:
            self._sock.close()


def _shutdown(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)
