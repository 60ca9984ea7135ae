"""Whole runs of a topology in the modes that save what was read: before it is planted, or not."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.instrumentation.summary import lines
from flowctl.ports import CheckpointStore
from flowctl.runtime.run import Run
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Collector, Input, LocalStages, Topology, TopologyReport
from tests.topology_driver import topology

MODE = "guarantee.mode"


def passing(given: Input, out: Collector) -> None:
    out(given.value)


def two_stages(count: int, first: Any, last: Any) -> Topology:
    made = topology(count)
    made.bolt("first", first, count=2).shuffle("s")
    made.bolt("last", last, count=2).shuffle("first")
    return made


def run(made: Topology, store: CheckpointStore, **settings: Any) -> TopologyReport:
    overrides = {"tuple.records_max": 20, **settings}
    return made.run(
        LocalStages(),
        checkpoint=store,
        settings=Settings().with_overrides(overrides),
        view="off",
    )


@pytest.mark.req("S88")
def test_at_most_once_each_root_is_saved_before_it_is_planted() -> None:
    store, early, seen = MemoryCheckpointStore(), [], []

    def first(given: Input, out: Collector) -> None:
        saved = store.load("test").partitions["s:p"].position
        if given.value > saved:
            early.append(given.value)
        out(given.value)

    def last(given: Input, out: Collector) -> None:
        seen.append(given.value)

    # One hour between saves: no commit timer has a part in it.
    hourly = {"checkpoint.interval_s": 3_600}
    run(two_stages(400, first, last), store, **{MODE: "at_most_once", **hourly})
    assert not early
    assert sorted(seen) == list(range(1, 401))
    assert store.load("test").partitions["s:p"].position == 400


@pytest.mark.req("S88", "S113")
def test_at_most_once_an_interruption_sends_what_is_committed_through_all_stages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, seen, begun = MemoryCheckpointStore(), [], threading.Event()

    def last(given: Input, out: Collector) -> None:
        begun.set()
        time.sleep(0.002)
        seen.append(given.value)

    def interrupt(*_: object) -> None:
        begun.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_watch", interrupt)
    made = two_stages(4_000, passing, last)
    made.max_pending = 200
    with pytest.raises(KeyboardInterrupt):
        run(made, store, **{MODE: "at_most_once"})
    assert 0 < len(seen) < 4_000
    assert len(seen) == store.load("test").partitions["s:p"].position


@pytest.mark.req("S89")
def test_no_guarantee_saves_on_the_interval_what_was_read() -> None:
    store, saved = MemoryCheckpointStore(), []

    def last(given: Input, out: Collector) -> None:
        until_s = time.monotonic() + 30
        while not saved and time.monotonic() < until_s:
            if "s:p" in store.load("test").partitions:
                saved.append(store.load("test").partitions["s:p"].position)
            time.sleep(0.005)

    quick = {"checkpoint.interval_s": 0.02}
    run(two_stages(400, passing, last), store, **{MODE: "no_guarantee", **quick})
    assert saved[0] == 400, "all was read, no tree was complete"


def test_at_most_once_the_summary_says_how_many_records_were_dropped() -> None:
    """Kind: a loss that the report has and the summary leaves out."""

    def last(given: Input, out: Collector) -> None:
        if given.value % 10 == 0:
            raise ValueError("ten")

    report = run(two_stages(100, passing, last), MemoryCheckpointStore(), **{MODE: "at_most_once"})
    assert report.records_dropped == 10
    assert any("dropped 10 records" in line for line in lines(report))
