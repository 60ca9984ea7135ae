"""Which bolt gets the next tuple (S20): in turn, those with a full window are skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import Protocol

from flowctl.core.consumer import AdaptiveFlowConsumer

_NOBODY: frozenset[str] = frozenset()


class Dispatcher(Protocol):
    """Chooses among bolts with room.  Not thread-safe."""

    def note_room(self, consumer: AdaptiveFlowConsumer) -> None:
        """``consumer`` may have room now: it came, acked, grew, or spoke again."""

    def pick(self, avoid: Set[str] = _NOBODY) -> AdaptiveFlowConsumer | None:
        """Return a bolt with room that is not in ``avoid``, or None."""


class RoundRobin:
    """A ring of the bolts that may have room.

    A bolt that is found full leaves the ring and comes back at its next ack, so a pick costs
    O(1) amortised, whatever the number of bolts; with ``avoid``, O(len(avoid)) more.
    """

    __slots__ = ("_ring",)

    def __init__(self) -> None:
        self._ring: deque[AdaptiveFlowConsumer] = deque()

    def note_room(self, consumer: AdaptiveFlowConsumer) -> None:
        if not consumer._is_queued:
            consumer._is_queued = True
            self._ring.append(consumer)

    def pick(self, avoid: Set[str] = _NOBODY) -> AdaptiveFlowConsumer | None:
        ring = self._ring
        for _ in range(len(ring)):
            consumer = ring.popleft()
            if not consumer.has_room:
                consumer._is_queued = False
                continue
            ring.append(consumer)
            if consumer.bolt not in avoid:
                return consumer
        return None
