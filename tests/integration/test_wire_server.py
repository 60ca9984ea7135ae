from __future__ import annotations

import os
import signal
import socket
import threading
import time

import msgspec
import pytest
from wire_peers import ThreadBolt, process_bolt, spout, tuple_of

from flowctl.core.messages import Emission, End, Heartbeat
from flowctl.errors import AuthenticationError
from flowctl.wire import tls
from flowctl.wire.codec import FrameReader, decoder_of
from flowctl.wire.frames import Hello
from flowctl.wire.handshake import hello_of, join_spout
from flowctl.wire.server import Joined, Left


@pytest.mark.parametrize("use_tls", ["off", "on"])
def test_a_bolt_comes_works_and_goes(use_tls):
    with spout(tls=use_tls) as s:
        assert (s.endpoint.certificate_pem is not None) is (use_tls == "on")
        with process_bolt(s.endpoint, "b1") as child:
            s.until(lambda: s.joined("b1"))
            assert s.inbound[0] == Joined("b1", 1, 1, socket.gethostname(), child.pid)
            s.send("b1", *(tuple_of(n) for n in range(500)))
            s.until(lambda: len(s.acks("b1")) == 500)
            assert s.acks("b1") == list(range(500))
            s.end("b1")
            assert not s.server.send("b1", End("b1"))
            assert child.wait(20) == 0
        assert s.left("b1") == []


def test_a_killed_process_is_seen_at_once_and_what_it_said_before_is_kept():
    # The second tuple kills the worker: the ack of the first and the end come together.
    kill = "batch[0].value == 'die' and __import__('os').kill(__import__('os').getpid(), 9)"
    with spout(heartbeat_s=60) as s, process_bolt(s.endpoint, "b1", kill):
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1, "live"))
        s.until(lambda: s.acks("b1") == [1])
        s.send("b1", tuple_of(2, "die"))
        s.until(lambda: s.left("b1"))
        assert s.left("b1")[0].epoch == 1
        assert not s.server.send("b1", tuple_of(3))
        assert s.acks("b1") == [1]


def test_a_frozen_process_falls_silent_but_does_not_leave():
    with spout(heartbeat_s=0.02) as s, process_bolt(s.endpoint, "b1") as child:
        s.until(lambda: s.frames("b1", Heartbeat))
        os.kill(child.pid, signal.SIGSTOP)
        while s.poll(0.5):  # until half a second brings nothing: 25 heartbeats are missing
            pass
        assert s.left("b1") == []
        s.send("b1", tuple_of(1))
        assert s.poll(0.1) == []
        os.kill(child.pid, signal.SIGCONT)
        s.until(lambda: s.acks("b1") == [1])


def test_a_bolt_that_connects_again_replaces_its_old_connection():
    with spout() as s:
        first = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        second = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: len(s.joined("b1")) == 2)
        comings = [m for m in s.inbound if isinstance(m, Joined | Left)]
        assert [(type(m), m.epoch) for m in comings] == [(Joined, 1), (Left, 1), (Joined, 2)]
        assert first.wait().ended.startswith("eof")
        s.send("b1", tuple_of(1))
        s.until(lambda: s.acks("b1") == [1])
        assert second.thread.is_alive()
        s.end("b1")
        summary = second.wait()
        assert (summary.epoch, summary.ended, summary.acked) == (2, "end", 1)


def test_epochs_are_counted_for_each_name():
    with spout() as s:
        for epoch in (1, 2, 3):
            sock, welcome = join_spout_while_polling(s, hello_of("b1", 1))
            assert (welcome.epoch, welcome.job_epoch) == (epoch, 5)
            sock.close()
        sock, welcome = join_spout_while_polling(s, hello_of("b2", 1))
        assert welcome.epoch == 1
        sock.close()


def join_spout_while_polling(s, hello: Hello):
    joined = []
    thread = threading.Thread(target=lambda: joined.append(join_spout(s.endpoint, hello)))
    thread.start()
    return s.until(lambda: joined)[0]


@pytest.mark.parametrize("use_tls", ["off", "on"])
def test_a_record_of_50_mb_goes_through_and_the_others_go_on(use_tls):
    large = b"\xfe" * 50_000_000
    received = []
    with spout(tls=use_tls) as s:
        slow = ThreadBolt(s.endpoint, "b1", lambda batch: received.append(batch[0].value))
        other = ThreadBolt(s.endpoint, "b2", lambda batch: None)
        s.until(lambda: s.joined("b1") and s.joined("b2"))
        s.send("b1", tuple_of(1, large), tuple_of(2, "after"))
        s.send("b2", tuple_of(3))
        s.until(lambda: s.acks("b2"))
        s.until(lambda: s.acks("b1") == [1, 2])
        for bolt in ("b1", "b2"):
            s.end(bolt)
        slow.wait()
        other.wait()
    assert received == [large, "after"]


@pytest.mark.req("S41", "S52")
def test_a_bolt_that_does_not_read_holds_up_nobody_and_gets_all_in_its_order():
    with spout() as s:
        stuck, _ = join_spout_while_polling(s, hello_of("stuck", 1))
        worker = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        for n in range(40):  # far more than the kernel takes for one connection
            s.send("stuck", tuple_of(n, b"x" * 1_000_000))
        s.send("b1", *(tuple_of(n) for n in range(100)))
        s.until(lambda: len(s.acks("b1")) == 100)
        # And it gets all of it once it reads: 40 tuples and nothing lost or doubled.
        got: list[int] = []
        reader = FrameReader(decoder_of(Emission), 1 << 22)
        stuck.setblocking(False)

        def read_on() -> bool:
            try:
                while chunk := stuck.recv(1 << 20):
                    got.extend(frame.tuple_id for frame in reader.feed(chunk))
            except BlockingIOError:
                pass
            return len(got) >= 40

        s.until(read_on)
        assert got == list(range(40))
        s.end("b1")
        worker.wait()
        stuck.close()


def test_wake_ends_a_wait_from_another_thread():
    with spout() as s:
        threading.Timer(0.05, s.server.wake).start()
        assert s.server.poll(20) == []
        # Two before a poll are one; after it the next wait is a real one.
        s.server.wake()
        s.server.wake()
        assert s.server.poll(20) == []
        begun_s = time.monotonic()
        s.server.poll(0.05)
        assert time.monotonic() - begun_s >= 0.04


def test_the_loop_closes_with_bolts_that_never_answer():
    with spout() as s:
        silent, _ = join_spout_while_polling(s, hello_of("b1", 1))
    with silent:
        silent.settimeout(20)
        assert silent.recv(100) == b""


def test_tls_is_on_off_loopback_and_pins_the_certificate():
    with spout(host="0.0.0.0", advertise="127.0.0.1") as s:
        assert s.endpoint.certificate_pem is not None
        _, other_pem = tls.spout_context()
        wrong = msgspec.structs.replace(s.endpoint, certificate_pem=other_pem)
        bolt = ThreadBolt(wrong, "b1", lambda batch: None)
        s.until(lambda: s.server.rejected)
        with pytest.raises(AuthenticationError, match="certificate"):
            bolt.wait()
        right = ThreadBolt(s.endpoint, "b1", lambda batch: None)
        s.until(lambda: s.joined("b1"))
        s.end("b1")
        right.wait()


class _Interleaved:
    """The pipe that wakes the loop, with something happening around its read."""

    def __init__(self, pipe, before=lambda: None, after=lambda: None):
        self.pipe, self.before, self.after = pipe, before, after

    def recv(self, size):
        self.before()
        try:
            return self.pipe.recv(size)
        finally:
            self.after()

    def __getattr__(self, name):
        return getattr(self.pipe, name)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_wake_up_while_another_is_taken_does_not_cost_later_ones(when):
    with spout() as s:
        server = s.server
        server._wake_in = _Interleaved(server._wake_in, **{when: server.wake})
        server.wake()
        server.poll(0)  # takes it, and meanwhile comes another
        server._wake_in = server._wake_in.pipe
        server.poll(0)  # one too many is allowed
        for _ in range(3):
            server.wake()
            begun_s = time.monotonic()
            server.poll(10)
            assert time.monotonic() - begun_s < 5


def test_no_wake_up_is_lost_under_a_hail_of_them():
    with spout() as s:
        told = [0, 0]

        def tell(place: int) -> None:
            for number in range(1, 3001):
                told[place] = number
                s.server.wake()

        threads = [threading.Thread(target=tell, args=(place,)) for place in (0, 1)]
        for thread in threads:
            thread.start()
        # What is told before a wake-up is seen after the poll that it ends: nobody waits in vain.
        while min(told) < 3000:
            s.server.poll(20)
        for thread in threads:
            thread.join()
        for number in range(300):  # and one by one, each answered
            waker = threading.Timer(0.0005 * (number % 3), s.server.wake)
            waker.start()
            begun_s = time.monotonic()
            s.server.poll(10)
            assert time.monotonic() - begun_s < 5
            waker.join()
            s.server.poll(0)
