"""A batch of a source that has nothing, is busy, ends, or is not what it was; and what was read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record, Span
from flowctl.delivery.delivery import ReadRows
from flowctl.delivery.offset_reader import Offset, OffsetReader
from flowctl.errors import SourceError
from flowctl.ports import SourceChunk

START = Offset(0)
NOTHING = SourceChunk("", ())
BUSY = SourceChunk("", (), is_busy=True)


def chunk(first: int, last: int, partition: str = "a", end: Any = None) -> SourceChunk:
    records = [Record(number, f"{partition}{number}") for number in range(first, last + 1)]
    return SourceChunk(partition, records, end=end)


class Script:
    """Gives out these chunks, each poll so long after the last one; None: the end."""

    def __init__(self, chunks: Iterable[SourceChunk | None], poll_s: float = 0.0) -> None:
        self.chunks = list(chunks)
        self.poll_s = poll_s
        self.now_s = 100.0
        self.opened: list[Checkpoint] = []
        self.closed = 0
        self.asked: list[int] = []

    def open(self, checkpoint: Checkpoint) -> None:
        self.opened.append(checkpoint)

    def poll(self, max_records: int) -> SourceChunk | None:
        self.asked.append(max_records)
        self.now_s += self.poll_s
        return self.chunks.pop(0) if len(self.chunks) > 1 else self.chunks[0]

    def close(self) -> None:
        self.closed += 1

    def reading(self) -> OffsetReader:
        return OffsetReader(lambda: self, clock=lambda: self.now_s)  # type: ignore[arg-type, return-value]


def rows_of(pieces: list[Any]) -> list[str]:
    return [record.value for piece in pieces for record in piece.records]


def test_a_source_with_nothing_at_the_moment_closes_the_batch_and_one_that_is_busy_does_not() -> (
    None
):
    script = Script([BUSY, chunk(1, 2), BUSY, chunk(3, 4), NOTHING, chunk(5, 6), NOTHING], 0.1)
    reading = script.reading()
    pieces, ends = reading.take(START, 100)
    assert rows_of(pieces) == ["a1", "a2", "a3", "a4"]
    assert not reading.is_over
    pieces, _ = reading.take(Offset(0, ends), 100)
    assert rows_of(pieces) == ["a5", "a6"]


def test_a_source_that_stays_busy_is_asked_for_a_second() -> None:
    script = Script([chunk(1, 1), BUSY], 0.3)
    pieces, _ = script.reading().take(START, 100)
    assert rows_of(pieces) == ["a1"]
    assert len(script.asked) == 4


def test_the_end_of_a_source_closes_the_batch_and_is_kept() -> None:
    script = Script([chunk(1, 2), SourceChunk("a", (), end=9), SourceChunk("b", (), end=1), None])
    reading = script.reading()
    pieces, ends = reading.take(START, 100)
    assert (rows_of(pieces), reading.is_over) == (["a1", "a2"], True)
    assert ends == {
        "a": PartitionCheckpoint(2, 2, end=9),
        "b": PartitionCheckpoint(None, 0, end=1),
    }


def test_no_more_is_asked_for_than_fits_and_what_is_over_is_the_next_batchs() -> None:
    script = Script([chunk(1, 30, end=30), chunk(31, 50_000), None])
    reading = script.reading()
    pieces, ends = reading.take(START, 20)
    assert (len(rows_of(pieces)), script.asked) == (20, [20])
    assert ends["a"] == PartitionCheckpoint(20, 20), "its end is not reached"
    pieces, ends = reading.take(Offset(0, ends), 30_000)
    assert len(rows_of(pieces)) == 30_000
    assert script.asked == [20, 10_000], "what is over first, then not too much at once"
    reading.close()
    assert script.closed == 1
    reading.close()
    assert script.closed == 1


def test_a_batch_that_begins_elsewhere_opens_another_producer_there() -> None:
    script = Script([chunk(1, 3), NOTHING])
    reading = script.reading()
    _, ends = reading.take(START, 100)
    reading.take(Offset(0, ends), 100)
    assert (len(script.opened), script.closed) == (1, 0)
    there = {"a": PartitionCheckpoint(2, 2)}
    reading.take(Offset(0, there), 100)
    assert (len(script.opened), script.closed) == (2, 1)
    assert script.opened[-1] == Checkpoint(there)


def end_of(**partitions: int) -> Offset:
    return Offset(0, {name: PartitionCheckpoint(n, n) for name, n in partitions.items()})


def test_a_replay_takes_each_partition_as_far_as_it_went_and_leaves_the_rest() -> None:
    script = Script([chunk(1, 9, "b"), chunk(1, 9), chunk(10, 12), NOTHING])
    reading = script.reading()
    pieces = reading.replay(START, end_of(a=4))
    assert rows_of(pieces) == ["a1", "a2", "a3", "a4"]
    pieces, ends = reading.take(end_of(a=4), 100)
    assert rows_of(pieces) == [
        *(f"a{n}" for n in range(5, 13)),
        *(f"b{n}" for n in range(1, 10)),
    ], "nothing is lost, in order"
    assert ends["a"] == PartitionCheckpoint(12, 12)


def test_after_a_replay_the_same_producer_goes_on_where_the_batch_ended() -> None:
    """Kind: the first batch after a restart reads its source twice, as a replay knows no ends."""
    script = Script([chunk(1, 4), SourceChunk("a", (), end=9), chunk(1, 1, "b"), NOTHING])
    reading = script.reading()
    end = Offset(0, {"a": PartitionCheckpoint(4, 4, end=9)})
    assert rows_of(reading.replay(START, end)) == ["a1", "a2", "a3", "a4"]
    pieces, _ = reading.take(end, 100)
    assert rows_of(pieces) == ["b1"]
    assert (len(script.opened), script.closed) == (1, 0)


def test_a_replay_waits_for_records_but_not_for_ever() -> None:
    slow = [NOTHING] * 9
    script = Script([*slow, chunk(1, 1), *slow, chunk(2, 2), NOTHING], 1.0)
    assert rows_of(script.reading().replay(START, end_of(a=2))) == ["a1", "a2"]
    script = Script([chunk(1, 1), NOTHING], 1.0)
    with pytest.raises(SourceError, match="a ends 1 records before the batch"):
        script.reading().replay(START, end_of(a=2))
    assert 10 < len(script.asked) < 15
    with pytest.raises(SourceError, match="a ends 2 records before"):
        Script([None]).reading().replay(START, end_of(a=2))


def test_a_replay_of_other_records_is_refused() -> None:
    for wrong in (chunk(2, 3), chunk(0, 1)):
        with pytest.raises(SourceError, match="a has other records than when"):
            Script([wrong, NOTHING]).reading().replay(START, end_of(a=2))
    nothing = Script([NOTHING]).reading()
    assert nothing.replay(end_of(a=2), end_of(a=2)) == []
    with pytest.raises(SourceError, match="b has other records"):
        nothing.replay(end_of(a=2), Offset(0, {"b": PartitionCheckpoint(5, 0)}))


@pytest.mark.parametrize(
    "position", [None, 5, "k", (1, 2), 2.5, b"x"], ids=lambda value: type(value).__name__
)
def test_an_offset_comes_back_as_it_was(position: Any) -> None:
    part = PartitionCheckpoint(position, 3, end=position)
    offset = Offset(7, {"p": part, "q": PartitionCheckpoint(None, 0)}, 4)
    assert Offset.unpacked(offset.packed()) == offset
    assert offset.checkpoint() == Checkpoint(dict(offset.partitions))
    with pytest.raises(SourceError, match="can't be read"):
        Offset.unpacked({**offset.packed(), "version": 2})


# -- which rows were read --------------------------------------------------------------------------


def batch_of(places: list[int]) -> Batch:
    span = Span("job", "p", places[0], places[-1], 1, None)
    records = [Record(place, place) for place in places]
    return Batch(records, span, bolt="b", attempt=1, clock=lambda: 0.0)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(1, 7), st.data())
def test_what_is_known_of_a_row_is_what_a_list_of_all_would_say(
    calls: list[int], section: int, data: st.DataObject
) -> None:
    """Rows at even numbers, sections of a fixed size; any row of some calls may be left out."""
    has_sections = data.draw(st.booleans())
    read = ReadRows((lambda at: at // (2 * section)) if has_sections else None)
    left_out: set[int] = set()
    stops = list(accumulate(calls))
    for start, stop in zip([0, *stops], stops, strict=False):
        at = [2 * row for row in range(start, stop)]
        pieces = [at]
        if has_sections:  # what is read together is of one section
            numbers = sorted({place // (2 * section) for place in at})
            pieces = [[p for p in at if p // (2 * section) == number] for number in numbers]
        for piece in pieces:
            read.read(piece[0], piece[-1])
            batch = batch_of(piece)
            which = data.draw(st.sets(st.integers(0, len(piece) - 1)) | st.none())
            if which is None:
                read.left_out(batch)
                left_out |= set(piece)
            elif which:
                batch.left_out_at = which  # then they are written
                read.left_out(batch)
    assert read.first == 0
    for place in range(0, 2 * stops[-1], 2):
        assert read.is_written(place) is (place not in left_out)
    assert read.is_written(2 * stops[-1]) is None
    assert read.is_written(-2) is None
    assert read.is_written("of another job") is None
    if has_sections and section < stops[-1]:
        assert read.is_written(2 * section - 1) is None, "between two sections"
