"""What a producer of a user's own returns: refused by name before any of it is taken."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from flowctl import Records, SourceChunk
from flowctl.core.records import Checkpoint, Record
from flowctl.errors import SourceError
from flowctl.runtime.redrive import checked
from flowctl.testing import run_local


def chunk(*positions: Any) -> SourceChunk:
    return SourceChunk("p", [Record(position, "v") for position in positions])


@pytest.mark.parametrize(
    "positions",
    [(), (7,), (-1, 0, 2**63 - 1), (0.5, 1.5), ("a", "b", "é"), ((0, 1), (9, 2), (9, 3, 4))],
)
def test_positions_that_rise_are_taken(positions: tuple[Any, ...]) -> None:
    assert checked(chunk(*positions), "Mine") == chunk(*positions)
    assert checked(None, "Mine") is None


@pytest.mark.parametrize(
    "positions",
    [
        *((1, 3, 2, 9), (0, 4, 4, 5), ("8", "9", "10"), (1, "b"), (False, True), (0.0, 1)),
        *((None, None), (1.0, float("nan"), 2.0)),
    ],
    ids=str,
)
def test_positions_that_do_not_rise_are_refused(positions: tuple[Any, ...]) -> None:
    with pytest.raises(SourceError, match=r"partition 'p': position .* came after") as caught:
        checked(chunk(*positions), "Mine")
    assert "order what you read by them" in caught.value.remedy


@pytest.mark.parametrize("given", [2**70, datetime(2026, 11, 1), (1, b"a")], ids=str)
@pytest.mark.parametrize("field", ["position", "mark", "end"])
def test_what_can_not_be_saved_is_refused_before_it_is_processed(field: str, given: Any) -> None:
    position = given if field == "position" else 1
    fields = {} if field == "position" else {field: given}
    with pytest.raises(SourceError, match=f"partition 'p': the {field} .* can't be saved"):
        checked(SourceChunk("p", [Record(position, "v")], **fields), "Mine")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ([Record(0, "a")], "a list"),
        (SourceChunk("p", ["a"]), "with a str as a record"),  # type: ignore[list-item]
        (SourceChunk("p", [(0, "a")]), "with a tuple as a record"),  # type: ignore[list-item]
        (SourceChunk("p", iter([])), "whose records are a list_iterator"),  # type: ignore[arg-type]
        (SourceChunk("p", None), "whose records are a NoneType"),  # type: ignore[arg-type]
        (SourceChunk(5, []), "whose partition is a int"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_chunk_is_refused_by_the_name_of_the_producer(given: Any, what: str) -> None:
    with pytest.raises(SourceError, match=f"the producer Mine returned .*{what}.*from poll"):
        checked(given, "Mine")


class Mine:
    """A producer that a user writes first: a list where a chunk is due, or an error in open."""

    def __init__(self, *, opens: bool) -> None:
        self.opens = opens

    def partitions(self) -> list[str]:
        return ["p"]

    def open(self, checkpoint: Checkpoint) -> None:
        if not self.opens:
            raise ValueError("no such table")

    def poll(self, max_records: int) -> Any:
        return [Record(0, "a")]

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("opens", "said"), [(True, "returned a list from poll"), (False, "ValueError: no such table")]
)
def test_a_run_ends_with_a_sentence_about_the_producer(opens: bool, said: str) -> None:
    with pytest.raises(SourceError, match=f"the producer Mine .*{said}"):
        run_local(lambda batch: None, Mine(opens=opens))


@pytest.mark.parametrize("kind", [dict, list])
def test_an_iterable_that_fills_one_object_again_and_again_is_refused(kind: type) -> None:
    def rows() -> Any:
        row: Any = {"n": 0} if kind is dict else [0]
        for n in range(5):
            row["n" if kind is dict else 0] = n
            yield row

    with pytest.raises(SourceError, match=f"the same {kind.__name__} as the one before"):
        run_local(lambda batch: None, Records(rows))


def test_the_same_object_with_the_same_contents_is_fine() -> None:
    row = {"n": 1}
    assert run_local(lambda batch: None, Records(lambda: (row for _ in range(5)))).done == [row] * 5
