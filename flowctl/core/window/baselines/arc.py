"""Adaptive request concurrency: the limiter of the sinks of Vector.

After https://github.com/vectordotdev/vector, ``src/sinks/util/adaptive_concurrency/controller.rs``
and its RFC 2020-04-06-1858.  One decision per average RTT, from the mean RTT since the last one
(``now``), against an exponential average of such means (``past``) and its standard deviation::

    full, no loss, now <= past                     window + 1
    a loss, or now >= past + 2.5 deviations        0.9 window, rounded down

What differs: the original starts at 1 and stops at 200, here both are settings.  It looks whether
the window was full since the last decision; an ack here tells whether it was full since its tuple
was sent, up to one RTT earlier.
"""

from __future__ import annotations

import math

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

_WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again
_DECREASE_RATIO = 0.9  # AdaptiveConcurrencySettings.decrease_ratio
_ALPHA = 0.4  # AdaptiveConcurrencySettings.ewma_alpha
_DEVIATIONS = 2.5  # AdaptiveConcurrencySettings.rtt_deviation_scale


class ArcWindow:
    """Whole tuples; ``threshold_s`` is the mean RTT at which the next decision would shrink."""

    __slots__ = (
        "_acks",
        "_decide_at_s",
        "_full",
        "_lost",
        "_max",
        "_mean_s",
        "_past_s",
        "_variance",
        "threshold_s",
        "window",
    )

    work_max_s: float | None = None  # counts in tuples

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self.window: float = float(
            int(min(self._max, max(_WINDOW_MIN, learned or settings.initial)))
        )
        self.threshold_s: float | None = None
        self._past_s = 0.0
        self._variance = 0.0
        self._decide_at_s = math.inf  # until the first ack there is nothing to compare with
        self._begin()

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Take the RTT into the mean; decide when the average RTT has passed."""
        self._acks += 1
        self._mean_s += (sample.ack_rtt_s - self._mean_s) / self._acks
        self._full |= sample.was_limited
        if self.threshold_s is None:  # the first ack: also counts in the first decision
            self._remember(self._mean_s)
            self._decide_at_s = sample.now_s + self._past_s
            return Signal.IN_RANGE
        return self._decide(sample.now_s)

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A loss: the next decision is a decrease, and it may be due."""
        del sent_at_s
        self._lost = True
        self._decide(now_s)

    def _decide(self, now_s: float) -> Signal | None:
        if now_s < self._decide_at_s:
            return None
        signal = self._move()
        if self._acks:
            self._remember(self._mean_s)
        self._decide_at_s = now_s + self._past_s
        self._begin()
        return signal

    def _move(self) -> Signal:
        quick = bool(self._acks) and self._mean_s <= self._past_s
        if self.window < self._max and self._full and not self._lost and quick:
            self.window += 1
            return Signal.IN_RANGE
        slow = bool(self._acks) and self._mean_s >= (self.threshold_s or math.inf)
        if not (self._lost or slow):
            return Signal.IN_RANGE
        self.window = max(_WINDOW_MIN, float(int(self.window * _DECREASE_RATIO)))
        return Signal.OVER

    def _remember(self, mean_s: float) -> None:
        """Update the exponential average and its variance (West's recurrence, as ``EwmaVar``)."""
        if self.threshold_s is None:
            self._past_s = mean_s
        else:
            error_s = mean_s - self._past_s
            self._past_s += _ALPHA * error_s
            self._variance = (1 - _ALPHA) * (self._variance + _ALPHA * error_s * error_s)
        self.threshold_s = self._past_s + _DEVIATIONS * math.sqrt(self._variance)

    def _begin(self) -> None:
        self._acks = 0
        self._mean_s = 0.0
        self._full = False
        self._lost = False
