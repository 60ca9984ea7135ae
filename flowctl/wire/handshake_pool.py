"""The handshakes of all who connect, until a peer is known as a bolt.

Without TLS a handshake happens entirely in :mod:`flowctl.wire.pending_handshakes`.  With TLS a
connection waits there until it has sent the start of a ClientHello; then a short-lived thread does
the handshake.  A stranger costs at most a thread for a second while others wait; it never blocks
the loop, nor keeps a bolt from connecting.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final

from flowctl.errors import FlowctlError
from flowctl.logs import ModuleLogger
from flowctl.wire.handshake import HANDSHAKE_TIMEOUT_S, AuthenticatedPeer, receive_bolt
from flowctl.wire.pending_handshakes import PendingHandshakes, PendingPeer

if TYPE_CHECKING:
    import ssl

# As many bolts as one machine starts at once; the others stay pending.
HANDSHAKES_MAX: Final = 64
# With all threads busy, a peer that has not proved the key after this long makes room: a bolt
# needs milliseconds.
_PATIENCE_S: Final = 1.0
# In a crowd (as many again are waiting): all pending handshakes get their turn within 2 s.
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
        self.running: dict[_Handshake, None] = {}  # in the order they began
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
            # In a crowd take the newest first: it has most of its time left, and a bolt behind
            # strangers who begin like bolts gets its turn as soon as one of them is refused.
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
        return _CROWD_PATIENCE_S if self.pending.ready > HANDSHAKES_MAX else _PATIENCE_S

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
        """As :meth:`cut_off`, unless we are the slow side: the peer sent what we have not read."""
        try:
            self.handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.cut_off()
        except OSError:
            return  # already closed

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
