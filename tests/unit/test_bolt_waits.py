"""How a bolt waits: for tuples, and where its connection takes no more.  Without threads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.bolts import link as link_module
from flowctl.bolts.link import Link
from flowctl.config import WaitSettings
from flowctl.core.messages import Ack, Emission, End
from flowctl.core.records import Record
from flowctl.ports import Endpoint
from flowctl.waiting.strategies import BLOCKING_MAX_S
from flowctl.wire.codec import FrameReader, decoder_of
from tests.loop_parts import Log


class Wire:
    """A stream that takes so many bytes, and more after each wait for it."""

    def __init__(self) -> None:
        self.room = math.inf
        self.room_after_waits: list[int] = []
        self.waits_ms: list[float] = []
        self.acked: list[int] = []
        self.sends = 0
        self._reader = FrameReader(decoder_of(Ack), 1000)

    def send(self, data: bytearray) -> int:
        self.sends += 1
        taken = int(min(self.room, len(data)))
        self.room -= taken
        self.acked += [frame.tuple_id for frame in self._reader.feed(bytes(data[:taken]))]
        return taken

    def fileno(self) -> int:
        return 1

    # As select.poll's:
    def register(self, fileno: int, events: int) -> None: ...

    def poll(self, timeout_ms: float) -> None:
        self.waits_ms.append(timeout_ms)
        self.room = self.room_after_waits.pop(0) if self.room_after_waits else math.inf


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = Wire()
    monkeypatch.setattr(link_module.select, "poll", lambda: wire)
    return wire


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr("flowctl.waiting.idling.light_logger", lambda: log)
    return log


def link_of(wire: Wire, **wait: Any) -> Link:
    endpoint = Endpoint(host="h", port=1, key=b"k", job="j", wait=WaitSettings(**wait))
    return Link(wire, endpoint, bolt="b1", slots=1)  # type: ignore[arg-type]


def tuples(*ids: int) -> list[Any]:
    return [Emission(n, "b1", 1, "p", [Record(n, "x")], None, 0) for n in ids]


def ack(tuple_id: int) -> Ack:
    return Ack(tuple_id, 1, 0.0, 0.0, 0.0)


class Waits:
    """In place of the condition's wait: times that were asked for, and what comes at which."""

    def __init__(self, link: Link, coming: dict[int, Callable[[], None]]) -> None:
        self.times_s: list[float] = []
        self.coming = coming
        self.link = link
        self.was_idle: list[int] = []
        link._changed.wait = self  # type: ignore[method-assign, assignment]

    def __call__(self, timeout_s: float | None = None) -> bool:
        assert timeout_s is not None
        self.times_s.append(timeout_s)
        self.was_idle.append(self.link.idleness.idle_slots)
        come = self.coming.get(len(self.times_s))
        if come is not None:
            self.link._changed.release()  # as a wait does
            come()
            self.link._changed.acquire()
        return True


# -- for tuples --------------------------------------------------------------------------------


@pytest.mark.req("S31", "S42")
@pytest.mark.parametrize(
    ("wait", "times_s"),
    [
        ({}, [BLOCKING_MAX_S] * 4),
        ({"bolt_strategy": "park", "bolt_park_us": 300}, [0.0003] * 4),
        (
            {"bolt_strategy": "progressive", "bolt_level2_count": 2, "bolt_level3_sleep_ms": 7},
            [1e-9, 1e-9, 0.007, 0.007],
        ),
    ],
    ids=["blocking", "park", "progressive"],
)
def test_a_bolt_waits_for_a_tuple_by_its_strategy(wire, wait: dict, times_s: list[float]):
    link = link_of(wire, **wait)
    waits = Waits(link, {4: lambda: link.obey(tuples(5), 0.0)})
    work = link.take(link.new_idling())
    assert work is not None and work.frame.tuple_id == 5
    assert waits.times_s == times_s
    assert waits.was_idle == [1] * 4, "idle all the time, between two looks as well"
    assert link.idleness.idle_slots == 0


@pytest.mark.req("S30", "S42")
def test_a_tuple_ends_the_episode_and_resets_the_counter(wire, log):
    link = link_of(wire, bolt_strategy="progressive", bolt_level1_count=0, bolt_level2_count=1)
    waits = Waits(link, {n: lambda n=n: link.obey(tuples(n), 0.0) for n in (3, 5)})
    idling = link.new_idling()
    link.take(idling)
    link.report_and_take(ack(3), idling)
    assert waits.times_s == [1e-9, 0.001, 0.001, 1e-9, 0.001]
    assert [fields.get("waits") for _, _, fields in log.told] == [None, 3, None, 2]


@pytest.mark.req("S44")
def test_the_wait_for_tuples_is_told_once_an_episode_and_only_for_debugging(wire, log):
    link = link_of(wire, bolt_strategy="progressive")
    Waits(link, {500: lambda: link.obey(tuples(1), 0.0)})
    idling = link.new_idling()
    link.take(idling)
    assert log.events == ["consume_wait_began", "consume_wait_ended"]
    level, _, fields = log.told[1]
    assert (fields["waits"], fields["bolt"]) == (501, "b1"), "one turn did not wait"
    assert level < 20
    link.obey(tuples(2), 0.0)
    link.take(idling)
    assert len(log.told) == 2, "it did not wait"


@pytest.mark.req("S45")
@pytest.mark.parametrize("strategy", ["blocking", "progressive", "park"])
@pytest.mark.parametrize("park_us", [0, 100])
def test_the_end_is_heard_in_the_wait_for_tuples(
    wire, monkeypatch: pytest.MonkeyPatch, strategy: str, park_us: int
):
    link = link_of(wire, bolt_strategy=strategy, bolt_park_us=park_us)
    looks = 0

    def sleep(seconds: float) -> None:  # of a turn that does not wait
        nonlocal looks
        looks += 1
        if looks == 3:
            link.obey([End("b1")], 0.0)

    waits = Waits(link, {2: lambda: link.obey([End("b1")], 0.0)})
    monkeypatch.setattr(link_module.time, "sleep", sleep)
    assert link.take(link.new_idling()) is None
    assert len(waits.times_s) in (0, 2)
    assert link.idleness.idle_slots == 0
    assert link.take(link.new_idling()) is None, "and later ones do not wait at all"


# -- for room ----------------------------------------------------------------------------------


@pytest.mark.req("S41", "S42", "S43", "S52")
def test_a_bolt_takes_nothing_while_what_it_reported_is_refused_and_keeps_the_order(wire):
    link = link_of(wire)
    link.obey(tuples(0, 1, 2), 0.0)
    idling = link.new_idling()
    link.take(idling)
    link.promise.is_given = False  # what is reported goes out at once
    wire.room = 10
    wire.room_after_waits = [0, 10, 10]
    queued: list[int] = []
    poll, wire_poll = wire.poll, []

    def look(timeout_ms: float) -> None:
        queued.append(len(link._queue))
        wire_poll.append(timeout_ms)
        poll(timeout_ms)

    wire.poll = look
    work = link.report_and_take(ack(0), idling)
    assert queued == [2] * len(queued) and len(queued) >= 3, "nothing was taken meanwhile"
    assert wire.acked == [0]
    assert work is not None and work.frame.tuple_id == 1
    wire.room = 0
    link.report_and_take(ack(1), idling)
    assert wire.acked == [0, 1], "in the order in which they were reported"


@pytest.mark.req("S39", "S42", "S44")
def test_the_wait_for_room_has_a_counter_and_an_episode_of_its_own(wire, log):
    link = link_of(
        wire,
        backpressure_strategy="progressive",
        backpressure_level1_count=1,
        backpressure_level2_count=1,
        backpressure_level3_sleep_ms=9,
    )
    link.obey(tuples(0, 1), 0.0)
    idling = link.new_idling()
    link.take(idling)
    link.promise.is_given = False
    for _ in range(2):
        wire.room = 0
        wire.room_after_waits = [0, 0, 0]
        link._writer.append(ack(0))
        link.flush()
    assert wire.waits_ms == [0, pytest.approx(1e-6), 9, 9] * 2, "flushed: it began anew"
    assert log.events == ["backpressure_began", "backpressure_ended"] * 2
    assert log.told[1][2]["waits"] == 4


@pytest.mark.req("S45")
@pytest.mark.parametrize("strategy", ["blocking", "progressive", "park"])
def test_a_connection_that_is_shut_down_ends_the_wait_for_room(wire, strategy: str):
    link = link_of(wire, backpressure_strategy=strategy)

    def refuse(data: bytearray) -> int:
        wire.sends += 1
        if wire.sends == 3:
            raise BrokenPipeError
        return 0

    wire.send = refuse
    link._writer.append(ack(0))
    link.flush()
    assert wire.sends == 3
