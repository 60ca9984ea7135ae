"""The sink that all bolts share: a process, with the simulator's own sink driven in real time.

A request is four bytes, how many records; the answer, one byte, comes when it is through.

``python -m tests.benchmarks.control_sink SPEC``: prints its port, ends when its input ends.
"""

from __future__ import annotations

import socket
import sys
import time
from heapq import heappop
from pathlib import Path
from select import select
from typing import Any

import msgspec

from flowctl_lab.simulation.loop import EventLoop
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.scenario import Sink
from flowctl_lab.simulation.sink import SharedSink
from tests.benchmarks.control_trace import COUNT, start_s

_SLEEP_MAX_S = 1.0  # with nothing to do; any number


class SinkSpec(msgspec.Struct, frozen=True):
    """``place``: the folder with the common time 0."""

    sink: Sink
    place: str


class RealTime(EventLoop):
    """Virtual time that follows the clock: what is due happens, at the time it was due."""

    __slots__ = ()

    def due_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def catch_up(self, now_s: float) -> None:
        # Not run(): that drops the event after the last one it is asked for.
        while self._heap and self._heap[0][0] <= now_s:
            self.now_s, _, handler, first, second = heappop(self._heap)
            handler(self.now_s, first, second)
        self.now_s = max(self.now_s, now_s)


class _Server:
    """One thread; each connection has one request at a time."""

    def __init__(self, spec: SinkSpec) -> None:
        self._place = Path(spec.place)
        self._loop = RealTime()
        self._sink = SharedSink(self._loop, spec.sink)
        self._start_s: float | None = None
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._bolts: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def _now_s(self) -> float:
        if self._start_s is None:
            self._start_s = start_s(self._place)
        return time.monotonic() - (self._start_s or 0.0)

    def run(self) -> None:
        """Until the input ends."""
        while True:
            due_s = self._loop.due_s()
            wait_s = _SLEEP_MAX_S if due_s is None else due_s - self._now_s()
            waiting: list[Any] = [sys.stdin, self._listener, *self._bolts]
            for ready in select(waiting, [], [], max(0.0, wait_s))[0]:
                if ready is sys.stdin:
                    return
                if ready is self._listener:
                    bolt = self._listener.accept()[0]
                    bolt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._bolts.append(bolt)
                else:
                    self._take(ready)
            if self._bolts:  # before the first request there is no time 0
                self._loop.catch_up(self._now_s())

    def _take(self, bolt: socket.socket) -> None:
        request = bolt.recv(COUNT.size)
        if not request:
            self._bolts.remove(bolt)
            return
        (count,) = COUNT.unpack(request)

        def done(at_s: float, _: Any, __: Any) -> None:
            bolt.sendall(b".")

        now_s = self._now_s()
        self._loop.catch_up(now_s)
        self._sink.enter(now_s, Sending(0, 0, 1, 0, count), done)


def main(spec: str) -> None:
    """Be the sink."""
    server = _Server(msgspec.json.decode(spec, type=SinkSpec))
    print(server.port, flush=True)
    server.run()


if __name__ == "__main__":
    main(sys.argv[1])
