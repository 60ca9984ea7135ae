"""Who connects, from the door to a bolt that is known.

Without TLS all of it happens in the lobby (:mod:`flowctl.wire.lobby`).  With TLS they wait there
until they have begun like a bolt, and are examined in a short-lived thread: a stranger costs a
thread for a second at most where others wait, never the loop's time nor a bolt's chance to come in.
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
from flowctl.wire.handshake import HANDSHAKE_TIMEOUT_S, Guest, receive_bolt
from flowctl.wire.lobby import Lobby, Newcomer

if TYPE_CHECKING:
    import ssl

# As many bolts as one machine starts at once; more wait in the lobby.
_GUESTS_MAX: Final = 64
# With all places taken, who has not proved itself after this long makes room: a bolt needs
# milliseconds.
_PATIENCE_S: Final = 1.0
# With as many again waiting it is a crowd: so all whom the lobby holds have their turn in 2 s.
_CROWD_PATIENCE_S: Final = 0.25
# A stretch of refusals is over when none came for this long; one line at its start, one at its
# end (S44).
_STRETCH_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 1.0  # guests whose socket was shut leave within milliseconds


class Reception:
    """Examines connections.  All methods are for the loop's thread; ``on_result`` is called
    from any."""

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
        self._visits: dict[_Visit, None] = {}  # in the order they came
        # Appended by the threads: a guest or why not.
        self._results: deque[tuple[_Visit, Guest | str]] = deque()
        self._stretch = _RefusalStretch()
        self.lobby = Lobby(
            selector,
            self._stretch.refused,
            key=key,
            tls=context is not None,
            expected=expected,
        )

    @property
    def rejected(self) -> int:
        """How many connections were refused so far."""
        return self._stretch.count

    def attend(self) -> None:
        """Look after who waits: examine who is ready, send away who is late or dawdles."""
        lobby = self.lobby
        lobby.send_late_away(HANDSHAKE_TIMEOUT_S)
        while lobby.ready and len(self._visits) < _GUESTS_MAX:
            # In a crowd the newest first: it has most of its time left, and if strangers who begin
            # like bolts stand before a bolt, it comes in as soon as one of them is sent away.
            self._examine(lobby.take(newest=lobby.ready > _GUESTS_MAX))
        if lobby.ready:
            patience_s = self._patience_s()
            for visit in self._visits:
                if time.monotonic() - visit.begun_at_s < patience_s:
                    break
                visit.cut_off_if_silent()  # its thread notices and reports

    def next_deadline_s(self) -> float | None:
        """When :meth:`attend` has something to do though nothing is heard; None: nothing."""
        since_s = self.lobby.waits_since_s()
        if since_s is None:
            return None
        due_s = since_s + HANDSHAKE_TIMEOUT_S
        if self.lobby.ready and self._visits:
            due_s = min(due_s, next(iter(self._visits)).begun_at_s + self._patience_s())
        return due_s

    def _patience_s(self) -> float:
        return _CROWD_PATIENCE_S if self.lobby.ready > _GUESTS_MAX else _PATIENCE_S

    def _examine(self, newcomer: Newcomer) -> None:
        visit = _Visit(newcomer.sock)
        self._visits[visit] = None
        visit.thread = threading.Thread(
            target=self._question, args=(visit, newcomer), name="flowctl-handshake", daemon=True
        )
        visit.thread.start()

    def arrivals(self) -> list[Guest]:
        """Return the bolts that proved themselves since the last call."""
        guests, self.lobby.guests = self.lobby.guests, []
        while self._results:
            visit, result = self._results.popleft()
            visit.handle.close()
            del self._visits[visit]
            if isinstance(result, Guest):
                guests.append(result)
            else:
                self._stretch.refused(result)
        self._stretch.end_if_quiet()
        return guests

    def close(self) -> None:
        """Send everyone home."""
        self.lobby.close()
        for visit in self._visits:
            visit.cut_off()
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        for visit in self._visits:
            if visit.thread is not None:
                visit.thread.join(max(deadline_s - time.monotonic(), 0))
        for guest in self.arrivals():
            guest.sock.close()

    def _question(self, visit: _Visit, newcomer: Newcomer) -> None:
        result: Guest | str
        deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
        try:
            sock, hello = receive_bolt(
                newcomer.sock,
                self._key,
                self._context,
                deadline_s=deadline_s,
                expected=self._expected,
            )
            result = Guest(sock, hello)
        except FlowctlError as error:
            result = error.problem
        except OSError as error:
            result = f"the handshake broke off: {error.strerror or error}"
        except BaseException as error:  # a stranger's bytes must not end the run, nor keep a place
            result = f"the handshake failed: {type(error).__name__}: {error}"
        self._results.append((visit, result))
        self._on_result()


class _Visit:
    """A connection under examination.  ``handle`` is a second descriptor of it, ours: the
    first one changes hands when TLS begins."""

    def __init__(self, sock: socket.socket) -> None:
        self.handle = sock.dup()
        self.begun_at_s = time.monotonic()
        self.thread: threading.Thread | None = None

    def cut_off_if_silent(self) -> None:
        """As :meth:`cut_off`, unless it is we who are slow: what it said is not read yet."""
        try:
            self.handle.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.cut_off()
        except OSError:
            return  # it is over

    def cut_off(self) -> None:
        with contextlib.suppress(OSError):
            self.handle.shutdown(socket.SHUT_RDWR)


class _RefusalStretch:
    """Counts refusals; says so once when they begin, once when they have ceased."""

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
        if self._last_at_s is None or time.monotonic() - self._last_at_s < _STRETCH_S:
            return
        _warn(
            "connections_refused",
            count=self.count - self._count_before,
            within_s=round(self._last_at_s - self._begun_at_s, 1),
        )
        self._last_at_s = None


def _warn(event: str, **fields: Any) -> None:
    import structlog

    structlog.get_logger("flowctl.wire").warning(event, **fields)
