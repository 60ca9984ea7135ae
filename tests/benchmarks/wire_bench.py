"""The wire against a bare pyzmq ROUTER/DEALER echo, in the same run.

    python tests/benchmarks/wire_bench.py [--seconds 3] [--bolts 12] [--window 64]

12 bolts are processes of their own with a ``process`` that does nothing; the driver keeps a
fixed window full and tracks what is in flight in a dict.  pyzmq does the same with the same
payload and the same number in flight per worker; its "ack" rows answer with 40 bytes, as our
bolts do, instead of echoing the payload.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flowctl.bolts.worker import run_bolt
from flowctl.config import ListenSettings
from flowctl.core.records import Record
from flowctl.ports import Endpoint
from flowctl.wire.auth import KEY_BYTES
from flowctl.wire.frames import AckFrame, End, TupleFrame
from flowctl.wire.server import Inbound, Joined, Received, SpoutServer
from flowctl.wire.terms import RunTerms

_SPAWN = multiprocessing.get_context("spawn")
_ACK = b"a" * 40  # as long as an AckFrame
_WARM_UP_S = 0.5


def _nothing(batch: Any) -> None:
    pass


def _bolt(endpoint: Endpoint, name: str) -> None:
    run_bolt(endpoint, name, _nothing)


def _echo(port: int, name: str, answer: bytes | None) -> None:
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name.encode())
    socket.connect(f"tcp://127.0.0.1:{port}")
    socket.send(b"ready")
    while (payload := socket.recv()) != b"END":
        socket.send(answer or payload)
    context.destroy(linger=0)


@contextmanager
def _processes(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> Iterator[None]:
    running = [_SPAWN.Process(target=target, args=a, daemon=True) for a in arguments]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.join(5)
            process.kill()


class _Stopwatch:
    """Counts from half a second after all bolts are there, for ``seconds``."""

    def __init__(self, bolts: int, seconds: float) -> None:
        self.missing = bolts
        self._seconds = seconds
        self._begin_s = self._end_s = float("inf")
        self._done_before = 0

    def runs(self, done: int) -> bool:
        now_s = time.monotonic()
        if not self.missing and self._begin_s == float("inf"):
            self._begin_s = now_s + _WARM_UP_S
        if now_s >= self._begin_s and self._end_s == float("inf"):
            self._begin_s, self._end_s, self._done_before = now_s, now_s + self._seconds, done
        self._now_s = now_s
        return now_s < self._end_s

    def per_s(self, done: int) -> float:
        return (done - self._done_before) / (self._now_s - self._begin_s)


class _Spout:
    """The least that a driver must do: keep windows full, know what is in flight and since when."""

    def __init__(self, server: SpoutServer, records: list[Record], window: int) -> None:
        self._server = server
        self._records = records
        self._window = window
        self._next_id = 0
        self._in_flight: dict[int, tuple[str, float]] = {}
        self.acked = 0

    def take(self, message: Inbound, watch: _Stopwatch) -> None:
        if isinstance(message, Received):
            acks = [frame for frame in message.frames if isinstance(frame, AckFrame)]
            for ack in acks:
                self._in_flight.pop(ack.tuple_id)
                self._emit(message.bolt)
            self.acked += len(acks)
        elif isinstance(message, Joined):
            watch.missing -= 1
            for _ in range(self._window):
                self._emit(message.bolt)

    def _emit(self, bolt: str) -> None:
        self._in_flight[self._next_id] = (bolt, time.monotonic())
        self._server.send(bolt, TupleFrame(self._next_id, 1, "p", None, self._records))
        self._next_id += 1


def flowctl_tuples_per_s(
    records: list[Record], *, bolts: int, window: int, seconds: float
) -> float:
    """Tuples acked per second."""
    server = SpoutServer(
        ListenSettings(),
        RunTerms("bench", 1, secrets.token_bytes(KEY_BYTES), heartbeat_s=0.25),
        host="127.0.0.1",
    )
    spout = _Spout(server, records, window)
    watch = _Stopwatch(bolts, seconds)
    names = [f"b{number}" for number in range(1, bolts + 1)]
    with _processes(_bolt, [(server.endpoint, name) for name in names]):
        while watch.runs(spout.acked):
            for message in server.poll(0.1):
                spout.take(message, watch)
            server.flush()
        for name in names:
            server.send(name, End())
            server.close_bolt(name)
        server.close()
    return watch.per_s(spout.acked)


def pyzmq_tuples_per_s(
    payload: bytes, *, bolts: int, window: int, seconds: float, answer: bytes | None = None
) -> float:
    """Echoes per second."""
    import zmq

    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.RCVHWM, 0)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    names = [f"b{number}" for number in range(1, bolts + 1)]
    echoed = 0
    watch = _Stopwatch(bolts, seconds)
    with _processes(_echo, [(port, name, answer) for name in names]):
        while watch.runs(echoed):
            identity, body = router.recv_multipart()
            if body == b"ready":
                watch.missing -= 1
                for _ in range(window):
                    router.send_multipart((identity, payload))
            else:
                echoed += 1
                router.send_multipart((identity, payload))
        for name in names:
            router.send_multipart((name.encode(), b"END"))
    context.destroy(linger=1000)
    return watch.per_s(echoed)


def main() -> None:
    """Print the figures and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--bolts", type=int, default=12)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--ours-only", action="store_true")
    args = parser.parse_args()
    common = {"bolts": args.bolts, "seconds": args.seconds}
    sizes = [
        ("100 B", 100, 1, args.window),
        ("64 KB", 65_536, 1, 16),
        ("1000 x 100 B", 100, 1000, 8),
    ]
    for name, size, count, window in sizes:
        records = [Record(number, b"x" * size) for number in range(count)]
        ours = flowctl_tuples_per_s(records, window=window, **common)
        line = f"{name:>13} window {window:3}: flowctl {ours:9.0f} tuples/s"
        line += f" {ours * count:11.0f} records/s {ours * count * size / 1e6:7.0f} MB/s"
        if not args.ours_only:
            payload = b"x" * (size * count)
            for label, answer in (("echo", None), ("ack", _ACK)):
                theirs = pyzmq_tuples_per_s(payload, window=window, answer=answer, **common)
                line += f" | pyzmq {label} {theirs:8.0f}/s, ratio {ours / theirs:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
