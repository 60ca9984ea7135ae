"""The tuples that wait and run at a simulated bolt, and the times that the bolt reports.

All spouts of a bolt share a queue, or each has its own.  In the latter case the bolt takes the
spouts in turn, each for as long as the others (Nagle 1987; Demers, Keshav & Shenker 1989), and
reports to each spout the times of the bolt as this spout sees it: a tuple waits while as many of
its own spout's are before it as there are slots, and all that it takes from then on is service,
others' turns included.  So a spout sees a bolt of its own that is slower.  With one queue for all,
every spout sees the same wait, whatever part of it is its own, and who came first keeps most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from flowctl_lab.simulation.network import Sending


class BoltQueue:
    """Tuples at a bolt with ``slots``; the bolt fills ``running`` from ``waiting``."""

    __slots__ = ("_idle_at_s", "_idle_s", "_served_s", "_slots", "running", "waiting")

    def __init__(self, slots: int) -> None:
        self.waiting: deque[Sending] = deque()
        self.running: dict[Sending, None] = {}  # in order, so that runs are repeatable
        self._slots = slots
        self._served_s = 0.0  # slot time used by this queue
        self._idle_s = 0.0  # up to _idle_at_s [slot-seconds]
        self._idle_at_s = 0.0

    @property
    def claim(self) -> tuple[int, float]:
        """The queue's claim: of several waiting queues, the one with the least is next."""
        return len(self.running), self._served_s

    def add(self, at_s: float, sending: Sending, queues: Iterable[BoltQueue]) -> None:
        """Add a tuple that arrived.  A spout that was idle has no claim to the time since."""
        if not (self.waiting or self.running):
            others = [q._served_s for q in queues if q.waiting or q.running]
            self._served_s = max(self._served_s, min(others, default=0.0))
        sending.received_at_s = at_s
        self._count_idle(at_s)
        self.waiting.append(sending)
        self._give_turns(at_s)

    def begin(self, at_s: float) -> Sending:
        """Begin the next tuple in a slot."""
        sending = self.waiting.popleft()
        sending.began_at_s = at_s
        self.running[sending] = None
        return sending

    def end(self, at_s: float, sending: Sending) -> None:
        """One is done."""
        self._count_idle(at_s)
        del self.running[sending]
        self._served_s += at_s - sending.began_at_s
        self._give_turns(at_s)

    def give_back(self, at_s: float, spout: int, tuple_ids: Iterable[int]) -> list[Sending]:
        """Remove and return those of ``tuple_ids`` that were not begun."""
        wanted = set(tuple_ids)
        given = [s for s in self.waiting if s.spout == spout and s.tuple_id in wanted]
        self._count_idle(at_s)
        for sending in given:
            self.waiting.remove(sending)
        self._give_turns(at_s)
        return given

    def clear(self, at_s: float) -> None:
        """Drop all tuples; idle time counts from ``at_s`` on."""
        self.waiting.clear()
        self.running.clear()
        self._idle_s, self._idle_at_s = 0.0, at_s

    def _count_idle(self, at_s: float) -> None:
        held = min(self._slots, len(self.running) + len(self.waiting))
        self._idle_s += (self._slots - held) * (at_s - self._idle_at_s)
        self._idle_at_s = at_s

    def _give_turns(self, at_s: float) -> None:
        """Begin the service time of tuples that no longer wait for others of this queue."""
        for sending in islice(self.waiting, max(0, self._slots - len(self.running))):
            if sending.turn_at_s is None:
                sending.turn_at_s = at_s
                sending.idle_total_s = self._idle_s / self._slots
