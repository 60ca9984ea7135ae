"""How much a target takes at once, learned from what it refuses (429, "too many connections").

A refusal says exactly what latency only hints at: the target was given more than it takes.  The
number of refused calls is the excess, so the next limit is what the target took.  The way back up
is quick to near the level that was refused last; beyond that something is tried again after a while
(additive increase, multiplicative decrease: Chiu & Jain 1989, with a decrease that is known).

:class:`flowctl.core.target.Target` feeds it with the tuples of one spout, which sees each refusal
at once, and :class:`flowctl.core.pacing.law.TargetLaw` with samples of all that call a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from flowctl.core.records import Record, packed

# One round halves at most: a target that refuses by rate or for a moment refuses all of them.
_DOWN_MOST: Final = 0.5
# A refused level is tried again after this long [s], and after this many calls: a trial costs a
# refusal or two, so refusals stay at 1 %.
HOLD_S: Final = 1.5
HOLD_CALLS: Final = 150
# Calls may be slow: a target that got room is noticed within a minute all the same.
_HOLD_MOST_S: Final = 60.0
# A level that worked until just now is probably in use by another client for a moment: after this
# long [s] one more is tried, and if that is taken, all of it: back as fast as it fell.
_COME_BACK_S: Final = 0.5
# A level that was last in doubt longer ago than this [s] counts as changed since.
_DOUBT_S: Final = 30.0
# Each step of a trial is this many times the one before.  A token bucket refuses only once it is
# empty, so steps of a rate grow more slowly.
_QUICKER: Final = 2.0
_QUICKER_SHARE: Final = 1.15


class RefusedLimit:
    """``most`` at once; infinite before the first refusal.  Pure; not thread-safe; O(1) per call.

    ``is_confirmed``: more was tried and refused, and the limit was the same before.  ``fell_at_s``
    and ``moved_at_s``: when it fell last, and when it changed last.  ``down_most``: the share of a
    level that a fall leaves at least; ``hold_s`` and ``hold_calls``: after which time and calls
    more is tried, ``hold_most_s``: at the latest.  ``share``: a step, as a part of the level, of
    what is not counted in whole calls; 0: a step is one call.
    """

    __slots__ = (
        "_calls", "_doubted_at_s", "_down_most", "_fell_to", "_hold_most_s", "_hold_s", "_level",
        "_refused", "_share", "_step", "_too_many", "comes_back", "doubts", "fell_at_s",
        "hold_calls", "is_confirmed", "most", "moved_at_s", "tried",
    )  # fmt: skip

    def __init__(
        self,
        *,
        down_most: float = _DOWN_MOST,
        hold_s: float = HOLD_S,
        hold_most_s: float = _HOLD_MOST_S,
        hold_calls: int = HOLD_CALLS,
        share: float = 0.0,
    ) -> None:
        self.most: float = inf
        self.is_confirmed: bool = False
        self.fell_at_s: float = -inf
        self.moved_at_s: float = -inf
        self.doubts: int = 0
        self._doubted_at_s = -inf
        self.tried: float = 1.0
        self.comes_back: bool = False
        self.hold_calls: int = hold_calls
        self._down_most, self._hold_s, self._hold_most_s = down_most, hold_s, hold_most_s
        self._share = share
        self._fell_to = inf  # the limit after the last refusal
        self._refused = inf  # the level that was refused last
        self._level, self._too_many = inf, 0.0  # level of the last round, and its refusals
        self._calls = 0  # calls since the last refusal
        self._step = 1.0

    def _grain(self, level: float) -> float:
        return self._share * level or 1.0

    def fall(self, now_s: float, level: float, refused: float) -> None:
        """Lower the limit: at ``level`` calls at once, ``refused`` were refused."""
        before = self._fell_to
        if now_s - self._doubted_at_s > _DOUBT_S:
            self.doubts, self.tried = 0, min(self.most, level)
        tried = min(self.most, level)
        is_taken = self.most <= before < inf and self._refused <= before + self._grain(before)
        was_taken = before < inf and self._calls >= before
        self._level, self._too_many = tried, 0.0
        self.fall_on(now_s, refused)
        if is_taken or (was_taken and self.most + self._grain(before) < before):
            self.doubts += 1
            self.tried = max(self.tried, tried)
            self._doubted_at_s = now_s
        self.is_confirmed = abs(self.most - before) <= self._grain(self.most)

    def fall_on(self, now_s: float, refused: float) -> None:
        """Lower it further: ``refused`` more of the calls that were sent before the last fall were
        refused.
        """
        self._too_many += refused
        level, grain = self._level, self._grain(self._level)
        taken = level - max(grain, self._too_many)
        self.most = self._fell_to = max(grain, level * self._down_most, taken)
        # The accepted number is known exactly, unless it was less than that: then it is all new
        # information.
        self._refused = self.most + grain if taken >= self.most else level
        self.fell_at_s = self.moved_at_s = now_s
        self._calls = 0
        self._step = 1.0

    def took(self, calls: int) -> None:
        """Count ``calls`` that were not refused."""
        self._calls += calls

    def rise(self, now_s: float) -> bool:
        """Move up if it is time; return whether it is.

        Call it only if the effect of the last move has been seen, and there is more to send than
        ``most``.
        """
        grain = self._grain(self.most)
        if self.most + grain < self._refused:
            # Halfway back to what was refused: a target that was full for a moment has room again.
            more = max(grain, (self._refused - self.most) / 2)
            self.most = min(self._refused - grain, self.most + more)
        elif self.is_left(now_s) and self._step > 1:
            self.most = max(self.most + grain, self.tried)  # another client was there, and has gone
            self._step = 1.0
            self.fell_at_s, self._calls = now_s, 0
        elif self._may_try(now_s):
            self.most += self._step * grain
            self._step *= _QUICKER_SHARE if self._share else _QUICKER
        else:
            return False
        self.moved_at_s = now_s
        return True

    def is_left(self, now_s: float) -> bool:
        """Whether it is below a level that the target took until another client came."""
        is_recent = now_s - self._doubted_at_s <= _DOUBT_S
        return self.comes_back and is_recent and self.most < self.tried

    def _may_try(self, now_s: float) -> bool:
        held_s = now_s - self.fell_at_s
        if self.is_left(now_s) and held_s >= _COME_BACK_S:
            return True
        if held_s >= self._hold_most_s:
            return True
        return held_s >= self._hold_s and self._calls >= self.hold_calls


# -- In bytes: "too large" (413) ----------------------------------------------------------------

# A call that was too large by an unknown factor: half as many bytes are tried next.
_TOO_LARGE_CUT = 1 / 2


class BytesPerCall:
    """How many bytes the rows of a call may have: as given, and what "too large" (413) teaches.

    Counts rows as MessagePack, which is near what most clients send, and in proportion to it.
    Nothing is counted before there is a bound.  After a call that was too large, none has more than
    half of its bytes: so a call has at least half of what the target takes.  Not thread-safe.
    """

    def __init__(self, bytes_max: int | None = None) -> None:
        self._most: float = inf if bytes_max is None else bytes_max

    @property
    def is_bound(self) -> bool:
        """Whether there is a bound by now."""
        return self._most < inf

    def fitting(self, records: Sequence[Record]) -> int:
        """Return how many of ``records``, from the first on, a call may have; at least 1."""
        if self._most == inf:
            return len(records)
        size = 0
        for index, record in enumerate(records):
            size += len(packed(record.value))
            if size > self._most and index:
                return index
        return len(records)

    def refused(self, records: Sequence[Record]) -> None:
        """``records``, more than one, were too large for a call."""
        size = sum(len(packed(record.value)) for record in records)
        self._most = min(self._most, _TOO_LARGE_CUT * size)
