"""Bolts and records as they are, not as the core sees them: for the machines that drive it."""

from __future__ import annotations

from collections import deque

from flowctl.core.records import Checkpoint, Emission, Position, Record

RecordKey = tuple[str, Position]


class Bolt:
    """A bolt as it is, not as the core sees it."""

    def __init__(self, name: str, epoch: int, slots: int, beats: bool) -> None:
        self.name, self.epoch, self.slots, self.beats = name, epoch, slots, beats
        self.mode = "healthy"  # or: hung (beats, never done), frozen (nothing), lossy (drops all)
        self.held: deque[Emission] = deque()
        self.held_max = 0
        self.window_at_start = 0


def covered_by(checkpoint: Checkpoint, source: dict[str, list[Record]]) -> set[RecordKey]:
    """The records that ``checkpoint`` says are done."""
    covered: set[RecordKey] = set()
    for partition, done in checkpoint.partitions.items():
        spans = [(span.first, span.last) for span in done.acked]
        if done.position is not None:
            spans.append((1, done.position))
        for record in source[partition]:
            if any(first <= record.position <= last for first, last in spans):  # type: ignore[operator]
                covered.add((partition, record.position))
    return covered
