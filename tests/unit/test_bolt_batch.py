"""Which record of a batch was being worked on when ``process`` raised."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import UnrunnableError

RECORDS = [Record(n, n) for n in range(6)]


def batch_of(records: Sequence[Record] = RECORDS) -> Batch:
    return Batch(records, Span("job", "p", 0, 5, 1), bolt="b1", attempt=1)


def each(batch: Batch) -> None:
    for record in batch:
        1 // (record.value - 3)


def in_a_comprehension(batch: Batch) -> None:
    [1 // (record.value - 3) for record in batch]


def after_a_look(batch: Batch) -> None:
    next(iter(batch))
    each(batch)


def after_a_pass(batch: Batch) -> None:
    assert len(list(batch)) == 6
    each(batch)


def around_a_search(batch: Batch) -> None:
    for record in batch:
        if record.value == 1:
            for other in batch:
                if other.value == 4:
                    break
        assert RECORDS[5] in batch
        1 // (record.value - 3)


def around_a_pass(batch: Batch) -> None:
    for record in batch:
        assert len(list(batch)) == 6
        1 // (record.value - 3)


def within_a_pass(batch: Batch) -> None:
    for _ in batch:
        each(batch)


def with_an_index(batch: Batch) -> None:
    for index, _ in enumerate(batch):
        1 // (index - 3)


class Made(Sequence[Record]):
    """Records that are made while they are read, as those of a range are."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            yield Record(record.position, record.value)


@pytest.mark.parametrize(
    "process",
    [
        each, in_a_comprehension, after_a_look, after_a_pass, around_a_search, around_a_pass,
        within_a_pass, with_an_index,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [list, tuple, Made])
def test_the_record_that_failed_is_known(process: Callable[[Batch], None], kind: type) -> None:
    batch = batch_of(kind(RECORDS))
    with pytest.raises(ZeroDivisionError):
        process(batch)
    assert batch.reading_index == 3


@pytest.mark.parametrize("kind", [list, Made])
def test_before_the_first_and_after_the_end_none_is(kind: type) -> None:
    batch = batch_of(kind(RECORDS))
    assert batch.reading_index is None
    iterator = iter(batch)
    assert batch.reading_index is None
    assert [batch.reading_index for _ in iterator] == [0, 1, 2, 3, 4, 5]
    assert batch.reading_index is None


def test_many_that_were_left_cost_nothing() -> None:
    batch = batch_of()
    for _ in range(100):
        next(iter(batch))
    assert len(batch._older) <= 4
    assert list(batch) == RECORDS


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_is_no_index(flag: bool) -> None:
    batch = batch_of()
    with pytest.raises(UnrunnableError, match=f"{flag} is not a record"):
        batch.reject(flag, "bad")
    assert batch.rejected == {}


def test_an_index_of_numpy_is_one() -> None:
    numpy = pytest.importorskip("numpy")
    batch = batch_of()
    for index in numpy.flatnonzero([0, 0, 1, 0, 1, 0]):
        batch.reject(index, "bad")
    assert list(batch.rejected) == [2, 4]
    assert all(type(index) is int for index in batch.rejected)


@pytest.mark.parametrize(
    ("process", "asked"),
    [
        (lambda row: row["id"], "['id']"),
        (lambda row: row.id, ".id"),
        (lambda row: row.value["id"], ".value"),
    ],
)
def test_who_takes_the_batch_for_a_record_is_told_how_to_read_one(process: Any, asked: str) -> None:
    with pytest.raises(UnrunnableError, match="a batch of records") as raised:
        process(batch_of())
    assert asked in str(raised.value) and "for record in batch" in str(raised.value)


def test_whoever_asks_what_a_batch_can_gets_an_answer() -> None:
    batch = batch_of()
    assert not hasattr(batch, "shape") and getattr(batch, "__array__", None) is None
    assert copy.copy(batch)[1:3] == RECORDS[1:3]
    with pytest.raises(TypeError):
        batch[1.5]  # type: ignore[call-overload]
