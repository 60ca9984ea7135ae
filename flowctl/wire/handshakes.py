"""The handshakes of all peers that connect, until a peer is known as a bolt.

A bolt speaks as soon as it is connected, and proves the key a moment later.  So a connection that
has proved nothing yet waits at the cost of a descriptor, and makes room for later ones when places
run out: a crowd of strangers is gone in about a second, and does not keep out any bolt.

Without TLS a bolt's whole handshake happens so, its Hello included: a thousand bolts take some
tenths of a second.  With TLS the key is proved inside the encrypted connection, which takes a
thread: here such a connection only has to begin as TLS does, then a short-lived thread goes on with
it.  A stranger costs at most a thread for a second while others wait; it never blocks the loop.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final

from flowctl.errors import AuthenticationError, FlowctlError
from flowctl.logs import ModuleLogger
from flowctl.wire import auth
from flowctl.wire.codec import LENGTH, LENGTH_BYTES
from flowctl.wire.frames import PROTOCOL_VERSION
from flowctl.wire.handshake import (
    HANDSHAKE_TIMEOUT_S,
    OTHER_VERSION_ANSWER,
    AuthenticatedPeer,
    check_first_length,
    check_hello,
    decode_hello,
    receive_bolt,
)

if TYPE_CHECKING:
    import ssl


# -- Connections that have proved nothing yet --------------------------------------------------


# Half of the usual limit of descriptors (1,024).
_PLACES: Final = 512
# With a higher limit: thousands of bolts may connect at once, and each then has a place.
_PLACES_SHARE: Final = 0.25
_PLACES_MOST: Final = 4096  # as long as the kernel's queue of connections
# With no place left, a peer that sent nothing new for this long makes room: a bolt needs
# milliseconds and two round trips, and connects again if this is too short for it.
_PATIENCE_S: Final = 0.1
# How each TLS connection begins: a record of a handshake (its type, version 3.x, two bytes of
# length) that holds a ClientHello.
_TLS_BYTES: Final = 6
_LOOKED_AT: Final = 16  # how many are considered for eviction: bounds the cost


class PendingPeer:
    """A connection whose handshake is not complete.

    ``said`` holds the bytes read of its current step (greeting, proof, Hello), ``since_s`` when
    that step began: a drip of bytes does not count as progress.
    """

    __slots__ = ("challenge", "is_proved", "said", "since_s", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket = sock
        self.since_s: float = time.monotonic()
        self.said: bytes = b""
        self.challenge: auth.Challenge | None = None
        self.is_proved: bool = False

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


class PendingHandshakes:
    """For the loop's thread.  ``refused`` is called with the reason for each one that is refused.

    The selector gets a :class:`PendingPeer` as the data of each waiting socket; the loop that
    selects calls :meth:`receive`.
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
        """``expected`` are the names of the run's bolts, all others are refused; None: any name."""
        self._selector = selector
        self._key = key
        self._refused = refused
        self._tls = tls
        self._expected = expected
        self._places = _PLACES if tls else _places()
        #: Peers whose handshake is complete, for the loop to take.
        self.authenticated: list[AuthenticatedPeer] = []
        # Both ordered by when the current step began.
        self._silent: dict[PendingPeer, None] = {}
        self._ready: dict[PendingPeer, None] = {}

    def __len__(self) -> int:
        return len(self._silent) + len(self._ready)

    @property
    def ready(self) -> int:
        """How many handshakes wait for a thread, as the loop can do no more for them."""
        return len(self._ready)

    def make_room(self) -> bool:
        """Make room for one more: refuse the peer that has waited longest, silent ones first;
        return whether one more fits.

        A peer whose bytes we have not read yet is not silent: then we are the slow side.
        """
        if len(self) < self._places:
            return True
        now_s = time.monotonic()
        for waiting in (self._silent, self._ready):
            for _ in range(_LOOKED_AT):
                oldest = next(iter(waiting), None)
                if oldest is None or now_s - oldest.since_s < _PATIENCE_S:
                    break
                since_s = oldest.since_s
                self.receive(oldest)
                if oldest in waiting and oldest.since_s == since_s:
                    self._refuse(oldest, "too many handshakes are pending")
                if len(self) < self._places:
                    return True
        return False

    def refuse_some(self, count: int) -> None:
        """Refuse ``count`` peers, however recent they are, as descriptors have run out."""
        for peer in [*self._silent, *self._ready][:count]:
            self._refuse(peer, "no descriptors left for it")

    def add(self, sock: socket.socket) -> None:
        """Take over ``sock``, which belongs to this object from now on."""
        sock.setblocking(False)
        if self._tls:  # bytes that are only peeked at would wake the loop again and again
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _TLS_BYTES)
        peer = PendingPeer(sock)
        self._silent[peer] = None
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def receive(self, peer: PendingPeer) -> None:
        """Read what ``peer`` sent; refuse it if it closed or sent something else."""
        if peer not in self._silent:
            return
        try:
            if self._tls:
                self._look_for_tls(peer)
            else:
                self._read(peer)
        except BlockingIOError:
            return
        except FlowctlError as error:
            self._refuse(peer, error.problem)
        except OSError as error:
            self._refuse(peer, f"the handshake broke off: {error.strerror or error}")
        except Exception as error:  # a stranger's bytes must not end the run
            why = f"the handshake failed: {type(error).__name__}: {error}"
            self._refuse(peer, why)

    def _look_for_tls(self, peer: PendingPeer) -> None:
        sock = peer.sock
        first = sock.recv(_TLS_BYTES, socket.MSG_PEEK)  # peeked: TLS has to read it itself
        if len(first) < _TLS_BYTES:  # see add(): no more will come
            raise ConnectionResetError("closed by the peer")
        if (first[0], first[1], first[5]) != (0x16, 3, 1):
            raise AuthenticationError("The peer does not speak TLS.")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._make_ready(peer)

    def _read(self, peer: PendingPeer) -> None:
        """Read step by step and not a byte more: what follows belongs to the connection."""
        while peer in self._silent:
            wanted = peer.wanted()
            more = peer.sock.recv(wanted - len(peer.said))
            if not more:
                raise ConnectionResetError("closed by the peer")
            peer.said += more
            if peer.challenge is None:
                auth.check_greeting(peer.said)
            if len(peer.said) == peer.wanted():
                self._take_step(peer)

    def _take_step(self, peer: PendingPeer) -> None:
        said = peer.said
        if peer.challenge is None:
            peer.challenge = auth.Challenge(self._key, said)
            # The first bytes on this side: the kernel accepts all of them if the peer is a real
            # bolt.
            if peer.sock.send(peer.challenge.answer) < len(peer.challenge.answer):
                raise ConnectionResetError("the peer does not take the answer")
        elif not peer.is_proved:
            peer.challenge.check(said)
            peer.is_proved = True
        else:
            self._take_hello(peer, said[LENGTH_BYTES:])
            return
        peer.said = b""
        peer.since_s = time.monotonic()
        del self._silent[peer]  # moves the peer to the end
        self._silent[peer] = None

    def _take_hello(self, peer: PendingPeer, body: bytes) -> None:
        hello = decode_hello(body)
        if hello.version != PROTOCOL_VERSION:
            peer.sock.send(OTHER_VERSION_ANSWER)
        check_hello(hello, self._expected)
        self._selector.unregister(peer.sock)
        del self._silent[peer]
        self.authenticated.append(AuthenticatedPeer(peer.sock, hello))

    def _make_ready(self, peer: PendingPeer) -> None:
        self._selector.unregister(peer.sock)
        del self._silent[peer]
        self._ready[peer] = None

    def take(self, *, newest: bool) -> PendingPeer:
        """Return a handshake that is ready; it then belongs to the caller."""
        if newest:
            return self._ready.popitem()[0]
        peer = next(iter(self._ready))
        del self._ready[peer]
        return peer

    def refuse_late(self, timeout_s: float) -> None:
        """Refuse peers whose step, or whose wait for a thread, began ``timeout_s`` ago."""
        now_s = time.monotonic()
        for waiting in (self._silent, self._ready):
            while waiting:
                peer = next(iter(waiting))
                if now_s - peer.since_s < timeout_s:
                    break
                self._refuse(peer, f"nothing was heard for {timeout_s:g} s")

    def waits_since_s(self) -> float | None:
        """When the longest wait began; None: no peer is waiting."""
        firsts = [next(iter(w)).since_s for w in (self._silent, self._ready) if w]
        return min(firsts, default=None)

    def close(self) -> None:
        """Refuse all that are pending."""
        for bolt in self.authenticated:
            bolt.sock.close()
        self.authenticated.clear()
        for peer in [*self._silent, *self._ready]:
            self._refuse(peer, "the run ends")

    def _refuse(self, peer: PendingPeer, reason: str) -> None:
        if peer in self._silent:
            self._selector.unregister(peer.sock)
            del self._silent[peer]
        else:
            del self._ready[peer]
        peer.sock.close()
        self._refused(reason)


def _places() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _PLACES_MOST
    return min(max(_PLACES, int(_PLACES_SHARE * soft)), _PLACES_MOST)


# -- With TLS: threads -------------------------------------------------------------------------


# As many bolts as one machine starts at once; the others stay pending.
HANDSHAKES_MAX: Final = 64
# With all threads busy, a peer that has not proved the key after this long makes room: a bolt
# needs milliseconds.
_THREAD_PATIENCE_S: Final = 1.0
# If as many again are waiting: all pending handshakes get their turn within 2 s.
_CROWD_PATIENCE_S: Final = 0.25
# An episode of refusals ends when none came for this long; it is logged at its start and its end.
_EPISODE_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 1.0  # handshakes whose socket is shut end within milliseconds


class HandshakePool:
    """Authenticates connections.  All methods are for the loop's thread; ``on_result`` is called
    from any thread."""

    def __init__(
        self,
        key: bytes,
        context: ssl.SSLContext | None,
        on_result: Callable[[], None],
        selector: selectors.BaseSelector,
        *,
        expected: Container[str] | None = None,
    ) -> None:
        self._key = key
        self._context = context
        self._on_result = on_result
        self._expected = expected
        self.running: dict[_Handshake, None] = {}  # ordered by their start
        # Appended by the threads: a bolt, or why the peer was refused.
        self._results: deque[tuple[_Handshake, AuthenticatedPeer | str]] = deque()
        self._refusals = _RefusalEpisode()
        self.pending: PendingHandshakes = PendingHandshakes(
            selector,
            self._refusals.refused,
            key=key,
            tls=context is not None,
            expected=expected,
        )

    @property
    def rejected(self) -> int:
        """How many connections have been refused so far."""
        return self._refusals.count

    def attend(self) -> None:
        """Start the handshakes that are ready; refuse those that are late or too slow."""
        pending = self.pending
        pending.refuse_late(HANDSHAKE_TIMEOUT_S)
        while pending.ready and len(self.running) < HANDSHAKES_MAX:
            # If there are many, take the newest first: it has most of its time left, and a bolt
            # behind strangers who begin like bolts gets its turn as soon as one of them is refused.
            self._start(pending.take(newest=pending.ready > HANDSHAKES_MAX))
        if pending.ready:
            patience_s = self._patience_s()
            for handshake in self.running:
                if time.monotonic() - handshake.begun_at_s < patience_s:
                    break
                handshake.cut_off_if_silent()  # its thread notices and reports

    def next_deadline_s(self) -> float | None:
        """When :meth:`attend` has work even if nothing arrives; None: never."""
        since_s = self.pending.waits_since_s()
        if since_s is None:
            return None
        due_s = since_s + HANDSHAKE_TIMEOUT_S
        if self.pending.ready and self.running:
            due_s = min(due_s, next(iter(self.running)).begun_at_s + self._patience_s())
        return due_s

    def _patience_s(self) -> float:
        return _CROWD_PATIENCE_S if self.pending.ready > HANDSHAKES_MAX else _THREAD_PATIENCE_S

    def _start(self, peer: PendingPeer) -> None:
        handshake = _Handshake(peer.sock)
        self.running[handshake] = None
        handshake.thread = threading.Thread(
            target=self._run, args=(handshake, peer), name="flowctl-handshake", daemon=True
        )
        handshake.thread.start()

    def take_authenticated(self) -> list[AuthenticatedPeer]:
        """Return the bolts that were authenticated since the last call."""
        authenticated, self.pending.authenticated = self.pending.authenticated, []
        while self._results:
            handshake, result = self._results.popleft()
            handshake.handle.close()
            del self.running[handshake]
            if isinstance(result, AuthenticatedPeer):
                authenticated.append(result)
            else:
                self._refusals.refused(result)
        self._refusals.end_if_quiet()
        return authenticated

    def close(self) -> None:
        """Close all pending handshakes."""
        self.pending.close()
        for handshake in self.running:
            handshake.cut_off()
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for handshake in self.running:
            if handshake.thread is not None:
                handshake.thread.join(max(deadline_s - time.monotonic(), 0))
        for bolt in self.take_authenticated():
            bolt.sock.close()

    def _run(self, handshake: _Handshake, peer: PendingPeer) -> None:
        result: AuthenticatedPeer | str
        deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
        try:
            sock, hello = receive_bolt(
                peer.sock,
                self._key,
                self._context,
                deadline_s=deadline_s,
                expected=self._expected,
            )
            result = AuthenticatedPeer(sock, hello)
        except FlowctlError as error:
            result = error.problem
        except OSError as error:
            result = f"the handshake broke off: {error.strerror or error}"
        except BaseException as error:  # a stranger must not end the run, nor keep a place
            result = f"the handshake failed: {type(error).__name__}: {error}"
        self._results.append((handshake, result))
        self._on_result()


class _Handshake:
    """A handshake in a thread.  ``handle`` is a second descriptor of the connection, ours: the
    first one changes owner when TLS begins."""

    def __init__(self, sock: socket.socket) -> None:
        self.handle = sock.dup()
        self.begun_at_s = time.monotonic()
        self.thread: threading.Thread | None = None

    def cut_off_if_silent(self) -> None:
        """Like :meth:`cut_off`, unless we are the slow side: the peer sent bytes that we have not
        read.
        """
        try:
            self.handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.cut_off()
        except OSError:
            return  # the connection is already closed

    def cut_off(self) -> None:
        with contextlib.suppress(OSError):
            self.handle.shutdown(socket.SHUT_RDWR)


class _RefusalEpisode:
    """Counts refusals; logs once when they begin and once when they have stopped."""

    def __init__(self) -> None:
        self.count = 0
        self._count_before = 0
        self._begun_at_s = 0.0
        self._last_at_s: float | None = None

    def refused(self, reason: str) -> None:
        now_s = time.monotonic()
        if self._last_at_s is None:
            self._begun_at_s = now_s
            self._count_before = self.count
            _warn("connection_refused", reason=reason)
        self.count += 1
        self._last_at_s = now_s

    def end_if_quiet(self) -> None:
        if self._last_at_s is None or time.monotonic() - self._last_at_s < _EPISODE_S:
            return
        _warn(
            "connections_refused",
            count=self.count - self._count_before,
            within_s=round(self._last_at_s - self._begun_at_s, 1),
        )
        self._last_at_s = None


def _warn(event: str, **fields: Any) -> None:
    ModuleLogger("flowctl.wire").warning(event, **fields)
