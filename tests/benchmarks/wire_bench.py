"""The wire against a bare pyzmq ROUTER/DEALER pair: ``python -m tests.benchmarks wire``.

12 bolts are processes of their own with a ``process`` that does nothing; the driver keeps a
fixed window full and tracks what is in flight in a dict.  pyzmq does the same with the same
payload and the same number in flight per worker, answering with 40 bytes, as our bolts do, or
with the payload (``--echo``).  The arms alternate, medians are compared: of tuples a second, and
of the CPU that driver and bolts together spend on a tuple, which a busy machine spoils less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from flowctl.bolts.worker import run_bolt
from flowctl.config import ListenSettings
from flowctl.core.messages import Ack, Emission, End
from flowctl.core.records import Record
from flowctl.ports import Endpoint
from flowctl.wire.auth import KEY_BYTES
from flowctl.wire.server import Inbound, Joined, Received, RunTerms, SpoutServer

_SPAWN = multiprocessing.get_context("spawn")
_ACK = b"a" * 40  # as long as an Ack
_WARM_UP_S = 0.5
# What is asked of ours, of pyzmq's tuples a second with the same window: issue 10.
GATES = {2: 0.8, 16: 1.0, 64: 1.0}


class Rate(NamedTuple):
    """Of one run; ``cpu_s``: of the driver and all bolts, a tuple."""

    per_s: float
    cpu_s: float


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
def _processes(
    target: Callable[..., None], arguments: list[tuple[Any, ...]]
) -> Iterator[list[int]]:
    running = [_SPAWN.Process(target=target, args=a, daemon=True) for a in arguments]
    for process in running:
        process.start()
    try:
        yield [os.getpid(), *(process.pid or 0 for process in running)]
    finally:
        for process in running:
            process.join(5)
            process.kill()


def _cpu_s(pids: Sequence[int]) -> float:
    """CPU time of these processes so far, all threads."""
    total_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # it ended meanwhile
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


class _Stopwatch:
    """Counts from half a second after all bolts are there, for ``seconds``."""

    pids: Sequence[int] = ()

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
            self._cpu_before_s = _cpu_s(self.pids)
        self._now_s = now_s
        return now_s < self._end_s

    def rate(self, done: int) -> Rate:
        """To be called when the last tuple is counted."""
        tuples = done - self._done_before
        cpu_s = _cpu_s(self.pids) - self._cpu_before_s
        return Rate(tuples / (self._now_s - self._begin_s), cpu_s / tuples)


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
            acks = [frame for frame in message.frames if isinstance(frame, Ack)]
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
        self._server.send(bolt, Emission(self._next_id, bolt, 1, "p", self._records, None, 0))
        self._next_id += 1


def flowctl_rate(records: list[Record], *, bolts: int, window: int, seconds: float) -> Rate:
    """Tuples acked."""
    server = SpoutServer(
        ListenSettings(),
        RunTerms("bench", 1, secrets.token_bytes(KEY_BYTES), heartbeat_s=0.25),
        host="127.0.0.1",
    )
    spout = _Spout(server, records, window)
    watch = _Stopwatch(bolts, seconds)
    names = [f"b{number}" for number in range(1, bolts + 1)]
    with _processes(_bolt, [(server.endpoint, name) for name in names]) as watch.pids:
        while watch.runs(spout.acked):
            for message in server.poll(0.1):
                spout.take(message, watch)
            server.flush()
        rate = watch.rate(spout.acked)
        for name in names:
            server.send(name, End(name))
            server.close_bolt(name)
        server.close()
    return rate


def pyzmq_rate(
    payload: bytes, *, bolts: int, window: int, seconds: float, answer: bytes | None = _ACK
) -> Rate:
    """Answers; with ``answer`` None echoes of the payload."""
    import zmq

    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.RCVHWM, 0)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    names = [f"b{number}" for number in range(1, bolts + 1)]
    echoed = 0
    watch = _Stopwatch(bolts, seconds)
    with _processes(_echo, [(port, name, answer) for name in names]) as watch.pids:
        while watch.runs(echoed):
            identity, body = router.recv_multipart()
            if body == b"ready":
                watch.missing -= 1
                for _ in range(window):
                    router.send_multipart((identity, payload))
            else:
                echoed += 1
                router.send_multipart((identity, payload))
        rate = watch.rate(echoed)
        for name in names:
            router.send_multipart((name.encode(), b"END"))
    context.destroy(linger=1000)
    return rate


def pyzmq_tuples_per_s(payload: bytes, *, bolts: int, window: int, seconds: float) -> float:
    """Tuples a second that are answered with an ack of 40 bytes."""
    return pyzmq_rate(payload, bolts=bolts, window=window, seconds=seconds).per_s


def main(arguments: Sequence[str] = ()) -> int:
    """Print the figures and the ratios; 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks wire", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bolts", type=int, default=12)
    parser.add_argument("--windows", type=int, nargs="*", default=list(GATES))
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--records", type=int, default=1, help="in a tuple")
    parser.add_argument("--echo", action="store_true", help="pyzmq sends the payload back")
    args = parser.parse_args(arguments)
    records = [Record(number, b"x" * args.bytes) for number in range(args.records)]
    payload = b"x" * (args.bytes * args.records)
    common = {"bolts": args.bolts, "seconds": args.seconds}
    answer = None if args.echo else _ACK
    ok = True
    for window in args.windows:
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(flowctl_rate(records, window=window, **common))
            theirs.append(pyzmq_rate(payload, window=window, answer=answer, **common))
        ok = _print(window, ours, theirs) and ok
    return 0 if ok else 1


def _print(window: int, ours: Sequence[Rate], theirs: Sequence[Rate]) -> bool:
    per_s = median(r.per_s for r in ours), median(r.per_s for r in theirs)
    cpu_s = median(r.cpu_s for r in ours), median(r.cpu_s for r in theirs)
    # The cores are full in both arms, so what a tuple costs is what decides.
    ratio, gate = cpu_s[1] / cpu_s[0], GATES.get(window, 0.0)
    missed = "" if ratio >= gate else ": MISSED"
    print(
        f"window {window:3}: {per_s[0]:8,.0f} tuples/s, pyzmq {per_s[1]:8,.0f}, ratio"
        f" {per_s[0] / per_s[1]:.2f}; {1e6 * cpu_s[0]:5.1f} us of CPU a tuple, pyzmq"
        f" {1e6 * cpu_s[1]:5.1f}, ratio {ratio:.2f} (gate {gate}{missed})",
        flush=True,
    )
    return ratio >= gate


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
