"""Move bytes between sockets and streams in Redis, with one thread per direction.

While Redis is unreachable both threads wait and retry; the sockets stay open and fill up, as on a
cut link.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from flowctl.core.retry import RELAY
from flowctl.logs import ModuleLogger
from flowctl_redis.translated import expected

# -- One connection through Redis: a socket on this machine, and two streams, one per direction
#
# The entries of a stream are numbered by its only writer. So an entry that is written twice,
# because it was unknown whether the first write arrived, is refused by Redis; and one that Redis
# has lost is noticed by the reader, which then ends the connection: bytes are never lost nor
# doubled in silence.


# 32 entries of 32 KiB: at most 1 MiB per direction waits in Redis.  Frames by reference have some
# hundred bytes, so they never reach this bound; a writer that is faster than its reader waits.
CHUNK_BYTES: Final = 32 << 10
ENTRIES_MAX: Final = 32
# Lifetime [s] of streams that are no longer read, because the run has ended or a process has died.
KEY_TTL_S: Final = 60
# Longest wait for the other side's end after this side's.  It takes two round trips.
_LINGER_S: Final = 10.0
_DATA: Final = b"d"  # an entry's field; an empty value marks the end of this direction


class Duct:
    """A socket and its two streams: ``inbound`` and ``outbound`` are their keys.

    Only the writing thread calls :meth:`collect` and :meth:`confirm`, only the reading one
    :meth:`deliver`.
    """

    def __init__(self, sock: socket.socket, *, inbound: bytes, outbound: bytes) -> None:
        self.sock: socket.socket = sock
        self.inbound: bytes = inbound
        self.outbound: bytes = outbound
        self.waiting: bytes | None = None  # taken from the socket, not confirmed by Redis yet
        self.has_heard_end: bool = False
        self._written = 0  # number of the last entry that is confirmed
        self._read = 0  # number of the last entry that was read
        self._ended_at_s: float | None = None  # when the end of the outbound stream was confirmed
        self._is_deaf = False  # the local side is closed: further bytes are dropped

    @property
    def has_said_end(self) -> bool:
        """Whether the end of the outbound stream is confirmed."""
        return self._ended_at_s is not None

    @property
    def is_over(self) -> bool:
        """Whether all is done, or the other side doesn't answer."""
        if self._ended_at_s is None:
            return False
        return self.has_heard_end or time.monotonic() - self._ended_at_s > _LINGER_S

    @property
    def read_id(self) -> bytes:
        """The id of the entry after which to read."""
        return b"0-%d" % self._read

    def collect(self) -> None:
        """Take the bytes that the local side has sent; the socket must be readable."""
        try:
            self.waiting = self.sock.recv(CHUNK_BYTES)
        except OSError:
            self.waiting = b""

    def write(self, pipe: Any) -> None:
        """Add the waiting bytes to a pipeline: three commands."""
        pipe.xadd(self.outbound, {_DATA: self.waiting}, id=b"0-%d" % (self._written + 1))
        pipe.expire(self.outbound, KEY_TTL_S)
        pipe.xlen(self.outbound)

    def confirm(self) -> None:
        """Note that the waiting bytes are in Redis."""
        self._written += 1
        if not self.waiting:
            self._ended_at_s = time.monotonic()
        self.waiting = None

    def deliver(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Pass ``entries`` to the local side; may block until it takes them."""
        for entry_id, fields in entries:
            number = int(entry_id.partition(b"-")[2])
            if number != self._read + 1:  # entries are missing: the stream can't go on
                self.break_off()
                return
            self._read = number
            data = fields.get(_DATA, b"")
            if not data:
                self.has_heard_end = True
                self._shutdown(socket.SHUT_WR)
                return
            if not self._is_deaf:
                try:
                    self.sock.sendall(data)
                except OSError:
                    self._is_deaf = True

    def break_off(self) -> None:
        """End the connection for the local side; bytes that it sent before still go out."""
        self.has_heard_end = True
        self._shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket."""
        self.sock.close()

    def _shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(how)


# -- Moves bytes between sockets and streams in Redis ------------------------------------------


# Longest wait of a read in Redis, and so the delay with which an idle side sees that the other one
# is gone.
BLOCK_S: Final = 1.0
# Longest wait for an answer of Redis: more than a read waits there.
SOCKET_TIMEOUT_S: Final = 5.0
_LOOK_AT_FULL_S: Final = 0.02  # a round trip of a reader on another continent
_STOP_S: Final = 1.0  # for the last bytes of a closed pump; later ones are dropped
_TWICE: Final = "equal or smaller"  # part of Redis' error for a repeated entry

_log = ModuleLogger("flowctl.relay")


class Watch(Protocol):
    """Further streams that the reading thread reads."""

    def streams(self) -> Mapping[bytes, bytes]:
        """Return streams to read besides those of ducts, each with the id to begin after."""

    def take(self, entries: list[Any]) -> None:
        """Handle entries of these streams; they are deleted afterwards."""

    def look(self, client: Any, *, is_idle: bool) -> bool:
        """Check after each read (``is_idle``: it returned nothing); False ends the pump."""


class Pump:
    """Serves ducts until :meth:`close`; with ``ends_alone`` only until the last duct ends.

    ``away_max_s`` is how long Redis may be unreachable before all ducts are given up, ``block_s``
    how long a read waits in Redis.  The pump closes ``client`` at its end.
    """

    def __init__(
        self,
        client: Any,
        watch: Watch,
        *,
        name: str,
        away_max_s: float,
        ends_alone: bool,
        block_s: float = BLOCK_S,
    ) -> None:
        self._client = client
        self._watch = watch
        self._away_max_s = away_max_s
        self._ends_alone = ends_alone
        self._block_s = block_s
        #: All that was in Redis at this monotonic time has been passed to the sockets.
        self.heard_until_s: float = time.monotonic()
        self._ducts: dict[bytes, Duct] = {}  # by the inbound key
        self._full: set[Duct] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._added: list[Duct] = []
        self._lock = threading.Lock()  # of the two before
        self._stop_by_s: float | None = None
        self._is_over = threading.Event()
        self._reading = _Away(away_max_s, self._is_over)
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"{name}-{side}", daemon=True)
            for side, work in (("writer", self._write), ("reader", self._read))
        ]

    def start(self) -> None:
        """Start the threads; ducts may be added before and after."""
        for thread in self._threads:
            thread.start()

    def add(self, duct: Duct) -> None:
        """Serve ``duct``, and close it when both directions have ended.  Thread-safe."""
        with self._lock:
            self._added.append(duct)
            self._ducts[duct.inbound] = duct
        self.wake()

    def wake(self) -> None:
        """Wake the writing thread.  Thread-safe."""
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    @property
    def is_away(self) -> bool:
        """Whether Redis failed to answer the reading thread's last request."""
        return self._reading.is_away

    @property
    def ducts(self) -> int:
        """How many are served."""
        return len(self._ducts)

    def await_end(self, timeout_s: float) -> None:
        """Wait until the pump has written everything."""
        self._threads[0].join(timeout_s)

    def close(self) -> None:
        """Send the bytes that the sockets still hold, then end; takes a second at most."""
        self._stop_by_s = time.monotonic() + _STOP_S
        self.wake()
        for thread in self._threads:
            thread.join(2 * _STOP_S)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # all connections end; both sides notice
            if not self._is_over.is_set():  # else the other thread has closed the client
                _log.warning("relay_ended", reason=f"{type(error).__name__}: {error}")
        finally:
            self._is_over.set()
            for duct in list(self._ducts.values()):
                duct.break_off()

    # -- from sockets to Redis ---------------------------------------------------------------

    def _write(self) -> None:
        away = _Away(self._away_max_s, self._is_over)
        try:
            while not self._is_over.is_set() and not self._is_done():
                self._collect()
                self._push(away)
                self._reopen(away)
                self._drop_finished()
        finally:
            self._is_over.set()
            for duct in list(self._ducts.values()):
                duct.close()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            # The reading thread waits in Redis for up to a second: this ends its wait.
            self._client.connection_pool.disconnect(inuse_connections=True)

    def _is_done(self) -> bool:
        if self._stop_by_s is not None:
            is_sent = all(duct.has_said_end for duct in self._ducts.values())
            return is_sent or time.monotonic() > self._stop_by_s
        return self._ends_alone and not self._ducts

    def _collect(self) -> None:
        with self._lock:
            added, self._added = self._added, []
        for duct in added:
            self._selector.register(duct.sock, selectors.EVENT_READ, duct)
        for selected, _ in self._selector.select(_LOOK_AT_FULL_S if self._full else BLOCK_S):
            duct = selected.data
            if duct is None:
                self._wake_in.recv(64)
                continue
            duct.collect()

    def _push(self, away: _Away) -> None:
        """Write the collected bytes; wait while Redis is unreachable."""
        while waiting := [duct for duct in self._ducts.values() if duct.waiting is not None]:
            replies = self._pipelined(away, [duct.write for duct in waiting])
            if self._is_over.is_set():
                return
            for duct, (added, _, length) in zip(waiting, _threes(replies), strict=False):
                if _is_refusal(added):
                    continue
                duct.confirm()
                if duct.has_said_end:
                    self._selector.unregister(duct.sock)
                elif isinstance(length, int) and length >= ENTRIES_MAX:
                    self._selector.unregister(duct.sock)
                    self._full.add(duct)

    def _reopen(self, away: _Away) -> None:
        """Read again from sockets whose stream has room again."""
        full = list(self._full)
        if not full:
            return
        lengths = self._pipelined(away, [_length_of(duct) for duct in full])
        for duct, length in zip(full, lengths, strict=False):
            if isinstance(length, int) and length < ENTRIES_MAX:
                self._full.discard(duct)
                self._selector.register(duct.sock, selectors.EVENT_READ, duct)

    def _pipelined(self, away: _Away, steps: list[Callable[[Any], None]]) -> list[Any]:
        """Return the replies; [] after a pause if Redis is unreachable."""
        try:
            with self._client.pipeline(transaction=False) as pipe:
                for step in steps:
                    step(pipe)
                replies: list[Any] = pipe.execute(raise_on_error=False)
        except expected() as error:
            away.failed(error)
            return []
        if refused := list(filter(_is_refusal, replies)):  # out of memory, say
            away.failed(refused[0])
        else:
            away.is_back()
        return replies

    def _drop_finished(self) -> None:
        for key, duct in list(self._ducts.items()):
            if duct.is_over:
                del self._ducts[key]
                duct.close()

    # -- from Redis to sockets ---------------------------------------------------------------

    def _read(self) -> None:
        away = self._reading
        read: dict[bytes, list[bytes]] = {}  # entries to delete
        try:
            while not self._is_over.is_set():
                asked_s = time.monotonic()
                try:
                    found = self._receive(read)
                    read = {}
                    self._hand_out(found, read)
                    self.heard_until_s = asked_s
                    if not self._watch.look(self._client, is_idle=not found):
                        return
                except expected() as error:
                    away.failed(error)
                else:
                    away.is_back()
        finally:
            self._forget(read)
            self._client.close()

    def _receive(self, read: Mapping[bytes, list[bytes]]) -> list[Any]:
        wanted = dict(self._watch.streams())
        ducts = list(self._ducts.values())
        wanted.update({duct.inbound: duct.read_id for duct in ducts if not duct.has_heard_end})
        if not wanted:  # the other direction is about to end
            self._is_over.wait(_LOOK_AT_FULL_S)
            return []
        with self._client.pipeline(transaction=False) as pipe:
            for key, entries in read.items():
                pipe.xdel(key, *entries)
            pipe.xread(wanted, count=ENTRIES_MAX, block=round(self._block_s * 1000))
            return pipe.execute()[-1] or []

    def _hand_out(self, found: list[Any], read: dict[bytes, list[bytes]]) -> None:
        for key, entries in found:
            read[key] = [entry_id for entry_id, _ in entries]
            duct = self._ducts.get(key)
            if duct is None:
                self._watch.take(entries)
            else:
                duct.deliver(entries)
                if duct.has_heard_end:
                    self.wake()

    def _forget(self, read: Mapping[bytes, list[bytes]]) -> None:
        """Delete the entries read last; any others expire."""
        with contextlib.suppress(*expected()):
            for key, entries in read.items():
                self._client.xdel(key, *entries)


class _Away:
    """Tracks how long a server has not answered one thread."""

    def __init__(self, away_max_s: float, is_over: threading.Event) -> None:
        self._away_max_s = away_max_s
        self._is_over = is_over
        self._since_s: float | None = None
        self._pauses = RELAY.waits()

    @property
    def is_away(self) -> bool:
        return self._since_s is not None

    def failed(self, error: Exception) -> None:
        """Pause; give up if Redis has been unreachable for too long."""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
            _log.warning("relay_away", reason=type(error).__name__)
        if now_s - self._since_s > self._away_max_s:
            self._is_over.set()
        self._is_over.wait(next(self._pauses))

    def is_back(self) -> None:
        """Note that the server has answered."""
        if self._since_s is not None:
            away_s = round(time.monotonic() - self._since_s, 1)
            _log.warning("relay_back", away_s=away_s)
            self._pauses = RELAY.waits()
        self._since_s = None


def _is_refusal(reply: Any) -> bool:
    return isinstance(reply, Exception) and _TWICE not in str(reply)


def _threes(replies: list[Any]) -> list[tuple[Any, Any, Any]]:
    return list(zip(replies[::3], replies[1::3], replies[2::3], strict=False))


def _length_of(duct: Duct) -> Callable[[Any], None]:
    return lambda pipe: pipe.xlen(duct.outbound)
