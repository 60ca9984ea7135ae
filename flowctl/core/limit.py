"""How much a target takes at once, learned from what it refuses (429, "too many connections").

A refusal says exactly what latency only hints at: the target had more than it takes.  How many were
refused is by how much it was too much, so the next limit is what the target took.  The way back up
is quick to near the level that was refused last; beyond that something is tried again after a while
(additive increase, multiplicative decrease: Chiu & Jain 1989, with a decrease that is known).

:class:`flowctl.core.target.Target` feeds it with the tuples of one spout, which sees each refusal
at once, and :class:`flowctl.core.pacing.law.TargetLaw` with samples of all that call a target.
"""

from __future__ import annotations

from math import inf
from typing import Final

# One round halves at most: a target that refuses by rate or for a moment refuses all of them.
_DOWN_MOST: Final = 0.5
# A level that was refused is tried again after so long, and after so many calls: a try is one
# refusal or two, so refusals stay at 1 %.
HOLD_S: Final = 1.5
HOLD_CALLS: Final = 150
# Calls may be slow: a target that got room is noticed within a minute all the same.
_HOLD_MOST_S: Final = 60.0


class RefusedLimit:
    """``most`` at once; infinite before the first refusal.  Pure; not thread-safe; O(1) per call.

    ``is_confirmed``: more was tried and refused, and the limit was the same before.  ``fell_at_s``
    and ``moved_at_s``: when it fell last, and when it changed last.  ``down_most``: what a fall
    leaves of a level at least; ``hold_s`` and ``hold_calls``: when more is tried.
    """

    __slots__ = (
        "_calls", "_down_most", "_fell_to", "_hold_calls", "_hold_s", "_level", "_refused", "_step",
        "_too_many", "fell_at_s", "is_confirmed", "most", "moved_at_s",
    )  # fmt: skip

    def __init__(
        self,
        *,
        down_most: float = _DOWN_MOST,
        hold_s: float = HOLD_S,
        hold_calls: int = HOLD_CALLS,
    ) -> None:
        self.most: float = inf
        self.is_confirmed: bool = False
        self.fell_at_s: float = -inf
        self.moved_at_s: float = -inf
        self._down_most, self._hold_s, self._hold_calls = down_most, hold_s, hold_calls
        self._fell_to = inf  # the limit after the last refusal
        self._refused = inf  # the level that was refused last
        self._level, self._too_many = inf, 0  # of the last round, and how many were refused of it
        self._calls = 0  # since the last refusal
        self._step = 1

    def fall(self, now_s: float, level: float, refused: int) -> None:
        """Of ``level`` at once so many were ``refused``."""
        before = self._fell_to
        self._level, self._too_many = min(self.most, level), 0
        self.fall_on(now_s, refused)
        self.is_confirmed = abs(self.most - before) <= 1

    def fall_on(self, now_s: float, refused: int) -> None:
        """So many more were ``refused`` of those before the last fall."""
        self._too_many += refused
        level, taken = self._level, self._level - max(1, self._too_many)
        self.most = self._fell_to = max(1.0, level * self._down_most, taken)
        # What was taken is known exactly, unless it was less than that: then all of it is news.
        self._refused = self.most + 1 if taken >= self.most else level
        self.fell_at_s = self.moved_at_s = now_s
        self._calls = 0
        self._step = 1

    def took(self, calls: int) -> None:
        """So many calls were not refused."""
        self._calls += calls

    def rise(self, now_s: float) -> bool:
        """Move up if it is time; return whether it is.

        For who has seen what the last move brought, and has more to send than ``most``.
        """
        if self.most + 1 < self._refused:
            # Halfway back to what was refused: a target that was full for a moment has room again.
            more = max(1.0, (self._refused - self.most) / 2)
            self.most = min(self._refused - 1, self.most + more)
        elif self._may_try(now_s):
            self.most += self._step
            self._step *= 2
        else:
            return False
        self.moved_at_s = now_s
        return True

    def _may_try(self, now_s: float) -> bool:
        held_s = now_s - self.fell_at_s
        if held_s >= _HOLD_MOST_S:
            return True
        return held_s >= self._hold_s and self._calls >= self._hold_calls
