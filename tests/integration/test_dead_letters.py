"""What can't be processed is kept elsewhere and the job goes on; a listener is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.events import TupleDeadLettered, TupleFailed, TupleGaveUp
from flowctl.core.messages import Emission
from flowctl.core.records import AckOutcome
from flowctl.errors import ProcessError
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import JsonLinesDeadLetter
from tests.listener_parts import Letters, Log
from tests.runtime_parts import ListProducer, Witness

POISON = {7, 8, 500}
FAST = {
    "tuple.records_max": 1,
    "retry.attempts_max": 3,
    "retry.backoff_first_s": 0.01,
    "buffer.uncommitted_max": 10,
}


def process(batch: Batch) -> None:
    if POISON & {record.position for record in batch}:
        raise RuntimeError("poison")


def spout(**how: Any) -> FlowControlSpout:
    return FlowControlSpout(
        name="job",
        producer=ListProducer(600),
        bolts=LocalBolts(process, count=3),
        checkpoint=how.pop("store", None) or MemoryCheckpointStore(),
        settings=Settings().with_overrides(FAST),
        **how,
    )


@pytest.mark.req("S94", "S109", "S124")
def test_after_the_last_attempt_it_goes_to_the_dead_letter_is_committed_and_the_run_goes_on() -> (
    None
):
    letters, store, view = Letters(), MemoryCheckpointStore(), Witness()
    report = spout(dead_letter=letters, store=store).run(view=view)
    assert sorted(kept[2][0] for kept in letters.kept) == sorted(POISON)
    for job, partition, _, attempts, reason in letters.kept:
        assert (job, partition, attempts) == ("job", "p", 3)
        assert "RuntimeError: poison" in reason
    assert report.outcome == "finished" and report.records_acked == 600
    saved = store.load("job").partitions["p"]
    assert (saved.position, saved.records, saved.acked) == (600, 600, ())
    assert letters.closed == 1
    assert report.tuples_dead_lettered == len(POISON)
    kinds = [type(event) for event in view.events]
    assert kinds.count(TupleGaveUp) == kinds.count(TupleDeadLettered) == len(POISON)


@pytest.mark.req("S109")
def test_without_one_the_run_fails_as_ever() -> None:
    with pytest.raises(ProcessError, match=r"record [78]: process failed 3 times"):
        spout().run(view="off")


@pytest.mark.req("S109")
def test_a_dead_letter_that_fails_ends_the_run_and_nothing_of_it_is_committed() -> None:
    letters, store = Letters(), MemoryCheckpointStore()
    letters.error = OSError("disk full")
    with pytest.raises(ProcessError, match="Letters raised OSError: disk full"):
        spout(dead_letter=letters, store=store).run(view="off")
    assert store.load("job").partitions["p"].position == 6
    letters.error = None
    spout(dead_letter=letters, store=store).run(view="off")
    assert {kept[2][0] for kept in letters.kept} == POISON
    assert store.load("job").partitions["p"].position == 600


@pytest.mark.req("S109", "S124")
def test_letters_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    spout(dead_letter=JsonLinesDeadLetter(path)).run(view="off")
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert sorted(line["position"] for line in lines) == sorted(POISON)
    assert {line["value"] for line in lines} == {f"record {n}" for n in POISON}
    assert all(
        line["reason"].startswith("RuntimeError") and line["attempts"] == 3 for line in lines
    )


@pytest.mark.req("S82", "S106", "S112")
def test_a_listener_hears_what_becomes_of_each_tuple() -> None:
    """Of 7 and 8, which fail together, one may fail a fourth time: a fault that may be the target's
    is no attempt.  The listener hears each of them."""
    log, view = Log(), Witness()
    spout(dead_letter=Letters(), listener=log).run(view=view)
    assert log.said[0] == ("open", "job")
    assert log.of(1) == ["emit", "ack"]
    failed = Counter(event.first for event in view.events if isinstance(event, TupleFailed))
    for position in POISON:
        assert failed[position] >= 2
        assert log.of(position) == ["emit", *["retry"] * failed[position], "max"]
    assert sum(what == "ack" for what, *_ in log.said) == 600 - len(POISON)


@pytest.mark.req("S112")
def test_a_listener_that_raises_does_not_end_the_run() -> None:
    class Bad(Log):
        def on_ack(self, emission: Emission) -> None:
            raise RuntimeError("mine")

    assert spout(dead_letter=Letters(), listener=Bad()).run(view="off").outcome == "finished"


@pytest.mark.req("S109", "S112", "S124")
def test_the_same_by_hand() -> None:
    letters, log, store = Letters(), Log(), MemoryCheckpointStore()
    hand = ManualSpout(
        name="job",
        producer=ListProducer(600),
        checkpoint=store,
        settings=Settings().with_overrides(FAST),
        dead_letter=letters,
        listener=log,
    )
    now_s = [0.0]
    hand.open({"one": 4, "two": 4}, clock=lambda: now_s[0])
    hand.activate()
    while not hand.is_drained or hand.next_tuple() is not None or len(log.said) < 600:
        emission = hand.next_tuple()
        now_s[0] += 0.01
        if emission is None:
            continue
        if emission.records[0].position in POISON:
            assert hand.fail(emission) in (AckOutcome.FAILED, AckOutcome.GAVE_UP)
        else:
            hand.ack(emission)
    hand.close()
    assert {kept[2][0] for kept in letters.kept} == POISON
    first, *retries, last = log.of(7)
    # It failed again before anything sent later had succeeded: that is no attempt.
    assert (first, set(retries), last) == ("emit", {"retry"}, "max") and 2 <= len(retries) <= 4
    assert store.load("job").partitions["p"].position == 600
