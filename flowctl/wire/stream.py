"""A connected socket that never blocks, with or without TLS, behind the same three calls."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl


class Stream(Protocol):
    """What both sides read from and write to after the handshake.

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
        """As of a socket; from any thread."""

    def shutdown(self, how: int) -> None:
        """As for a socket, but without errors on a connection that is gone."""

    def close(self) -> None: ...


def stream_of(sock: socket.socket, *, tls: bool) -> Stream:
    """Make ``sock`` non-blocking and take ownership of it."""
    sock.setblocking(False)
    return TlsStream(sock) if tls else PlainStream(sock)


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


class TlsStream:
    """TLS: each call may need the other direction first; OpenSSL allows one caller at a time."""

    def __init__(self, sock: socket.socket) -> None:
        import ssl

        assert isinstance(sock, ssl.SSLSocket)
        self._sock: ssl.SSLSocket = sock
        self._lock = threading.Lock()
        self._blocked = (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview) -> int | None:
        """One TLS record at a time, at most 16 KB."""
        try:
            with self._lock:
                return self._sock.recv_into(buffer)
        except self._blocked:
            return None

    def send(self, data: bytearray) -> int:
        """One TLS record after the other, until the kernel accepts no more."""
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
