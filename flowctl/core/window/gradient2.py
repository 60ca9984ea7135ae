"""The ratio of a long to a short average of the RTT: Netflix's Gradient2Limit.

After https://github.com/Netflix/concurrency-limits, ``Gradient2Limit.java``::

    gradient = long RTT x 1.5 / RTT, within 0.5 ... 1
    window   = 0.8 window + 0.2 (gradient x window + 4)

The long RTT is an exponential average over some 600 acks, so that no minimum has to be known.
It follows a queue that builds up slowly: then the gradient stays 1 and the window grows to its
bound.  And no RTT brings the window below 8, where 0.5 x 8 + 4 = 8.  Both are the formula's.

What differs: the original never goes below 20 and takes the age of a lost tuple for an RTT, which
would grow a window below 8.  Here the smallest window is 1, and a loss is the formula with the
smallest gradient and no room for a queue, 0.9 x window, once for what was in flight together.
"""

from __future__ import annotations

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

_WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again
_SMOOTHING = 0.2  # Gradient2Limit.Builder.smoothing
_QUEUE = 4  # Gradient2Limit.Builder.queueSize
_TOLERANCE = 1.5  # Gradient2Limit.Builder.rttTolerance
_GRADIENT_MIN = 0.5  # Gradient2Limit._update: outliers must not take more than half
_LONG_WARMUP = 10  # Gradient2Limit: ExpAvgMeasurement(longWindow, 10), plain mean until then
_LONG_GAIN = 2 / (600 + 1)  # Gradient2Limit.Builder.longWindow in ExpAvgMeasurement.factor
# Gradient2Limit._update: when the long average is more than twice an RTT, a load has ended; the
# average follows faster.
_LONG_FAR = 2
_LONG_DECAY = 0.95


class Gradient2Window:
    """Grows while the RTT stays below 1.5 times its long average.

    ``threshold_s`` is that product; above it the window grows less or shrinks.
    """

    __slots__ = ("_acks", "_long_s", "_max", "_shrunk_at_s", "threshold_s", "window")

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self.window = min(self._max, max(_WINDOW_MIN, float(learned or settings.initial)))
        self.threshold_s: float | None = None
        self._acks = 0
        self._long_s = 0.0
        self._shrunk_at_s = float("-inf")

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Take the RTT into the long average, compare, move."""
        long_s = self._lengthen(sample.ack_rtt_s)
        self.threshold_s = _TOLERANCE * long_s
        if sample.was_limited:
            gradient = max(_GRADIENT_MIN, min(1.0, self.threshold_s / sample.ack_rtt_s))
            self._blend(gradient * self.window + _QUEUE)
        return Signal.OVER if sample.ack_rtt_s > self.threshold_s else Signal.IN_RANGE

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A loss: the smallest gradient and nothing for a queue."""
        if sent_at_s >= self._shrunk_at_s:
            self._blend(_GRADIENT_MIN * self.window)
            self._shrunk_at_s = now_s

    def _blend(self, target: float) -> None:
        window = (1 - _SMOOTHING) * self.window + _SMOOTHING * target
        self.window = max(_WINDOW_MIN, min(self._max, window))

    def _lengthen(self, rtt_s: float) -> float:
        """Return the long average with this RTT in it; a far too long one decays afterwards."""
        self._acks = min(_LONG_WARMUP + 1, self._acks + 1)
        gain = 1 / self._acks if self._acks <= _LONG_WARMUP else _LONG_GAIN
        long_s = self._long_s + gain * (rtt_s - self._long_s)
        self._long_s = long_s * _LONG_DECAY if long_s > _LONG_FAR * rtt_s else long_s
        return long_s
