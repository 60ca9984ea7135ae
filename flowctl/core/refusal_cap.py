"""A cap on what is in flight at all bolts, learned from refusals (429, "too many connections").

A refusal says exactly what latency only hints at: the target had more than it takes.  Additive
increase, multiplicative decrease (Chiu & Jain 1989), with two changes: what was sent before a
decrease can't show its effect and does not count, and the way back up is quick until it comes near
the level that was refused last.
"""

from __future__ import annotations

from math import inf
from typing import Final

# A fifth less per refused round: from 16 to a limit of 10 in three rounds, and never far below it.
_DOWN: Final = 0.8
# A level that was refused is tried again after a second. With calls of 50 ms and a limit of 10 that
# is one refusal in some 200 calls.
_HOLD_S: Final = 1.0
# A step up at most this often: a refusal has to have the time to come back.  It comes at once, when
# a call is made, however long calls take that are accepted.
_STEP_S: Final = 0.25
# A cap that nothing reaches for so long is not needed any more.
_UNUSED_S: Final = 2.0


class RefusalCap:
    """The most tuples in flight at all bolts together; infinite without refusals.

    Pure; not thread-safe.  O(1) per call.
    """

    __slots__ = (
        "_before",
        "_cut_at_s",
        "_refused",
        "_refused_at_s",
        "_step",
        "_step_at_s",
        "_used_at_s",
        "cap",
    )

    def __init__(self) -> None:
        self.cap: float = inf
        self._refused = inf  # the level that was refused last
        self._refused_at_s = -inf
        self._cut_at_s = -inf
        self._step = 1
        self._step_at_s = -inf
        self._used_at_s = -inf  # when the cap was reached last
        self._before: float | None = None  # the cap before the failures without a success

    def has_room(self, in_flight: int, now_s: float) -> bool:
        """Whether one more tuple may be sent."""
        if self.cap == inf or in_flight < int(self.cap):
            return True
        self._used_at_s = now_s
        return False

    def on_refused(self, *, sent_at_s: float, in_flight: int, slots: int, now_s: float) -> bool:
        """A tuple was refused; return whether the cap fell.

        ``in_flight`` counts it still; ``slots``, of all bolts, bounds how many the target can have
        seen at once: the rest was queued.
        """
        if sent_at_s < self._cut_at_s:
            return False
        if self._before is None:
            self._before = self.cap
        level = min(self.cap, float(in_flight), float(slots))
        self._refused, self._refused_at_s = level, now_s
        self.cap = max(1.0, _DOWN * level)
        self._cut_at_s = self._step_at_s = self._used_at_s = now_s
        self._step = 1
        return True

    def on_success(self, now_s: float) -> bool:
        """A tuple was processed; move up if it is time; return whether the cap went away."""
        self._before = None
        if self.cap == inf:
            return False
        if now_s - self._used_at_s > _UNUSED_S:
            self.cap = inf
            return True
        if now_s - self._step_at_s < _STEP_S:
            return False
        self._step_at_s = now_s
        if self.cap + 1 < self._refused:  # halfway back to what was refused
            self.cap = min(self._refused - 1, self.cap + max(1.0, (self._refused - self.cap) / 2))
        elif now_s - self._refused_at_s >= _HOLD_S:
            self.cap += self._step
            self._step *= 2
        return False

    def forgive(self) -> None:
        """The target was down, not full: what its refusals took off is given back."""
        if self._before is not None:
            self.cap = self._before
            self._before = None
