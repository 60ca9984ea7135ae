"""The listening socket: lets newcomers into the lobby, and is shut while there is no room."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Final

from flowctl.wire.lobby import Lobby

# While the door is shut (too many strangers, no descriptors left): how long until we look again.
_SHUT_S: Final = 0.02
# Bounds the time away from bolts to some 5 ms; 3,000 bolts that start at once are in after twelve.
_ACCEPTS_PER_POLL: Final = 256
# Out of descriptors so many are sent away at once: more would cost bolts that are nearly in.
_SENT_AWAY: Final = 64


class Door:
    """Owns ``listener``, which is the data of its entry in the selector.  For one thread."""

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, lobby: Lobby
    ) -> None:
        self.listener = listener
        self._selector = selector
        self._lobby = lobby
        #: When to look whether it can be opened; None: it is open.
        self.opens_at_s: float | None = None
        selector.register(listener, selectors.EVENT_READ, listener)

    def accept(self) -> None:
        """Somebody waits outside."""
        for _ in range(_ACCEPTS_PER_POLL):
            if not self._lobby.make_room():
                self._shut(time.monotonic() + _SHUT_S)
                return
            try:
                sock, _ = self.listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lobby.enter(sock)
            except BlockingIOError:
                return
            except OSError:
                # No descriptors left, or the peer is gone already: not now.
                self._lobby.relieve(_SENT_AWAY)
                self._shut(time.monotonic() + _SHUT_S)
                return

    def look(self) -> None:
        """Open it again once its time has come."""
        if self.opens_at_s is not None and time.monotonic() >= self.opens_at_s:
            self.opens_at_s = None
            self._selector.register(self.listener, selectors.EVENT_READ, self.listener)

    def close(self) -> None:
        """Shut it for good."""
        self._shut(float("inf"))
        self.listener.close()

    def _shut(self, opens_at_s: float) -> None:
        """Leave newcomers to the kernel's queue: a readable listener would keep us awake."""
        if self.opens_at_s is None:
            self._selector.unregister(self.listener)
        self.opens_at_s = opens_at_s
