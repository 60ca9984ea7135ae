"""A budget of cost per second: one process keeps within its part of it.

Virtual scheduling (GCRA, ITU-T I.371) without a burst: what was not used is not saved up, so in any
second at most the rate and one call are begun.
"""

from __future__ import annotations

from math import inf
from typing import Final

# On a busy machine a thread that sleeps wakes up so late; what it is late may be made up for.
_LATE_S: Final = 0.01
# Of the rate, so that what is made up for in a second stays below it: 1.01 * .99 < 1.
_AIM: Final = 0.99


class RateGate:
    """When the next call may begin.  Pure; not thread-safe.

    ``rate``: cost a second; infinite: no budget; 0: none left for this process.
    """

    __slots__ = ("_debt", "_free_at_s", "rate")

    def __init__(self, rate: float = inf) -> None:
        self.rate: float = rate
        self._free_at_s = -inf
        self._debt = 0.0  # of calls begun, while there is no rate to pay it with

    def wait_s(self, now_s: float) -> float:
        """How long until a call may begin; 0: now; infinite while there is no rate."""
        if self.rate == inf:
            return 0.0
        return inf if self.rate <= 0 else max(0.0, self._free_at_s - now_s)

    def begin(self, now_s: float, cost: float) -> None:
        """A call of this cost begins; there is a rate."""
        if self.rate < inf:
            self._free_at_s = max(self._free_at_s, now_s - _LATE_S) + cost / (self.rate * _AIM)

    def correct(self, cost: float) -> None:
        """A call turned out to cost so much more; negative: less."""
        if 0 < self.rate < inf:
            self._free_at_s += cost / (self.rate * _AIM)
        elif self.rate <= 0:
            self._debt += cost

    def set_rate(self, rate: float, now_s: float) -> None:
        """From now on another rate; what is owed for calls that have begun is paid with it."""
        if rate == self.rate:
            return
        if 0 < self.rate < inf:
            self._debt = max(0.0, self._free_at_s - now_s) * self.rate
        if 0 < rate < inf:
            self._free_at_s = now_s + self._debt / rate
            self._debt = 0.0
        self.rate = rate
