"""Producers and values that are not as they should be, in whole runs inside the test's process."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.records import Record
from flowctl.errors import FlowctlError, SourceError
from flowctl.ports import SourceChunk
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import TextLines
from tests.runtime_parts import ListProducer


def run_producer(producer: ListProducer, store: Any = None, **settings: Any) -> list[Any]:
    """Run over ``producer`` and return the values that were processed."""
    seen: list[Any] = []
    spout = FlowControlSpout(
        name="job",
        producer=producer,
        bolts=LocalBolts(lambda batch: seen.extend(r.value for r in batch), count=3),
        checkpoint=store or MemoryCheckpointStore(),
        settings=Settings().with_overrides(settings),
    )
    try:
        spout.run(view="off")
    except FlowctlError as error:
        error.seen = seen  # type: ignore[attr-defined]
        raise
    return seen


class Raising(ListProducer):
    """Raises where its records should go on."""

    error: BaseException = ZeroDivisionError("division by zero")

    def poll(self, max_records: int) -> SourceChunk | None:
        chunk = super().poll(100)
        if chunk is not None and chunk.records[0].position > 500:
            raise self.error
        return chunk


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit(0)])
def test_a_producer_that_raises(error: BaseException) -> None:
    store = MemoryCheckpointStore()
    producer = Raising(1_000)
    producer.error = error
    with pytest.raises(SourceError, match="the producer Raising raised") as caught:
        run_producer(producer, store)
    assert __file__ in str(caught.value)
    assert len(caught.value.seen) == 500
    assert caught.value.report.records_acked == store.load("job").records == 500
    assert producer.closed == 1

    rest = run_producer(ListProducer(1_000), store)
    assert sorted(rest) == sorted(f"record {n}" for n in range(501, 1_001))


class GoingBack(ListProducer):
    def poll(self, max_records: int) -> SourceChunk | None:
        chunk = super().poll(100)
        if chunk is not None and chunk.records[0].position > 500:
            return SourceChunk("p", [Record(7, "again")])
        return chunk


def test_a_producer_whose_positions_go_back() -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(SourceError, match="'p': position 7 came after 500") as caught:
        run_producer(GoingBack(1_000), store)
    assert len(caught.value.seen) == 500
    assert store.load("job").partitions["p"].position == 500


class Odd(ListProducer):
    """One value that is not like the others."""

    odd: Any = None

    def value(self, position: int) -> object:
        return self.odd if position == 700 else f"record {position}"


@pytest.mark.req("S120")
@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "value is an object,"),
        (["deep", [object()]], "value[1][0] is an object,"),
        ("\ud800", "value is a str with a lone surrogate at 0, which UTF-8 can't encode"),
        (bytearray(b"x"), "value is a bytearray, which would not arrive as it is; use bytes()"),
        ({"when": Row(a=1)}, "value['when'] is a pyspark.sql.types.Row, which would not arrive as"),
        (Row(a=1), "use row.asDict()"),
        ({"a": [HTTPStatus.OK]}, "value['a'][0] is a http.HTTPStatus, "),
    ],
    ids=["object", "deep", "text", "bytearray", "row_inside", "row", "enum"],
)
def test_a_value_that_can_not_travel(value: Any, what: str) -> None:
    store = MemoryCheckpointStore()
    producer = Odd(1_000)
    producer.odd = value
    with pytest.raises(SourceError) as caught:
        run_producer(producer, store, **{"tuple.records_max": 50})
    said = str(caught.value)
    assert "p, record 700: " in said
    assert what in said
    assert len(caught.value.seen) == store.load("job").records
    assert caught.value.report.outcome == "failed"

    rest = run_producer(ListProducer(1_000), store)
    assert {f"record {n}" for n in range(1, 1_001)} <= set(rest) | set(caught.value.seen)


def test_values_that_travel_arrive_as_they_were_sent() -> None:
    values = [None, True, -(1 << 63), 1.5, "text", b"bytes", [1, "a"], {"key": [b"b", None]}, ""]
    values += [1 << 70, (1, (2,)), {1, 2}, {"at": datetime(2026, 1, 1, fold=1)}, {(1, 2): 3}]
    values += [date(2026, 1, 1), {"price": [Decimal("1.10")]}, frozenset({uuid.UUID(int=7)})]

    class Mixed(ListProducer):
        def value(self, position: int) -> object:
            return values[position - 1]

    assert sorted(map(repr, run_producer(Mixed(len(values))))) == sorted(map(repr, values))


def test_a_tuple_that_is_larger_than_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowctl.wire.server.FRAME_BYTES_MAX", 10_000)
    producer = Odd(1_000)
    producer.odd = "x" * 20_000
    store = MemoryCheckpointStore()
    with pytest.raises(SourceError, match=r"p, record 700: A tuple takes 20\d+") as caught:
        run_producer(producer, store, **{"tuple.records_max": 1})
    assert "Shorten the record" in str(caught.value)
    assert caught.value.report.records_acked == store.load("job").records


@pytest.mark.parametrize("polls", [2, 3, 7])
def test_a_file_that_is_truncated_during_the_run_fails_it(tmp_path: Path, polls: int) -> None:
    """What was read before is processed and saved; what is gone is not called done."""
    path = tmp_path / "in.log"
    path.write_text("".join(f"{n} {'x' * 90}\n" for n in range(60_000)))

    class Truncating(TextLines):
        left = polls

        def poll(self, max_records: int) -> SourceChunk | None:
            self.left -= 1
            if self.left == 0:  # as copytruncate does
                path.write_text("new\n")
            return super().poll(max_records)

    store = MemoryCheckpointStore()
    with pytest.raises(SourceError, match=r"in\.log: the file was truncated") as caught:
        run_producer(Truncating(str(path)), store)
    report, seen = caught.value.report, caught.value.seen
    assert report.outcome == "failed"
    assert "copytruncate" in report.error
    assert sorted(int(line.split()[0]) for line in seen) == list(range(len(seen)))
    assert store.load("job").records == len(seen) < 60_000
