"""Sinks whose target says of each row what became of it: what is sent, and what comes again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.error import HTTPError

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.delivery.item_sink import (
    LEFT_OUT,
    WRITTEN,
    BadItemError,
    Fate,
    ItemSink,
    NotInJsonError,
    encoded,
    part_of,
    parts_of,
    wanted_of,
)
from flowctl.errors import InternalError, JobError, RetryLater, UnrunnableError
from flowctl.failure.kinds import Kind


class Told(ItemSink):
    """A target that answers as told, two items a call; "bad" can't be sent."""

    remedy = "Ask for the right."

    def __init__(self, *answers: Sequence[Fate] | Exception) -> None:
        self.answers = list(answers)
        self.calls: list[list[Any]] = []

    def item(self, row: Any, batch: Batch, index: int) -> Any:
        if row == "bad":
            raise BadItemError("it is bad")
        return f"{row}{index}"

    def cut(self, items: Sequence[Any]) -> Iterable[Sequence[Any]]:
        return parts_of(items, [1] * len(items), 2, 100)

    def send(self, items: Sequence[Any]) -> Sequence[Fate]:
        self.calls.append(list(items))
        answer = self.answers.pop(0) if self.answers else [WRITTEN] * len(items)
        if isinstance(answer, Exception):
            raise answer
        return answer


def batch_of(*values: Any) -> Batch:
    records = [Record((0, index), value) for index, value in enumerate(values)]
    span = Span("j", "0", (0, 0), (0, len(values) - 1), 1, None)
    return Batch(records, span, bolt="0", attempt=1)


def write(sink: ItemSink, *rows: Any) -> Batch:
    batch = batch_of(*rows)
    sink.write(rows, batch=batch)
    return batch


def test_each_row_is_an_item_but_for_none_and_those_that_cannot_be_sent() -> None:
    sink = Told()
    batch = write(sink, "a", None, "bad", "b", "c")
    assert sink.calls == [["a0", "b3"], ["c4"]]
    assert batch.rejected == {2: "it is bad"}
    assert batch.left_out == 0


def test_without_an_item_nothing_is_called() -> None:
    sink = Told()
    assert write(sink, None, "bad").rejected == {1: "it is bad"}
    assert sink.calls == []


@pytest.mark.parametrize("kind", [Kind.FULL, Kind.AGAIN])
def test_refused_items_come_again_alone_with_the_first_reason(kind: Kind) -> None:
    batch = batch_of("a", None, "b", "c", "d")
    sink = Told([WRITTEN, Fate(kind, "busy")], [Fate(kind, "later"), LEFT_OUT])
    with pytest.raises(RetryLater, match=r"2 of 4 items refused \(busy\)") as told:
        sink.write(["a", None, "b", "c", "d"], batch=batch)
    assert told.value.again == (2, 3)
    assert batch.left_out == 1
    assert not batch.rejected


def test_an_item_that_the_target_cannot_take_is_rejected_with_its_reason() -> None:
    assert write(Told([Fate(Kind.CONTENT, "no number"), WRITTEN]), "a", "b").rejected == {
        0: "no number"
    }


def test_what_is_not_allowed_ends_the_run_with_the_sinks_remedy() -> None:
    with pytest.raises(UnrunnableError, match="every row is refused: no right") as told:
        write(Told([WRITTEN, Fate(Kind.NOT_ALLOWED, "no right")]), "a", "b")
    assert told.value.field == "Told"
    assert told.value.remedy == "Ask for the right."


def test_after_a_failed_call_what_was_taken_before_does_not_come_again() -> None:
    """Kind: rows are sent twice, because a later call of the same batch failed."""
    sink = Told([WRITTEN, Fate(Kind.CONTENT, "no")], ConnectionError("gone"))
    batch = batch_of(*"abcde")
    with pytest.raises(RetryLater, match=r"3 of 5 items refused .ConnectionError: gone") as told:
        sink.write(list("abcde"), batch=batch)
    assert told.value.again == (2, 3, 4)
    assert batch.rejected == {1: "no"}
    assert len(sink.calls) == 2, "none after the failure"


@pytest.mark.parametrize(
    ("before", "error"),
    [
        ([Fate(Kind.FULL, "busy")] * 2, ConnectionError("gone")),  # nothing is written yet
        ([WRITTEN] * 2, HTTPError("http://target/", 403, "no", None, None)),  # no row can succeed
    ],
)
def test_else_the_clients_own_error_is_raised(before: list[Fate], error: Exception) -> None:
    with pytest.raises(type(error)) as told:
        write(Told(before, error), "a", "b", "c")
    assert told.value is error


def test_a_sink_that_does_not_tell_of_each_item_is_named() -> None:
    with pytest.raises(InternalError, match="told of 1 of 2 items"):
        write(Told([WRITTEN]), "a", "b")


def test_there_is_one_row_for_each_record() -> None:
    with pytest.raises(UnrunnableError, match="2 rows for a batch of 3 records") as told:
        Told().write(["a", "b"], batch=batch_of(*"abc"))
    assert told.value.field == "rows"
    assert told.value.remedy


def test_arrow_s_rows_are_dicts() -> None:
    import pyarrow as pa

    rows = pa.RecordBatch.from_pydict({"n": [1, 2]})
    assert wanted_of(rows, batch_of(1, 2)) == [(0, {"n": 1}), (1, {"n": 2})]


def test_a_part_of_a_row_is_its_column_or_what_a_function_makes_of_it() -> None:
    batch = batch_of({"a": 1}, {"a": 2})
    assert part_of("a", {"a": 2}, batch, 1) == 2
    assert part_of(lambda row: row["a"] + 1, {"a": 2}, batch, 1) == 3
    with pytest.raises(JobError, match=r"row 1 has no column 'b'") as told:
        part_of("b", {"a": 2}, batch, 1)
    assert told.value.remedy


@pytest.mark.parametrize(
    ("sizes", "most", "bytes_max", "parts"),
    [
        ([], 2, 10, []),
        ([1, 1, 1], 2, 10, ["ab", "c"]),
        ([4, 6, 1], 9, 10, ["ab", "c"]),  # exactly so many bytes fit
        ([4, 7, 3], 9, 10, ["a", "bc"]),
        ([50, 1, 60], 9, 10, ["a", "b", "c"]),  # one goes whatever its size
        ([1, 1, 1, 1], 1, 10, ["a", "b", "c", "d"]),
    ],
)
def test_items_are_divided_by_number_and_bytes(
    sizes: list[int], most: int, bytes_max: int, parts: list[str]
) -> None:
    items = "abcd"[: len(sizes)]
    assert list(parts_of(items, sizes, most, bytes_max)) == parts


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (math.nan, "the row is nan"),
        ({"a": [1.5, {"b": math.inf}]}, r"a\[1\].b is inf"),
        ([None, -math.inf], r"\[1\] is -inf"),
        ({"a": (1, math.nan)}, r"a\[1\] is nan"),
    ],
)
def test_numbers_that_json_lacks_are_named_with_their_place(value: Any, what: str) -> None:
    with pytest.raises(NotInJsonError, match=f"^{what}, which JSON does not have$"):
        encoded(value)


def test_null_is_no_such_number() -> None:
    assert encoded({"a": None, "b": "null"}) == b'{"a":null,"b":"null"}'
