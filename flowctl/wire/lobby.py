"""Who has connected and proved nothing yet: costs a descriptor, and no thread.

A bolt speaks as soon as it is connected, and has proved the key a moment later.  So whoever has
nothing to prove can wait here at next to no cost, and makes room for those who come later when
there is none: a crowd of strangers is walked through in a second or so, and stands before no bolt.

Without TLS a bolt says all here, its Hello too: a thousand are in after some tenths of a second.
With TLS the key is proved inside of it, which takes a thread: here such a connection only has to
begin as TLS does.
"""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Callable, Container
from typing import Final

from flowctl.errors import AuthenticationError, FlowctlError
from flowctl.wire import auth
from flowctl.wire.codec import LENGTH, LENGTH_BYTES
from flowctl.wire.frames import PROTOCOL_VERSION
from flowctl.wire.handshake import (
    OTHER_VERSION_ANSWER,
    Guest,
    check_first_length,
    check_hello,
    decode_hello,
)

# Half of the descriptors that a process commonly may have (1,024).
_PLACES: Final = 512
# Where it may have more: thousands of bolts may come at once, and each has a place then.
_PLACES_SHARE: Final = 0.25
_PLACES_MOST: Final = 4096  # as many as the kernel's queue before the door
# With no place left, who said nothing new for this long makes room: a bolt needs milliseconds and
# two round trips, and comes again if this is too short for it.
_PATIENCE_S: Final = 0.1
# How each TLS connection begins: a record of a handshake (its type, version 3.x, two bytes of
# length) that holds a ClientHello.
_TLS_BYTES: Final = 6
_LOOKED_AT: Final = 16  # of those who wait, for one that has to make room: bounds its cost


class Newcomer:
    """A connection.

    ``said`` is what was read of its current step (greeting, proof, Hello), ``since_s`` when that
    step began: a drip of bytes is no progress.
    """

    __slots__ = ("challenge", "is_proved", "said", "since_s", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.since_s = time.monotonic()
        self.said = b""
        self.challenge: auth.Challenge | None = None
        self.is_proved = False

    def wanted(self) -> int:
        """How many bytes of the current step are to be read next."""
        if self.challenge is None:
            return auth.GREETING_BYTES
        if not self.is_proved:
            return auth.PROOF_BYTES
        if len(self.said) < LENGTH_BYTES:
            return LENGTH_BYTES
        (length,) = LENGTH.unpack_from(self.said)
        check_first_length(length)
        return LENGTH_BYTES + int(length)


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
        expected: Container[str] | None = None,
    ) -> None:
        """``expected`` are the names of the run's bolts, who alone are let in; None: any name."""
        self._selector = selector
        self._key = key
        self._refused = refused
        self._tls = tls
        self._expected = expected
        self._places = _PLACES if tls else _places()
        #: Those who said all that a bolt has to, for whoever runs the loop to take.
        self.guests: list[Guest] = []
        # Both with those first whose step began first.
        self._silent: dict[Newcomer, None] = {}
        self._ready: dict[Newcomer, None] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._ready)

    @property
    def ready(self) -> int:
        """How many got as far as they can here, and wait to be examined."""
        return len(self._ready)

    def make_room(self) -> bool:
        """Whether one more may come in now; sends one away who waits for longest, silent ones
        before.  What is not read yet was said: it is we who are late."""
        if len(self) < self._places:
            return True
        now_s = time.monotonic()
        for waiting in (self._silent, self._ready):
            for _ in range(_LOOKED_AT):
                oldest = next(iter(waiting), None)
                if oldest is None or now_s - oldest.since_s < _PATIENCE_S:
                    break
                since_s = oldest.since_s
                self.hear(oldest)
                if oldest in waiting and oldest.since_s == since_s:
                    self._send_away(oldest, "too many wait at the door")
                if len(self) < self._places:
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
        except Exception as error:  # a stranger's bytes must not end the run
            why = f"the handshake failed: {type(error).__name__}: {error}"
            self._send_away(newcomer, why)

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
        """Read what came, step by step and not a byte more: what follows is the connection's."""
        while newcomer in self._silent:
            wanted = newcomer.wanted()
            more = newcomer.sock.recv(wanted - len(newcomer.said))
            if not more:
                raise ConnectionResetError("closed by the peer")
            newcomer.said += more
            if newcomer.challenge is None:
                auth.check_greeting(newcomer.said)
            if len(newcomer.said) == newcomer.wanted():
                self._take_step(newcomer)

    def _take_step(self, newcomer: Newcomer) -> None:
        said = newcomer.said
        if newcomer.challenge is None:
            newcomer.challenge = auth.Challenge(self._key, said)
            # The first bytes on this side: the kernel takes all of them, or it is none of ours.
            if newcomer.sock.send(newcomer.challenge.answer) < len(newcomer.challenge.answer):
                raise ConnectionResetError("it takes no answer")
        elif not newcomer.is_proved:
            newcomer.challenge.check(said)
            newcomer.is_proved = True
        else:
            self._take_hello(newcomer, said[LENGTH_BYTES:])
            return
        newcomer.said = b""
        newcomer.since_s = time.monotonic()
        del self._silent[newcomer]  # to the end of the line
        self._silent[newcomer] = None

    def _take_hello(self, newcomer: Newcomer, body: bytes) -> None:
        hello = decode_hello(body)
        if hello.version != PROTOCOL_VERSION:
            newcomer.sock.send(OTHER_VERSION_ANSWER)
        check_hello(hello, self._expected)
        self._selector.unregister(newcomer.sock)
        del self._silent[newcomer]
        self.guests.append(Guest(newcomer.sock, hello))

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
        """Those whose step began ``timeout_s`` ago, or who were not examined for so long."""
        now_s = time.monotonic()
        for waiting in (self._silent, self._ready):
            while waiting:
                newcomer = next(iter(waiting))
                if now_s - newcomer.since_s < timeout_s:
                    break
                self._send_away(newcomer, f"nothing was heard for {timeout_s:g} s")

    def waits_since_s(self) -> float | None:
        """Since when the first of those who wait does; None: nobody waits."""
        firsts = [next(iter(w)).since_s for w in (self._silent, self._ready) if w]
        return min(firsts, default=None)

    def close(self) -> None:
        """Send all away."""
        for guest in self.guests:
            guest.sock.close()
        self.guests.clear()
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


def _places() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _PLACES_MOST
    return min(max(_PLACES, int(_PLACES_SHARE * soft)), _PLACES_MOST)
