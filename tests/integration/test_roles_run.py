"""What the business writes, and what a bolt does with it: a producer, a function, an ack each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from wire_peers import PATIENCE_S, Spout, spout, tuple_of

from flowctl import Batch, FlowControlSpout, LocalBolts, Record, SourceChunk
from flowctl.core.messages import Heartbeat
from flowctl.core.records import Checkpoint
from flowctl.testing.stores import MemoryCheckpointStore

# What process may give back: none of it is a word to the spout.
RETURNED = [None, False, 0, "fail", ValueError("returned, not raised"), [1, 2]]


def worked_on(s: Spout, process: Any, tuples: int) -> None:
    """Let one bolt have ``tuples`` tuples, until it has answered all and is gone."""
    bolts = LocalBolts(process, count=1)
    bolts.start(s.endpoint, lambda notice: None)
    s.until(lambda: s.joined("b1"))
    s.send("b1", *(tuple_of(n) for n in range(tuples)))
    s.until(lambda: len(s.acks("b1")) + len(s.fails("b1")) == tuples)
    s.end("b1")
    bolts.stop(timeout_s=PATIENCE_S)


@pytest.mark.req("S8", "S25")
def test_a_bolt_acks_each_tuple_whatever_process_returns_and_fails_none_by_itself() -> None:
    answers = iter(RETURNED)
    with spout() as s:
        worked_on(s, lambda batch: next(answers), len(RETURNED))
        assert s.acks("b1") == list(range(len(RETURNED)))
        assert s.fails("b1") == []


@pytest.mark.req("S8", "S25")
def test_a_bolt_that_takes_long_says_nothing_of_its_tuple_until_it_is_done() -> None:
    """Only the spout's time-outs speak of it: a bolt that is alive sends heartbeats, no fail."""
    leave = threading.Event()
    with spout() as s:
        bolts = LocalBolts(lambda batch: leave.wait(PATIENCE_S), count=1)
        bolts.start(s.endpoint, lambda notice: None)
        s.until(lambda: s.joined("b1"))
        s.send("b1", tuple_of(1))
        s.until(lambda: sum(beat.busy_slots for beat in s.frames("b1", Heartbeat)) > 3)
        assert (s.acks("b1"), s.fails("b1")) == ([], [])
        leave.set()
        s.until(lambda: s.acks("b1") == [1])
        assert s.fails("b1") == []
        s.end("b1")
        bolts.stop(timeout_s=PATIENCE_S)


class Words:
    """All that a business has to write for its source."""

    def partitions(self) -> Sequence[str]:
        return ["words"]

    def open(self, checkpoint: Checkpoint) -> None:
        done = checkpoint.partitions.get("words")
        self.next = 1 + int(done.position or 0) if done else 1  # type: ignore[arg-type]

    def poll(self, max_records: int) -> SourceChunk | None:
        if self.next > 1_000:
            return None
        numbers = range(self.next, min(self.next + max_records, 1_001))
        self.next = numbers.stop
        return SourceChunk("words", [Record(n, f"word {n}") for n in numbers])

    def close(self) -> None:
        pass


@pytest.mark.req("S22", "S26")
def test_one_producer_and_one_function_are_a_job_that_can_be_resumed() -> None:
    """Not a word of windows, acks or bolts in either; balance and checkpoint come by themselves."""
    seen: list[str] = []
    store = MemoryCheckpointStore()

    def process(batch: Batch) -> None:
        seen.extend(record.value for record in batch)

    def job() -> FlowControlSpout:
        bolts = LocalBolts(process, count=3)
        return FlowControlSpout(name="words", producer=Words(), bolts=bolts, checkpoint=store)

    report = job().run(view="off")
    assert sorted(seen) == sorted(f"word {n}" for n in range(1, 1_001))
    assert (report.outcome, store.load("words").partitions["words"].position) == ("finished", 1_000)
    assert job().run(view="off").records_acked == 0
    assert len(seen) == 1_000
