"""A connected socket that never blocks, with or without TLS, behind the same three calls."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl


class Stream(Protocol):
    """What both sides read from and write to once the handshake is over.

    One thread may receive while another sends; two may not send at once.
    """

    def fileno(self) -> int:
        """The descriptor to wait on."""

    def recv_into(self, buffer: memoryview) -> int | None:
        """Fill the front of ``buffer``: how many bytes, 0 at the end, None if there are none."""

    def send(self, data: bytearray) -> int:
        """Hand bytes from the front of ``data`` to the kernel; 0 if it takes none now.

        After a 0 the next call must begin with the same bytes (TLS insists).
        """

    def pending(self) -> bool:
        """Whether bytes wait inside, where no wait on the descriptor would see them."""

    def shutdown(self, how: int) -> None:
        """As of a socket, but without errors on a connection that is gone."""

    def close(self) -> None: ...


def stream_of(sock: socket.socket, *, tls: bool) -> Stream:
    """Make ``sock`` non-blocking and take it over."""
    sock.setblocking(False)
    return TlsStream(sock) if tls else PlainStream(sock)


class PlainStream:
    """TCP as it is."""

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

    def shutdown(self, how: int) -> None:
        _shutdown(self._sock, how)

    def close(self) -> None:
        self._sock.close()


class TlsStream:
    """TLS: each call may want the other direction first; OpenSSL wants one caller at a time."""

    def __init__(self, sock: socket.socket) -> None:
        import ssl

        assert isinstance(sock, ssl.SSLSocket)
        self._sock: ssl.SSLSocket = sock
        self._lock = threading.Lock()
        self._blocked = (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview) -> int | None:
        """One TLS record at a time: 16 KB at most."""
        try:
            with self._lock:
                return self._sock.recv_into(buffer)
        except self._blocked:
            return None

    def send(self, data: bytearray) -> int:
        """One TLS record after the other, until the kernel takes no more."""
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

    def shutdown(self, how: int) -> None:
        # Not SSLSocket.shutdown: it forgets that there is TLS, and another thread may be inside.
        _shutdown(self._sock, how)

    def close(self) -> None:
        with self._lock:
            self._sock.close()


def _shutdown(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)
