"""Out of reach is not silent: a process may be busy, its kernel answers all the same."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from flowctl.core.state import Liveness
from flowctl.runtime.bolt_watch import Reach
from flowctl.wire.reach import probe, unanswered_s
from tests.core_driver import Driver


class Server:
    """``silent_s``: for how long nothing came from a bolt's machine."""

    def __init__(self) -> None:
        self.silent_s: dict[str, float] = {}
        self.asked: list[str] = []

    def unanswered_s(self, bolt: str) -> float:
        self.asked.append(bolt)
        return self.silent_s.get(bolt, 0.0)


class Subject:
    """Two bolts with two tuples each, and looks at them."""

    def __init__(self, **values: object) -> None:
        self.driver = Driver("a", "b", window_policy="fixed", window_initial=2, **values)
        for bolt in ("a", "b"):
            self.driver.beat(bolt)
        self.driver.offer(4)
        self.driver.emit()
        self.server: Any = Server()
        control: Any = type("Control", (), {})()
        control.core, control.lock = self.driver.core, threading.Lock()
        control.clock, control.wake = self.driver.clock, lambda: None
        self.reach = Reach(control)

    def pass_s(self, seconds: float) -> None:
        """Only b is heard of."""
        self.driver.clock.advance(seconds)
        self.driver.beat("b", busy=1)

    def look(self) -> Liveness:
        self.reach.look(self.server)
        return self.driver.core.bolts["a"].liveness


def test_one_that_can_not_be_reached_is_suspect_after_two_looks() -> None:
    subject = Subject()
    subject.pass_s(1.3)
    subject.server.silent_s = {"a": 1.3}
    assert subject.look() is Liveness.ALIVE
    subject.pass_s(0.25)
    subject.server.silent_s = {"a": 1.55}
    assert subject.look() is Liveness.SUSPECT
    assert len(subject.driver.core.bolts["a"].flight) == 1, "its oldest tuple goes to another"
    subject.pass_s(0.25)
    subject.driver.wait(0)
    assert subject.look() is Liveness.DOWN
    assert not subject.driver.core.bolts["a"].flight


def test_of_one_that_was_heard_lately_the_kernel_is_not_asked() -> None:
    """Asking for each of 3,000 bolts took the driver 1 % of a core."""
    subject = Subject()
    subject.pass_s(1.2)
    subject.look()
    assert subject.server.asked == [], "1.2 s of silence can't be 1.25 s without an answer"
    subject.pass_s(0.25)
    subject.look()
    assert subject.server.asked == ["a"]


def test_one_that_is_only_silent_is_not() -> None:
    subject = Subject()
    for _ in range(8):
        subject.pass_s(0.25)
        assert subject.look() is Liveness.ALIVE


def test_where_the_driver_itself_stood_still_nobody_is() -> None:
    subject = Subject()
    subject.pass_s(60)
    subject.server.silent_s = {"a": 60.0}
    assert subject.look() is Liveness.ALIVE
    subject.server.silent_s = {}
    subject.pass_s(0.25)
    assert subject.look() is Liveness.ALIVE
    subject.pass_s(0.25)
    subject.server.silent_s = {"a": 60.0}
    assert subject.look() is Liveness.ALIVE, "again the first of two"


def test_many_bolts_which_beat_less_often_are_looked_at_less_often() -> None:
    subject = Subject(timeout_heartbeat_s=1.0, timeout_silence_s=3.0, timeout_silence_max_s=4.0)
    subject.pass_s(1.3)
    subject.server.silent_s = {"a": 1.3}
    seen = []
    for _ in range(3):
        seen.append(subject.look())
        subject.pass_s(0.25)
    assert seen == [Liveness.ALIVE, Liveness.ALIVE, Liveness.SUSPECT]


def test_where_nothing_is_sent_again_silence_decides_so_that_no_more_is_lost() -> None:
    subject = Subject(guarantee_mode="no_guarantee")
    for _ in range(8):
        subject.pass_s(0.25)
        subject.server.silent_s = {"a": 2.0}
        assert subject.look() is Liveness.ALIVE


def test_a_connection_is_asked() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        probe(accepted)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        assert 0.0 <= unanswered_s(accepted) < 60
        accepted.close()
        assert unanswered_s(accepted) == 0.0


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_what_is_no_tcp_seems_to_answer(kind: int) -> None:
    with socket.socketpair(socket.AF_UNIX, kind)[0] as sock:
        probe(sock)
        assert unanswered_s(sock) == 0.0
