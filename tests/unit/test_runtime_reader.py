"""The reader: run in the test's own thread, on a producer in a list."""

from __future__ import annotations

import sys

import pytest

from flowctl.config import Settings
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Record
from flowctl.core.spout import SpoutCore
from flowctl.errors import SourceError
from flowctl.ports import SourceChunk
from flowctl.runtime.control import RunControl
from flowctl.runtime.reader import Reader
from tests.runtime_parts import ListProducer


class Control(RunControl):
    """With a wait for room that does not wait but makes some, or stops."""

    def __init__(self, **settings: object) -> None:
        super().__init__(SpoutCore(Settings().with_overrides(settings), has_dead_letter=True))
        self.waits = 0
        self.taken: list[int] = []
        self.wakes = 0
        self.room.wait = self._make_room
        self.wake = self._count_wake

    def _make_room(self, timeout: float | None = None) -> bool:
        assert self.lock.locked()
        assert self.reader_waits
        self.waits += 1
        self.drain()
        return True

    def _count_wake(self) -> None:
        self.wakes += 1

    def drain(self) -> None:
        buffer = self.core.intake.buffer
        while buffer:
            cut = buffer.cut(1_000_000, 1 << 40)
            self.taken += [record.position for record in cut.records]


def read(control: Control, producer: ListProducer, unsaved_max: int = 1 << 30) -> Reader:
    producer.open(control.core.checkpoint())
    reader = Reader(control, producer, unsaved_max=unsaved_max)
    reader.run()
    control.drain()
    assert control.reader_done.is_set()
    return reader


@pytest.mark.req("S93")
def test_what_is_refused_is_kept_and_offered_again():
    control = Control(**{"lab.buffer.records_max": 3})
    reader = read(control, ListProducer(10, poll_max=10))
    assert control.taken == list(range(1, 11))
    assert control.waits == 3
    assert reader.source_error is None


def test_the_sender_is_woken_when_there_is_something_again():
    control = Control()
    read(control, ListProducer(10, poll_max=5))
    assert control.wakes == 2, "once for the first records, once at the end"


class Raising(ListProducer):
    """Raises after its records."""

    def __init__(self, count: int, error: BaseException) -> None:
        super().__init__(count)
        self.error = error

    def poll(self, max_records: int) -> SourceChunk | None:
        chunk = super().poll(max_records)
        if chunk is None:
            raise self.error
        return chunk


def test_a_source_error_is_kept_and_what_was_read_before_is_there():
    control = Control()
    error = SourceError("line 6 is bad.")
    reader = read(control, Raising(5, error))
    assert reader.source_error is error
    assert control.taken == [1, 2, 3, 4, 5]
    assert not control.stopping.is_set(), "what was read is still to be processed"


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(1)], ids=["error", "exit"])
def test_any_other_error_is_named_with_its_place(error: BaseException):
    reader = read(Control(), Raising(5, error))
    assert isinstance(reader.source_error, SourceError)
    assert reader.source_error.__cause__ is error
    assert f"the producer Raising raised {type(error).__name__}" in str(reader.source_error)
    assert f"{__file__}:" in str(reader.source_error)


def test_an_end_by_error_is_no_end_of_input():
    """Else acked ranges beyond the last record read would count as reached, and hide the rest."""
    control = Control()
    read(control, Raising(5, SystemExit(0)))
    assert not control.core.book.input_ended
    control = Control()
    read(control, ListProducer(5))
    assert control.core.book.input_ended


class GoesBack(ListProducer):
    def poll(self, max_records: int) -> SourceChunk | None:
        chunk = super().poll(2)
        if chunk is not None and chunk.records[0].position > 4:
            return SourceChunk("p", [Record(2, "again")])
        return chunk


def test_positions_that_go_back_are_refused():
    control = Control()
    reader = read(control, GoesBack(10))
    assert isinstance(reader.source_error, SourceError)
    assert "partition 'p': position 2 came after 4" in str(reader.source_error)
    assert control.taken == [1, 2, 3, 4]


def test_with_the_store_away_it_reads_as_far_as_allowed():
    control = Control(**{"lab.buffer.records_max": 5})
    control.store_away_since_s = 0.0
    control.core.counters.records_acked = 7

    def come_back(timeout: float | None = None) -> bool:
        control.waits += 1
        control.drain()
        if control.waits == 3:
            control.store_away_since_s = None
        return True

    control.room.wait = come_back
    read(control, ListProducer(4, poll_max=4), unsaved_max=7)
    assert control.waits == 3
    assert control.taken == [1, 2, 3, 4]


def test_a_stop_ends_it_even_where_it_is_refused():
    control = Control(**{"lab.buffer.records_max": 1})

    def stop(timeout: float | None = None) -> bool:
        control.stopping.set()
        return True

    control.room.wait = stop
    producer = ListProducer(sys.maxsize, poll_max=2)
    read(control, producer)
    assert producer.polls == 1
    assert not control.core.book.input_ended


class Chunks(ListProducer):
    """Gives these chunks, one a poll."""

    def __init__(self, *chunks: SourceChunk) -> None:
        super().__init__(0)
        self.chunks = list(chunks)

    def poll(self, max_records: int) -> SourceChunk | None:
        return self.chunks.pop(0) if self.chunks else None


def test_it_waits_only_where_there_is_nothing(monkeypatch: pytest.MonkeyPatch):
    control = Control()
    waits: list[float | None] = []
    monkeypatch.setattr(control.stopping, "wait", lambda timeout=None: waits.append(timeout))
    busy, nothing = SourceChunk("", (), is_busy=True), SourceChunk("", ())
    read(control, Chunks(busy, SourceChunk("p", (), end=1), busy, nothing, busy))
    assert len(waits) == 1


def test_an_end_is_kept_with_what_was_offered_before_it():
    control = Control()
    records = [Record(1, "value")]
    read(control, Chunks(SourceChunk("p", records, end=(5, 6)), SourceChunk("empty", (), end=0)))
    ends = {name: state.end for name, state in control.core.checkpoint().partitions.items()}
    assert ends == {"p": None, "empty": 0}, "p's record is not acked yet"
    control.core.intake.ledgers["p"].ack(0, 1, 1, 1)
    assert control.core.checkpoint().partitions["p"].end == (5, 6)


def test_a_run_that_stops_has_read_to_no_end():
    control = Control()
    producer = Chunks(SourceChunk("p", [Record(1, "value")], end=7))
    poll = producer.poll

    def stop(max_records: int) -> SourceChunk | None:
        control.stopping.set()  # between the poll and the offer
        return poll(max_records)

    producer.poll = stop  # type: ignore[method-assign]
    read(control, producer)
    assert control.core.checkpoint().partitions == {}


class SomeBad(ListProducer):
    """Every third record holds what can't be sent."""

    def value(self, position: int) -> object:
        return {"n": 1j} if position % 3 == 0 else position


def dead_of(control: Control) -> list[tuple[int, str]]:
    found = []
    while (dead := control.core.poll_dead_letter()) is not None:
        found.append((dead.records[0].position, dead.gave_up.reason))
        control.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=0.0)
    return found


def test_a_record_that_cannot_be_sent_goes_to_the_dead_letter_and_the_rest_is_read():
    control = Control(**{"lab.buffer.records_max": 40})
    producer = SomeBad(300, poll_max=120)
    producer.open(control.core.checkpoint())
    reader = Reader(control, producer, unsaved_max=1 << 30, has_dead_letter=True)
    reader.run()
    control.drain()
    assert reader.source_error is None and control.error is None
    assert control.taken == [n for n in range(1, 301) if n % 3]
    dead = dead_of(control)
    assert [position for position, _ in dead] == list(range(3, 301, 3))
    assert dead[0][1].startswith("rejected: value['n'] is a complex, which would not arrive")
    assert "as it is; use one of these types: None, bool, int" in dead[0][1]
    assert control.core.counters.records_rejected == control.core.counters.records_acked == 100


def test_text_that_utf_8_can_not_encode_is_such_a_record():
    """It was found only when it was sent, which ended the run whatever keeps such records."""

    class HalfPair(ListProducer):
        def value(self, position: int) -> object:
            return "bad \udcff" if position == 2 else "fine ü"

    control = Control()
    producer = HalfPair(3)
    producer.open(control.core.checkpoint())
    reader = Reader(control, producer, unsaved_max=1 << 30, has_dead_letter=True)
    reader.run()
    control.drain()
    assert control.taken == [1, 3]
    [(position, reason)] = dead_of(control)
    assert position == 2 and "a lone surrogate at 4" in reason


def test_what_an_earlier_run_set_aside_is_not_set_aside_again():
    control = Control()
    state = PartitionCheckpoint(2, 2, (AckedRange(3, 3, 1),))
    control.core = SpoutCore(Settings(), checkpoint=Checkpoint({"p": state}), has_dead_letter=True)
    producer = SomeBad(4)
    producer.open(control.core.checkpoint())
    Reader(control, producer, unsaved_max=1 << 30, has_dead_letter=True).run()
    control.drain()
    assert control.taken == [4] and dead_of(control) == []


def test_without_a_dead_letter_it_ends_the_run_with_what_to_do():
    control = Control()
    reader = read(control, SomeBad(5))
    assert control.taken == [1, 2]
    assert isinstance(reader.source_error, SourceError)
    assert "p, record 3: value['n'] is a complex" in reader.source_error.problem
    assert "--dead-letters" in reader.source_error.remedy


def test_where_nothing_is_sent_again_it_ends_the_run_too():
    control = Control(**{"guarantee.mode": "at_most_once"})
    control.room.wait = lambda timeout=None: control.drain()
    producer = SomeBad(5)
    producer.open(control.core.checkpoint())
    reader = Reader(control, producer, unsaved_max=1 << 30, has_dead_letter=True)
    reader.run()
    assert isinstance(reader.source_error, SourceError)
