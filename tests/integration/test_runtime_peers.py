"""Who connects to a run: strangers, bolts of another run, peers that lie; and at which address."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fault_parts import PATIENCE_S, until
from lines_parts import Lines

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.core.messages import Ack, Fail, Heartbeat
from flowctl.ports import BoltNotice, Endpoint
from flowctl.wire.codec import FrameWriter
from flowctl.wire.handshake import hello_of, join_spout

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def _says_nothing(sock: socket.socket) -> None:
    del sock


def _talks_garbage(sock: socket.socket) -> None:
    sock.sendall(os.urandom(4096))


def _talks_http(sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: spout\r\n\r\n")


def _claims_a_huge_frame(sock: socket.socket) -> None:
    sock.sendall(b"\xff\xff\xff\xff" + b"x" * 1024)


@pytest.mark.parametrize(
    "behave", [_says_nothing, _talks_garbage, _talks_http, _claims_a_huge_frame]
)
def test_strangers_at_the_port_get_nothing_and_do_no_harm(
    lines: Lines, free_port: int, behave: Callable[[socket.socket], None]
) -> None:
    met = threading.Event()

    def load(batch: Batch) -> None:
        met.wait(PATIENCE_S)  # the run lasts until the strangers are done
        lines.load(batch)

    got = bytearray()

    def visit() -> None:
        try:
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", free_port), timeout=10) as sock:
                    behave(sock)
                    sock.settimeout(0.2)
                    with contextlib.suppress(OSError):
                        got.extend(sock.recv(65536))
        finally:
            met.set()

    stranger = threading.Thread(target=lambda: (until(lambda: _listens(free_port)), visit()))
    stranger.start()
    report = lines.run(LocalBolts(load, count=4), **{"listen.port": free_port})
    stranger.join()
    assert report.outcome == "finished"
    lines.assert_exact()
    text = lines.input.read_bytes()[:40]
    assert text not in bytes(got), "a stranger was given records"
    assert report.bolts_lost == 0


@pytest.mark.parametrize("any_address", ["0.0.0.0", "::"])
def test_listening_at_all_addresses_bolts_are_told_one_they_can_reach(
    lines: Lines, any_address: str
) -> None:
    if any_address == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    told: list[Endpoint] = []

    class Told(LocalBolts):
        def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
            told.append(endpoint)
            super().start(endpoint, notify)

    lines.run(Told(lines.load, count=2), **{"listen.host": any_address, "listen.tls": "off"})
    lines.assert_exact()
    assert [endpoint.host for endpoint in told] == ["127.0.0.1"]


def test_a_bolt_with_the_key_of_another_run_is_refused(lines: Lines, free_port: int) -> None:
    met = threading.Event()

    def load(batch: Batch) -> None:
        met.wait(PATIENCE_S)
        lines.load(batch)

    notices: list[BoltNotice] = []
    seen: list[Batch] = []

    def intrude() -> None:
        until(lambda: _listens(free_port))
        stranger = LocalBolts(seen.append, count=2)
        stranger.start(Endpoint("127.0.0.1", free_port, b"k" * 32, "lines"), notices.append)
        until(lambda: [n for n in notices if n.kind == "fatal"])
        stranger.stop(timeout_s=10)
        met.set()

    thread = threading.Thread(target=intrude)
    thread.start()
    report = lines.run(LocalBolts(load, count=2), **{"listen.port": free_port})
    thread.join()
    lines.assert_exact()
    assert seen == []
    assert report.bolts_lost == 0


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


LIES = {
    "no slots": None,  # said during the handshake
    "a record index far below": Fail(1, 1, "E", "", -1_000_000, False),
    "times that are none": Ack(1, 1, math.nan, 1e300, -1.0),
    "a tuple of another bolt": Ack(1, 1, 0.0, 0.0, 0.0),
    "no tuple at all": Ack(1 << 60, 1, 0.0, 0.0, 0.0),
    "fewer than no slots busy": Heartbeat(-7, 0),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_peer_with_the_key_that_lies_is_dropped_and_the_run_is_exact(
    lines: Lines, lie: Any
) -> None:
    """It calls itself b3, which the run expects and nobody else is."""
    lied = threading.Event()

    class AndALiar:
        count = 2
        names = ("b1", "b2", "b3")

        def __init__(self) -> None:
            self.honest = LocalBolts(load, count=2)

        def listen_host(self) -> str:
            return self.honest.listen_host()

        def start(self, endpoint: Endpoint, notify: Callable[[BoltNotice], None]) -> None:
            self.lying = threading.Thread(target=self.lie, args=(endpoint,))
            self.lying.start()
            self.honest.start(endpoint, notify)

        def stop(self, *, timeout_s: float) -> None:
            self.honest.stop(timeout_s=timeout_s)

        def lie(self, endpoint: Endpoint) -> None:
            try:
                given.wait(PATIENCE_S)  # tuple 1 is at another bolt
                hello = hello_of("b3", 1)
                if lie is None:
                    with pytest.raises(OSError):
                        join_spout(endpoint, msgspec.structs.replace(hello, slots=0))
                    return
                sock, _ = join_spout(endpoint, hello)
                with sock:
                    writer = FrameWriter(1 << 20)
                    writer.append(lie)
                    sock.sendall(writer.take())
                    with contextlib.suppress(OSError):
                        while sock.recv(65536):  # until we are thrown out
                            pass
            finally:
                lied.set()

    given = threading.Event()

    def load(batch: Batch) -> None:
        given.set()
        lied.wait(PATIENCE_S)
        lines.load(batch)

    bolts = AndALiar()
    report = lines.run(bolts)
    bolts.lying.join()
    assert report.outcome == "finished"
    lines.assert_exact()
    assert report.peers_dropped == report.bolts_lost == (lie is not None)
