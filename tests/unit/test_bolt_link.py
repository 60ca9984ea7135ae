"""When acks wait for each other, without threads: the link's looks are called by hand."""

from __future__ import annotations

import time

import pytest

from flowctl.bolts.link import LOOKS_IN_VAIN, Link
from flowctl.core.messages import Ack, Emission, Heartbeat
from flowctl.core.records import Record
from flowctl.ports import Endpoint
from flowctl.wire.codec import FrameReader, decoder_of


class Wire:
    """A stream that takes everything; one list of tuple ids per sending."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self._reader = FrameReader(decoder_of(Ack), 1000)

    def send(self, data: bytearray) -> int:
        self.sent.append([frame.tuple_id for frame in self._reader.feed(bytes(data))])
        return len(data)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def bolt_link(wire) -> Link:
    endpoint = Endpoint(host="h", port=1, key=b"k", job="j")
    return Link(wire, endpoint, bolt="b1", slots=1)


def _tuples(count: int) -> list[Emission]:
    return [Emission(n, "b1", 1, "p", [Record(n, "x")], None, 0) for n in range(count)]


class Hand:
    """A process thread that is moved by hand."""

    def __init__(self, bolt_link: Link, tuples: int) -> None:
        self._link = bolt_link
        self._idling = bolt_link.new_idling()
        bolt_link.obey(_tuples(tuples), 0.0)
        self._work = bolt_link.take(self._idling)

    def finish(self, count: int) -> None:
        """Report ``count`` tuples; the next one is taken each time."""
        for _ in range(count):
            assert self._work is not None
            ack = Ack(self._work.frame.tuple_id, 1, 0.0, 0.0, 0.0)
            self._work = self._link.report_and_take(ack, self._idling)


def test_with_more_queued_acks_ride_together(bolt_link, wire):
    hand = Hand(bolt_link, 200)
    hand.finish(199)
    assert [len(ids) for ids in wire.sent] == [64, 64, 64]
    bolt_link.keep_promise(0.001)
    assert [n for ids in wire.sent for n in ids] == list(range(199))


def test_the_last_ack_is_sent_at_once(bolt_link, wire):
    hand = Hand(bolt_link, 2)
    hand.finish(1)
    assert wire.sent == []
    bolt_link.ended = "end"  # or it would wait for more
    hand.finish(1)
    assert wire.sent == [[0, 1]]


def test_looks_in_vain_end_the_promise_and_then_nothing_waits(bolt_link, wire):
    hand = Hand(bolt_link, 10)
    for _ in range(LOOKS_IN_VAIN):
        assert bolt_link.promise.is_given
        bolt_link.keep_promise(0.001)
    assert not bolt_link.promise.is_given
    hand.finish(3)
    assert wire.sent == [[0], [1], [2]]


def test_tuples_that_are_finished_keep_the_promise(bolt_link, wire):
    hand = Hand(bolt_link, 50)
    for _ in range(3 * LOOKS_IN_VAIN):
        hand.finish(2)
        bolt_link.keep_promise(0.001)
    assert all(len(ids) == 2 for ids in wire.sent)
    assert bolt_link.promise.is_given


def test_new_tuples_and_heartbeats_renew_the_promise(bolt_link, wire):
    Hand(bolt_link, 10)
    for renew in (lambda: bolt_link.obey(_tuples(1), 1.0), bolt_link.beat):
        for _ in range(LOOKS_IN_VAIN):
            bolt_link.keep_promise(0.001)
        assert not bolt_link.promise.is_given
        wire._reader = FrameReader(decoder_of(Ack), 1000)
        wire.send = len  # type: ignore[method-assign]  # heartbeats are no acks
        renew()
        assert bolt_link.promise.is_given


def test_a_heartbeat_tells_what_several_slots_are_at_work_on(wire):
    endpoint = Endpoint(host="h", port=1, key=b"k", job="j")
    bolt_link = Link(wire, endpoint, bolt="b1", slots=2)
    bolt_link.obey(_tuples(3), 0.0)
    slots = [bolt_link.new_idling(), bolt_link.new_idling()]
    for slot in slots:
        bolt_link.take(slot)
    sent: list[bytes] = []
    wire.send = lambda data: sent.append(bytes(data)) or len(data)  # type: ignore[method-assign]
    bolt_link.beat()
    bolt_link.report_and_take(Ack(0, 1, 0.0, 0.0, 0.0), slots[0])
    bolt_link.beat()
    reader = FrameReader(decoder_of(Ack | Heartbeat), 1000)
    told = [frame for data in sent for frame in reader.feed(data)]
    beats = [frame.begun for frame in told if isinstance(frame, Heartbeat)]
    assert beats == [[0, 1], [1, 2]]


def test_a_heartbeat_tells_how_many_tuples_have_come(bolt_link, wire):
    """Also those that are done: the spout takes what has not come for being on its way."""
    sent: list[bytes] = []
    wire.send = lambda data: sent.append(bytes(data)) or len(data)  # type: ignore[method-assign]
    slot = bolt_link.new_idling()
    bolt_link.beat()
    bolt_link.obey(_tuples(3), 0.0)
    bolt_link.take(slot)
    bolt_link.report_and_take(Ack(0, 1, 0.0, 0.0, 0.0), slot)
    bolt_link.beat()
    reader = FrameReader(decoder_of(Ack | Heartbeat), 1000)
    told = [frame for data in sent for frame in reader.feed(data)]
    assert [frame.arrived for frame in told if isinstance(frame, Heartbeat)] == [0, 3]


def test_a_heartbeat_that_is_due_soon_goes_with_what_is_reported_of_a_range(bolt_link, wire):
    sent: list[bytes] = []
    wire.send = lambda data: sent.append(bytes(data)) or len(data)  # type: ignore[method-assign]
    reader = FrameReader(decoder_of(Ack | Heartbeat), 1000)

    def told(due_in_s: float, *, reports: bool) -> list[str]:
        sent.clear()
        if reports:
            bolt_link.report(Ack(0, 1, 0.0, 0.0, 0.0), "slot")
        bolt_link._beat_at_s = time.monotonic() + due_in_s
        bolt_link.flush_range()
        return [type(frame).__name__ for data in sent for frame in reader.feed(data)]

    assert told(1_000, reports=True) == ["Ack"]
    assert told(0, reports=True) == ["Ack", "Heartbeat"]
    assert bolt_link._beat_at_s > time.monotonic() + 0.1, "the link thread's own is later"
    assert told(0, reports=False) == []
