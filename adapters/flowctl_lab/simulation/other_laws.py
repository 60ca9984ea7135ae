"""Laws of others for a target that many share, on the same samples as flowctl's.

Each is a :class:`flowctl.core.pacing.leader.Law`.  A round is over when the samples contain nothing
from before the last decision; a sample with refusals shrinks a limit once per round.
"""

from __future__ import annotations

import abc
import math
from collections import deque
from math import inf

from flowctl.core.pacing.law import Bounds
from flowctl.core.pacing.sample import Sample

_MEAN_GAIN = 0.25
_USED = 0.5  # Netflix: grow only if half of the limit is in use


class RoundLaw(abc.ABC):
    """A law with one decision per round, by the round's mean latency."""

    def __init__(
        self,
        bounds: Bounds,
        *,
        leave: float = 0.0,
        tick_s: float,
        known: int | None = None,
        rate: float = inf,
    ) -> None:
        self.bounds = bounds
        self.rate: float = inf
        self.reason = "start"
        self._tick_s = tick_s
        self._level = float(bounds.clamped(bounds.start if known is None else known))
        self._changed_at_s = -inf
        self._mean_s = 0.0
        self._calls, self._call_s, self._refused = 0, 0.0, 0
        self._used = 0
        self.limit: int = bounds.clamped(self._level)

    def on_sample(self, now_s: float, sample: Sample) -> None:
        """Add the sample; decide at the end of a round."""
        if sample.calls:
            gain = _MEAN_GAIN if self._mean_s else 1.0
            self._mean_s += gain * (sample.mean_s - self._mean_s)
        if now_s - self._changed_at_s < 2 * self._tick_s + self._mean_s:
            return
        self._calls += sample.calls
        self._call_s += sample.call_s
        self._refused += sample.refused
        self._used = max(self._used, sample.in_flight)
        if not (self._calls or self._refused):
            return
        self._decide(now_s)
        self._level = max(float(self.bounds.least), min(float(self.bounds.most), self._level))
        self.limit = self.bounds.clamped(self._level)
        self._changed_at_s = now_s
        self._calls, self._call_s, self._refused, self._used = 0, 0.0, 0, 0

    @property
    def _is_used(self) -> bool:
        return self._used >= _USED * self._level

    @property
    def _rtt_s(self) -> float:
        return self._call_s / self._calls if self._calls else 0.0

    @abc.abstractmethod
    def _decide(self, now_s: float) -> None:
        """Move ``_level`` at the end of a round."""


class Aimd(RoundLaw):
    """Chiu & Jain 1989 with the constants of Netflix's AIMDLimit: +1 a round, x .9 if refused."""

    def _decide(self, now_s: float) -> None:
        if self._refused:
            self._level *= 0.9
        elif self._is_used:
            self._level += 1


class Vegas(RoundLaw):
    """Netflix's VegasLimit: keeps the queue, by latency, between 3 and 6 log10(limit)."""

    def __init__(self, bounds: Bounds, **more: object) -> None:
        super().__init__(bounds, **more)  # type: ignore[arg-type]
        self._least_s = inf

    def _decide(self, now_s: float) -> None:
        step = max(1.0, math.log10(self._level))
        if self._calls:
            self._least_s = min(self._least_s, self._rtt_s)
        if self._refused:
            self._level -= step
        elif self._is_used:
            queue = math.ceil(self._level * (1 - self._least_s / self._rtt_s))
            if queue <= step:
                self._level += 6 * step
            elif queue < 3 * step:
                self._level += step
            elif queue > 6 * step:
                self._level -= step


class Gradient2(RoundLaw):
    """Netflix's Gradient2Limit; refusals, which it lacks, count as in AIMDLimit."""

    _LONG, _TOLERANCE, _QUEUE, _SMOOTHING, _WARM_UP = 600, 1.5, 4, 0.2, 10

    def __init__(self, bounds: Bounds, **more: object) -> None:
        super().__init__(bounds, **more)  # type: ignore[arg-type]
        self._long_s, self._rounds = 0.0, 0

    def _decide(self, now_s: float) -> None:
        if self._refused:
            self._level *= 0.9
            return
        short_s = self._rtt_s
        self._rounds += 1
        gain = 1 / self._rounds if self._rounds <= self._WARM_UP else 2 / (self._LONG + 1)
        self._long_s += gain * (short_s - self._long_s)
        if self._long_s / short_s > 2:  # recovers from a long slow phase
            self._long_s *= 0.95
        if not self._is_used:
            return
        gradient = max(0.5, min(1.0, self._TOLERANCE * self._long_s / short_s))
        aim = self._level * gradient + self._QUEUE
        self._level += self._SMOOTHING * (aim - self._level)


class Bbr:
    """BBR (Cardwell et al. 2016): the maximum rate of ten rounds, the minimum latency of 10 s.

    It paces at that rate, alternately a quarter more and less, with twice the product of both in
    flight.
    """

    _CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    _STARTUP, _FULL_ROUNDS, _FULL_GAIN = 2.89, 3, 1.25

    def __init__(
        self,
        bounds: Bounds,
        *,
        leave: float = 0.0,
        tick_s: float,
        known: int | None = None,
        rate: float = inf,
    ) -> None:
        self.bounds = bounds
        self.limit: int = bounds.clamped(bounds.start if known is None else known)
        self.rate: float = inf
        self.reason = "start"
        self._tick_s = tick_s
        self._rates: deque[float] = deque(maxlen=10)
        self._least_s, self._least_at_s = inf, -inf
        self._round_at_s = -inf
        self._cost, self._calls, self._call_s, self._span_s = 0.0, 0, 0.0, 0.0
        self._phase, self._full, self._full_rounds = 0, 0.0, 0
        self._drains_until_s = -inf  # probes the least latency

    def on_sample(self, now_s: float, sample: Sample) -> None:
        """Add the sample; decide at the end of a round."""
        self._cost += sample.cost
        self._calls += sample.calls
        self._call_s += sample.call_s
        self._span_s += sample.span_s
        known_s = self._least_s if self._least_s < inf else 0.0
        if now_s - self._round_at_s < 2 * self._tick_s + known_s or not self._calls:
            return
        mean_s = self._call_s / self._calls
        if mean_s <= self._least_s:
            self._least_s, self._least_at_s = mean_s, now_s
        elif now_s - self._least_at_s > 10.0 and now_s >= self._drains_until_s:
            self._least_s, self._least_at_s = mean_s, now_s
            self._drains_until_s = now_s + 2 * self._tick_s + mean_s
        self._rates.append(self._cost / self._span_s)
        self._move(now_s)
        self._round_at_s = now_s
        self._cost, self._calls, self._call_s, self._span_s = 0.0, 0, 0.0, 0.0

    def _move(self, now_s: float) -> None:
        most = max(self._rates)
        if self._full_rounds < self._FULL_ROUNDS:
            gain = self._STARTUP
            if most >= self._FULL_GAIN * self._full:
                self._full, self._full_rounds = most, 0
            else:
                self._full_rounds += 1
        else:
            gain = self._CYCLE[self._phase]
            self._phase = (self._phase + 1) % len(self._CYCLE)
        self.rate = gain * most
        inside = 4 if now_s < self._drains_until_s else 2 * max(1.0, gain) * most * self._least_s
        self.limit = self.bounds.clamped(max(4.0, math.ceil(inside)))
