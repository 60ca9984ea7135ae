"""Who does not belong here: nobody gets in, nobody is held up."""

from __future__ import annotations

import contextlib
import errno
import resource
import secrets
import selectors
import socket
import threading
import time

import msgspec
import pytest
from structlog.testing import capture_logs
from wire_peers import ThreadBolt, spout, tuple_of

from flowctl.core.messages import Ack
from flowctl.errors import AuthenticationError, InfrastructureError, WireError
from flowctl.wire import auth, frames, handshake, handshakes
from flowctl.wire.codec import LENGTH, FrameWriter
from flowctl.wire.frames import Hello
from flowctl.wire.handshake import hello_of, join_spout


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
        wrong = msgspec.structs.replace(s.endpoint, key=secrets.token_bytes(auth.KEY_BYTES))
        bolt = ThreadBolt(wrong, "b1", lambda batch: None)
        s.until(lambda: s.server.rejected == 1)
        with pytest.raises(AuthenticationError) as caught:
            bolt.wait()
        assert caught.value.remedy
        assert s.inbound == []


def test_a_crowd_that_says_nothing_does_not_keep_a_bolt_out(monkeypatch):
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIMEOUT_S", 600)  # nobody leaves by himself
    with spout() as s:
        # More than the door holds at once: those who dawdle are sent away for the next.
        crowd = [_connect(s) for _ in range(handshakes.HANDSHAKES_MAX + 20)]
        _works(s, "b1")
        for stranger in crowd:
            stranger.close()
        s.until(lambda: s.server.rejected == len(crowd))


@pytest.mark.parametrize("use_tls", ["off", "on"])
def test_a_stranger_who_sits_there_is_sent_away(use_tls, monkeypatch):
    monkeypatch.setattr(handshakes, "HANDSHAKE_TIMEOUT_S", 0.2)
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


def test_refusals_are_logged_once_an_episode_and_without_the_key():
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
        _frame(Ack(1, 1, 0.0, 0.0, 0.0)),
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
        peer.sendall(_frame(Ack(9, 1, 0.0, 0.0, 0.0)) + said)
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
    monkeypatch.setattr("flowctl.bolts.worker.CONNECT_TRIES", 2)
    with spout() as s:
        endpoint = s.endpoint
    with pytest.raises(InfrastructureError, match=f":{endpoint.port}") as caught:
        ThreadBolt(endpoint, "b1", lambda batch: None).wait()
    assert "listen.advertise" in caught.value.remedy


@pytest.fixture
def many_descriptors():
    """As many as the machine gives: strangers and spout are one process here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 20_000 if hard == resource.RLIM_INFINITY else min(hard, 20_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    yield max(soft, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.on_change("wire")
@pytest.mark.parametrize(
    ("use_tls", "said"),
    [
        ("off", b""),
        ("off", auth.MAGIC + b"x" * auth.NONCE_BYTES),
        ("on", b""),
        ("on", b"\x16\x03\x01\x02\x00\x01\x00\x01"),
    ],
    ids=["silent", "begin like bolts", "silent, tls", "begin like bolts, tls"],
)
def test_a_bolt_comes_in_though_a_stranger_holds_thousands_of_connections(
    use_tls, said, many_descriptors
):
    count = min(5_300, many_descriptors // 2 - 1_000)
    with spout(tls=use_tls) as s:
        held = []

        def flood() -> None:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    sock = _connect(s)
                    held.append(sock)
                    sock.sendall(said)

        stranger = threading.Thread(target=flood)
        stranger.start()
        s.until(lambda: len(held) > count * 0.97 or not stranger.is_alive())
        begun_s = time.monotonic()
        running = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        joined_s = time.monotonic() - begun_s
        s.send("b1", tuple_of(1))
        s.until(lambda: s.acks("b1") == [1])
        s.end("b1")
        running.wait()
        stranger.join()
        for sock in held:
            sock.close()
    # 26 s before, now .7 to .9 s on an idle machine of two cores; 2 s are promised.  Half of what
    # it was: other programs may have most of this machine.
    assert joined_s < 13


def test_out_of_descriptors_strangers_make_room_for_a_bolt(monkeypatch):
    with spout() as s:
        crowd = [_connect(s) for _ in range(100)]
        s.until(lambda: len(s.server.handshakes.pending) == 100)
        accept, fails = s.server.gate.listener.accept, [3]

        class Full:
            """The first calls find no descriptor free."""

            def accept(self):
                if fails[0]:
                    fails[0] -= 1
                    raise OSError(errno.EMFILE, "Too many open files")
                return accept()

            def __getattr__(self, name):
                return getattr(listener, name)

        listener = s.server.gate.listener
        full = Full()
        s.server._selector.modify(listener, selectors.EVENT_READ, full)
        s.server.gate.listener = full
        monkeypatch.setattr(Full, "fileno", lambda self: listener.fileno(), raising=False)
        _works(s, "b1")
        assert s.server.rejected >= 64
        for stranger in crowd:
            stranger.close()
        s.server.gate.listener = listener


@pytest.mark.parametrize("use_tls", ["off", "on"])
@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"bolt": "b9"}, "not a bolt of this run"),
        ({"bolt": "driver\x1b[2J"}, "not a bolt of this run"),
        ({"bolt": ""}, "not a bolt of this run"),
        ({"slots": 0}, "0 slots"),
        ({"slots": -3}, "-3 slots"),
        ({"slots": 1 << 40}, "slots"),
    ],
)
def test_a_hello_that_can_not_be_is_refused_in_the_handshake(hello, why, use_tls):
    with capture_logs() as logs, spout(tls=use_tls, expected={"b1", "b2"}) as s:
        wrong = msgspec.structs.replace(hello_of("b1", 1), **hello)
        with pytest.raises(OSError):
            join_while_polling(s, wrong)
        s.until(lambda: s.server.rejected == 1)
        assert why in logs[0]["reason"]
        assert "\x1b" not in logs[0]["reason"]
        assert s.inbound == []
        _works(s, "b2")


def join_while_polling(s, hello):
    outcome = []

    def join() -> None:
        try:
            outcome.append(join_spout(s.endpoint, hello))
        except Exception as error:
            outcome.append(error)

    joining = threading.Thread(target=join)
    joining.start()
    s.until(lambda: outcome)
    joining.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
