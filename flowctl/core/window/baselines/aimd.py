"""Additive increase, multiplicative decrease, driven by loss alone: Netflix's AIMDLimit.

After https://github.com/Netflix/concurrency-limits, ``AIMDLimit.java`` (the rule itself: Chiu and
Jain 1989).  Plus one, or times 0.9 at a loss; an RTT over a time-out of seconds is a loss.  A
queue is not seen until something expires.

The original never goes below 20; here the smallest window is 1.  For its sampling see
:class:`flowctl.core.window.rounds.RoundSampled`.
"""

from __future__ import annotations

from flowctl.core.state import Signal
from flowctl.core.window.rounds import RoundSampled

_BACKOFF_RATIO = 0.9  # AIMDLimit.Builder.backoffRatio
_TIMEOUT_S = 5.0  # AIMDLimit.DEFAULT_TIMEOUT


class AimdWindow(RoundSampled):
    """Plus one a round, times 0.9 at a loss, in whole tuples.

    ``threshold_s`` is the time-out: no RTT below it tells this policy anything.
    """

    __slots__ = ()

    threshold_s: float | None = _TIMEOUT_S

    def _judge(self, rtt_s: float, limited: bool) -> Signal:
        if rtt_s > _TIMEOUT_S:
            self._lose()
            return Signal.OVER
        if limited:
            self.window: float = self._bounded(self.window + 1)
        return Signal.IN_RANGE

    def _lose(self) -> None:
        self.window = self._bounded(float(int(self.window * _BACKOFF_RATIO)))
