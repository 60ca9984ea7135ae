"""Which silent bolts are ended, when, and what is said of it."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.core.messages import Heartbeat
from flowctl.core.records import Record
from flowctl.core.spout import SpoutCore
from flowctl.runtime.bolt_watch import Endings
from flowctl.runtime.control import RunControl

LOOK_S = 0.25


class Bolts:
    """Remembers who was ended."""

    count = 2

    def __init__(self) -> None:
        self.ended: list[tuple[str, str, int]] = []
        self.told = threading.Event()

    def listen_host(self) -> str:
        return ""

    def start(self, endpoint: Any, notify: Any) -> None: ...
    def stop(self, *, timeout_s: float) -> None: ...

    def end(self, bolt: str, *, reason: str, host: str = "", pid: int = 0) -> None:
        assert reason.startswith("silent since ")
        self.ended.append((bolt, host, pid))
        self.told.set()


class World:
    """Two bolts, of which some beat, and a clock."""

    def __init__(self, **settings: Any) -> None:
        tree = Settings().with_overrides({"tuple.records_max": 1, **settings})
        self.now_s = 100.0
        self.core = SpoutCore(tree)
        self.control = RunControl(self.core, clock=lambda: self.now_s)
        self.bolts = Bolts()
        self.endings = Endings(self.control, self.bolts, tree.timeout)
        self.epochs = {"a": 0, "b": 0}
        for bolt in self.epochs:
            self.join(bolt)
        self.core.offer("p", [Record(n, "") for n in range(1, 5)], now_s=self.now_s)
        while self.core.poll_emit(now_s=self.now_s) is not None:
            pass

    def join(self, bolt: str, *, beats: bool = True) -> None:
        self.epochs[bolt] += 1
        self.control.places[bolt] = ("far" if bolt == "b" else socket.gethostname(), 4711)
        self.core.add_bolt(bolt, slots=1, epoch=self.epochs[bolt], now_s=self.now_s)
        if beats:
            self.beat(bolt)

    def beat(self, bolt: str) -> None:
        self.core.on_heartbeat(bolt, self.epochs[bolt], Heartbeat(1, 0), now_s=self.now_s)

    def pass_(
        self, seconds: float, *beating: str, look_s: float = LOOK_S, is_deaf: bool = False
    ) -> list[str]:
        said: list[str] = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += look_s
            for bolt in beating:
                self.beat(bolt)
            self.core.on_deadline(now_s=self.now_s)
            self.bolts.told.clear()
            texts = [ending.text for ending in self.endings.look(is_deaf=is_deaf)]
            if texts:
                assert self.bolts.told.wait(10)
            said += texts
        return said


def test_a_bolt_that_is_silent_for_long_is_ended_once() -> None:
    world = World()
    assert world.pass_(4.5, "b") == []
    (text,) = world.pass_(1.0, "b")
    assert world.bolts.ended == [("a", socket.gethostname(), 4711)]
    assert text.startswith("a (process 4711) has been silent since ")
    assert "working on p: flowctl kills" in text
    assert world.pass_(600.0, "b") == []


def test_silence_does_not_count_while_nobody_could_be_heard() -> None:
    world = World()
    assert world.pass_(60.0, is_deaf=True) == []
    assert world.pass_(4.0) == []
    assert len(world.pass_(2.0)) == 2


def test_another_hosts_name_is_said_and_an_idle_bolts_locks_are_not() -> None:
    world = World()
    world.core.remove_bolt("b", now_s=world.now_s)
    world.join("b")
    (text,) = world.pass_(6.0, "a")
    assert text.startswith("b (process 4711 on far) has been silent since ")
    assert "lock" not in text


def test_a_bolt_that_speaks_again_is_left_alone() -> None:
    world = World()
    for _ in range(10):
        assert world.pass_(4.0, "b") == []
        world.beat("a")
    assert world.bolts.ended == []


def test_one_that_has_not_spoken_yet_may_be_loading_a_model() -> None:
    world = World()
    world.core.remove_bolt("a", now_s=world.now_s)
    world.join("a", beats=False)
    assert world.pass_(60.0, "b") == []


def test_a_driver_that_stood_still_ends_nobody() -> None:
    """What the bolts said meanwhile is in the sockets."""
    world = World()
    world.pass_(3.0, "a", "b")
    world.now_s += 60.0  # SIGSTOP, SIGCONT
    assert world.pass_(1.0) == []
    assert world.pass_(10.0, "a", "b") == []


def test_the_same_tuple_gets_twice_the_time_with_the_next_bolt() -> None:
    """It does not freeze its bolts but computes in a call that holds the interpreter."""
    world = World()
    world.pass_(6.0, "b")
    assert [bolt for bolt, _, _ in world.bolts.ended] == ["a"]
    world.core.remove_bolt("a", now_s=world.now_s)
    world.core.remove_bolt("b", now_s=world.now_s)
    world.join("b")
    while world.core.poll_emit(now_s=world.now_s) is not None:
        pass
    assert world.pass_(9.5) == []
    assert len(world.pass_(1.5)) == 1


@pytest.mark.parametrize(("end_after_s", "after_s"), [("none", None), ("0.1", 3.0), ("20", 20.0)])
def test_when_is_a_setting_and_never_before_it_is_suspect(
    end_after_s: str, after_s: float | None
) -> None:
    world = World(**{"timeout.end_after_s": end_after_s})
    if after_s is None:
        assert world.pass_(600.0, "b") == []
        return
    assert world.pass_(after_s - 0.5, "b") == []
    assert len(world.pass_(1.0, "b")) == 1


def test_threads_can_not_be_ended() -> None:
    world = World()

    class Plain:
        count = 2
        listen_host = Bolts.listen_host
        start = Bolts.start
        stop = Bolts.stop

    world.endings = Endings(world.control, Plain(), Settings().timeout)  # type: ignore[arg-type]
    assert world.pass_(60.0, "b") == []
