"""A whole run on threads, settings as shipped, where a call costs far more than its records."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from flowctl import FlowControlSpout
from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.testing.stores import MemoryCheckpointStore
from tests.range_parts import NumberRanges, NumberReader
from tests.runtime_parts import ListProducer, Witness

BOLTS, RECORDS = 4, 4_000
CALL_S, RECORD_S = 0.2, 0.0002


@pytest.mark.req("S1")
def test_a_dear_call_is_made_few_times() -> None:
    """0.2 s a call and 0.2 ms a record.  One by one they would be 4,000 calls, 200 s a bolt."""
    busy_s: dict[int, float] = defaultdict(float)
    calls: list[int] = []

    def process(batch: Batch) -> None:
        took_s = CALL_S + RECORD_S * len(batch)
        time.sleep(took_s)
        calls.append(len(batch))
        busy_s[threading.get_ident()] += took_s  # each thread has its own entry

    report = FlowControlSpout(
        name="dear",
        producer=ListProducer(RECORDS),
        bolts=LocalBolts(process, count=BOLTS),
        checkpoint=MemoryCheckpointStore(),
    ).run(view=Witness())
    assert report.records_acked == RECORDS
    ideal_s = CALL_S + RECORDS / BOLTS * RECORD_S
    assert len(calls) <= 12 * BOLTS
    # By what was asked for, not by a clock: four tuples tell what a call costs, and the end is
    # shared out in smaller ones.
    assert max(busy_s.values()) <= 8 * ideal_s


class LargeBlocks(NumberRanges):
    """Batches end where a block ends, so it holds more than a batch."""

    def reader(self) -> NumberReader:
        return NumberReader(block=RECORDS)


@pytest.mark.req("S1")
def test_by_reference_too_and_the_report_says_so() -> None:
    """One by one, as batches of .15 s would have it, they would be 4,000 calls."""
    calls: list[int] = []

    def process(batch: Batch) -> None:
        time.sleep(CALL_S + RECORD_S * len(batch))
        calls.append(len(batch))

    report = FlowControlSpout(
        name="dear",
        producer=LargeBlocks(p=RECORDS),
        bolts=LocalBolts(process, count=2),
        checkpoint=MemoryCheckpointStore(),
    ).run(view=Witness())
    assert report.records_acked == RECORDS
    assert sum(calls) == RECORDS
    assert len(calls) <= 200  # some 20 of each bolt tell what a call costs
    assert report.dear_call is not None
    assert report.dear_call.unit == "batches"
