"""Many bolts in one process, for benchmarks: they speak the wire and process nothing.

One loop over all connections, so that a machine with few cores can play thousands of bolts and
still leave a core to the driver.  Each joins as a bolt does (the same proof, the same pauses when
it is turned away), sends heartbeats, and acks what one read brings with one write.  Of ranges each
works on one, as long as its records take, with the claims and reports of a bolt.
"""

from __future__ import annotations

import heapq
import secrets
import select
import socket
import sys
import time
from collections import deque
from typing import Any, Final

import msgspec

from flowctl.bolts.range_claims import RangeClaims
from flowctl.core.messages import (
    Ack,
    Emission,
    End,
    Heartbeat,
    Processed,
    Progress,
    RangeEmission,
    Revoke,
    Revoked,
    Split,
    SplitAnswer,
)
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
_DIALS_AT_ONCE: Final = 32  # then it answers: bolts on hosts of their own need not wait either
_BATCH_S: Final = 0.15  # as bolts/range_pace.py, or as long as is between two reports


class _Ranges:
    """The ranges of one bolt, the first of which it works on: ``record_s`` [s] a record."""

    def __init__(self, record_s: float, report_s: float) -> None:
        self._record_s = record_s
        self._report_s = report_s
        self._held: deque[tuple[RangeEmission, RangeClaims]] = deque()
        self._finished: dict[int, RangeClaims] = {}
        self._began_s: float | None = None  # its batch, if one is under way

    def beat(self) -> bytes:
        held = len(self._held)
        return _framed(Heartbeat(busy_slots=1, queued=held - 1)) if held else _IDLE

    def take(self, frame: RangeEmission) -> None:
        self._held.append((frame, RangeClaims(frame.start, frame.stop, self._report_s)))

    def split(self, asked: Split) -> SplitAnswer:
        by_id = {frame.tuple_id: claims for frame, claims in self._held} | self._finished
        claims = by_id.get(asked.tuple_id)
        stop = claims.split(asked.request, asked.keep) if claims is not None else 0
        return SplitAnswer(asked.tuple_id, asked.request, stop)

    def step(self, now_s: float, *, is_due: bool) -> tuple[bytes, float | None]:
        """End the batch if ``is_due``, and begin one.

        Returns the report on it, and when the new batch ends, if one was begun.
        """
        report = b""
        if is_due and self._began_s is not None:
            report = self._end(now_s)
        while self._held and self._held[0][1].is_finished:
            frame, claims = self._held.popleft()
            self._finished[frame.tuple_id] = claims
        if self._began_s is not None or not self._held:
            return report, None
        claims = self._held[0][1]
        batch_s = max(_BATCH_S, self._report_s)
        records = max(1, round(batch_s / self._record_s)) if self._record_s else 1 << 30
        claims.claim(claims.settled + records)
        self._began_s = now_s
        return report, now_s + (claims.claimed - claims.settled) * self._record_s

    def _end(self, now_s: float) -> bytes:
        frame, claims = self._held[0]
        assert self._began_s is not None
        service_s, self._began_s = now_s - self._began_s, None
        claims.done(Processed(claims.claimed - claims.settled, 0.0, 0.0, service_s))
        told = claims.progress(now_s, at_once=claims.is_finished)
        if told is None:
            return b""
        return _framed(Progress(frame.tuple_id, frame.attempt, told[0], told[1], 0.0, told[2]))


class _Peer:
    """One bolt."""

    def __init__(self, endpoint: Endpoint, name: str, record_s: float) -> None:
        self.name = name
        self._endpoint = endpoint
        self.ranges = _Ranges(record_s, endpoint.report_s)
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
        decoder = decoder_of(Welcome | Emission | RangeEmission | Split | Revoke | End)
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
            if isinstance(frame, RangeEmission):
                self.ranges.take(frame)
            elif isinstance(frame, Split):
                answers += _framed(self.ranges.split(frame))
            elif isinstance(frame, Emission):
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
    def __init__(self, endpoint: Endpoint, names: list[str], record_s: float = 0.0) -> None:
        self._heartbeat_s = endpoint.heartbeat_s
        self._peers = [_Peer(endpoint, name, record_s) for name in names]
        self._index_of = {peer: index for index, peer in enumerate(self._peers)}
        self._batches: list[tuple[float, int]] = []  # when a batch ends, and whose
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
            next_s = min(due[0][0] for due in (self._due, self._batches) if due)
            wait_s = max(0.0, next_s - time.monotonic())
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
            self._work(peer, time.monotonic(), is_due=False)
            return True
        del self._by_fd[peer.sock.fileno()]
        self._poll.unregister(peer.sock)
        peer.sock.close()
        peer.sock = None
        if peer.is_in:
            return False
        due_s = time.monotonic() + peer.pause_s()
        heapq.heappush(self._due, (due_s, self._index_of[peer]))
        return True

    def _work(self, peer: _Peer, now_s: float, *, is_due: bool) -> None:
        report, ends_s = peer.ranges.step(now_s, is_due=is_due)
        if report and peer.sock is not None:
            peer.send(report)
        if ends_s is not None:
            heapq.heappush(self._batches, (ends_s, self._index_of[peer]))

    def _look_at_clock(self) -> None:
        now_s = time.monotonic()
        while self._batches and self._batches[0][0] <= now_s:
            _, index = heapq.heappop(self._batches)
            self._work(self._peers[index], now_s, is_due=True)
        dialed = 0
        while self._due and self._due[0][0] <= now_s and dialed < _DIALS_AT_ONCE:
            due_s, index = heapq.heappop(self._due)
            peer = self._peers[index]
            if peer.sock is None:
                if peer.is_in:
                    continue
                peer.dial()
                dialed += 1
                self._by_fd[peer.sock.fileno()] = peer  # type: ignore[attr-defined]
                self._poll.register(peer.sock, select.EPOLLIN)  # type: ignore[arg-type]
            elif peer.is_in:
                peer.send(peer.ranges.beat())
            heapq.heappush(self._due, (max(due_s, now_s) + self._heartbeat_s, index))


def main() -> None:
    """Read the endpoint and the names from stdin; be those bolts until all are told to end."""
    told = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[Endpoint, list[str], float])
    _Crowd(*told).run()


if __name__ == "__main__":
    main()
