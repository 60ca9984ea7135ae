"""Guarantees in whole runs inside the test's process: stores that are away, interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fault_parts import until

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.events import TupleDropped
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError, FencedError
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.manual import ManualSpout
from flowctl.runtime.run import Run
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import FailingStore, ListProducer, Witness


def spout(
    process: Callable[[Batch], object], store: Any, mode: str, *, count: int = 400, **settings: Any
) -> FlowControlSpout:
    return FlowControlSpout(
        name="job",
        producer=ListProducer(count),
        bolts=LocalBolts(process, count=2),
        checkpoint=store,
        settings=Settings().with_overrides(
            {"guarantee.mode": mode, "tuple.records_max": 20, **settings}
        ),
    )


@pytest.mark.req("S88")
def test_at_most_once_each_record_is_saved_before_it_is_processed() -> None:
    store = MemoryCheckpointStore()
    early: list[object] = []
    seen: list[object] = []

    def process(batch: Batch) -> None:
        saved = store.load("job").partitions["p"].position
        early.extend(r.position for r in batch if r.position > saved)  # type: ignore[operator]
        seen.extend(record.position for record in batch)

    # One hour between saves: no commit timer has a part in it.
    spout(process, store, "at_most_once", **{"checkpoint.interval_s": 3_600}).run(view="off")
    assert not early
    assert sorted(seen) == list(range(1, 401))  # type: ignore[type-var]
    assert store.load("job").partitions["p"].position == 400


@pytest.mark.req("S88")
def test_at_most_once_waits_for_an_absent_store() -> None:
    store = FailingStore()
    store.error = CheckpointUnavailableError("away.")
    seen: list[object] = []
    settings = {"checkpoint.interval_s": 0.02}
    running = spout(seen.extend, store, "at_most_once", **settings)
    thread = threading.Thread(target=lambda: running.run(view="off"), daemon=True)
    thread.start()
    until(lambda: store.tries >= 3, "some tries")
    assert not seen, "something was sent that was not saved"
    store.error = None
    thread.join(30)
    assert len(seen) == 400


@pytest.mark.req("S88")
def test_at_most_once_a_fenced_driver_sends_nothing_more() -> None:
    store = MemoryCheckpointStore()
    seen: list[object] = []

    def process(batch: Batch) -> None:
        if not seen:
            store.acquire("job")
        seen.extend(batch)

    with pytest.raises(FencedError):
        spout(process, store, "at_most_once").run(view="off")
    assert len(seen) <= store.load("job").records < 400


@pytest.mark.req("S88")
def test_at_most_once_an_interruption_sends_what_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryCheckpointStore()
    seen: list[object] = []
    begun = threading.Event()

    def process(batch: Batch) -> None:
        begun.set()
        time.sleep(0.01)
        seen.extend(batch)

    def interrupt(*_: object) -> None:
        begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        spout(process, store, "at_most_once", count=4_000).run(view="off")
    assert 0 < len(seen) < 4_000
    assert len(seen) == store.load("job").partitions["p"].position


@pytest.mark.req("S88", "S89")
@pytest.mark.parametrize("mode", ["at_most_once", "no_guarantee"])
def test_what_raises_is_dropped_and_the_run_goes_on(mode: str) -> None:
    store, view, calls = MemoryCheckpointStore(), Witness(), []

    def process(batch: Batch) -> None:
        calls.append(batch.attempt)
        if any(record.position == 77 for record in batch):
            raise ValueError("poison")

    running = spout(process, store, mode)
    report = running.run(view=view)
    assert report.outcome == "finished"
    [dropped] = [event for event in view.events if isinstance(event, TupleDropped)]
    assert dropped.first <= 77 <= dropped.last  # type: ignore[operator]
    assert report.records_acked == 400 - dropped.records
    assert (report.tuples_dropped, report.records_dropped) == (1, dropped.records)
    assert store.load("job").partitions["p"].position == 400


@pytest.mark.req("S89")
def test_no_guarantee_saves_on_the_interval_what_was_read() -> None:
    store = MemoryCheckpointStore()
    saved: list[object] = []

    def process(batch: Batch) -> None:
        if batch[0].position == 1:
            until(lambda: "p" in store.load("job").partitions, "a save")
            saved.append(store.load("job").partitions["p"].position)

    settings = {"checkpoint.interval_s": 0.02}
    spout(process, store, "no_guarantee", **settings).run(view="off")
    assert saved == [400], "all was read, the first tuple was not acked"


@pytest.mark.req("S91", "S92")
def test_one_tuple_a_call_and_what_was_done_before_does_not_count() -> None:
    store = MemoryCheckpointStore()
    state = PartitionCheckpoint(2, 2, (AckedRange(4, 5, 2), AckedRange(7, 7, 1)))
    store.save("job", Checkpoint({"p": state}), epoch=store.acquire("job"))
    one = {"tuple.records_max": 1, "lab.window.policy": "fixed", "lab.window.initial": 9}
    hand = ManualSpout(
        name="job",
        producer=ListProducer(9),
        checkpoint=store,
        settings=Settings().with_overrides(one),
    )
    hand.open({"one": 9})
    hand.activate()
    emissions = [hand.next_tuple() for _ in range(2)]
    assert [e.records[0].position for e in emissions if e] == [3, 6]
    for emission in emissions:
        assert emission is not None
        hand.ack(emission)
    left = [emission.records[0].position for emission in iter(hand.next_tuple, None)]
    assert left == [8, 9]
    hand.close()
    assert store.load("job").partitions["p"].position == 7
