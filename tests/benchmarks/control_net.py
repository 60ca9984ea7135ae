"""A network that is worse than loopback: a process between the bolts and their spout.

It passes bytes on after a delay and in their order, holds what bolts say for a while, or takes
tuples out of the stream.  The kernel could do the first two better, but only for root.

``python -m tests.benchmarks.control_net SPEC``: prints its port, ends when its input ends.
"""

from __future__ import annotations

import math
import socket
import sys
import time
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from select import select
from typing import Any, Final

import msgspec

from flowctl.ports import BoltNotice, Bolts, Endpoint
from flowctl.wire.auth import MAGIC, NONCE_BYTES, PROOF_BYTES
from flowctl.wire.codec import LENGTH, LENGTH_BYTES, decode_frame, decoder_of
from flowctl.wire.frames import Hello
from flowctl_lab.simulation.scenario import Scenario
from tests.benchmarks.control_child import Child

_RECEIVE_BYTES: Final = 256 << 10
_PROOF_SIZE: Final = len(MAGIC) + NONCE_BYTES + PROOF_BYTES  # before the first frame, each way
_TUPLE_TAG: Final = 3  # of an Emission
_SLEEP_MAX_S: Final = 1.0  # with nothing to do; any number


class NetSpec(msgspec.Struct, frozen=True):
    """What the network does to the traffic with the spout at ``port``."""

    port: int
    scenario: Scenario
    seed: int


def is_needed(scenario: Scenario) -> bool:
    """Whether loopback is not what ``scenario`` asks for: 1 ms one way is taken to be that."""
    far = scenario.one_way_s > 0.001 or scenario.jitter_s > 0
    return far or scenario.ack_flush_s > 0 or scenario.loss is not None


class BehindNetwork:
    """``bolts`` that reach their spout through such a network only (``flowctl.ports.Bolts``)."""

    def __init__(self, bolts: Bolts, scenario: Scenario, seed: int) -> None:
        self.count = bolts.count
        self._bolts = bolts
        self._scenario = scenario
        self._seed = seed
        self._network: Child | None = None

    def listen_host(self) -> str:
        return self._bolts.listen_host()

    def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
        spec = NetSpec(endpoint.port, self._scenario, self._seed)
        self._network = Child("tests.benchmarks.control_net", spec)
        there = msgspec.structs.replace(endpoint, host="127.0.0.1", port=self._network.port)
        self._bolts.start(there, notify)

    def stop(self, *, timeout_s: float) -> None:
        self._bolts.stop(timeout_s=timeout_s)
        if self._network is not None:
            self._network.close()


class Losses:
    """Which tuples get lost on the way to one bolt; its name is in the first frame it sends."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._loss = scenario.loss
        self._seed = seed
        self._from_bolt = bytearray()
        self._to_bolt = bytearray()
        self._is_proven = False
        self._is_known = self._loss is None
        self._share = 0.0
        self._rng = Random()

    def note(self, data: bytes) -> None:
        """Look at what the bolt says until its name is known."""
        if self._is_known:
            return
        self._from_bolt += data
        frame = bytes(self._from_bolt[_PROOF_SIZE:])
        if len(frame) < LENGTH_BYTES:
            return
        (length,) = LENGTH.unpack_from(frame)
        if len(frame) >= LENGTH_BYTES + length:
            body = frame[LENGTH_BYTES : LENGTH_BYTES + length]
            self._is_known = True
            self._begin(int(decode_frame(decoder_of(Hello), body).bolt[1:]) - 1)

    def _begin(self, bolt: int) -> None:
        assert self._loss is not None
        self._share = self._loss.share if bolt in self._loss.bolts else 0.0
        self._rng = Random(f"bolt {self._seed} {bolt}")  # as the simulated bolt's,
        self._rng.random()  # which draws the time of its first heartbeat first

    def left_of(self, data: bytes) -> bytes:
        """What the bolt gets of what the spout sends."""
        if self._loss is None:
            return data
        self._to_bolt += data
        left = bytearray()
        if not self._is_proven:
            if len(self._to_bolt) < _PROOF_SIZE:
                return b""
            left += self._take(_PROOF_SIZE)
            self._is_proven = True
        while len(self._to_bolt) >= LENGTH_BYTES:
            size = LENGTH_BYTES + LENGTH.unpack_from(self._to_bolt)[0]
            if len(self._to_bolt) < size:
                break
            frame = self._take(size)
            # A frame is an array of less than 16: one byte, then its tag.
            if frame[LENGTH_BYTES + 1] != _TUPLE_TAG or not self._is_lost():
                left += frame
        return bytes(left)

    def _is_lost(self) -> bool:
        return self._share > 0 and self._rng.random() < self._share

    def _take(self, size: int) -> bytes:
        taken = bytes(self._to_bolt[:size])
        del self._to_bolt[:size]
        return taken


class _Pipe:
    """One direction of one connection."""

    def __init__(self, target: socket.socket, rng: Random, spec: Scenario, flush_s: float) -> None:
        self.target = target
        self._rng = rng
        self._scenario = spec
        self._flush_s = flush_s
        self._last_s = 0.0

    def due_s(self, now_s: float) -> float:
        """When what was sent now arrives."""
        if self._flush_s:
            now_s = math.ceil(now_s / self._flush_s) * self._flush_s
        delay_s = self._scenario.one_way_s + self._rng.random() * self._scenario.jitter_s
        self._last_s = max(self._last_s, now_s + delay_s)
        return self._last_s


class _Network:
    """All connections, driven by one thread."""

    def __init__(self, spec: NetSpec) -> None:
        self._spec = spec
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._pipes: dict[socket.socket, tuple[_Pipe, Callable[[bytes], bytes]]] = {}
        self._way: list[tuple[float, int, socket.socket, bytes]] = []
        self._order = 0
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        """Until the input ends."""
        while True:
            wait_s = self._way[0][0] - time.monotonic() if self._way else _SLEEP_MAX_S
            waiting: list[Any] = [sys.stdin, self._listener, *self._pipes]
            for ready in select(waiting, [], [], max(0.0, wait_s))[0]:
                if ready is sys.stdin:
                    return
                if ready is self._listener:
                    self._join(self._listener.accept()[0])
                else:
                    self._receive(ready)
            self._deliver(time.monotonic())

    def _join(self, bolt: socket.socket) -> None:
        scenario, seed = self._spec.scenario, self._spec.seed
        spout = socket.create_connection(("127.0.0.1", self._spec.port))
        losses = Losses(scenario, seed)

        def noted(data: bytes) -> bytes:
            losses.note(data)
            return data

        rng = Random(f"net {seed} 0 {len(self._pipes) // 2}")
        for sock in (bolt, spout):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pipes[spout] = _Pipe(bolt, rng, scenario, 0.0), losses.left_of
        self._pipes[bolt] = _Pipe(spout, rng, scenario, scenario.ack_flush_s), noted

    def _receive(self, source: socket.socket) -> None:
        pipe, passing = self._pipes[source]
        try:
            data = source.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            del self._pipes[source]  # its end travels as the data does
        elif not (data := passing(data)):
            return
        self._order += 1
        heappush(self._way, (pipe.due_s(time.monotonic()), self._order, pipe.target, data))

    def _deliver(self, now_s: float) -> None:
        while self._way and self._way[0][0] <= now_s:
            _, _, target, data = heappop(self._way)
            try:
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_WR)
            except OSError:  # it is gone, which the other side hears from its own end
                continue


def main(spec: str) -> None:
    """Be the network."""
    network = _Network(msgspec.json.decode(spec, type=NetSpec))
    print(network.port, flush=True)
    network.run()


if __name__ == "__main__":
    main(sys.argv[1])
