"""Send buffer and bounds."""

from __future__ import annotations

import pytest

from flowctl.core import intake
from flowctl.core.buffer import SendBuffer, size_of
from flowctl.core.events import IntakePaused, IntakeResumed
from flowctl.core.records import Record
from tests.core_driver import Driver


def records(first: int, count: int, size: int = 10) -> list[Record]:
    return [Record(n, "x" * size) for n in range(first, first + count)]


def put(buffer: SendBuffer, run: list[Record], partition: str = "p") -> None:
    buffer.put(partition, run[0].position, run, [size_of(r.value) for r in run])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "size"), [("abc", 3), (b"abcd", 4), (None, 9), (7, 9), (True, 9), ([1, "ab"], 5)]
)
def test_sizes_are_about_those_on_the_wire(value: object, size: int) -> None:
    assert size_of(value) == size


@pytest.mark.req("S1")
def test_a_tuple_is_cut_at_its_records_and_at_its_bytes() -> None:
    buffer = SendBuffer()
    put(buffer, records(1, 20))
    assert [r.position for r in buffer.cut(3, 1_000).records] == [1, 2, 3]
    assert [r.position for r in buffer.cut(100, 45).records] == [4, 5, 6, 7]
    assert (buffer.records, buffer.size_bytes) == (13, 130)


@pytest.mark.req("S1")
def test_pieces_that_continue_each_other_fill_a_tuple() -> None:
    buffer = SendBuffer()
    for first in range(1, 10, 2):
        put(buffer, records(first, 2))
    assert [r.position for r in buffer.cut(5, 1_000).records] == [1, 2, 3, 4, 5]
    assert [r.position for r in buffer.cut(9, 35).records] == [6, 7, 8]


def test_a_tuple_holds_one_partition_and_no_gap() -> None:
    buffer = SendBuffer()
    put(buffer, records(1, 2))
    put(buffer, records(4, 2))  # 3 was acked by an earlier run
    put(buffer, records(6, 2), "q")
    cuts = [buffer.cut(10, 1_000) for _ in range(3)]
    assert [(c.partition, [r.position for r in c.records]) for c in cuts] == [
        ("p", [1, 2]),
        ("p", [4, 5]),
        ("q", [6, 7]),
    ]
    assert not buffer
    with pytest.raises(IndexError):
        buffer.cut(1, 1)


@pytest.mark.req("S1")
def test_a_record_of_50_mb_rides_alone() -> None:
    driver = Driver("a", window_initial=9, tuple_records_max=100, buffer_bytes_max=1 << 20)
    huge = Record(2, b"x" * (50 << 20))
    assert driver.core.offer("p", [Record(1, "a"), huge, Record(3, "b")], now_s=0.0) == 1
    assert driver.core.offer("p", [huge, Record(3, "b")], now_s=0.0) == 0  # not beside another
    driver.emit()
    assert driver.core.offer("p", [huge, Record(3, "b")], now_s=0.0) == 1
    (emission,) = driver.emit()
    assert (*emission.records, emission.size_bytes) == (huge, 50 << 20)
    assert driver.core.offer("p", [Record(3, "b")], now_s=0.0) == 1


@pytest.mark.req("S1")
def test_in_the_middle_of_a_run_too() -> None:
    buffer = SendBuffer()
    put(buffer, [*records(1, 2), *records(3, 1, size=500), *records(4, 2)])
    cuts = [buffer.cut(10, 100) for _ in range(3)]
    assert [[r.position for r in cut.records] for cut in cuts] == [[1, 2], [3], [4, 5]]


@pytest.mark.req("S23", "S52", "S59")
def test_the_buffer_is_bounded_in_records() -> None:
    driver = Driver(buffer_records_max=10)
    assert driver.offer(7) == 7
    assert driver.offer(7) == 3
    assert driver.offer(7) == 0
    assert driver.core.intake.buffer.records == 10


@pytest.mark.req("S23", "S52")
def test_and_in_bytes() -> None:
    driver = Driver(buffer_bytes_max=95)  # a number counts nine bytes
    assert driver.offer(20) == 10
    assert driver.offer(1) == 0


@pytest.mark.req("S94")
def test_a_hole_stops_intake_but_not_its_own_retry() -> None:
    driver = Driver("a", "b", window_initial=30, buffer_uncommitted_max=20)
    driver.offer(20)
    hole, *rest = driver.emit()
    for emission in rest:
        driver.ack(emission)
    assert driver.position() is None
    assert driver.offer(5) == 0  # 20 records are read and not below the cumulative ack
    driver.fail(hole)
    driver.wait_for_deadline()
    (again,) = driver.emit()
    assert again.tuple_id == hole.tuple_id
    driver.ack(again)
    assert driver.position() == 20
    assert driver.offer(5) == 5


@pytest.mark.req("S94")
def test_without_that_bound_a_hole_stops_nothing_but_what_is_not_done_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "_UNDONE_MAX", 20)
    driver = Driver("a", "b", window_initial=30)
    for holes in range(5):
        assert driver.offer(20) == 20 - holes
        for emission in driver.emit()[1:]:
            driver.ack(emission)
        assert driver.core.intake.undone == holes + 1
    assert driver.position() is None
    assert len(driver.core.checkpoint().partitions["p"].acked) <= 5
    assert driver.offer(30) == 15
    assert driver.core.intake.is_full


@pytest.mark.req("S44")
def test_one_event_when_a_stretch_of_refusals_begins_and_one_when_it_ends() -> None:
    driver = Driver("a", window_initial=50, buffer_records_max=10)
    driver.offer(25)
    driver.wait(1.0)
    driver.offer(15)
    driver.core.offer("p", [], now_s=driver.clock())  # nothing read: says nothing
    driver.wait(1.0)
    (paused,) = driver.events(IntakePaused)
    assert (paused.at_s, paused.reason) == (0.0, "buffer full")
    driver.emit()
    driver.offer(10)
    driver.emit()
    driver.offer(5)
    (resumed,) = driver.events(IntakeResumed)
    assert resumed.paused_s == 2.0
    assert len(driver.events(IntakePaused)) == 1


@pytest.mark.req("S44")
def test_the_event_names_the_bound() -> None:
    driver = Driver(buffer_uncommitted_max=5)
    driver.offer(6)
    (paused,) = driver.events(IntakePaused)
    assert paused.reason == "buffer.uncommitted_max"


@pytest.mark.req("S93")
def test_a_refused_producer_is_asked_again_when_half_of_the_buffer_is_free() -> None:
    driver = Driver("a", window_initial=50, buffer_records_max=10)
    driver.offer(10)
    driver.emit(4)
    assert not driver.core.intake.has_room
    driver.emit(1)
    assert driver.core.intake.has_room
