"""The listening socket: accepts connections, and stops while too many handshakes are pending."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Final

from flowctl.wire.pending_handshakes import PendingHandshakes
from flowctl.wire.reach import probe

# How long the gate stays shut (too many handshakes, no descriptors left) before the next look.
_SHUT_S: Final = 0.02
# Bounds the time away from bolts to some 5 ms; 3,000 bolts that start at once take twelve polls.
_ACCEPTS_PER_POLL: Final = 256
# How many pending handshakes are refused when descriptors run out: more would cost bolts that
# have nearly finished theirs.
_REFUSED_AT_ONCE: Final = 64


class AcceptGate:
    """Owns ``listener``, which is also the data of its entry in the selector.  For one thread."""

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, pending: PendingHandshakes
    ) -> None:
        self.listener = listener
        self._selector = selector
        self._pending = pending
        #: When to try to open the gate again; None while it is open.
        self.opens_at_s: float | None = None
        selector.register(listener, selectors.EVENT_READ, listener)

    def accept(self) -> None:
        """Accept the connections that wait, as many as there is room for."""
        for _ in range(_ACCEPTS_PER_POLL):
            if not self._pending.make_room():
                self._shut(time.monotonic() + _SHUT_S)
                return
            try:
                sock, _ = self.listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                probe(sock)
                self._pending.add(sock)
            except BlockingIOError:
                return
            except OSError:
                # No descriptors left, or the peer is gone already: try again later.
                self._pending.refuse_some(_REFUSED_AT_ONCE)
                self._shut(time.monotonic() + _SHUT_S)
                return

    def look(self) -> None:
        """Open the gate again when ``opens_at_s`` is reached."""
        if self.opens_at_s is not None and time.monotonic() >= self.opens_at_s:
            self.opens_at_s = None
            self._selector.register(self.listener, selectors.EVENT_READ, self.listener)

    def close(self) -> None:
        """Shut the gate for good and close the listener."""
        self._shut(float("inf"))
        self.listener.close()

    def _shut(self, opens_at_s: float) -> None:
        """Leave new connections in the kernel's queue: a readable listener would keep us awake."""
        if self.opens_at_s is None:
            self._selector.unregister(self.listener)
        self.opens_at_s = opens_at_s
