"""The spout's end of the wire: one loop over all bolts, driven by the sender thread.

Throughput comes from doing little per frame and system calls per *batch*: :meth:`SpoutServer.send`
only encodes into the bolt's outbox, :meth:`SpoutServer.flush` hands each outbox to the kernel in
one call, :meth:`SpoutServer.poll` receives all that a bolt has sent in one.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable, Container
from typing import Any, Final, NamedTuple, TypeAlias

from flowctl.config import ListenSettings, WaitSettings
from flowctl.errors import WireError
from flowctl.ports import Endpoint
from flowctl.wire import listener, reach
from flowctl.wire.codec import FRAME_BYTES_MAX, FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import PROTOCOL_VERSION, ToBolt, ToSpout, Welcome
from flowctl.wire.handshake import AuthenticatedPeer
from flowctl.wire.handshakes import HandshakePool, PendingHandshakes, PendingPeer
from flowctl.wire.reach import probe
from flowctl.wire.stream import Stream, stream_of
from flowctl.wire.values import keep_hook

# -- The spout's end of one bolt's connection --------------------------------------------------


class Connection:
    """One bolt that has received its Welcome."""

    __slots__ = (
        "bolt",
        "closing",
        "epoch",
        "is_gone",
        "reader",
        "stream",
        "waits_to_write",
        "writer",
    )

    def __init__(self, bolt: str, epoch: int, stream: Stream, frame_bytes_max: int) -> None:
        self.bolt: str = bolt
        self.epoch: int = epoch
        self.stream: Stream = stream
        # No Hello here: a second one breaks the protocol like any unknown frame.
        decoder = decoder_of(
            ToSpout,
            keep_hook,  # values emitted by a topology's bolt are passed on to others
        )
        self.reader: FrameReader[ToSpout] = FrameReader(decoder, frame_bytes_max)
        self.writer: FrameWriter = FrameWriter(frame_bytes_max)
        self.waits_to_write: bool = False
        self.closing: bool = False  # we have closed it: what still arrives is read and dropped
        self.is_gone: bool = False


# -- The listening socket: accepts connections, and stops while too many handshakes are pending


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


# -- The spout's end of the wire ---------------------------------------------------------------


# Some thousand acks, or four records of 64 KB: more than arrives between two polls.
_RECEIVE_BYTES: Final = 256 << 10
# Bolts read at once what they get; a bolt that doesn't within this time would not see the END
# anyway.
_CLOSE_TIMEOUT_S: Final = 1.0
_WAKES: Final = 64  # one byte each, and rarely more than one
# What one poll takes before its caller, who refills windows, gets a turn (some 2 ms).  With
# thousands of bolts it would otherwise read from all of them before sending to any, in turns of a
# tenth of a second.  Three quarters of what the sender emits in a turn (runtime/sender.py), as the
# last bolt may send more: it then fills the windows of all that it heard, with one send each.  With
# as many as that the rest waited for a second send (1,000 bolts: .122 sends a tuple, now .086).
_FRAMES_PER_POLL: Final = 192
_FRAMES_PER_PENDING: Final = 8  # a proof and a Hello take as long as this many acks


class RunTerms(NamedTuple):
    """The terms that the bolts of one run get when they connect, and which bolts are accepted.

    ``key`` proves that a bolt belongs to the run; ``expected`` are the names of its bolts (None:
    any name).  A bolt sends a heartbeat every ``heartbeat_s`` and waits as ``wait`` says.
    """

    job: str
    job_epoch: int
    key: bytes
    heartbeat_s: float
    wait: WaitSettings = WaitSettings()
    expected: Container[str] | None = None


class Joined(NamedTuple):
    """A bolt connected.  ``epoch`` counts the connections of this name, from 1."""

    bolt: str
    epoch: int
    slots: int
    host: str
    pid: int


class Received(NamedTuple):
    """Frames of one bolt, in the order sent; never empty."""

    bolt: str
    epoch: int
    frames: list[ToSpout]


class Left(NamedTuple):
    """A bolt is gone: its connection ended, broke the protocol, or was replaced."""

    bolt: str
    epoch: int
    reason: str


Inbound: TypeAlias = Joined | Received | Left


class SpoutServer:
    """Listens for bolts and exchanges frames with them.

    For one thread, except :meth:`wake` and :meth:`unanswered_s`.  Binds in the constructor; raises
    :class:`flowctl.errors.ConfigError` if it can't.  An outbox is bounded by what the caller sends
    before acks come back: the window.
    """

    def __init__(
        self, listen: ListenSettings, terms: RunTerms, *, host: str, bind_host: str = ""
    ) -> None:
        """``host`` is the driver's address that bolts can reach, used if ``listen`` has none.

        ``bind_host``: where to listen then, if that is another (a pod behind a service, NAT).
        """
        listening = listener.bind(listen, bind_host or host)
        self._job_epoch = terms.job_epoch
        try:
            context, certificate_pem = self._tls(listen, listening)
            advertised = listener.advertised_host(listen, host)
        except BaseException:
            listening.close()
            raise
        self._uses_tls = context is not None
        #: The data that a bolt needs to connect; holds the key.
        self.endpoint: Endpoint = Endpoint(
            host=advertised,
            port=listening.getsockname()[1],
            key=terms.key,
            job=terms.job,
            certificate_pem=certificate_pem,
            heartbeat_s=terms.heartbeat_s,
            wait=terms.wait,
        )
        self.connections: dict[str, Connection] = {}
        self._epochs: dict[str, int] = {}
        self._dirty: set[Connection] = set()  # outboxes to flush, not waiting to write
        self._closing: set[Connection] = set()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._woken = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self.handshakes = HandshakePool(
            terms.key, context, self.wake, self._selector, expected=terms.expected
        )
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._wake_in)
        self.gate = AcceptGate(listening, self._selector, self.handshakes.pending)
        # Events of the last select that no poll has handled yet, in reverse order.
        self._found: list[tuple[selectors.SelectorKey, int]] = []
        self._found_at_s = self._heard_until_s = time.monotonic()
        self._carried_until: Callable[[], float] | None = None

    @staticmethod
    def _tls(listen: ListenSettings, listening: socket.socket) -> tuple[Any, str | None]:
        if not listener.wants_tls(listen, listening):
            return None, None
        from flowctl.wire import tls

        return tls.spout_context()

    @property
    def rejected(self) -> int:
        """How many connections did not prove the key, or sent an invalid Hello."""
        return self.handshakes.rejected

    @property
    def heard_until_s(self) -> float:
        """A time up to which all that bolts had sent was returned (monotonic), so silence until
        then is real.
        """
        return self._heard_until_s

    @property
    def is_carried(self) -> bool:
        """Whether bolts connect through a relay, so that :attr:`heard_until_s` may lag behind."""
        return self._carried_until is not None

    def carry(self, until_s: Callable[[], float]) -> None:
        """Note that bolts connect through a relay, which has brought all that they sent until
        then.
        """
        self._carried_until = until_s

    def poll(self, timeout_s: float | None) -> list[Inbound]:
        """Wait for traffic, :meth:`wake` or ``timeout_s`` (None: no limit); return what came.

        If much arrived it returns a part, and the next calls return the rest without waiting.
        Outboxes of bolts that became ready for more are flushed on the way.
        """
        inbound: list[Inbound] = []
        if not self._found:
            # Before the select: what the relay brings from now on need not be among its events.
            carried_s = math.inf if self._carried_until is None else self._carried_until()
            self._found = self._selector.select(self._bounded(timeout_s))
            self._found.reverse()
            self._found_at_s = min(time.monotonic(), carried_s)
        found, budget = self._found, _FRAMES_PER_POLL
        while found and budget > 0:
            selected, events = found.pop()
            subject = selected.data
            if isinstance(subject, Connection):
                budget -= self._attend(subject, events, inbound)
            elif isinstance(subject, PendingPeer):
                self.handshakes.pending.receive(subject)
                budget -= _FRAMES_PER_PENDING
            elif subject is self.gate.listener:
                self.gate.accept()
            else:
                self._take_wakes()
        if not found:
            self._heard_until_s = self._found_at_s
        for bolt in self.handshakes.take_authenticated():
            self._welcome(bolt, inbound)
        self.handshakes.attend()
        self.gate.look()
        return inbound

    def send(self, bolt: str, frame: ToBolt) -> bool:
        """Put ``frame`` into the bolt's outbox; False if the bolt is not connected.

        Raises :class:`flowctl.errors.SourceError` for a record that can't be sent.
        """
        connection = self.connections.get(bolt)
        if connection is None:
            return False
        connection.writer.append(frame)
        if not connection.waits_to_write:
            self._dirty.add(connection)
        return True

    def flush(self) -> None:
        """Hand every outbox to the kernel, as far as the kernel accepts it now; never blocks."""
        if self._dirty:
            dirty, self._dirty = self._dirty, set()
            for connection in dirty:
                self._send_outbox(connection)

    def wake(self) -> None:
        """Make a :meth:`poll` that waits, or the next one, return at once.  Thread-safe."""
        if not self._woken:
            self._woken = True
            # Full: it will wake up anyway.  Closed: no loop is left to wake.
            with contextlib.suppress(OSError):
                self._wake_out.send(b"\0")

    def unanswered_s(self, bolt: str) -> float:
        """Return how long nothing came from the bolt's machine, not even from its kernel [s]; 0.0
        if that is not known.

        Thread-safe.
        """
        connection = self.connections.get(bolt)
        return 0.0 if connection is None else reach.unanswered_s(connection.stream)

    def close_bolt(self, bolt: str) -> None:
        """End the bolt's connection once its outbox (such as an END) is sent; no Left follows.

        What the bolt still sends is dropped.
        """
        connection = self.connections.pop(bolt, None)
        if connection is not None:
            self._begin_closing(connection)

    def drop_bolt(self, bolt: str) -> None:
        """End the connection at once, whatever is in its outbox; no Left follows."""
        connection = self.connections.pop(bolt, None)
        if connection is not None:
            self._drop(connection)

    def close(self) -> None:
        """Close all connections; wait a second at most for bolts to read what was sent to them."""
        self._found.clear()
        self.gate.close()
        self.handshakes.close()
        for bolt in list(self.connections):
            self.close_bolt(bolt)
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._closing and (left_s := deadline_s - time.monotonic()) > 0:
            self.poll(left_s)
        for connection in list(self._closing):
            self._drop(connection)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    # -- traffic ---------------------------------------------------------------------------

    def _attend(self, connection: Connection, events: int, inbound: list[Inbound]) -> int:
        """Write and read as far as possible; return about how many frames arrived."""
        if connection.is_gone:  # closed since it was selected
            return 0
        if events & selectors.EVENT_WRITE:
            self._stop_waiting(connection)
            self._send_outbox(connection)
        return self._receive(connection, inbound) if events & selectors.EVENT_READ else 1

    def _receive(self, connection: Connection, inbound: list[Inbound]) -> int:
        """Read once (with TLS: all that is buffered), so that no bolt keeps the loop to itself."""
        buffer, stream = self._buffer, connection.stream
        count = 1
        try:
            while (size := stream.recv_into(buffer)) is not None:
                if size == 0:
                    self._leave(connection, "closed the connection", inbound)
                    return count
                if not connection.closing:
                    frames = connection.reader.feed(buffer[:size])
                    if frames:
                        count += len(frames)
                        inbound.append(Received(connection.bolt, connection.epoch, frames))
                if not stream.pending():
                    return count
        except WireError as error:
            self._leave(connection, error.problem, inbound)
        except OSError as error:
            self._leave(connection, error.strerror or str(error), inbound)
        return count

    def _send_outbox(self, connection: Connection) -> None:
        outbox = connection.writer.outbox
        try:
            sent = connection.stream.send(outbox)
        except OSError:
            # The read side will report why it is gone, after the frames that came before that.
            connection.writer.take()
            return
        del outbox[:sent]
        if outbox:
            self._wait_to_write(connection)
        elif connection.closing:
            connection.stream.shutdown(socket.SHUT_WR)

    def _wait_to_write(self, connection: Connection) -> None:
        connection.waits_to_write = True
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(connection.stream, both, connection)

    def _stop_waiting(self, connection: Connection) -> None:
        connection.waits_to_write = False
        self._selector.modify(connection.stream, selectors.EVENT_READ, connection)

    def _take_wakes(self) -> None:
        """Read, and only then clear the flag.

        A set flag means that a byte is in the pipe or on its way, or that this poll answers it.  A
        wake that finds the flag set writes nothing, so it must never stay set without a byte to
        come:

        * A wake between the read and the clearing writes nothing.  This poll answers it: what it
          announces was done before it, and the caller looks only after we have returned.
        * A wake after the clearing writes a byte that is still unread: the next poll returns.
        * A wake that set the flag before the clearing and writes after it leaves a byte under a
          cleared flag: one poll too many, but none too few.

        The other way round, a wake between clearing and reading would set the flag and its byte
        would be read here: the flag would stay set without a byte, and no later wake would write
        again.
        """
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(_WAKES)
        self._woken = False

    # -- coming and going ------------------------------------------------------------------

    def _welcome(self, bolt: AuthenticatedPeer, inbound: list[Inbound]) -> None:
        hello = bolt.hello
        old = self.connections.get(hello.bolt)
        if old is not None:
            self._leave(old, "replaced by a new connection of the same bolt", inbound)
        epoch = self._epochs[hello.bolt] = self._epochs.get(hello.bolt, 0) + 1
        stream = stream_of(bolt.sock, tls=self._uses_tls)
        connection = Connection(hello.bolt, epoch, stream, FRAME_BYTES_MAX)
        self.connections[hello.bolt] = connection
        self._selector.register(stream, selectors.EVENT_READ, connection)
        connection.writer.append(
            Welcome(version=PROTOCOL_VERSION, epoch=epoch, job_epoch=self._job_epoch)
        )
        inbound.append(Joined(hello.bolt, epoch, hello.slots, hello.host, hello.pid))
        self._send_outbox(connection)
        if stream.pending():
            self._receive(connection, inbound)

    def _leave(self, connection: Connection, reason: str, inbound: list[Inbound]) -> None:
        self._drop(connection)
        if not connection.closing:
            del self.connections[connection.bolt]
            inbound.append(Left(connection.bolt, connection.epoch, reason))

    def _begin_closing(self, connection: Connection) -> None:
        """Close our half when the outbox is empty; the bolt's half is read to its end.

        Closing at once with an unread heartbeat inside would reset the connection, and the
        bolt might lose the END.
        """
        connection.closing = True
        self._closing.add(connection)
        self._dirty.discard(connection)
        if not connection.waits_to_write:
            self._send_outbox(connection)
            if not connection.writer.outbox:
                connection.stream.shutdown(socket.SHUT_WR)

    def _drop(self, connection: Connection) -> None:
        connection.is_gone = True
        self._selector.unregister(connection.stream)
        connection.stream.close()
        self._dirty.discard(connection)
        self._closing.discard(connection)

    def _bounded(self, timeout_s: float | None) -> float | None:
        """Return ``timeout_s``, or less if a handshake or the gate has an earlier deadline."""
        due_s = self.handshakes.next_deadline_s()
        opens_at_s = self.gate.opens_at_s
        if opens_at_s is not None:
            due_s = min(opens_at_s, due_s or opens_at_s)
        if due_s is None:
            return timeout_s
        until_s = max(due_s - time.monotonic(), 0)
        return until_s if timeout_s is None else min(timeout_s, until_s)
