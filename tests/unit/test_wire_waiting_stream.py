"""A bolt's end of a connection: it can be waited on, and nothing else about it blocks."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from flowctl.wire import stream
from flowctl.wire.stream import WaitingStream, waiting_stream_of

Pair = tuple[WaitingStream, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    bolt = waiting_stream_of(ours, tls=False)
    yield bolt, theirs
    bolt.close()
    theirs.close()


def test_a_wait_ends_with_bytes_or_the_end_of_the_stream(pair: Pair) -> None:
    bolt, spout = pair
    buffer = memoryview(bytearray(10))
    spout.send(b"tuple")
    assert bolt.await_into(buffer) == 5
    assert buffer[:5] == b"tuple"
    spout.close()
    assert bolt.await_into(buffer) == 0


def test_a_wait_in_vain_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AWAIT_S", 0.001)
    ours, theirs = socket.socketpair()
    with theirs:
        bolt = waiting_stream_of(ours, tls=False)
        assert bolt.await_into(memoryview(bytearray(10))) is None
        bolt.close()


def test_a_wait_ends_when_the_connection_is_shut_down(pair: Pair) -> None:
    bolt, _ = pair
    bolt.shutdown(socket.SHUT_RDWR)
    assert bolt.await_into(memoryview(bytearray(10))) == 0


def test_to_receive_and_to_send_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "AWAIT_S", 3_600)  # far longer than a test may take
    ours, theirs = socket.socketpair()
    with theirs:
        bolt = waiting_stream_of(ours, tls=False)
        assert bolt.recv_into(memoryview(bytearray(10))) is None
        while bolt.send(bytearray(1 << 20)):  # until the kernel takes no more
            pass
        assert theirs.recv(10) == bytes(10)
        bolt.close()
