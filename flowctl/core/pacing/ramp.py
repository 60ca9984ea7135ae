"""How a limit begins: a few calls at once, and more as long as more calls raise the throughput.

The guard of shared sinks only ever takes away: a spout has a few bolts with one tuple each.  A
target that nobody knows is met with a few calls, however many workers there are.
"""

from __future__ import annotations

from typing import Final

from flowctl.core.pacing.sample import Sample

_QUICK, _FINE = 2.0, 1.25  # slow start doubles; once doubling gained little, by a quarter
# A step is kept if it gives this part of what it would give where nobody waits for anybody.
_GAIN_SHARE: Final = 0.5
# A level is measured over so many calls, and so many rounds of all in flight: their mean is then
# known to some 10 %, where doubling must bring 50, or to some 5 %, where a quarter must bring 12.
_CALLS_MIN: Final = {_QUICK: 32, _FINE: 128}
_ROUNDS: Final = {_QUICK: 4, _FINE: 16}
# Permits on their way from one worker to another are not in use.
_REACHED: Final = 0.8
# Calls of a minute must not make a start of an hour: this long is enough, if any were made.
_SPAN_MAX_S: Final = 30.0
# Until the next try where more gained nothing.
_PAUSE_S: Final = 4.0
_PAUSE_MAX_S: Final = 64.0


class Ramp:
    """``level`` grows while that raises the goodput; by small steps if it is known to be good.

    Pure; not thread-safe; O(1) per sample.
    """

    __slots__ = (
        "_before", "_before_goodput", "_calls", "_changed_at_s", "_cost", "_factor", "_pause_s",
        "_span_s", "_until_s", "level",
    )  # fmt: skip

    def __init__(self, level: float, *, is_known: bool = False) -> None:
        self.level: float = level
        self._before = 0.0  # the level before; 0: this is the first, or nothing is known of it
        self._before_goodput = 0.0
        self._factor = _FINE if is_known else _QUICK
        self._pause_s = _PAUSE_S
        self._until_s = -1.0  # no try before this; below 0: none was in vain
        self._begin(0.0)

    @property
    def is_found(self) -> bool:
        """Whether a try with more was in vain, and none is under way."""
        return self._until_s >= 0 and not self._before

    def _begin(self, changed_at_s: float) -> None:
        self._changed_at_s = changed_at_s
        self._calls = 0
        self._cost = self._span_s = 0.0

    def hold_at(self, level: float, now_s: float) -> None:
        """Something else is the limit, at ``level``: begin from near it when that has gone."""
        self.level = _QUICK * level
        self._factor = _FINE
        self._before = 0.0
        self._begin(now_s)

    def on_sample(self, now_s: float, sample: Sample, lag_s: float, most: float) -> None:
        """Take a sample made at this level; ``most`` is the highest level allowed."""
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
        factor = self._factor
        enough = self._calls >= max(_CALLS_MIN[factor], _ROUNDS[factor] * self.level)
        if enough or (self._calls and self._span_s >= _SPAN_MAX_S):
            self._judge(now_s, self._cost / self._span_s, most)

    def _let_in(self, now_s: float, sample: Sample, most: float) -> None:
        """The budget is the limit: more permits bring no more calls, but a worker without a permit
        gets no part of the budget either."""
        if sample.is_held:
            self.level = min(most, self.level * self._factor + 1)
        self._before = 0.0
        self._begin(now_s)

    def _judge(self, now_s: float, goodput: float, most: float) -> None:
        before = self._before
        asked = 1 + _GAIN_SHARE * (self.level / before - 1) if before else 0.0
        if goodput < asked * self._before_goodput:
            self._step_back(now_s)
            return
        if before:
            self._pause_s = _PAUSE_S
        if self.level < most and now_s >= self._until_s:
            self._before, self._before_goodput = self.level, goodput
            self.level = min(most, max(self.level + 1, self.level * self._factor))
        else:
            self._before = 0.0
        self._begin(now_s)

    def _step_back(self, now_s: float) -> None:
        self.level = self._before
        self._before = 0.0
        if self._factor == _QUICK:
            self._factor = _FINE
        else:
            self._until_s = now_s + self._pause_s
            self._pause_s = min(_PAUSE_MAX_S, 2 * self._pause_s)
        self._begin(now_s)
