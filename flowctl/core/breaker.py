"""The breaker: while (nearly) nothing succeeds, it probes the target only now and then.

Closed, everything flows.  A run of failures without one success in between opens it: what the
bolts have not begun is taken back, no attempt is counted, and one tuple at a time is sent to see
whether the target is back, at growing intervals.  The first success closes it.  After
``retry.give_up_after_s`` without one, the run has to end.
"""

from __future__ import annotations

from math import inf
from typing import Final

from flowctl.core.retry import TARGET

# So many failures in a row, with no success, before the target counts as down: one of each slot, as
# all slots fail when a target goes; at least 4, or two bad tuples of a small job would do; at most
# 32, as a target that is down should not be asked by a thousand slots first.
_FAILURES_MIN: Final = 4
_FAILURES_MAX: Final = 32
# And so long without a success: a target that takes ten calls a second refuses many in a row, but
# not for long.  Less than the first rest of a bolt, so that no bolt calls twice before.
_RUN_S: Final = 0.4
# Where most records are bad, long runs of failures are common though the target is well.  So a run
# without a refusal must be twice as long as the last if the target came back this lately.
_LATELY_S: Final = 10.0


class Breaker:
    """Whether the target takes anything at all.  Pure; not thread-safe.

    ``is_down`` and ``down_since_s`` say so; ``reason`` is the newest failure.  ``asked`` counts the
    tuples that were sent to ask since it went down.  ``failing`` holds the ids of the tuples whose
    failures in a row opened it, or will: a fault that was counted against them says nothing.
    ``has_refused``: one of the failures said "full" or "away".
    """

    __slots__ = (
        "_after_s",
        "_ask_at_s",
        "_back_at_s",
        "_give_up_after_s",
        "_next_patience",
        "_opens_at_s",
        "_patience",
        "asked",
        "down_since_s",
        "failing",
        "has_refused",
        "is_down",
        "is_lost",
        "reason",
        "run_began_s",
        "waits_until_s",
    )

    def __init__(self, give_up_after_s: float) -> None:
        self._give_up_after_s = give_up_after_s
        self.is_down: bool = False
        self.is_lost: bool = False  # it was down for too long: the run has to end
        self.down_since_s: float = inf
        self.reason: str = ""
        self.failing: list[int] = []
        self.asked: int = 0
        # something could be sent, but for the time of the next question
        self.waits_until_s: float = inf
        self._ask_at_s = inf
        self._back_at_s = -inf
        self.run_began_s: float = -inf  # the first failure of the run
        self._opens_at_s = inf
        self._after_s = TARGET.first_s
        self._patience = self._next_patience = 1  # by which a run of failures must be longer
        self.has_refused: bool = False  # one of the run, or since, was a refusal

    def on_failure(
        self,
        tuple_id: int,
        *,
        slots: int,
        reason: str,
        is_refusal: bool,
        after_s: float | None,
        now_s: float,
    ) -> bool:
        """A tuple failed in a way that may be the target's; return whether that opened it.

        ``slots``: of all bolts; ``after_s``: how long the target asked to be left alone.
        """
        self.reason = reason
        self.has_refused = self.has_refused or is_refusal
        if self.is_down:
            if after_s is not None:
                self._ask_at_s = max(self._ask_at_s, now_s + after_s)
            return False
        if not self.failing:
            self.run_began_s = now_s
        self.failing.append(tuple_id)
        give_up_at_s = self.run_began_s + self._give_up_after_s
        if after_s is not None and now_s + after_s >= give_up_at_s:
            # All may be silent until then, so that no further failure shows that it is down.
            self._opens_at_s = min(self._opens_at_s, give_up_at_s)
        lately = now_s - self._back_at_s < _LATELY_S
        patience = 1 if self.has_refused or not lately else self._patience
        if len(self.failing) < patience * min(_FAILURES_MAX, max(_FAILURES_MIN, slots)):
            return False
        self._next_patience = 2 * patience
        self._after_s = max(TARGET.first_s, after_s or 0.0)
        # Who asks to be left alone for a second is silent for that long, and is not down for it.
        run_s = _RUN_S + min(after_s or 0.0, TARGET.most_s)
        self._opens_at_s = min(self.run_began_s + run_s, give_up_at_s)
        return self._open_if_due(now_s)

    @property
    def is_about_to_open(self) -> bool:
        """Whether enough failed in a row, so that it opens when the time comes."""
        return self._opens_at_s < inf

    def _open_if_due(self, now_s: float) -> bool:
        if self.is_down or now_s < self._opens_at_s:
            return False
        self._opens_at_s = inf
        self._patience = self._next_patience
        self.is_down = True
        self.down_since_s = self.run_began_s
        self.asked = 0
        self._ask_at_s = now_s + self._after_s
        return True

    def close(self, now_s: float) -> float | None:
        """The run of failures is over; return how long the target was down, if it was [s]."""
        self.failing.clear()
        self.run_began_s = -inf
        self.has_refused = False
        self._opens_at_s = inf
        if not self.is_down:
            return None
        self.is_down = False
        self._back_at_s = now_s
        self.waits_until_s = inf
        return now_s - self.down_since_s

    def may_ask(self, now_s: float) -> bool:
        """Whether one tuple may be sent to probe the target although it is down."""
        if now_s >= self._ask_at_s:
            self.waits_until_s = inf
            return True
        self.waits_until_s = self._ask_at_s
        return False

    def note_asked(self, now_s: float) -> None:
        """A tuple was sent to probe the target."""
        self.asked += 1
        self._ask_at_s = now_s + TARGET.after(self.asked)

    def next_s(self) -> float:
        """When :meth:`on_deadline` or another look at what may be sent is due; inf: never."""
        if not self.is_down or self.is_lost:
            return self._opens_at_s
        return min(self.waits_until_s, self.down_since_s + self._give_up_after_s)

    def on_deadline(self, now_s: float) -> bool:
        """Time passed: open, or give up on a target; return whether that opened it."""
        if self.is_down and now_s >= self.down_since_s + self._give_up_after_s:
            self.is_lost = True
        return self._open_if_due(now_s)
