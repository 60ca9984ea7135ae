"""Bolts and records as they are, not as the core sees them: for the machines that drive it."""

from __future__ import annotations

from collections import deque

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.messages import Emission, Heartbeat, Revoke
from flowctl.core.records import Checkpoint, Position, Record
from flowctl.core.settings import WindowSettings
from flowctl.core.spout import SpoutCore

RecordKey = tuple[str, Position]


class Bolt:
    """A bolt as it is, not as the core sees it."""

    def __init__(self, name: str, epoch: int, slots: int, beats: bool) -> None:
        self.name, self.epoch, self.slots, self.beats = name, epoch, slots, beats
        self.mode = "healthy"  # or: hung (beats, never done), frozen (nothing), lossy (drops all)
        self.held: deque[Emission] = deque()
        self.held_max = 0
        self.window_at_start = 0

    def beat(self, core: SpoutCore, now_s: float) -> None:
        """Tell ``core`` that it lives, and what it has to do, if it can."""
        if self.beats and self.mode != "frozen":
            busy = min(len(self.held), self.slots)
            core.on_heartbeat(
                self.name, self.epoch, Heartbeat(busy, len(self.held) - busy), now_s=now_s
            )

    def give_back(self, order: Revoke) -> list[Emission]:
        """Let go of what it was asked for and has not begun; return that."""
        waiting = list(self.held)[self.slots :]
        given = [emission for emission in waiting if emission.tuple_id in order.tuple_ids]
        for emission in given:
            self.held.remove(emission)
        return given


def grew_unused(bolt: Bolt, consumer: AdaptiveFlowConsumer, settings: WindowSettings) -> bool:
    """Whether the window of ``bolt`` is larger than what it ever held allows."""
    if consumer.policy.work_max_s is not None:
        return False  # counted in work, the window follows what the bolt tells
    # Bolts of the plain machine tell nothing, so just_full is rtt_only, whose start-up doubles too.
    doubles = settings.growth == "ack" or settings.policy in ("just_full", "rtt_only")
    used = bolt.held_max * (2 if doubles else 1)
    return consumer.window > max(bolt.window_at_start, used + 1)


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
