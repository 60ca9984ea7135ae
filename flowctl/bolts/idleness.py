"""How long a bolt has been idle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Idleness:
    """Cumulative idle time of a bolt with ``slots`` process threads.

    Not thread-safe: the caller holds a lock (a wait inside :meth:`one` may release it).
    The total is the mean over the slots, so it grows by one second a second when all are idle,
    whatever their number.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._total_s = 0.0  # of the waits that are over, for all slots together
        self._since_sum_s = 0.0  # of the waits under way: when each began
        self.idle_slots: int = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One slot is idle inside the block."""
        since_s = self.begin()
        try:
            yield
        finally:
            self.end(since_s)

    def begin(self) -> float:
        """One slot is idle from now on; return what :meth:`end` takes."""
        since_s = time.monotonic()
        self.idle_slots += 1
        self._since_sum_s += since_s
        return since_s

    def end(self, since_s: float) -> None:
        """A slot is no longer idle."""
        self.idle_slots -= 1
        # Exactly 0 when no slot is idle, or rounding errors would accumulate.
        self._since_sum_s = self._since_sum_s - since_s if self.idle_slots else 0.0
        self._total_s += time.monotonic() - since_s

    def total_s(self) -> float:
        """Idle time until now [s], 0 or more."""
        total_s = self._total_s
        if self.idle_slots:
            total_s += self.idle_slots * time.monotonic() - self._since_sum_s
        return total_s / self._slots
