"""For the runtime's tests: a source in a list, a store that fails when told to, a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowctl import FlowControlSpout, LocalBolts
from flowctl.core.events import FlowEvent
from flowctl.core.records import Checkpoint, Record
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.ports import SourceChunk
from flowctl.testing.stores import MemoryCheckpointStore


class ListProducer:
    """Records 1 … ``count`` of one partition, read on from the checkpoint; counts its calls."""

    def __init__(self, count: int, *, partition: str = "p", poll_max: int = 1 << 30) -> None:
        self.opened = self.closed = self.polls = 0
        self.count = count
        self._partition = partition
        self._poll_max = poll_max
        self._next = 1

    def partitions(self) -> Sequence[str]:
        return [self._partition]

    def open(self, checkpoint: Checkpoint) -> None:
        self.opened += 1
        stored = checkpoint.partitions.get(self._partition)
        position = stored.position if stored else None
        self._next = 1 + (position if isinstance(position, int) else 0)

    def value(self, position: int) -> object:
        return f"record {position}"

    def poll(self, max_records: int) -> SourceChunk | None:
        self.polls += 1
        if self._next > self.count:
            return None
        stop = min(self._next + min(max_records, self._poll_max), self.count + 1)
        records = [Record(n, self.value(n)) for n in range(self._next, stop)]
        self._next = stop
        return SourceChunk(self._partition, records)

    def close(self) -> None:
        self.closed += 1


class FailingStore(MemoryCheckpointStore):
    """Raises ``error`` from save, while there is one.  ``tries`` counts the saves that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.tries = 0
        self.saves = 0

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        if self.error is not None:
            self.tries += 1
            raise self.error
        super().save(job, checkpoint, epoch=epoch)
        self.saves += 1


class Witness:
    """A view that keeps what it was shown."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.events: list[FlowEvent] = []
        self.messages: list[str] = []
        self.report: Report | None = None

    def start(self, job: str, headline: str) -> None:
        self.messages.append(headline)

    def update(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def event(self, event: FlowEvent) -> None:
        self.events.append(event)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def stop(self, report: Report) -> None:
        self.report = report


def a_spout(**parts: Any) -> FlowControlSpout:
    """A job with these parts, the others of the simplest kind."""
    parts.setdefault("producer", [1])
    parts.setdefault("bolts", LocalBolts(print, count=1))
    parts.setdefault("checkpoint", MemoryCheckpointStore())
    return FlowControlSpout(name="j", **parts)
