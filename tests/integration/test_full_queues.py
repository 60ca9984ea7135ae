"""Every queue full in both directions, on real sockets: nothing stands still (S53)."""

from __future__ import annotations

import logging
import threading

import pytest

from flowctl.config import Settings
from flowctl.core.records import Checkpoint, Record
from flowctl.ports import SourceChunk
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Collector, Input, LocalStages, Topology
from tests.runtime_parts import Witness

VALUE = b"x" * (1 << 20)
RECORDS = 48


class Megabytes:
    """Records of 1 MiB each."""

    def __init__(self) -> None:
        self.next = 0

    def partitions(self) -> list[str]:
        return ["p"]

    def open(self, checkpoint: Checkpoint) -> None: ...
    def close(self) -> None: ...

    def poll(self, max_records: int) -> SourceChunk | None:
        if self.next == RECORDS:
            return None
        self.next += 1
        return SourceChunk("p", [Record(self.next, VALUE)])


@pytest.mark.req("S43", "S52", "S53")
@pytest.mark.parametrize("strategy", ["blocking", "progressive"])
def test_full_queues_all_around_come_loose(strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each tuple is 1 MiB, and so is what it emits: more than a connection holds, each way.

    A bolt that can't send its acks reads nothing either, so the spout's outboxes to it fill up
    too; all comes loose because the spout takes acks whatever else waits.
    """
    done: list[int] = []
    lock = threading.Lock()

    def passing(given: Input, out: Collector) -> None:
        out(given.value)
        out(given.value)

    def sink(given: Input, out: Collector) -> None:
        with lock:
            done.append(len(given.value))

    made = Topology("full")
    made.spout("s", Megabytes())
    made.bolt("a", passing, count=2, slots=4).shuffle("s")
    made.bolt("b", passing, count=2, slots=4).shuffle("a")
    made.bolt("c", sink, count=1).shuffle("b")
    with caplog.at_level(logging.DEBUG, logger="flowctl"):
        report = made.run(
            LocalStages(),
            view=Witness(),
            checkpoint=MemoryCheckpointStore(),
            settings=_settings(strategy),
        )
    assert done == [len(VALUE)] * 4 * RECORDS
    assert report.records_acked == RECORDS
    refused = [
        text
        for text in map(logging.LogRecord.getMessage, caplog.records)
        if text.startswith("backpressure_ended") and "bolt=" in text
    ]
    assert refused, "no connection was ever full"


def _settings(strategy: str) -> Settings:
    return Settings().with_overrides(
        {
            "lab.window.policy": "fixed",
            "lab.window.initial": 16,
            "lab.tuple.bytes_max": 1 << 20,
            "lab.wait.spout_strategy": strategy,
            "lab.wait.bolt_strategy": strategy,
            "lab.wait.backpressure_strategy": strategy,
        }
    )
