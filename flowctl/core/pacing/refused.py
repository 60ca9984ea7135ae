"""A limit learned from refusals (429, "too many connections") that many processes have pooled.

Whoever is refused lets its permit rest, so the number of those that rest is by how much the limit
was too high, and the next limit is what the target took.  :mod:`flowctl.core.refusal_cap` is
the same for the tuples of one spout, which sees each refusal at once.
"""

from __future__ import annotations

from math import inf
from typing import Final

from flowctl.core.pacing.sample import Sample

# One round halves at most: a target that refuses by rate or for a moment refuses all of them.
_DOWN_MOST: Final = 0.5
# A level that was refused is tried again after so long, and after so many calls: a try is one
# refusal or two, so refusals stay at 1 %.
_HOLD_S: Final = 1.5
_HOLD_CALLS: Final = 150
# Calls may be slow: a target that got room is noticed within a minute all the same.
_HOLD_MOST_S: Final = 60.0


class PooledRefusals:
    """``cap`` is infinite before the first refusal.  Pure; not thread-safe; O(1) per sample.

    ``is_confirmed``: more than the cap was tried and refused, and the cap was the same before.
    """

    __slots__ = (
        "_calls", "_fell_at_s", "_fell_to", "_moved_at_s", "_refused", "_step", "cap",
        "is_confirmed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.cap: float = inf
        self.is_confirmed = False
        self._fell_to = inf  # the cap after the last refusal
        self._refused = inf  # the level that was refused last
        self._fell_at_s = -inf
        self._moved_at_s = -inf
        self._calls = 0  # since the last refusal
        self._step = 1

    def on_sample(self, now_s: float, sample: Sample, lag_s: float) -> bool:
        """Take a sample; return whether the cap moved.

        ``lag_s``: what was decided is seen in samples so much later.
        """
        self._calls += sample.calls
        if sample.refused:
            # After a fall, refusals of calls from before it say nothing new.
            return now_s - self._fell_at_s >= lag_s and self._fall(now_s, sample)
        is_reached = sample.is_bound and sample.in_flight + 1 > self.cap
        is_settled = now_s - self._moved_at_s >= lag_s and not sample.resting
        return is_settled and is_reached and self._climb(now_s)

    def _fall(self, now_s: float, sample: Sample) -> bool:
        level = min(self.cap, max(sample.in_flight, 1))
        # Permits rest longer than a fall takes: only those that were refused since count.
        taken = level - max(1, min(sample.resting, sample.refused))
        self.cap = max(1.0, level * _DOWN_MOST, taken)
        self.is_confirmed = abs(self.cap - self._fell_to) <= 1
        self._fell_to = self.cap
        # What was taken is known exactly, unless it was less than a half: then all of it is news.
        self._refused = self.cap + 1 if taken >= self.cap else level
        self._fell_at_s = self._moved_at_s = now_s
        self._calls = 0
        self._step = 1
        return True

    def _climb(self, now_s: float) -> bool:
        if self.cap + 1 < self._refused:
            # Halfway back to what was refused: a target that was full for a moment has room again.
            self.cap = min(self._refused - 1, self.cap + max(1.0, (self._refused - self.cap) / 2))
        elif self._may_try(now_s):
            self.cap += self._step
            self._step *= 2
        else:
            return False
        self._moved_at_s = now_s
        return True

    def _may_try(self, now_s: float) -> bool:
        held_s = now_s - self._fell_at_s
        return held_s >= _HOLD_MOST_S or (held_s >= _HOLD_S and self._calls >= _HOLD_CALLS)
