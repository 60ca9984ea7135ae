"""A call of a bolt that has too many bytes: later calls of ``process`` have fewer, none is lost."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pyarrow
import pyarrow.parquet
import pytest

from flowctl import FlowControlSpout, LocalBolts
from flowctl.bolts.batch import Batch
from flowctl.bolts.turns import Fit, InParts
from flowctl.core.records import Record, Span
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_apply import apply_parquet
from tests.runtime_parts import ListProducer

WIDE = "x" * 1_000
BIG = {"tuple.records_max": 500, "hedge.enabled": False}


def too_large() -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://localhost/bulk")
    answer = httpx.Response(413, request=request)
    return httpx.HTTPStatusError("too large", request=request, response=answer)


class Server:
    """Takes ``most`` records in a call, else answers 413."""

    def __init__(self, most: int) -> None:
        self.most, self.lock = most, threading.Lock()
        self.taken: Counter[Any] = Counter()
        self.calls = self.refused = 0

    def take(self, batch: Batch) -> None:
        with self.lock:
            self.calls += 1
            if len(batch) > self.most:
                self.refused += 1
                raise too_large()
            self.taken.update(record.position for record in batch)


def batch_of(records: int) -> Batch:
    made = [Record(n, f"{n} {WIDE}") for n in range(records)]
    return Batch(made, Span("j", "p", 0, records - 1, 1, None), bolt="b", attempt=1)


def test_a_batch_goes_in_parts_and_the_next_one_is_never_refused() -> None:
    server, fit = Server(30), Fit(None)
    spans: list[tuple[Any, Any]] = []

    def process(batch: Batch) -> bytes:
        server.take(batch)
        spans.append((batch.span.first, batch.span.last))
        return b"%d" % len(batch)

    made = fit.call(process, batch_of(200))
    assert isinstance(made, InParts)
    assert sum(map(int, made)) == 200
    assert server.taken == Counter(range(200))
    assert server.refused == 3, "200, 100, 50: halved until one is taken"
    assert spans[0] == (0, 24) and [a for a, _ in spans[1:]] == [b + 1 for _, b in spans[:-1]]
    fit.call(process, batch_of(200))
    assert server.refused == 3
    assert fit.call(process, batch_of(20)) == b"20"


def test_what_a_part_reports_counts_for_the_batch() -> None:
    fit, whole = Fit(None), batch_of(100)
    with pytest.raises(httpx.HTTPStatusError):
        fit.call(lambda batch: Server(0).take(batch), batch_of(1))  # one record: it is to blame

    def process(batch: Batch) -> None:
        if len(batch) > 40:
            raise too_large()
        for record in batch:
            if record.position in (3, 77):
                batch.reject(record, "bad")
            if record.position == 90:
                raise ValueError("worse")

    with pytest.raises(ValueError, match="worse"):
        fit.call(process, whole)
    assert whole.rejected == {3: "bad"}, "of what raises, nothing is settled"
    assert whole.reading_index == 90


def test_a_call_that_took_too_long_writes_no_part_any_more() -> None:
    whole = batch_of(10)
    part = whole.part(range(5))
    whole.overdue = RuntimeError("too long")  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="too long"), part.in_sink():
        raise AssertionError


@pytest.mark.parametrize("is_async", [False, True])
def test_a_spout_loses_nothing_and_is_refused_a_few_times_by_each_bolt(is_async: bool) -> None:
    server = Server(10)

    async def process(batch: Batch) -> None:
        server.take(batch)

    report = FlowControlSpout(
        name="job",
        producer=ListProducer(5_000),
        bolts=LocalBolts(process if is_async else server.take, count=2),
        checkpoint=MemoryCheckpointStore(),
        settings=BIG,
    ).run(view="off")
    assert report.outcome == "finished"
    assert server.taken == Counter(range(1, 5_001)), "each once"
    assert 0 < server.refused <= 2 * 4, "each bolt halves until one is taken"
    assert report.tuples_failed == 0


def test_apply_keeps_the_result_of_each_part(tmp_path: Path) -> None:
    rows = 2_000
    pyarrow.parquet.write_table(pyarrow.table({"id": range(rows)}), tmp_path / "in.parquet")
    server = Server(50)

    def score(batch: Batch) -> list[tuple[int]]:
        server.take(batch)
        return [(record.value["id"],) for record in batch]

    applied = apply_parquet(
        tmp_path / "in.parquet", score, schema=pyarrow.schema([("id", pyarrow.int64())]),
        name="job", out=tmp_path / "out", bolts=2, view="off",
    )  # fmt: skip
    files = [file.removeprefix("file://") for file in applied.files]
    made = sorted(n for f in files for n in pyarrow.parquet.read_table(f)["id"].to_pylist())
    assert made == list(range(rows))
    assert max(server.taken.values()) == 1
    assert 0 < server.refused <= 2 * 8
