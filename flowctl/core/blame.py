"""Blame for a failure: the record or tuple that failed, or the place where it failed?

A place is the target of a spout, a stage of a topology or one task of it, or what a partition of
``flow_sink`` writes to.  One failure of an unknown kind does not show which of the two is to blame.
But a bad record fails while others succeed, and a place that is down fails everything.  So a run of
failures opens the breaker of the place; and a repeated failure counts against a record only if
something that was sent after its previous failure has succeeded.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TargetCameBack, TargetWentDown
from flowctl.core.letters import redrive_number
from flowctl.core.retry import TARGET
from flowctl.core.tuples import NEVER_JUDGED

# -- The breaker: while (nearly) nothing succeeds, it probes the target only now and then ------
#
# Closed, everything flows. A run of failures without one success in between opens it: what the
# bolts have not begun is taken back, no attempt is counted, and one tuple at a time is sent to
# see whether the target is back, at growing intervals. The first success closes it. After
# ``retry.give_up_after_s`` without one, the run has to end.


# Failures in a row, without a success, that make the target count as down: one of each slot, as all
# slots fail when a target goes; at least 4, or two bad tuples of a small job would do; at most 32,
# as a target that is down should not be asked by a thousand slots first.
_FAILURES_MIN: Final = 4
_FAILURES_MAX: Final = 32
# And at least this long without a success [s]: a target that takes ten calls a second refuses many
# in a row, but not for long.  Less than the first rest of a bolt, so that no bolt calls twice
# before.
_RUN_S: Final = 0.4
# Where most records are bad, long runs of failures are common though the target is well.  So a run
# without a refusal must be twice as long as the last if the target came back this lately.
_LATELY_S: Final = 10.0
# A target that is away fails (nearly) every call, and one that is full refuses at most every other
# for long.  If at most this share of the failures since the last success may be its fault, it takes
# calls, and the records of the others are bad.
_NOW_AND_THEN: Final = 1 / 3


class Breaker:
    """Whether the target takes anything at all.  Pure; not thread-safe.

    ``is_down`` and ``down_since_s`` give the verdict; ``is_sure``: a call that began after the
    first failure failed as well.  If all slots were refused at once and rest, no call began since,
    and a target that takes twenty calls a second looks the same as one that takes none.  ``reason``
    is the newest failure.  ``asked`` counts the tuples that were sent to ask since it went down.
    ``failing`` holds the ids of the tuples whose failures in a row opened it, or will: faults
    counted against them prove nothing.
    """

    __slots__ = (
        "_after_s",
        "_ask_at_s",
        "_back_at_s",
        "_failures",
        "_give_up_after_s",
        "_next_patience",
        "_opens_at_s",
        "_patience",
        "_refusals",
        "_suspect",
        "asked",
        "down_since_s",
        "failing",
        "is_down",
        "is_lost",
        "is_sure",
        "reason",
        "run_began_s",
        "waits_until_s",
    )

    def __init__(self, give_up_after_s: float) -> None:
        self._give_up_after_s = give_up_after_s
        self.is_down: bool = False
        self.is_sure: bool = False
        self.is_lost: bool = False  # down for too long: the run has to end
        self.down_since_s: float = inf
        self.reason: str = ""
        self.failing: list[int] = []
        self.asked: int = 0
        # something could be sent, but for the time of the next question
        self.waits_until_s: float = inf
        self._ask_at_s = inf
        self._back_at_s = -inf
        self.run_began_s: float = -inf  # time of the first failure of the run
        self._opens_at_s = inf
        self._after_s = TARGET.first_s
        self._patience = self._next_patience = 1  # how much longer a run of failures must be
        # Since the last success: failures; those that may be the target's fault; refusals.
        self._failures = self._suspect = self._refusals = 0

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
        """Count a failure that may be the target's fault; return whether it opened the breaker.

        ``slots``: of all bolts; ``after_s``: how long the target asked to be left alone.
        """
        self.reason = reason
        self._failures += 1
        self._suspect += 1
        self._refusals += is_refusal
        if self.is_down:
            self.is_sure = self.is_sure or self.asked > 0
            if after_s is not None:
                self._ask_at_s = max(self._ask_at_s, now_s + after_s)
            return False
        if not self.failing:
            self.run_began_s = now_s
        self.failing.append(tuple_id)
        # Those that are not refused don't rest, and of more failures than slots one began later.
        self.is_sure = not self.has_refused or len(self.failing) > slots
        give_up_at_s = self.run_began_s + self._give_up_after_s
        if after_s is not None and now_s + after_s >= give_up_at_s:
            # Every bolt may be at rest until then, so no further failure would show that it is
            # down.
            self._opens_at_s = min(self._opens_at_s, give_up_at_s)
        lately = now_s - self._back_at_s < _LATELY_S
        patience = 1 if self.has_refused or not lately else self._patience
        enough = patience * min(_FAILURES_MAX, max(_FAILURES_MIN, slots))
        if len(self.failing) < enough or self.takes_calls:
            return False
        self._next_patience = 2 * patience
        self._after_s = max(TARGET.first_s, after_s or 0.0)
        # A target that asks to be left alone for a second is silent for that long, but not down.
        run_s = _RUN_S + min(after_s or 0.0, TARGET.most_s)
        self._opens_at_s = min(self.run_began_s + run_s, give_up_at_s)
        return self._open_if_due(now_s)

    def note_answered(self) -> None:
        """Count a failure that is not the target's fault, unless nothing else has failed yet."""
        self._failures += self._suspect > 0

    def acquit(self) -> None:
        """What failed so far, and was not refused, was not the target's fault."""
        self._suspect = self._refusals

    @property
    def takes_calls(self) -> bool:
        """Whether few of the failures since the last success may be the target's fault."""
        return self._suspect <= _NOW_AND_THEN * self._failures

    @property
    def has_refused(self) -> bool:
        """Whether more than a few of the failures since the last success said "full" or "away"."""
        return self._refusals > _NOW_AND_THEN * self._failures

    @property
    def is_about_to_open(self) -> bool:
        """Whether enough calls in a row failed, so that it opens once they have lasted long
        enough.
        """
        return self._opens_at_s < inf

    def _open_if_due(self, now_s: float) -> bool:
        if self.is_down or now_s < self._opens_at_s:
            return False
        self._opens_at_s = inf
        self._patience = self._next_patience
        self.is_down = True
        # Asked by one call at a time, it shows whether it was only full.
        self._failures, self._suspect, self._refusals = 1, 1, int(self.has_refused)
        self.down_since_s = self.run_began_s
        self.asked = 0
        self._ask_at_s = now_s + self._after_s
        return True

    def close(self, now_s: float, *, has_succeeded: bool) -> float | None:
        """End the run of failures; return how long the target was down [s], None if it was not."""
        self.failing.clear()
        self.run_began_s = -inf
        self._opens_at_s = inf
        if has_succeeded:
            self._failures = self._suspect = self._refusals = 0
        if not self.is_down:
            return None
        self.is_down = self.is_sure = False
        self._back_at_s = now_s
        self.waits_until_s = inf
        return now_s - self.down_since_s

    def may_ask(self, now_s: float) -> bool:
        """Whether one tuple may be sent to probe the target while it is down."""
        if now_s >= self._ask_at_s:
            self.waits_until_s = inf
            return True
        self.waits_until_s = self._ask_at_s
        return False

    def note_asked(self, now_s: float) -> None:
        """Note that a tuple was sent to probe the target."""
        self.asked += 1
        self._ask_at_s = now_s + TARGET.after(self.asked)

    def next_s(self) -> float:
        """Return when to call :meth:`on_deadline`, or to look again for something to send; inf:
        never.
        """
        if not self.is_down or self.is_lost:
            return self._opens_at_s
        return min(self.waits_until_s, self.down_since_s + self._give_up_after_s)

    def on_deadline(self, now_s: float) -> bool:
        """Open, or give up on a target, if it is time; return whether it opened."""
        if self.is_down and now_s >= self.down_since_s + self._give_up_after_s:
            self.is_lost = self.is_sure = True
        return self._open_if_due(now_s)


# -- Whose fault a failure is ------------------------------------------------------------------


# A target that is full refuses at most every other call for long: twenty refusals in a row of one
# tuple, while others succeed, are one in a million then.
REFUSALS_MAX: Final = 20
# Records that may go to the dead letter while nothing succeeds: a process that never works must not
# empty the source into the dead letter.
GIVEN_UP_FIRST_MAX: Final = 8
# A job that was run before may have nothing but bad records left: its first run ends with the first
# bad one, and by then all others may be done.  So a share of what earlier runs did may be given up;
# not more than this, which is put back soon if the process is wrong after all.
GIVEN_UP_SHARE: Final = 0.1
GIVEN_UP_AGAIN_MAX: Final = 1_000
# Where all that is left of a job fails, the target may be down, or all of that bad.  If so few
# are left, they count as bad after so long: most restarts of a service behind a balancer are over
# then, and nobody minds that a job with a bad end takes that much longer.  Of more it is likelier
# that the target is down.
BAD_END_MAX: Final = 100
BAD_END_S: Final = 10.0
# A remainder this small is not worth waiting for: as many records may be given up anyway.
FEW_LEFT: Final = GIVEN_UP_FIRST_MAX


def given_up_first_max(done_before: int) -> int:
    """Return how many records may be given up, and kept elsewhere, while nothing succeeds.

    ``done_before``: how many records earlier runs of the job did.
    """
    again = min(GIVEN_UP_AGAIN_MAX, int(GIVEN_UP_SHARE * done_before))
    return max(GIVEN_UP_FIRST_MAX, again)


def fails_alone(partition: str, refusals: int) -> bool:
    """Return whether a record is known to fail by itself, whatever its place.

    A letter of ``partition`` that is processed again failed alone, or it would be none.
    ``refusals``: how often it was sent again without a fault, while its place was not down.
    """
    return redrive_number(partition) is not None or refusals >= REFUSALS_MAX


class Place:
    """What successes and failures show of one place.  Pure; not thread-safe.

    ``proven_at_s``: when the tuple was sent that succeeded last there in this run: the place was
    well then or later.  Every caller that sees a success writes it.  ``is_known``: the code has
    worked there before, so where nothing has succeeded yet it need not be wrong.
    """

    __slots__ = (
        "_cleared_at_s", "_counters", "_events", "_failing_since_s", "_is_told", "_proven_then_s",
        "breaker", "proven_at_s",
    )  # fmt: skip

    def __init__(
        self,
        give_up_after_s: float,
        counters: Counters,
        events: deque[FlowEvent],
        *,
        is_known: bool = False,
    ) -> None:
        self.proven_at_s: float = NEVER_JUDGED
        self.breaker: Breaker = Breaker(give_up_after_s)
        self._cleared_at_s: float = -inf if is_known else NEVER_JUDGED
        self._proven_then_s: float | None = None  # time of the first failure since a success
        self._failing_since_s: float = NEVER_JUDGED
        self._is_told = False  # the events say that it is down
        self._counters = counters
        self._events = events

    # -- is it to blame? -----------------------------------------------------------------

    @property
    def has_succeeded(self) -> bool:
        """Whether anything succeeded there, in this run."""
        return self.proven_at_s > NEVER_JUDGED

    @property
    def is_cleared(self) -> bool:
        """Whether failures there are not the place's fault: it never worked, so the code is wrong;
        or all that is left counts as bad.
        """
        return self._cleared_at_s >= self.proven_at_s

    def lacks_proof(self, judged_at_s: float, proven_at_s: float | None = None) -> bool:
        """Whether the place may be to blame for a repeated failure: nothing that was sent after the
        earlier failure, at ``judged_at_s``, has succeeded.

        Records that fail are found while others succeed; so nothing is lost by waiting for that.
        ``proven_at_s``: of a part of the place, if that has to show it.
        """
        proven_at_s = self.proven_at_s if proven_at_s is None else proven_at_s
        return not self.is_cleared and judged_at_s > proven_at_s

    def fails_for_long(self, now_s: float) -> bool:
        """Whether nothing has succeeded there for :data:`BAD_END_S`.

        The time starts with the first call after a success.
        """
        if self._proven_then_s != self.proven_at_s:
            self._proven_then_s, self._failing_since_s = self.proven_at_s, now_s
        return now_s - self._failing_since_s >= BAD_END_S

    def clear_at_end(self, *, few_left: bool, now_s: float) -> bool:
        """Clear the place if all that is left fails and counts as bad; return whether it does."""
        breaker = self.breaker
        if not few_left or breaker.has_refused or now_s - breaker.down_since_s < BAD_END_S:
            return False
        self._cleared_at_s = now_s
        breaker.acquit()
        self.close("so few are left that they count as bad", now_s)
        return True

    # -- is it down? ---------------------------------------------------------------------

    @property
    def is_down(self) -> bool:
        """Whether (nearly) nothing succeeds."""
        return self.breaker.is_down

    @property
    def down(self) -> TargetWentDown | None:
        """Since when and why (nearly) nothing succeeds; None: calls succeed, or it is unknown."""
        return self._went_down(self.breaker.down_since_s) if self._is_told else None

    def note_failure(
        self,
        number: int,
        *,
        slots: int,
        reason: str,
        now_s: float,
        is_refusal: bool = False,
        after_s: float | None = None,
    ) -> None:
        """Count a failure of tuple ``number``, perhaps the place's fault; as
        :meth:`Breaker.on_failure`.
        """
        if self.breaker.on_failure(
            number,
            slots=slots,
            reason=reason,
            is_refusal=is_refusal,
            after_s=after_s,
            now_s=now_s,
        ):
            self._open(now_s)
        self._tell_if_sure(now_s)

    def note_answered(self, now_s: float) -> None:
        """Count a failure that is not the place's fault: it took the call, as far as is known."""
        self.breaker.note_answered()
        if self.is_down and self.breaker.takes_calls:
            self.close("it takes calls, but their records are bad", now_s)

    def on_deadline(self, now_s: float) -> None:
        """Let the place count as down, or as lost, if it is time."""
        if self.breaker.on_deadline(now_s):
            self._open(now_s)
        self._tell_if_sure(now_s)

    def _open(self, now_s: float) -> None:
        """The breaker opened; whether the place is down, or was only full, may not be known yet."""

    def _tell_if_sure(self, now_s: float) -> None:
        if self.is_down and self.breaker.is_sure and not self._is_told:
            self._is_told = True
            self._go_down(now_s)

    def _go_down(self, now_s: float) -> None:
        self._events.append(self._went_down(now_s))

    def _went_down(self, at_s: float) -> TargetWentDown:
        breaker = self.breaker
        return TargetWentDown(at_s=at_s, reason=breaker.reason, has_refused=breaker.has_refused)

    def on_success(self, sent_at_s: float, now_s: float) -> None:
        """Note the success of what was sent at ``sent_at_s``.

        If that was before the first failure, it says nothing about the place now.
        """
        if sent_at_s >= self.breaker.run_began_s:
            self.close("", now_s)

    def close(self, reason: str, now_s: float) -> None:
        """Treat the place as up (again); ``reason`` says why, if nothing has succeeded."""
        asked, down_s = self.breaker.asked, self.breaker.close(now_s, has_succeeded=not reason)
        if down_s is not None and self._is_told:
            self._is_told = False
            self._counters.target_down_total_s += down_s
            came_back = TargetCameBack(at_s=now_s, down_s=down_s, asked=asked, reason=reason)
            self._events.append(came_back)
