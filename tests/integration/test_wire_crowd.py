"""Many bolts at once: all come in, and nobody counts as silent whose words wait to be read."""

from __future__ import annotations

import selectors
import socket
import threading
import time

import pytest
from wire_peers import spout

from flowctl.core.messages import Ack
from flowctl.wire import auth, handshakes, server
from flowctl.wire.codec import FrameWriter
from flowctl.wire.handshake import hello_of, join_spout

CROWD = 150


def _join_all(s, names):
    """Let bolts of these names join, all at once; return their sockets."""
    joined: dict[str, socket.socket] = {}

    def join(name: str) -> None:
        joined[name] = join_spout(s.endpoint, hello_of(name, 1))[0]

    threads = [threading.Thread(target=join, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    s.until(lambda: len(joined) == len(names))
    return joined


def test_a_crowd_joins_and_nobody_is_sent_away():
    with spout() as s:
        names = [f"b{number}" for number in range(CROWD)]
        sockets = _join_all(s, names)
        assert {m.bolt for m in s.inbound} == set(names)
        assert s.server.rejected == 0
        assert not s.server.handshakes.running  # no thread for any of them
        for sock in sockets.values():
            sock.close()


def test_what_waits_to_be_read_is_not_heard_yet(monkeypatch):
    with spout() as s:
        sockets = _join_all(s, ["b1", "b2", "b3"])
        while s.poll(0.05):
            pass
        monkeypatch.setattr(server, "_FRAMES_PER_POLL", 1)
        writer = FrameWriter(1 << 20)
        writer.append(Ack(1, 1, 0.0, 0.0, 0.0))
        for sock in sockets.values():
            sock.sendall(writer.outbox)
        time.sleep(0.01)
        said_s = time.monotonic()
        assert [m.bolt for m in s.poll(5)] != []
        assert s.server.heard_until_s < said_s  # two are not read
        assert len(s.poll(5)) == 1
        assert s.server.heard_until_s < said_s
        assert len(s.poll(5)) == 1
        assert s.server.heard_until_s >= said_s
        assert sorted(s.acks("b1") + s.acks("b2") + s.acks("b3")) == [1, 1, 1]
        for sock in sockets.values():
            sock.close()


def test_a_bolt_that_is_replaced_between_two_polls_is_not_read_again(monkeypatch):
    with spout() as s:
        sockets = _join_all(s, ["b1", "b2"])
        while s.poll(0.05):
            pass
        monkeypatch.setattr(server, "_FRAMES_PER_POLL", 1)
        writer = FrameWriter(1 << 20)
        writer.append(Ack(1, 1, 0.0, 0.0, 0.0))
        for sock in sockets.values():
            sock.sendall(writer.outbox)
        time.sleep(0.01)
        (first,) = s.poll(5)
        other = {"b1": "b2", "b2": "b1"}[first.bolt]
        s.server.drop_bolt(other)
        assert s.poll(0) == []
        for sock in sockets.values():
            sock.close()


@pytest.fixture
def waiting(monkeypatch):
    """One place, which is taken for longer than patience lasts: both ends, reasons."""
    monkeypatch.setattr(handshakes, "_PLACES", 1)
    monkeypatch.setattr(handshakes, "_PLACES_MOST", 1)
    monkeypatch.setattr(handshakes, "_PATIENCE_S", 0.0)
    reasons: list[str] = []
    with selectors.DefaultSelector() as selector:
        waits = handshakes.PendingHandshakes(
            selector, reasons.append, key=b"k" * auth.KEY_BYTES, tls=False
        )
        ours, theirs = socket.socketpair()
        waits.add(ours)
        yield waits, theirs, reasons
        waits.close()
        theirs.close()


def test_who_has_spoken_is_not_sent_away_because_we_have_not_read_it(waiting):
    waits, theirs, reasons = waiting
    theirs.sendall(auth.MAGIC + b"n" * auth.NONCE_BYTES)
    assert not waits.make_room()  # it was answered instead
    assert reasons == []
    assert theirs.recv(8) == auth.MAGIC
    assert waits.make_room()  # and now it says nothing
    assert reasons == ["too many handshakes are pending"]


def test_a_drip_of_bytes_is_no_reason_to_stay(waiting):
    waits, theirs, reasons = waiting
    theirs.sendall(auth.MAGIC[:3])
    assert waits.make_room()
    assert reasons == ["too many handshakes are pending"]
