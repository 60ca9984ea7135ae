"""How much a target takes per time, learned from its refusals: a rate, a token bucket, a window.

No number of calls in flight expresses such a limit: with calls of a second, ten a second are ten at
once, but one at once if each refused caller rests.  So a limit has two sides, and a refusal asks
which of the two it was.  An experiment decides: calls are spread evenly, a little below the rate
that succeeded recently, with as many in flight as before.  If refusals end, it was a rate; if not,
the number in flight.

If everything is refused, a window is used up, or the target is away: no limit is lowered; one call
at a time probes whether it is over.  The calls that succeed from one such end to the next, divided
by that time, are the window's rate.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from math import inf
from typing import Final, NamedTuple

from flowctl.core.limit import RefusedLimit
from flowctl.core.pacing.sample import Sample

# An experiment stays below the rate that succeeded, so that a token bucket can fill again.
_BELOW: Final = 0.9
# It lasts at least this long [s], once no earlier calls are seen any more, and this many calls.
_TRIAL_S: Final = 1.0
# Time [s] until all callers have got their share of its rate.
_SPREAD_S: Final = 0.5
_TRIAL_CALLS: Final = 20
_TRIAL_MOST_S: Final = 4.0
# A smaller share of refusals is by accident: a target that counts calls in flight refuses 5 to 20 %
# of the calls that come at nine tenths of its rate.
_ENDED_SHARE: Final = 0.03
# After the number in flight was found to be the limit: time [s] until a refusal may start the next
# experiment, doubled each time.
_NUMBER_S: Final = 300.0
_NUMBER_MOST_S: Final = 3600.0
# The shortest time over which recent calls are counted [s].
_LATELY_S: Final = 1.0
# With no success and this many refusals a window is used up, or the target is away.
_CLOSED_REFUSED: Final = 3
_ASK_S: Final = 1.0
_ASK_MOST_S: Final = 5.0
# Steps of a rate: a compromise between what a step too low loses and what a step too high has
# refused.
_STEP_SHARE: Final = 0.02
_HOLD_S: Final = 5.0
_HOLD_CALLS: Final = 300
_HOLD_MOST_S: Final = 300.0
# The rate that succeeded during a trial is good as well, except for what a bucket had saved up.
_BELOW_SEEN: Final = 0.98
# As long as trials end near the same level, the next one comes later.
_AGAIN_SHARE: Final = 2.0
_HOLD_CALLS_MOST: Final = 1200
# The effect of a step is seen after this many calls.
_STEP_CALLS: Final = 10
# This few refusals show that the rate was too high, but not by how much.
_FEW: Final = 2
# A target that is called as fast as before has changed if it refuses this share of the calls.
_CHANGED_SHARE: Final = 0.3
# It is not the rate that is refused if even this share of the rate that succeeded at first is too
# much.
_WORN_SHARE: Final = 0.7
# At least this share of an experiment's rate must have been called, or it shows nothing.
_CALLED_SHARE: Final = 0.85
_CALLED_LEAST: Final = 0.6  # enough if callers are slow to come back
# A try that was refused goes back to what was good; a long one, step by step.
_BACK_MOST: Final = 0.8
# A rate that callers do not reach for this long [s] is no longer needed.
_UNUSED_S: Final = 10.0
# A trial that uses up a window costs all calls until the window ends: windows to wait until the
# next trial.
_PERIODS_HELD: Final = 4
# Two windows count as one if the longer is at most this many times the other.
_ALIKE: Final = 1.2
# Usual lengths of windows [s].
_PERIODS: Final = (1.0, 5.0, 10.0, 15.0, 30.0, 60.0, 300.0, 600.0, 900.0, 3600.0, 86400.0)


class State(Enum):
    """FREE: no rate is known.  TRIAL: an experiment is under way.  HELD: the limit is a rate.
    CLOSED: the target takes nothing just now.
    """

    FREE = auto()
    TRIAL = auto()
    HELD = auto()
    CLOSED = auto()


class _Seen(NamedTuple):
    at_s: float
    span_s: float
    calls: int
    cost: float
    refused: int


class _Sum(NamedTuple):
    span_s: float
    calls: int
    cost: float
    refused: int

    @property
    def rate(self) -> float:
        """Cost a second that succeeded."""
        return self.cost / self.span_s if self.span_s > 0 else 0.0

    @property
    def refused_share(self) -> float:
        """Of the calls."""
        asked = self.calls + self.refused
        return self.refused / asked if asked else 0.0


class LearnedRate:
    """``most`` cost a second; infinite while no rate is known.  ``reason``: why, for display.
    ``mean_cost``: of recent calls.

    Pure; not thread-safe; O(1) per sample, amortised.
    """

    __slots__ = (
        "_ask_s", "_asked_at_s", "_cost", "_good", "_held", "_limit", "_number_s",
        "_number_until_s", "_opened_at_s", "_period_s", "_seen", "_since_move", "_since_s",
        "_used_at_s", "_was", "mean_cost", "most", "reason", "state",
    )  # fmt: skip

    def __init__(self, known: float = inf) -> None:
        self.most: float = known
        self.state: State = State.FREE if known == inf else State.HELD
        self.reason = "learned before"
        self._limit = _limit_at(known)
        self._seen: deque[_Seen] = deque()
        self._since_s = -inf  # start of the state, or of the experiment
        self._since_move = 0  # calls
        self._good = known  # the last level at which nothing was refused for long
        self._held = inf  # the good level when it closed
        self._was = known  # the rate that succeeded when it was learned
        self._number_s, self._number_until_s = _NUMBER_S, -inf
        self._used_at_s = -inf
        self.mean_cost: float = 1.0
        self._cost, self._opened_at_s = 0.0, -1.0  # cost that succeeded since the opening
        self._ask_s, self._asked_at_s = _ASK_S, 0.0
        self._period_s = 0.0  # time between the last two openings; 0: it never opened

    @property
    def is_deciding(self) -> bool:
        """Whether refusals are for this law to judge, not for the law of the number in flight."""
        return self.state is not State.FREE

    @property
    def is_closed(self) -> bool:
        """Whether one call at a time is enough."""
        return self.state is State.CLOSED

    def on_sample(self, now_s: float, sample: Sample, lag_s: float) -> None:
        """Take a sample, and decide."""
        self._note(now_s, sample, lag_s)
        if self.state is State.TRIAL:
            self._judge(now_s, lag_s)
        elif self.state is State.HELD:
            self._keep(now_s, sample, lag_s)
        elif self.state is State.CLOSED:
            self._ask(now_s, sample, lag_s)
        elif self._period_s and sample.refused and self._is_closed(now_s, lag_s):
            self._close(now_s)  # as it was before

    def may_try(self, now_s: float) -> bool:
        """Whether a refusal may be due to a rate."""
        return self.state is State.FREE and now_s >= self._number_until_s

    def begin(self, now_s: float, lag_s: float) -> None:
        """Start an experiment, as calls were refused: did they come too fast?

        If none was taken lately there is no rate to try a little less of: then it is waited for the
        end of that, or the target's first calls after it was away would look like its rate.
        """
        lately = self._lately(now_s - max(_LATELY_S, lag_s))
        if not lately.calls:
            self._close(now_s)
            return
        self.state, self.reason = State.TRIAL, "refused again: is it a rate?"
        self._since_s = now_s
        self.most = max(_BELOW * lately.rate, self.mean_cost / _ASK_S)

    # -- what was seen ------------------------------------------------------------------------

    def _note(self, now_s: float, sample: Sample, lag_s: float) -> None:
        if self._opened_at_s < 0:
            self._opened_at_s = now_s - sample.span_s
        self._cost += sample.cost
        if sample.calls:
            self.mean_cost = sample.cost / sample.calls
        self._seen.append(_Seen(now_s, sample.span_s, sample.calls, sample.cost, sample.refused))
        oldest_s = now_s - max(_TRIAL_MOST_S, _LATELY_S, lag_s) - lag_s
        while self._seen[0].at_s < oldest_s:
            self._seen.popleft()
        if sample.is_rate_held or self._used_at_s == -inf:
            self._used_at_s = now_s

    def _lately(self, since_s: float) -> _Sum:
        seen = [each for each in self._seen if each.at_s - each.span_s >= since_s - 1e-9]
        return _Sum(
            sum(each.span_s for each in seen),
            sum(each.calls for each in seen),
            sum(each.cost for each in seen),
            sum(each.refused for each in seen),
        )

    # -- an experiment ------------------------------------------------------------------------

    def _judge(self, now_s: float, lag_s: float) -> None:
        seen = self._lately(self._since_s + lag_s + _SPREAD_S)
        all_of_it = self._lately(self._since_s)
        if not all_of_it.calls and all_of_it.refused >= _CLOSED_REFUSED:
            if all_of_it.span_s >= max(_LATELY_S, lag_s):
                self._close(now_s)
            return
        asked = seen.calls + seen.refused
        is_over = seen.span_s >= max(_TRIAL_MOST_S, lag_s)
        if not is_over and (seen.span_s < _TRIAL_S or asked < _TRIAL_CALLS):
            return
        if not seen.calls and seen.refused >= _CLOSED_REFUSED:  # it closed as the trial began
            self._close(now_s)
            return
        called = seen.rate / (1 - seen.refused_share) if seen.calls else inf
        if seen.refused_share <= _ENDED_SHARE or seen.refused <= _FEW:
            if not is_over and (called < _CALLED_SHARE * self.most or seen.refused):
                return
            if called >= _CALLED_LEAST * self.most:
                self._take(now_s, self.most, self.most / _BELOW)
                self._limit.hold_calls = _TRIAL_CALLS  # it was lower than necessary
                return
        self._blame_number(now_s)

    def _take(self, now_s: float, most: float, refused: float) -> None:
        """Treat the limit as a rate."""
        self.state = State.HELD
        self._number_s = _NUMBER_S
        self._was, self._good = refused, most
        self._used_at_s = now_s
        self.reason = "it is a rate"
        self._limit = _limit_at(refused)
        self._limit.fall(now_s, refused, refused - most)
        self.most = self._limit.most

    def _blame_number(self, now_s: float) -> None:
        self.state, self.most, self.reason = State.FREE, inf, "it is not a rate"
        self._number_until_s = now_s + self._number_s
        self._number_s = min(_NUMBER_MOST_S, 2 * self._number_s)

    # -- a rate -------------------------------------------------------------------------------

    def _keep(self, now_s: float, sample: Sample, lag_s: float) -> None:
        limit = self._limit
        if limit.fell_at_s == -inf:  # another process learned it: what is above was refused
            limit.most = self.most / (1 - _STEP_SHARE)
            limit.fall(now_s, limit.most, 0.0)
        limit.took(sample.calls)
        is_settled = now_s - limit.moved_at_s >= lag_s
        self._since_move += sample.calls
        if sample.refused:
            moved_s = limit.moved_at_s + lag_s - sample.span_s
            since_move = self._lately(max(now_s - max(_LATELY_S, lag_s), moved_s))
            if self._is_closed(now_s, lag_s):
                self._close(now_s)
            elif is_settled or limit.moved_at_s > limit.fell_at_s:
                self._fall(now_s, since_move, lag_s)
        elif is_settled and sample.is_rate_held and self._since_move >= _STEP_CALLS:
            if limit.rise(now_s):
                self._since_move = 0
                self.most, self.reason = limit.most, "trying a higher rate"
        elif now_s - self._used_at_s >= _UNUSED_S:
            self.state, self.most, self.reason = State.FREE, inf, "the rate is not reached"

    def _fall(self, now_s: float, lately: _Sum, lag_s: float) -> None:
        limit = self._limit
        if self.most > (1 + _STEP_SHARE / 2) * self._good:  # it was a trial
            seen = _BELOW_SEEN * self._lately(now_s - _TRIAL_MOST_S).rate
            self._good = max(self._good, min(self.most, seen))
            most = max(self._good, _BACK_MOST * self.most)
            if self.most < _AGAIN_SHARE * self._good:
                limit.hold_calls = max(_HOLD_CALLS, min(_HOLD_CALLS_MOST, 2 * limit.hold_calls))
            else:
                limit.hold_calls = _HOLD_CALLS
            limit.fall(now_s, self.most, self.most - most)
        else:
            few = lately.refused <= _FEW
            succeeded = self._lately(now_s - max(_LATELY_S, lag_s)).rate
            taken = max((1 - lately.refused_share) * self.most, _BELOW_SEEN * succeeded)
            limit.fall(now_s, self.most, 0.0 if few else self.most - taken)
            limit.hold_calls = max(_HOLD_CALLS, limit.hold_calls)
            self._good = limit.most
            if lately.refused_share >= _CHANGED_SHARE:
                self._was = limit.most
        self.most, self.reason = limit.most, "refused"
        if self.most < _WORN_SHARE * self._was:
            self._blame_number(now_s)

    # -- nothing is taken ---------------------------------------------------------------------

    def _is_closed(self, now_s: float, lag_s: float) -> bool:
        lately = self._lately(now_s - max(_LATELY_S, lag_s))
        return not lately.calls and lately.refused >= _CLOSED_REFUSED

    def _close(self, now_s: float) -> None:
        self._held = self._good if self.state is State.HELD else inf
        self.state, self.reason = State.CLOSED, "all is refused: waiting until it ends"
        self._since_s = self._asked_at_s = now_s
        self._ask_s = _ASK_S
        self.most = self.mean_cost / self._ask_s

    def _ask(self, now_s: float, sample: Sample, lag_s: float) -> None:
        if now_s - self._since_s < lag_s:
            return  # answers to earlier calls
        if sample.calls:
            self._open(now_s)
        elif sample.refused:
            self._asked_at_s = now_s
            self._ask_s = min(_ASK_MOST_S, 2 * self._ask_s)
            self.most = self.mean_cost / self._ask_s

    def _open(self, now_s: float) -> None:
        """Note that the target takes calls again: the calls that succeeded from one opening to the
        next are its rate.

        That holds if the time between is a usual window, or the same as the last.  Otherwise the
        target was away, and takes as much as before again.
        """
        least_s, most_s = self._asked_at_s - self._opened_at_s, now_s - self._opened_at_s
        is_exact = most_s <= least_s * _ALIKE
        is_again = least_s <= self._period_s * _ALIKE and self._period_s <= most_s * _ALIKE
        is_window = is_exact or is_again
        chosen = [each for each in _PERIODS if is_window and least_s <= each <= most_s]
        self._period_s = period_s = chosen[-1] if chosen else most_s
        rate = max(self._cost, self.mean_cost) / period_s
        self._opened_at_s, self._cost = self._opened_at_s + period_s, 0.0
        if not chosen and not is_again:
            if self._held < inf:
                self._take(now_s, self._held, self._held / (1 - _STEP_SHARE))
            else:
                self.state, self.most, self.reason = State.FREE, inf, "it takes calls again"
            return
        self._take(now_s, rate, rate / (1 - _STEP_SHARE))
        calls = rate * period_s / self.mean_cost
        self._limit.hold_calls = max(_HOLD_CALLS, int(_PERIODS_HELD * calls))


def _limit_at(most: float) -> RefusedLimit:
    limit = RefusedLimit(
        hold_s=_HOLD_S, hold_most_s=_HOLD_MOST_S, hold_calls=_HOLD_CALLS, share=_STEP_SHARE
    )
    limit.most = most
    return limit
