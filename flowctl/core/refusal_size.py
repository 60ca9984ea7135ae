"""Fewer records per tuple if a target refuses in mid-tuple (a limit of calls per second).

A tuple that is refused at its tenth record has to begin again, so its first nine calls are made
twice, and count against the target's limit twice.
"""

from __future__ import annotations

from math import inf
from typing import Final

# Twice as many a second after the last refusal, so that a limit that is gone costs some seconds.
_GROWTH: Final = 2
_GROW_EVERY_S: Final = 1.0
_NO_BOUND_ABOVE: Final = 10_000  # records: as many as the largest tuple has by default


class RefusalSize:
    """The most records that a new tuple should have; infinite without such refusals.

    Pure; not thread-safe.
    """

    __slots__ = ("_changed_at_s", "records_max")

    def __init__(self) -> None:
        self.records_max: float = inf
        self._changed_at_s = -inf

    def on_refused(self, done: int, now_s: float) -> None:
        """A tuple was refused after ``done`` records of it were worked on."""
        self.records_max = max(1.0, min(self.records_max, float(done)))
        self._changed_at_s = now_s

    def on_success(self, now_s: float) -> None:
        """A tuple was processed."""
        if self.records_max < inf and now_s - self._changed_at_s >= _GROW_EVERY_S:
            self._changed_at_s = now_s
            self.records_max *= _GROWTH
            if self.records_max > _NO_BOUND_ABOVE:
                self.records_max = inf
