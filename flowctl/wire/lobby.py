"""Who has connected and proved nothing yet: costs a descriptor, and no thread.

A bolt speaks as soon as it is connected, and has proved the key a moment later.  So whoever has
nothing to prove can wait here at next to no cost, and makes room for those who come later when
there is none: a crowd of strangers is walked through in a second or so, and stands before no bolt.

With TLS the key is proved inside of it, which takes a thread: here such a connection only has to
begin as TLS does.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import Final

from flowctl.errors import AuthenticationError, FlowctlError
from flowctl.wire import auth

# Half of the descriptors that a process commonly may have (1,024).
_PLACES: Final = 512
# With no place left, who proved nothing for this long makes room: a bolt needs milliseconds and two
# round trips, and comes again if this is too short for it.
_PATIENCE_S: Final = 0.1
# How each TLS connection begins: a record of a handshake (its type, version 3.x, two bytes of
# length) that holds a ClientHello.
_TLS_BYTES: Final = 6


class Newcomer:
    """A connection.  ``said`` is what was read of it since it was last answered."""

    __slots__ = ("came_at_s", "challenge", "is_proved", "said", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.came_at_s = time.monotonic()
        self.said = b""
        self.challenge: auth.Challenge | None = None
        self.is_proved = False


class Lobby:
    """For the loop's thread.  ``refused`` is called with a reason for each one that is sent away.

    The selector gets a :class:`Newcomer` as the data of each socket that waits to be heard;
    whoever selects calls :meth:`hear`.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        refused: Callable[[str], None],
        *,
        key: bytes,
        tls: bool,
    ) -> None:
        self._selector = selector
        self._key = key
        self._refused = refused
        self._tls = tls
        # Both in the order in which they came.
        self._silent: dict[Newcomer, None] = {}
        self._ready: dict[Newcomer, None] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._ready)

    @property
    def ready(self) -> int:
        """How many got as far as they can here, and wait to be examined."""
        return len(self._ready)

    def make_room(self) -> bool:
        """Whether one more may come in now; sends one away who came first, silent ones before."""
        if len(self) < _PLACES:
            return True
        now_s = time.monotonic()
        for waiting in (self._silent, self._ready):
            oldest = next(iter(waiting), None)
            if oldest is not None and now_s - oldest.came_at_s >= _PATIENCE_S:
                self._send_away(oldest, "too many wait at the door")
                return True
        return False

    def relieve(self, count: int) -> None:
        """Descriptors have run out: send ``count`` away, however short they are here."""
        for newcomer in [*self._silent, *self._ready][:count]:
            self._send_away(newcomer, "no descriptors left for it")

    def enter(self, sock: socket.socket) -> None:
        """Take ``sock``; from now on it is the lobby's."""
        sock.setblocking(False)
        if self._tls:  # what is looked at and left there would wake the loop again and again
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _TLS_BYTES)
        newcomer = Newcomer(sock)
        self._silent[newcomer] = None
        self._selector.register(sock, selectors.EVENT_READ, newcomer)

    def hear(self, newcomer: Newcomer) -> None:
        """It said something, or went."""
        if newcomer not in self._silent:
            return
        try:
            if self._tls:
                self._look_for_tls(newcomer)
            else:
                self._listen(newcomer)
        except BlockingIOError:
            return
        except FlowctlError as error:
            self._send_away(newcomer, error.problem)
        except OSError as error:
            self._send_away(newcomer, f"the handshake broke off: {error.strerror or error}")

    def _look_for_tls(self, newcomer: Newcomer) -> None:
        sock = newcomer.sock
        first = sock.recv(_TLS_BYTES, socket.MSG_PEEK)  # left there: TLS has to read it itself
        if len(first) < _TLS_BYTES:  # see enter(): no more will come
            raise ConnectionResetError("closed by the peer")
        if (first[0], first[1], first[5]) != (0x16, 3, 1):
            raise AuthenticationError("The peer does not speak TLS.")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._make_ready(newcomer)

    def _listen(self, newcomer: Newcomer) -> None:
        challenge = newcomer.challenge
        wanted = auth.GREETING_BYTES if challenge is None else auth.PROOF_BYTES
        more = newcomer.sock.recv(wanted - len(newcomer.said))
        if not more:
            raise ConnectionResetError("closed by the peer")
        newcomer.said += more
        if challenge is None:
            auth.check_greeting(newcomer.said)
        if len(newcomer.said) < wanted:
            return
        if challenge is None:
            newcomer.challenge = auth.Challenge(self._key, newcomer.said)
            newcomer.said = b""
            # The first bytes on this side: the kernel takes all of them, or it is none of ours.
            if newcomer.sock.send(newcomer.challenge.answer) < len(newcomer.challenge.answer):
                raise ConnectionResetError("it takes no answer")
        else:
            challenge.check(newcomer.said)
            newcomer.is_proved = True
            self._make_ready(newcomer)

    def _make_ready(self, newcomer: Newcomer) -> None:
        self._selector.unregister(newcomer.sock)
        del self._silent[newcomer]
        self._ready[newcomer] = None

    def take(self, *, newest: bool) -> Newcomer:
        """Return one that is ready; it is the caller's now."""
        if newest:
            return self._ready.popitem()[0]
        newcomer = next(iter(self._ready))
        del self._ready[newcomer]
        return newcomer

    def send_late_away(self, timeout_s: float) -> None:
        """Those who came ``timeout_s`` ago and have not said enough, or were not examined."""
        now_s = time.monotonic()
        for waiting in (self._silent, self._ready):
            while waiting:
                newcomer = next(iter(waiting))
                if now_s - newcomer.came_at_s < timeout_s:
                    break
                self._send_away(newcomer, f"nothing was heard for {timeout_s:g} s")

    def oldest_came_at_s(self) -> float | None:
        """When the first of those who wait came; None: nobody waits."""
        firsts = [next(iter(w)).came_at_s for w in (self._silent, self._ready) if w]
        return min(firsts, default=None)

    def close(self) -> None:
        """Send all away."""
        for newcomer in [*self._silent, *self._ready]:
            self._send_away(newcomer, "the run ends")

    def _send_away(self, newcomer: Newcomer, reason: str) -> None:
        if newcomer in self._silent:
            self._selector.unregister(newcomer.sock)
            del self._silent[newcomer]
        else:
            del self._ready[newcomer]
        newcomer.sock.close()
        self._refused(reason)
