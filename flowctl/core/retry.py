"""Tuples to send again: earliest deadline first (S18), after a back-off if they failed (S110)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf

from flowctl.core.settings import RetrySettings
from flowctl.core.tuples import FlowTuple

#: What was refused, or failed perhaps by the target's fault, waits at most this long by itself, so
#: that the end of a job does not wait for it.
DOUBT_WAIT_MAX_S = 2.0


def backoff_s(
    faults: int, settings: RetrySettings, chance: Callable[[], float] | None = None
) -> float:
    """Return how long to wait after the ``faults``-th fault: first · 2^(faults-1), bounded.

    ``chance`` gives numbers from 0 to 1, by which up to ``jitter_share`` of it is left out; None:
    no jitter.
    """
    doubled: float = settings.backoff_first_s * 2 ** min(faults - 1, 32)  # 2^32 s: past any bound
    wait_s = min(settings.backoff_max_s, doubled)
    return wait_s if chance is None else wait_s * (1.0 - settings.jitter_share * chance())


class RetryQueue:
    """What is sent again: one schedule per tuple, bounded in attempts.  Not thread-safe.

    ``scheduled`` holds them by id, ``doubted`` those of them that may be in work; only to be read.
    Taking out is lazy: an entry of a heap counts only while it is the tuple's newest.  What was put
    back has its next turn after the others.
    """

    __slots__ = (
        "_chance", "_due_s", "_passed", "_ready", "_settings", "_waiting", "doubted", "scheduled",
    )  # fmt: skip

    def __init__(
        self, settings: RetrySettings | None = None, chance: Callable[[], float] | None = None
    ) -> None:
        # (time, tuple id): two with the same time both survive, in a fixed order (S110).
        self._waiting: list[tuple[float, int]] = []  # by the time before which they must not go
        self._ready: list[tuple[float, int]] = []  # by the deadline that they missed
        self._passed: list[tuple[float, int]] = []  # ready too, but there was no room for them
        self.scheduled: dict[int, FlowTuple] = {}
        self.doubted: dict[int, FlowTuple] = {}
        self._due_s: dict[int, float] = {}  # of those that wait
        self._settings = settings or RetrySettings()
        self._chance = chance

    def __len__(self) -> int:
        return len(self.scheduled)

    def schedule(self, flow_tuple: FlowTuple, *, now_s: float) -> float | None:
        """Schedule it after its back-off; return when it is ready, or None: refused (S110).

        Refused when its faults have reached ``attempts_max``.
        """
        if flow_tuple.faults >= self._settings.attempts_max:
            return None
        ready_at_s = now_s + backoff_s(flow_tuple.faults, self._settings, self._chance)
        self.add(flow_tuple, not_before_s=ready_at_s, now_s=now_s)
        return ready_at_s

    def add(self, flow_tuple: FlowTuple, *, not_before_s: float, now_s: float) -> None:
        """Schedule ``flow_tuple``, ready at ``not_before_s``; this takes an older one's place."""
        tuple_id = flow_tuple.tuple_id
        self.scheduled[tuple_id] = flow_tuple
        self.doubted.pop(tuple_id, None)
        if not_before_s > now_s:
            self._due_s[tuple_id] = not_before_s
            heappush(self._waiting, (not_before_s, tuple_id))
        else:
            self._due_s.pop(tuple_id, None)
            heappush(self._ready, (flow_tuple.deadline_s, tuple_id))

    def doubt(self, flow_tuple: FlowTuple, *, until_s: float, now_s: float) -> None:
        """Schedule what a bolt may be at work on; earlier than that only for a bolt that is idle.

        Such a bolt takes it with :meth:`discard`.
        """
        self.add(flow_tuple, not_before_s=until_s, now_s=now_s)
        self.doubted[flow_tuple.tuple_id] = flow_tuple

    def stop_doubting(self, bolt: str, now_s: float) -> None:
        """``bolt`` went: what it may have been at work on is ready."""
        for flow_tuple in [t for t in self.doubted.values() if t.held_by == bolt]:
            self.add(flow_tuple, not_before_s=now_s, now_s=now_s)

    def park(self, flow_tuple: FlowTuple) -> None:
        """Keep ``flow_tuple`` until it is added again or discarded; nothing makes it ready."""
        self.scheduled[flow_tuple.tuple_id] = flow_tuple
        self._due_s[flow_tuple.tuple_id] = inf

    def is_parked(self, tuple_id: int) -> bool:
        """Whether it waits for something else than time."""
        return self._due_s.get(tuple_id) == inf

    def discard(self, tuple_id: int) -> bool:
        """Take a tuple out, because it is done after all; True if it was scheduled."""
        self._due_s.pop(tuple_id, None)
        self.doubted.pop(tuple_id, None)
        return self.scheduled.pop(tuple_id, None) is not None

    def next_due_s(self) -> float | None:
        """When the next waiting tuple becomes ready, or None."""
        waiting = self._waiting
        while waiting and self._due_s.get(waiting[0][1]) != waiting[0][0]:
            heappop(waiting)
        return waiting[0][0] if waiting else None

    def ripen(self, now_s: float) -> None:
        """Make ready what has waited long enough; stops at the first that has not (S111)."""
        while self._waiting and self._waiting[0][0] <= now_s:
            due_s, tuple_id = heappop(self._waiting)
            if self._due_s.get(tuple_id) == due_s:
                del self._due_s[tuple_id]
                self.doubted.pop(tuple_id, None)
                heappush(self._ready, (self.scheduled[tuple_id].deadline_s, tuple_id))

    def take_ready(self) -> Iterator[FlowTuple]:
        """Yield ready tuples, earliest deadline first, each taken out; :meth:`put_back` undoes.

        Those that were put back come when all others have had a turn.
        """
        while self._ready or self._passed:
            if not self._ready:
                self._ready, self._passed = self._passed, self._ready
                heapify(self._ready)
            _, tuple_id = heappop(self._ready)
            if tuple_id in self._due_s:
                continue  # it failed again since: its newest schedule is another one
            flow_tuple = self.scheduled.pop(tuple_id, None)
            if flow_tuple is not None:
                yield flow_tuple

    def put_back(self, flow_tuple: FlowTuple) -> None:
        """A tuple from :meth:`take_ready` could not be sent yet."""
        self.scheduled[flow_tuple.tuple_id] = flow_tuple
        self._passed.append((flow_tuple.deadline_s, flow_tuple.tuple_id))

    def take_partition(self, partition: str) -> list[FlowTuple]:
        """Take out and return what is scheduled of ``partition``: it was taken away (S99)."""
        taken = [t for t in self.scheduled.values() if t.cut.partition == partition]
        for flow_tuple in taken:
            self.discard(flow_tuple.tuple_id)
        return taken
