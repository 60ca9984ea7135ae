"""The ratio of a long average of the RTT to the last one: Netflix's Gradient2Limit.

After https://github.com/Netflix/concurrency-limits, ``Gradient2Limit.java``::

    gradient = 1.5 x long RTT / RTT, within 0.5 ... 1
    window   = 0.8 window + 0.2 (gradient x window + 4)

The long RTT is an exponential average over some 600 samples, so that no minimum has to be known.
It follows a queue that builds up slowly: then the gradient stays 1 and the window grows to its
bound.  And no RTT brings the window below 8, where 0.5 x 8 + 4 = 8.  Both are the formula's.

The original never goes below 20, and at a loss takes the tuple's age for an RTT, which would
grow a window below 8.  Here the smallest window is 1, and a loss is the formula with the smallest
gradient and nothing for a queue: 0.9 x window.  For its sampling see ``rounds.RoundSampled``.
"""

from __future__ import annotations

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.rounds import RoundSampled

_SMOOTHING = 0.2  # Gradient2Limit.Builder.smoothing
_QUEUE = 4  # Gradient2Limit.Builder.queueSize
_TOLERANCE = 1.5  # Gradient2Limit.Builder.rttTolerance
_GRADIENT_MIN = 0.5  # Gradient2Limit._update: outliers must not take more than half
_LONG_WARMUP = 10  # Gradient2Limit: ExpAvgMeasurement(longWindow, 10), plain mean until then
_LONG_GAIN = 2 / (600 + 1)  # Gradient2Limit.Builder.longWindow, in ExpAvgMeasurement.factor
# Gradient2Limit._update: where the long average is more than twice the RTT, a load has ended,
# and the average is helped to follow.
_LONG_FAR = 2
_LONG_DECAY = 0.95


class Gradient2Window(RoundSampled):
    """Grows while the RTT stays below 1.5 times its long average.

    ``threshold_s`` is that product; above it the window grows less or shrinks.
    """

    __slots__ = ("_long_s", "_samples", "threshold_s")

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        super().__init__(settings, learned=learned)
        self.threshold_s: float | None = None
        self._long_s = 0.0
        self._samples = 0

    def _judge(self, rtt_s: float, limited: bool) -> Signal:
        self.threshold_s = _TOLERANCE * self._lengthen(rtt_s)
        over = rtt_s > self.threshold_s
        if limited:
            gradient = max(_GRADIENT_MIN, self.threshold_s / rtt_s) if over else 1.0
            self._blend(gradient * self.window + _QUEUE)
        return Signal.OVER if over else Signal.IN_RANGE

    def _lose(self) -> None:
        self._blend(_GRADIENT_MIN * self.window)

    def _blend(self, target: float) -> None:
        self.window: float = self._bounded((1 - _SMOOTHING) * self.window + _SMOOTHING * target)

    def _lengthen(self, rtt_s: float) -> float:
        """Return the long average with this RTT in it; a far too long one decays afterwards."""
        self._samples += 1
        gain = 1 / self._samples if self._samples <= _LONG_WARMUP else _LONG_GAIN
        long_s = self._long_s + gain * (rtt_s - self._long_s)
        self._long_s = long_s * _LONG_DECAY if long_s > _LONG_FAR * rtt_s else long_s
        return long_s
