"""Which thread reads a bolt's connection, without threads: each is moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowctl.bolts import reading
from flowctl.bolts.reading import Reading
from flowctl.core.messages import Ack, Emission, Fail
from flowctl.core.records import Record
from flowctl.errors import WireError
from flowctl.wire.codec import FrameReader, FrameWriter, decoder_of
from flowctl.wire.frames import ToBolt

SHORT = Ack(1, 1, 0.0, 50e-6, 0.0)
LONG = Ack(1, 1, 0.0, 200e-6, 0.0)
FAIL = Fail(1, 1, "no", "", None, False)


class Wire:
    """A stream that holds what was put in, and says whether there is something."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []

    def put(self, tuple_id: int) -> None:
        writer = FrameWriter(1000)
        writer.append(Emission(tuple_id, "b1", 1, "p", [Record(0, "x")], None, 0))
        self.arrived.append(bytes(writer.take()))

    def recv_into(self, buffer: memoryview) -> int | None:
        if not self.arrived:
            return None
        data = self.arrived.pop(0)
        if isinstance(data, Exception):
            raise data
        buffer[: len(data)] = data
        return len(data)

    await_into = recv_into

    def pending(self) -> bool:
        return False


class Sleep:
    """What the link thread sleeps on: ``meanwhile`` happens, and nobody wakes it."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    def acquire(self, timeout: float) -> bool:
        self._meanwhile()
        return False


class Bolt:
    """A reading, and what came of it."""

    def __init__(self, wire: Wire, *, may_change: bool = True) -> None:
        self.wire = wire
        self.lock = threading.Lock()
        self.obeyed: list[int] = []
        self.ends: list[str] = []
        self.reading = Reading(
            wire,  # type: ignore[arg-type]
            FrameReader[ToBolt](decoder_of(ToBolt), 1000),
            self.lock,
            obey=lambda orders, _: self.obeyed.extend(order.tuple_id for order in orders),  # type: ignore[union-attr]
            end=self.ends.append,
            may_change=may_change,
        )

    def calls(self, outcome: Ack | Fail, count: int = 1) -> None:
        with self.lock:
            for _ in range(count):
                self.reading.note(outcome)

    def slot_reads(self) -> bool:
        """The process thread has nothing to do: does it read?"""
        with self.lock:
            begins = self.reading.slot_begins()
            if begins:
                self.reading.receive_in_slot()
            return begins


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def bolt(wire: Wire) -> Bolt:
    return Bolt(wire)


def quick(bolt: Bolt) -> None:
    """Let its process thread read."""
    bolt.calls(SHORT, 64)
    bolt.wire.put(0)
    assert bolt.slot_reads()


def test_the_link_thread_reads_until_calls_have_been_short_for_a_while(bolt):
    bolt.calls(SHORT, 63)
    assert not bolt.slot_reads()
    bolt.wire.put(1)
    bolt.reading.receive_in_link()
    assert bolt.obeyed == [1]
    bolt.calls(SHORT)
    bolt.wire.put(2)
    assert bolt.slot_reads()
    assert bolt.obeyed == [1, 2]


def test_the_link_thread_leaves_to_the_process_thread_what_it_was_woken_for(bolt):
    quick(bolt)
    bolt.wire.put(1)
    bolt.reading.receive_in_link()
    assert bolt.obeyed == [0]
    assert bolt.slot_reads()
    assert bolt.obeyed == [0, 1]


def test_a_bolt_with_several_slots_leaves_it_to_the_link_thread(wire):
    bolt = Bolt(wire, may_change=False)
    bolt.calls(SHORT, 1000)
    assert not bolt.slot_reads()


@pytest.mark.parametrize("outcome", [LONG, FAIL])
def test_two_long_calls_or_fails_may_come_between_but_not_three(bolt, outcome):
    quick(bolt)
    bolt.calls(outcome, 2)
    assert bolt.reading.is_slots
    bolt.calls(outcome)
    assert not bolt.reading.is_slots
    bolt.calls(SHORT, 63)
    assert not bolt.slot_reads()


def test_while_calls_end_the_link_thread_only_looks(bolt, monkeypatch):
    quick(bolt)
    monkeypatch.setattr(bolt.reading, "_given_back", Sleep(lambda: bolt.reading.note(SHORT)))
    for _ in range(9):
        assert bolt.reading.look()
    assert bolt.reading.is_slots


def test_a_call_that_does_not_end_gives_the_reading_back(bolt, monkeypatch):
    quick(bolt)
    monkeypatch.setattr(reading, "_LOOK_S", 0.0)
    assert bolt.reading.look()
    assert not bolt.reading.look()
    bolt.wire.put(1)
    bolt.reading.receive_in_link()
    assert bolt.obeyed == [0, 1]


def test_what_gives_the_reading_back_wakes_the_link_thread(bolt, monkeypatch):
    monkeypatch.setattr(reading, "_LOOK_S", threading.TIMEOUT_MAX)
    quick(bolt)
    looking = threading.Thread(target=bolt.reading.look)
    looking.start()
    bolt.reading.give_back()
    looking.join()  # before the end of time
    assert not bolt.reading.look()


def test_a_wake_up_that_came_late_is_no_sign_of_a_long_call(bolt):
    quick(bolt)
    bolt.reading.give_back()  # while the link thread does not sleep
    quick(bolt)
    assert bolt.reading.look()
    assert bolt.reading.is_slots


def test_when_nothing_comes_the_link_thread_waits_again(bolt):
    quick(bolt)
    assert bolt.slot_reads()  # in vain
    assert not bolt.reading.is_slots
    assert not bolt.reading.look()


def test_it_reads_again_between_calls_after_a_tenth_of_a_millisecond(bolt, monkeypatch):
    now_s = 5.0
    monkeypatch.setattr(reading.time, "monotonic", lambda: now_s)
    quick(bolt)
    now_s = 5.000_05
    assert not bolt.reading.is_due
    now_s = 5.000_2
    assert bolt.reading.is_due


@pytest.mark.parametrize(
    ("came", "end"),
    [
        (b"", "eof"),
        (OSError("no route"), "eof: no route"),
        (b"\xff\xff\xff\xff", "broken: A peer announced a frame of 4294967295 bytes; 1000"),
        (WireError("bad", remedy="none"), "broken: bad"),
    ],
)
def test_either_thread_notices_how_the_connection_ends(bolt, came, end):
    bolt.wire.arrived.append(came)
    bolt.reading.receive_in_link()
    quick(bolt)
    bolt.wire.arrived.append(came)
    bolt.slot_reads()
    assert [said[: len(end)] for said in bolt.ends] == [end, end]
