"""How many calls a target takes at once: the guard of shared sinks, on pooled samples.

Three limits of the calls at once, of which the smallest counts, and a rate:

- the **ramp** (:mod:`flowctl.core.pacing.law`) begins low and grows while more brings more;
- the **guard** (:mod:`flowctl.core.sink_guard`) looks for the fewest calls that keep the
    goodput once calls take longer than at their best;
- **refusals** (:mod:`flowctl.core.limit`) say exactly what was too much;
- where fewer at once don't end them, they are of a **rate** (:mod:`flowctl.core.pacing.rate`).
"""

from __future__ import annotations

from collections import deque
from math import floor, inf, sqrt
from typing import Final, NamedTuple

from flowctl.core.events import FlowEvent, SinkCapChanged
from flowctl.core.limit import RefusedLimit
from flowctl.core.pacing.rate import LearnedRate
from flowctl.core.pacing.sample import Sample
from flowctl.core.sink_guard.guard import SinkGuard

# -- Room left to others ---------------------------------------------------------------------- Room
# that is left to others: learn the limit, then stay below it and learn no more for a while.  A law
# that only ever sees the part that it uses would take that for the whole, and go up again.  So
# learning and resting take turns: the limit is learned at full load for some seconds, then the part
# is used for half a minute, twice as long each time that learning finds the same again.  The part
# is a share of the number of calls that fills the target, not of the limit, which may be a step
# above that: by Little's law that number is the goodput at full load times the time of a call
# without a queue.  It is seldom a whole number, and half a call of ten is a twentieth: so the two
# whole numbers next to it take turns.


# Callers that use a smaller share of the limit are not slowed by it: their goodput is not the
# target's.
_FULL: Final = 0.8
# A limit that has not changed for this long [s] counts as learned; a search takes a step every
# second or so.
_STABLE_S: Final = 2.5
# A limit that refusals have set may be far too low until it is tried again, after 150 calls
# (:mod:`flowctl.core.limit`).  If calls are so slow that this takes longer than ten seconds, the
# limit is accepted as it is: a live service waits while the target is full.
_STABLE_UNSURE_S: Final = 10.0
# The next learning lasts at least this long [s]: enough for a step up and its effect.
_REST_S: Final = 30.0
# In the long run learning takes .5 % of the time: 99 % of a live service's calls are not affected.
_REST_MAX_S: Final = 600.0
# A limit counts as unchanged if it is within a tenth, or one call.
_SAME_SHARE: Final = 0.1
# Calls take this many times longer than when the rest began: the target has changed.
_SLOWER: Final = 1.5
# It must hold in this many samples in a row: if calls differ, one sample in 60 has slow ones by
# accident.
_SLOWER_SAMPLES: Final = 3
_HEADROOM_MEAN_GAIN: Final = 0.25
_CALM_SAMPLES: Final = 16  # each of some seconds
# Of two whole numbers, the other one follows when the excess or the deficit has grown to this
# [call-seconds].  With less, permits move more often than workers exchange.
_TURN: Final = 1.0


class Headroom:
    """Pure; not thread-safe."""

    __slots__ = (
        "_at_s", "_calls", "_calm", "_calm_s", "_goodput", "_learned", "_limit", "_mean_s", "_owed",
        "_rest_s", "_since_s", "_slower", "_span_s", "_until_s", "_used", "_whole", "rested_s",
    )  # fmt: skip

    def __init__(self, leave: float) -> None:
        self._used = 1 - leave
        self._calls, self._span_s = 0, 0.0  # at full load, since the limit last moved
        self._goodput = 0.0  # at full load [calls/s]; known in a rest
        self._calm_s, self._calm = 0.0, 0  # time of a call while resting, over how many samples
        self.rested_s: float = 0.0  # total rest, while the law's clock stands still
        self._limit = 0  # the limit being learned
        self._since_s = -1.0  # since when the limit stands still, or the rest lasts; below 0: never
        self._learned = 0  # the last limit that was learned
        self._rest_s = _REST_S
        self._until_s: float | None = None  # end of the rest; None: learning
        self._mean_s = 0.0  # mean time of a call as the rest began
        self._slower = 0  # slow samples in a row
        self._whole, self._at_s, self._owed = 0, 0.0, 0.0  # limit in use, since when, deficit

    @property
    def used(self) -> float:
        """The share of the limit that is used while resting."""
        return self._used

    @property
    def is_resting(self) -> bool:
        """Whether only the share is used now, and nothing is learned."""
        return self._until_s is not None

    def part(self, limit: float) -> float:
        """Return how much of ``limit`` is used while resting."""
        filled = self._goodput * self._calm_s
        # A mean that is far off, because calls differ widely, must not leave more than a half.
        return self._used * min(limit, max(filled, limit / 2) if filled else limit)

    def whole(self, now_s: float, limit: float) -> int:
        """Return how many whole calls at once to use now, which over time are :meth:`part` of
        ``limit``.
        """
        part = self.part(limit)
        if not self._whole:
            self._whole = floor(part + 0.5)
        else:
            self._owed += (part - self._whole) * (now_s - self._at_s)
            if abs(self._owed) >= _TURN:
                self._whole += 1 if self._owed > 0 else -1
        self._at_s = now_s
        self._whole = max(floor(part), min(floor(part) + 1, self._whole))
        self._owed = max(-_TURN, min(_TURN, self._owed))
        return self._whole

    def on_learned(
        self, now_s: float, limit: int, sample: Sample, *, is_found: bool, is_sure: bool
    ) -> None:
        """Take a sample while learning.

        ``is_found``: the target is the limit, not only the start.  ``is_sure``: more was tried.
        """
        if self._since_s < 0 or not _is_same(limit, self._limit):
            self._limit, self._since_s = limit, now_s
            self._calls, self._span_s = 0, 0.0
            return
        if sample.is_bound and sample.in_flight >= _FULL * limit:
            self._calls += sample.calls
            self._span_s += sample.span_s
        stable_s = _STABLE_S if is_sure else _STABLE_UNSURE_S
        if is_found and now_s - self._since_s >= stable_s:
            again = _is_same(limit, self._learned)
            self._rest_s = min(_REST_MAX_S, 2 * self._rest_s) if again else _REST_S
            self._learned = limit
            self._since_s, self._until_s = now_s, now_s + self._rest_s
            self._mean_s, self._calm, self._slower = 0.0, 0, 0
            self._goodput = self._calls / self._span_s if self._span_s > 0 else 0.0
            self._whole, self._owed = 0, 0.0

    def rest(self, now_s: float, sample: Sample, lag_s: float) -> bool:
        """Take a sample of a rest; return whether the rest goes on."""
        assert self._until_s is not None
        is_over = now_s >= self._until_s or self._is_changed(now_s, sample, lag_s)
        if is_over:
            self.rested_s += now_s - self._since_s
            self._until_s, self._since_s = None, -1.0
        return not is_over

    def _is_changed(self, now_s: float, sample: Sample, lag_s: float) -> bool:
        if now_s - self._since_s < lag_s or not sample.calls:
            return False
        if not self._mean_s:
            self._mean_s = sample.mean_s
        self._calm = min(_CALM_SAMPLES, self._calm + 1)
        self._calm_s += (sample.mean_s - self._calm_s) / self._calm
        self._mean_s += _HEADROOM_MEAN_GAIN * (min(sample.mean_s, self._mean_s) - self._mean_s)
        self._slower = self._slower + 1 if sample.mean_s > _SLOWER * self._mean_s else 0
        return sample.refused > 0 or self._slower >= _SLOWER_SAMPLES


def _is_same(limit: int, other: int) -> bool:
    return abs(limit - other) <= max(1.0, _SAME_SHARE * other)


# -- The ramp: how a limit begins ------------------------------------------------------------- How
# a limit begins: a few calls at once, and more as long as more calls raise the throughput.  The
# guard of shared sinks only ever takes away: a spout has a few bolts with one tuple each.  An
# unknown target first gets a few calls, however many workers there are.


_QUICK, _FINE = 2.0, 1.25  # slow start doubles; once doubling gained little, by a quarter
# Keep a step that yields this share of linear scaling.
_GAIN_SHARE: Final = 0.5
# A level is measured over this many calls, and this many rounds of all calls in flight.  The mean
# of calls that differ by half is then known to some 10 % while the limit doubles (which must raise
# the goodput by 50 %), and to some 5 % while it grows by a quarter (which must raise it by 12 %).
_CALLS_MIN: Final = {_QUICK: 32, _FINE: 128}
# Calls may differ more.  So it is measured further, up to this many times as long, until the first
# level is known to this share, and others are this many standard errors above or below their mark.
_LONGEST: Final = 4.0
_KNOWN_TO: Final = 0.1
_ERRORS: Final = 1.5
# A gain of a quarter is not seen if calls differ more than this (variance over the square of their
# mean: then 128 of them are not known to 5 %).  The limit goes on to double.
_EVEN: Final = 0.32
_ROUNDS: Final = {_QUICK: 4, _FINE: 16}
# Permits that are moving from one worker to another are not in use.
_REACHED: Final = 0.8
# Calls of a minute must not cause a start of an hour: this time [s] is enough if any calls ended.
_SPAN_MAX_S: Final = 30.0
# If calls take this long [s], measuring a level would take minutes.  If they take no longer than at
# the level before, four times as many are tried after each round.
_LONG_CALL_S: Final = 2.0
_LONG_FACTOR: Final = 4.0
_LONGER: Final = 1.6
# Time [s] until the next trial after a larger limit gained nothing.
_PAUSE_S: Final = 4.0
_PAUSE_MAX_S: Final = 64.0


class Ramp:
    """The limit ``level`` grows while that raises the goodput; by small steps if it is known to be
    good.
    """

    __slots__ = (
        "_before", "_before_calls", "_before_goodput", "_calls", "_changed_at_s", "_cost",
        "_factor", "_long_calls", "_long_mean_s", "_long_s", "_pause_s", "_span_s", "_until_s",
        "level",
    )  # fmt: skip

    def __init__(self, level: float, *, is_known: bool = False) -> None:
        self.level: float = level
        self._before = 0.0  # the level before; 0: this is the first, or nothing is known of it
        self._before_goodput, self._before_calls = 0.0, 1
        self._factor = _FINE if is_known else _QUICK
        self._long_mean_s = 0.0  # mean time of long calls at the level before
        self._pause_s = _PAUSE_S
        self._until_s = -1.0  # no higher limit is tried before this; below 0: no try has failed yet
        self._begin(0.0)

    @property
    def is_found(self) -> bool:
        """Whether a trial with more gained nothing, and none is under way."""
        return self._until_s >= 0 and not self._before

    def _begin(self, changed_at_s: float) -> None:
        self._changed_at_s = changed_at_s
        self._calls = 0
        self._cost = self._span_s = 0.0
        self._long_calls, self._long_s = 0, 0.0

    def hold_at(self, level: float, now_s: float) -> None:
        """Stay at ``level``, as something else is the limit: when that has gone, start again near
        it.
        """
        self.level = _QUICK * level
        self._factor = _FINE
        self._before = 0.0
        self._begin(now_s)

    def on_sample(
        self, now_s: float, sample: Sample, lag_s: float, most: float, variance: float = 0.0
    ) -> None:
        """Take a sample made at this level; ``most`` is the highest level allowed.

        ``variance``: of a call's duration, over the square of its mean.
        """
        self._take_long(now_s, sample, lag_s, most)
        if now_s - self._changed_at_s < lag_s:
            return
        if sample.is_rate_held:
            self._let_in(now_s, sample, most)
            return
        if not sample.is_bound or sample.in_flight < _REACHED * int(self.level):
            return  # callers were the limit: nothing to learn
        self._calls += sample.calls
        self._cost += sample.cost
        self._span_s += sample.span_s
        if self._calls and self._is_measured(variance):
            self._judge(now_s, self._cost / self._span_s, most, variance)

    def _take_long(self, now_s: float, sample: Sample, lag_s: float, most: float) -> None:
        """Take a sample of long calls: if more calls at once don't take longer, one round is
        proof.
        """
        self._long_calls += sample.calls
        self._long_s += sample.call_s
        is_due = now_s - self._changed_at_s >= max(_LONG_CALL_S, lag_s)
        if not is_due or self._long_calls < self.level / 2 or self._factor != _QUICK:
            return
        mean_s = self._long_s / self._long_calls
        is_long = mean_s >= _LONG_CALL_S
        is_same = not self._long_mean_s or mean_s <= _LONGER * self._long_mean_s
        if is_long and is_same and sample.is_bound and sample.in_flight >= _REACHED * self.level:
            self._long_mean_s = mean_s
            self.level = min(most, _LONG_FACTOR * self.level)
            self._before = 0.0
            self._begin(now_s)

    def _let_in(self, now_s: float, sample: Sample, most: float) -> None:
        """Raise the level to admit more workers while the budget is the limit: more permits bring
        no more calls, but a worker without a permit gets no share of the budget either.
        """
        if sample.is_held:
            self.level = min(most, self.level * self._factor + 1)
        self._before = 0.0
        self._begin(now_s)

    def _is_measured(self, variance: float) -> bool:
        """Whether it was measured for long enough, or chance doesn't explain what was seen."""
        factor, calls = self._factor, self._calls
        least = max(_CALLS_MIN[factor], _ROUNDS[factor] * self.level)
        if self._span_s >= _SPAN_MAX_S or calls >= _LONGEST * least:
            return True
        if calls < least:
            return False
        if not self._before:
            return variance <= _KNOWN_TO**2 * calls
        mark = self._mark
        error = mark * sqrt(variance * (1 / calls + 1 / self._before_calls))
        return abs(self._cost / self._span_s - mark) >= _ERRORS * error

    @property
    def _mark(self) -> float:
        """The goodput that shows that more calls than before help; 0 for the first level."""
        before = self._before
        asked = 1 + _GAIN_SHARE * (self.level / before - 1) if before else 0.0
        return asked * self._before_goodput

    def _judge(self, now_s: float, goodput: float, most: float, variance: float) -> None:
        before = self._before
        if goodput < self._mark:
            self._step_back(now_s, is_even=variance <= _EVEN)
            return
        if before:
            self._pause_s = _PAUSE_S
        if self.level < most and now_s >= self._until_s:
            self._before, self._before_goodput = self.level, goodput
            self._before_calls = self._calls
            self.level = min(most, max(self.level + 1, self.level * self._factor))
        else:
            self._before = 0.0
        self._begin(now_s)

    def _step_back(self, now_s: float, *, is_even: bool) -> None:
        self.level = self._before
        self._before = 0.0
        if self._factor == _QUICK and is_even:
            self._factor = _FINE
        else:
            self._until_s = now_s + self._pause_s
            self._pause_s = min(_PAUSE_MAX_S, 2 * self._pause_s)
        self._begin(now_s)


# -- How many calls a target takes at once -----------------------------------------------------


# If calls take longer than this [s], the result of an experiment comes too late.
_SLOW_CALL_S: Final = 5.0
# A refusal comes back soon, however long accepted calls take.
_REFUSAL_S: Final = 1.0
# A target that reports less than one call in this time [s] reports that nothing is left.
_EMPTY_S: Final = 1.0
# A level that was taken must be refused this often until the limit may be a rate.
_DOUBTS: Final = 2
# While a rate is the bound, calls are spread over workers that had no permits: they need some.
_SPREAD: Final = 4.0
# The weight of a sample in the mean duration of calls, which shows how late a change is seen: the
# last four samples or so count.
_MEAN_GAIN: Final = 0.25


class Bounds(NamedTuple):
    """The user's bounds: ``least`` and ``most`` calls in flight, and how many at the start."""

    least: int = 1
    most: int = 1000
    start: int = 4

    def clamped(self, limit: float) -> int:
        """Return the allowed whole number at or below ``limit``, or the least."""
        return max(self.least, int(min(self.most, limit)))


class TargetLaw:
    """``limit``: calls in flight that the target is given; ``reason``: why, for display.

    ``rate``: cost a second that it is given; infinite without a bound.  ``leave``: the share of the
    learned limit that is left to others.  ``tick_s``: the time between samples, and until a
    decision reaches the callers.  ``known``: the limit that another process has learned; None:
    nothing is known.  Pure; not thread-safe; O(1) per sample.
    """

    __slots__ = (
        "_bounds", "_events", "_guard", "_headroom", "_mean_s", "_ramp", "_rate", "_refusals",
        "_tick_s", "limit", "rate", "reason",
    )  # fmt: skip

    def __init__(
        self,
        bounds: Bounds,
        *,
        leave: float = 0.0,
        tick_s: float,
        known: int | None = None,
        rate: float = inf,
    ) -> None:
        self._bounds = bounds
        self._tick_s = tick_s
        self._events: deque[FlowEvent] = deque()
        self._guard = SinkGuard(self._events)
        self._refusals = RefusedLimit()
        self._rate = LearnedRate(rate)
        start = bounds.clamped(bounds.start if known is None else known)
        self._headroom = Headroom(leave) if leave else None
        self._ramp = Ramp(float(start), is_known=known is not None)
        self._mean_s = 0.0
        self.limit: int = start
        self.rate: float = rate
        self.reason = "start" if known is None else "learned before"

    @property
    def bounds(self) -> Bounds:
        """The user's bounds; may be changed while it runs."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: Bounds) -> None:
        self._bounds = bounds

    @property
    def lag_s(self) -> float:
        """Return how long until samples show nothing but the effect of a changed limit [s]."""
        return 2 * self._tick_s + self._mean_s

    def on_sample(self, now_s: float, sample: Sample) -> None:
        """Take a sample of the time since the last one, and decide."""
        if sample.calls:
            gain = _MEAN_GAIN if self._mean_s else 1.0
            self._mean_s += gain * (sample.mean_s - self._mean_s)
        headroom = self._headroom
        if headroom is None:
            self._learn(now_s, sample)
            self.rate = self._most_rate(sample)
            self.limit = self._bounds.clamped(self._learned)
        elif headroom.is_resting and headroom.rest(now_s, sample, self.lag_s):
            self.limit = self._bounds.clamped(headroom.whole(now_s, self._learned))
            self.rate = headroom.used * self._most_rate(sample)
        else:
            self._learn(now_s - headroom.rested_s, sample)
            self.rate = self._most_rate(sample)
            self.limit = self._bounds.clamped(self._learned)
            is_sure = self._refusals.most == inf or self._refusals.is_confirmed
            headroom.on_learned(now_s, self.limit, sample, is_found=self._is_found, is_sure=is_sure)

    def _most_rate(self, sample: Sample) -> float:
        """Return the largest rate: what the target reports is followed at once; its refusals count
        all the same.
        """
        return min(self._rate.most, sample.told_rate or inf)

    @property
    def _learned(self) -> float:
        if self._rate.is_closed:
            return 1.0
        return min(self._ramp.level, self._cap)

    @property
    def _cap(self) -> float:
        """Return the bound on the number in flight; while a rate is the bound, refusals don't
        count.
        """
        refused = inf if self._rate.is_deciding else self._refusals.most
        return min(self._guard.cap, refused)

    @property
    def _is_found(self) -> bool:
        """Whether the target, not only the start, is the limit."""
        return self._ramp.is_found or min(self._cap, self._rate.most) < inf

    def _learn(self, now_s: float, sample: Sample) -> None:
        lag_s = self.lag_s
        self._guard.on_sample(now_s, sample, sent_at_s=now_s - lag_s)
        if self._take_refusals(now_s, sample, lag_s):
            self._say("refused" if sample.refused else "trying more than was refused")
        self._take_ramp(now_s, sample, lag_s)
        while self._events:
            event = self._events.popleft()
            if isinstance(event, SinkCapChanged):
                self._say(event.reason)

    def _take_refusals(self, now_s: float, sample: Sample, lag_s: float) -> bool:
        """Return whether the limit that refusals have set moved."""
        limit = self._refusals
        limit.took(sample.calls)
        rate = self._rate
        if 0 < sample.told_rate < rate.mean_cost / _EMPTY_S:
            return False  # it reports that nothing is left, so refusals are no news
        was_deciding, was_closed = rate.is_deciding, rate.is_closed
        before = rate.state, rate.most
        rate.on_sample(now_s, sample, lag_s)
        if before != (rate.state, rate.most):
            self._say(rate.reason)
        if rate.is_deciding:
            return False
        if was_closed:  # it was away, and takes as much as before again
            self._ramp = Ramp(max(limit.tried, self._bounds.start), is_known=True)
            self._refusals = RefusedLimit()
            return False
        if was_deciding:  # what was sent so far says nothing about the number in flight
            limit.doubts, limit.comes_back = 0, True
            limit.fell_at_s = limit.moved_at_s = now_s
            return False
        if sample.refused:
            # After a fall, refusals of calls that began before it say nothing new.
            if now_s - limit.fell_at_s < min(lag_s, 2 * self._tick_s + _REFUSAL_S):
                return False
            # Permits rest longer than a fall takes: only calls that were refused since then count.
            refused = min(sample.resting, sample.refused)
            limit.fall(now_s, max(sample.in_flight, 1), refused)
            if not self._may_be_rate(now_s):
                return True
            rate.begin(now_s, lag_s)
            self._ramp.level = _SPREAD * limit.tried
            self._say(rate.reason)
            return False
        is_reached = sample.is_bound and sample.in_flight + 1 > limit.most
        is_settled = now_s - limit.moved_at_s >= lag_s
        if sample.resting and not limit.is_left(now_s):
            return False
        return is_settled and is_reached and limit.rise(now_s)

    def _may_be_rate(self, now_s: float) -> bool:
        is_doubted = self._refusals.doubts >= _DOUBTS
        return is_doubted and self._mean_s < _SLOW_CALL_S and self._rate.may_try(now_s)

    def _take_ramp(self, now_s: float, sample: Sample, lag_s: float) -> None:
        if self._rate.is_closed:
            return
        learned = self._cap
        if learned < inf:
            self._ramp.hold_at(max(learned, 1.0), now_s)
            return
        before = self._ramp.level
        variance = self._guard.variance
        self._ramp.on_sample(now_s, sample, lag_s, float(self._bounds.most), variance)
        if self._ramp.level != before:
            more = self._ramp.level > before
            self._say("more calls helped" if more else "more calls did not help")

    def _say(self, reason: str) -> None:
        self.reason = reason
