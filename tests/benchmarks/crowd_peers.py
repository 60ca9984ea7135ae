"""Many bolts in one process, for benchmarks: they speak the wire and process nothing.

One loop over all connections, so that a machine with few cores can play thousands of bolts and
still leave a core to the driver.  Each joins as a bolt does (the same proof, the same pauses when
it is turned away), sends heartbeats, and acks what one read brings with one write.
"""

from __future__ import annotations

import heapq
import secrets
import select
import socket
import sys
import time
from typing import Any, Final

import msgspec

from flowctl.core.messages import Ack, Emission, End, Heartbeat, Revoke, Revoked
from flowctl.core.retry import CONNECT
from flowctl.ports import Endpoint
from flowctl.wire import auth
from flowctl.wire.codec import FRAME_BYTES_MAX, LENGTH, FrameReader, decoder_of
from flowctl.wire.frames import Welcome
from flowctl.wire.handshake import hello_of

_SERVICE_S: Final = 1e-6
_RECEIVE_BYTES: Final = 256 << 10
_ANSWER_BYTES: Final = len(auth.MAGIC) + auth.NONCE_BYTES + auth.PROOF_BYTES
_encode = msgspec.msgpack.Encoder().encode


def _framed(frame: msgspec.Struct) -> bytes:
    body = _encode(frame)
    return LENGTH.pack(len(body)) + body


_IDLE: Final = _framed(Heartbeat(busy_slots=0, queued=0))


class _Peer:
    """One bolt."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.name = name
        self._endpoint = endpoint
        self._pauses = CONNECT.waits()
        self.is_in = False
        self.sock: socket.socket | None = None

    def dial(self) -> None:
        endpoint = self._endpoint
        self.sock = socket.create_connection((endpoint.host, endpoint.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._nonce = secrets.token_bytes(auth.NONCE_BYTES)
        self.sock.send(auth.MAGIC + self._nonce)
        self._answer = b""
        self._unsent = bytearray()
        decoder = decoder_of(Welcome | Emission | Revoke | End)
        self._reader: FrameReader[Any] = FrameReader(decoder, FRAME_BYTES_MAX)
        self.sock.setblocking(False)

    def pause_s(self) -> float:
        """How long to wait before it dials again; doubled each time."""
        return next(self._pauses)

    def hear(self, data: memoryview) -> bool:
        """Take what came and answer; False: it was told to end."""
        if len(self._answer) < _ANSWER_BYTES:
            self._answer += data
            if len(self._answer) == _ANSWER_BYTES:
                spout_nonce = self._answer[len(auth.MAGIC) :][: auth.NONCE_BYTES]
                key = self._endpoint.key
                proof = auth.proof_of(key, auth.BOLT, self._nonce, spout_nonce)
                self.send(proof + _framed(hello_of(self.name, 1)))
            return True
        answers = bytearray()
        for frame in self._reader.feed(data):
            if isinstance(frame, Emission):
                ack = Ack(frame.tuple_id, frame.attempt, 0.0, _SERVICE_S, 0.0)
                answers += _framed(ack)
            elif isinstance(frame, Welcome):
                self.is_in = True
                answers += _IDLE
            elif isinstance(frame, Revoke):
                answers += _framed(Revoked([]))
            else:
                return False
        self.send(answers)
        return True

    def send(self, data: bytes | bytearray) -> None:
        """Send; what the kernel does not take now goes out with the next call."""
        assert self.sock is not None
        self._unsent += data
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]
        except OSError:
            pass


class _Crowd:
    def __init__(self, endpoint: Endpoint, names: list[str]) -> None:
        self._heartbeat_s = endpoint.heartbeat_s
        self._peers = [_Peer(endpoint, name) for name in names]
        self._poll = select.epoll()
        self._by_fd: dict[int, _Peer] = {}
        self._due: list[tuple[float, int]] = []  # when to dial or to beat, and who

    def run(self) -> None:
        now_s = time.monotonic()
        self._due = [(now_s, index) for index in range(len(self._peers))]
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        left = len(self._peers)
        while left:
            self._look_at_clock()
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for fd, _ in self._poll.poll(wait_s):
                peer = self._by_fd[fd]
                left -= not self._hear(peer, buffer)

    def _hear(self, peer: _Peer, buffer: memoryview) -> bool:
        """False: this peer is through."""
        assert peer.sock is not None
        try:
            size = peer.sock.recv_into(buffer)
        except BlockingIOError:
            return True
        except OSError:
            size = 0
        if size and peer.hear(buffer[:size]):
            return True
        del self._by_fd[peer.sock.fileno()]
        self._poll.unregister(peer.sock)
        peer.sock.close()
        peer.sock = None
        if peer.is_in:
            return False
        index = self._peers.index(peer)
        heapq.heappush(self._due, (time.monotonic() + peer.pause_s(), index))
        return True

    def _look_at_clock(self) -> None:
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            due_s, index = heapq.heappop(self._due)
            peer = self._peers[index]
            if peer.sock is None:
                if peer.is_in:
                    continue
                peer.dial()
                self._by_fd[peer.sock.fileno()] = peer  # type: ignore[attr-defined]
                self._poll.register(peer.sock, select.EPOLLIN)  # type: ignore[arg-type]
            elif peer.is_in:
                peer.send(_IDLE)
            heapq.heappush(self._due, (max(due_s, now_s) + self._heartbeat_s, index))


def main() -> None:
    """Read the endpoint and the names from stdin; be those bolts until all are told to end."""
    told = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[Endpoint, list[str]])
    _Crowd(*told).run()


if __name__ == "__main__":
    main()
