"""Who does not belong here: nobody gets in, nobody is held up."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import msgspec
import pytest
from structlog.testing import capture_logs
from wire_peers import ThreadBolt, spout, tuple_of

from flowctl.errors import AuthenticationError, EnvironmentFault, WireError
from flowctl.wire import auth, frames, handshake, reception
from flowctl.wire.codec import LENGTH, FrameWriter
from flowctl.wire.frames import AckFrame, Hello
from flowctl.wire.handshake import hello_of


def _connect(s) -> socket.socket:
    return socket.create_connection((s.endpoint.host, s.endpoint.port), timeout=20)


def _authenticated(s) -> socket.socket:
    """A peer that proved the key and has not said Hello."""
    sock = _connect(s)
    proving = threading.Thread(
        target=auth.prove_as_bolt,
        args=(sock, s.endpoint.key),
        kwargs={"deadline_s": time.monotonic() + 20},
    )
    proving.start()
    s.until(lambda: not proving.is_alive())
    return sock


def _frame(frame: msgspec.Struct) -> bytes:
    writer = FrameWriter(1 << 20)
    writer.append(frame)
    return bytes(writer.take())


def _works(s, bolt: str) -> None:
    """A bolt comes in and works, now."""
    running = ThreadBolt(s.endpoint, bolt, lambda batch: None)
    s.until(lambda: s.joined(bolt))
    s.send(bolt, tuple_of(1))
    s.until(lambda: s.acks(bolt) == [1])
    s.end(bolt)
    running.wait()


@pytest.mark.parametrize("use_tls", ["off", "on"])
@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
        auth.MAGIC + b"\x01" * (auth.NONCE_BYTES + auth.PROOF_BYTES),
        _frame(Hello(frames.PROTOCOL_VERSION, "b1", 1, 1, "x")),
        b"\xff" * 100_000,
    ],
)
def test_a_stranger_is_turned_away(said, use_tls):
    with spout(tls=use_tls) as s, _connect(s) as stranger:
        stranger.sendall(said)
        s.until(lambda: s.server.rejected == 1)
        try:
            while stranger.recv(1000):
                pass
        except ConnectionResetError:
            pass
        assert s.inbound == []
        _works(s, "b1")


def test_a_bolt_with_another_runs_key_gives_up_with_a_reason():
    with spout() as s:
        wrong = msgspec.structs.replace(s.endpoint, key=auth.new_key())
        bolt = ThreadBolt(wrong, "b1", lambda batch: None)
        s.until(lambda: s.server.rejected == 1)
        with pytest.raises(AuthenticationError) as caught:
            bolt.wait()
        assert caught.value.remedy
        assert s.inbound == []


def test_a_crowd_that_says_nothing_does_not_keep_a_bolt_out(monkeypatch):
    monkeypatch.setattr(reception, "HANDSHAKE_TIMEOUT_S", 600)  # nobody leaves by himself
    with spout() as s:
        # More than the door holds at once: those who dawdle are sent away for the next.
        crowd = [_connect(s) for _ in range(reception._GUESTS_MAX + 20)]
        _works(s, "b1")
        for stranger in crowd:
            stranger.close()
        s.until(lambda: s.server.rejected == len(crowd))


@pytest.mark.parametrize("use_tls", ["off", "on"])
def test_a_stranger_who_sits_there_is_sent_away(use_tls, monkeypatch):
    monkeypatch.setattr(reception, "HANDSHAKE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT_S", 0.2)
    with spout(tls=use_tls) as s, _connect(s) as silent, _connect(s) as dripping:

        def drip() -> bool:
            if s.server.rejected < 2:
                with contextlib.suppress(OSError):
                    dripping.send(auth.MAGIC[:1])
            return s.server.rejected == 2

        s.until(drip)
        assert silent.recv(10) == b""


def test_bolts_at_work_do_not_notice_a_flood():
    with spout() as s:
        bolt = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        for n in range(100):
            with _connect(s) as stranger:
                stranger.sendall(b"x" * 10)
            s.send("b1", tuple_of(n))
            s.poll(0)
        s.until(lambda: len(s.acks("b1")) == 100 and s.server.rejected == 100)
        s.end("b1")
        bolt.wait()


def test_refusals_are_logged_once_a_stretch_and_without_the_key():
    with capture_logs() as logs, spout() as s:
        for count in (1, 2, 3):
            with _connect(s) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n")
            s.until(lambda count=count: s.server.rejected == count)
        assert [entry["event"] for entry in logs] == ["connection_refused"]
        assert s.endpoint.key.hex() not in repr(logs)


@pytest.mark.parametrize(
    "said",
    [
        LENGTH.pack(0xFFFFFFFF),
        LENGTH.pack(5000) + b"x" * 5000,  # no Hello is as long
        LENGTH.pack(0),
        LENGTH.pack(1) + b"\xc1",
        _frame(AckFrame(1, 1, 0.0, 0.0, 0.0)),
    ],
)
def test_a_first_frame_that_is_no_hello_is_refused(said):
    with spout() as s, _authenticated(s) as peer:
        peer.sendall(said)
        s.until(lambda: s.server.rejected == 1)
        assert s.inbound == []


@pytest.mark.parametrize(
    "said",
    [
        LENGTH.pack((256 << 20) + 1),
        LENGTH.pack(1) + b"\xc1",
        _frame(Hello(frames.PROTOCOL_VERSION, "b1", 1, 1, "x")),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_after_the_welcome_ends_this_bolt_only(said):
    with spout() as s, _authenticated(s) as peer:
        bolt = ThreadBolt(s.endpoint, "b2", lambda batch: None)
        peer.sendall(_frame(hello_of("b1", 1)))
        s.until(lambda: s.joined("b1") and s.joined("b2"))
        peer.sendall(_frame(AckFrame(9, 1, 0.0, 0.0, 0.0)) + said)
        left = s.until(lambda: s.left("b1"))
        assert left[0].epoch == 1
        assert left[0].reason
        s.send("b2", tuple_of(1))
        s.until(lambda: s.acks("b2") == [1])
        s.end("b2")
        bolt.wait()


@pytest.mark.req("S120")
def test_another_version_is_named_on_both_sides(monkeypatch):
    with capture_logs() as logs, spout() as s:
        newer = msgspec.structs.replace(hello_of("b1", 1), version=99)
        monkeypatch.setattr("flowctl.bolts.worker.hello_of", lambda bolt, slots: newer)
        bolt = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.server.rejected == 1)
        with pytest.raises(WireError, match=f"version {frames.PROTOCOL_VERSION}") as caught:
            bolt.wait()
        assert "Install the same" in caught.value.remedy
        assert "version 99" in logs[0]["reason"]


def test_a_spout_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("flowctl.bolts.worker._CONNECT_TRIES", 2)
    with spout() as s:
        endpoint = s.endpoint
    with pytest.raises(EnvironmentFault, match=f":{endpoint.port}") as caught:
        ThreadBolt(endpoint, "b1", lambda batch: None).wait()
    assert "listen.advertise" in caught.value.remedy
