"""flowctl.testing: batches by hand, and small jobs with threads."""

from __future__ import annotations

import asyncio
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from flowctl import Batch, Record, RetryLater, TargetDownError
from flowctl.errors import ConfigError, SourceError
from flowctl.testing import batch, run_local
from flowctl_files import TextRanges
from tests.runtime_parts import ListProducer

# -- batch ------------------------------------------------------------------------------------


def test_a_batch_of_values_and_records() -> None:
    made = batch(["a", Record((7, 2), {"b": Decimal(1)})], partition="p", job="j", attempt=2)
    assert list(made) == [Record(0, "a"), Record((7, 2), {"b": Decimal(1)})]
    assert (made.span.job, made.span.partition, made.attempt) == ("j", "p", 2)
    assert (made.span.first, made.span.last, made.bolt) == (0, (7, 2), "b1")


def test_a_batch_measures_the_sink() -> None:
    made = batch(iter([1]))
    with made.in_sink():
        pass
    assert made.sink_s is not None


def test_what_no_bolt_could_get_is_refused() -> None:
    with pytest.raises(ConfigError, match="values: a batch holds at least one record"):
        batch([])
    with pytest.raises(SourceError, match=r"records, record 1: .*object"):
        batch([1, object()])


# -- run_local --------------------------------------------------------------------------------


def picky(given: Batch) -> None:
    for record in given:
        if record.value == 3:
            given.reject(record, "three")
        if record.value == 5:
            raise ValueError("five")


def test_what_becomes_of_each_record() -> None:
    run = run_local(picky, range(10))
    assert run.done == [0, 1, 2, 4, 6, 7, 8, 9]
    assert [(r.position, r.reason) for r in run.rejected] == [(3, "rejected: three")]
    (dead,) = run.dead_letters
    assert (dead.partition, dead.value, dead.attempts) == ("records", 5, 2)
    assert "ValueError: five" in dead.reason
    assert (run.report.records_rejected, run.report.records_dead_lettered) == (1, 1)


def test_nothing_remains_of_it_so_it_can_be_run_again() -> None:
    for values in ([1, 2], [3, 4, 5]):
        assert run_local(lambda batch: None, values).done == values
    assert not Path(os.environ["FLOWCTL_CHECKPOINTS"]).exists()


def test_a_producer_is_read_in_order() -> None:
    run = run_local(lambda given: None, ListProducer(100), settings={"tuple.records_max": 3})
    assert run.done == [f"record {n}" for n in range(1, 101)]
    assert run.report.tuples_acked >= 34


def test_a_process_that_always_fails_does_not_wait() -> None:
    def fail(given: Batch) -> None:
        raise ValueError("always")

    run = run_local(fail, [1, 2, 3])
    assert run.done == []
    assert [lost.value for lost in run.dead_letters] == [1, 2, 3]


def test_a_target_that_refuses_everything_ends_the_run() -> None:
    def later(given: Batch) -> None:
        raise RetryLater("full")

    with pytest.raises(TargetDownError, match="full"):
        run_local(later, [1], settings={"retry.give_up_after_s": 0.2})


def test_an_async_process_and_a_rule_of_refusals() -> None:
    calls: list[Any] = []

    async def process(given: Batch) -> None:
        await asyncio.sleep(0)
        calls.append(given.attempt)
        if len(calls) == 1:
            raise KeyError("busy")

    run = run_local(process, [1], count=1, slots=4, refusal=lambda error: 0.01)
    assert run.done == [1]
    assert run.report.calls_refused == 1


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"retry\.attempts"):
        run_local(picky, [1], settings={"retry.attempts": 1})


def test_a_source_by_reference_is_refused_as_nothing_would_seem_done(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\n")
    with pytest.raises(ConfigError, match="records: TextRanges is a source by reference"):
        run_local(picky, TextRanges(path))
