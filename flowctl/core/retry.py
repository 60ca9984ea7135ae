"""Tuples that go again: earliest deadline first (S18), after a back-off if they failed (S110)."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from flowctl.core.settings import RetrySettings
from flowctl.core.tuples import FlowTuple


def backoff_s(faults: int, settings: RetrySettings) -> float:
    """Return how long to wait after the ``faults``-th fault: first · 2^(faults-1), bounded."""
    doubled: float = settings.backoff_first_s * 2 ** min(faults - 1, 32)  # 2^32 s: past any bound
    return min(settings.backoff_max_s, doubled)


class RetryQueue:
    """At most one schedule per tuple; taking out is lazy.  Not thread-safe."""

    __slots__ = ("_ready", "_scheduled", "_waiting")

    def __init__(self) -> None:
        # (time, tuple id): two with the same time both survive, in a fixed order (S110).
        self._waiting: list[tuple[float, int]] = []  # by the time before which they must not go
        self._ready: list[tuple[float, int]] = []  # by the deadline that they missed
        self._scheduled: dict[int, FlowTuple] = {}

    def __len__(self) -> int:
        return len(self._scheduled)

    def add(self, flow_tuple: FlowTuple, *, not_before_s: float, now_s: float) -> None:
        """Schedule ``flow_tuple``; it is ready at ``not_before_s``."""
        self._scheduled[flow_tuple.tuple_id] = flow_tuple
        if not_before_s > now_s:
            heappush(self._waiting, (not_before_s, flow_tuple.tuple_id))
        else:
            heappush(self._ready, (flow_tuple.deadline_s, flow_tuple.tuple_id))

    def discard(self, tuple_id: int) -> bool:
        """Take a tuple out, as it is done after all; True if it was scheduled."""
        return self._scheduled.pop(tuple_id, None) is not None

    def next_due_s(self) -> float | None:
        """When the next waiting tuple becomes ready, or None."""
        self._drop_done(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def ripen(self, now_s: float) -> None:
        """Make ready what has waited long enough."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, tuple_id = heappop(self._waiting)
            flow_tuple = self._scheduled.get(tuple_id)
            if flow_tuple is not None:
                heappush(self._ready, (flow_tuple.deadline_s, tuple_id))

    def take_ready(self) -> Iterator[FlowTuple]:
        """Yield ready tuples, earliest deadline first, each taken out; :meth:`put_back` undoes."""
        while self._ready:
            _, tuple_id = heappop(self._ready)
            flow_tuple = self._scheduled.pop(tuple_id, None)
            if flow_tuple is not None:
                yield flow_tuple

    def put_back(self, flow_tuple: FlowTuple) -> None:
        """A tuple from :meth:`take_ready` could not be sent yet."""
        self._scheduled[flow_tuple.tuple_id] = flow_tuple
        heappush(self._ready, (flow_tuple.deadline_s, flow_tuple.tuple_id))

    def _drop_done(self, heap: list[tuple[float, int]]) -> None:
        while heap and heap[0][1] not in self._scheduled:
            heappop(heap)
