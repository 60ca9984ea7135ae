"""TCP Vegas for request limits: Netflix's VegasLimit.

After https://github.com/Netflix/concurrency-limits, ``VegasLimit.java`` (the idea: Brakmo and
Peterson, "TCP Vegas", 1995).  The queue at the bolt is estimated from the RTT alone, and kept
between two bounds that grow with the order of magnitude of the window::

    d = max(1, floor(log10 window))           queue = ceil(window (1 - base / rtt))

    queue <= d        window + 6 d            nothing queues: grow fast
    queue <  3 d      window + d
    queue >  6 d      window - d

``base`` is the smallest RTT seen; every 30 windows of acks the next RTT replaces it, whatever it
is.  With a queue standing there, that RTT is too large: the queue looks short, and the window
grows once more.  This is the policy's known weakness, and is kept.

What differs: each limiter of the original draws when to probe, uniformly from 15 to 30 windows;
here it is the mean.  A loss shrinks the window, but the age of a lost tuple is not taken for an
RTT.  Acks and losses of tuples sent before the last decrease do not decrease again.
"""

from __future__ import annotations

import math

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

_WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again
_ALPHA = 3  # VegasLimit.Builder.alphaFunc: 3 log10
_BETA = 6  # VegasLimit.Builder.betaFunc: 6 log10
# VegasLimit.Builder.probeMultiplier is 30, resetProbeJitter multiplies by U(0.5, 1): mean 22.5.
_PROBE_WINDOWS = 30 * 0.75


class VegasWindow:
    """Keeps three to six tuples (times ``d``) queued, as far as the RTT tells.

    ``threshold_s`` is the RTT above which the last ack meant a queue that is too long.
    """

    __slots__ = ("_acks", "_base_s", "_max", "_shrunk_at_s", "threshold_s", "window")

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self.window = min(self._max, max(_WINDOW_MIN, float(learned or settings.initial)))
        self.threshold_s: float | None = None
        self._acks = 0
        self._base_s = math.inf
        self._shrunk_at_s = -math.inf

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Estimate the queue from the RTT and move; an RTT that becomes the base moves nothing."""
        self._acks += 1
        probes = self._acks >= _PROBE_WINDOWS * self.window
        if probes or sample.ack_rtt_s < self._base_s:
            self._acks = 0 if probes else self._acks
            self._base_s = sample.ack_rtt_s
            self.threshold_s = None  # any RTT was fine
            return Signal.IN_RANGE
        self.threshold_s = self._threshold_s()
        return self._move(sample)

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A loss: one step (``d``) down, once for what was in flight together."""
        self._shrink(now_s, sent_at_s)

    def _move(self, sample: AckSample) -> Signal | None:
        if not sample.was_limited:
            return Signal.IN_RANGE
        step = _digits(self.window)
        queue = math.ceil(self.window * (1 - self._base_s / sample.ack_rtt_s))
        if queue > _BETA * step:
            return Signal.OVER if self._shrink(sample.now_s, sample.sent_at_s) else None
        if queue <= step:
            self.window = min(self._max, self.window + _BETA * step)
        elif queue < _ALPHA * step:
            self.window = min(self._max, self.window + step)
        return Signal.IN_RANGE

    def _shrink(self, now_s: float, sent_at_s: float) -> bool:
        if sent_at_s < self._shrunk_at_s:
            return False
        self.window = max(_WINDOW_MIN, self.window - _digits(self.window))
        self._shrunk_at_s = now_s
        return True

    def _threshold_s(self) -> float | None:
        """The RTT at which ``queue`` is six steps; None: so small a window cannot queue as much."""
        room = self.window - _BETA * _digits(self.window)
        return self._base_s * self.window / room if room > 0 else None


def _digits(window: float) -> int:
    """The decimal logarithm, rounded down, at least 1: ``Log10RootIntFunction``."""
    return max(1, int(math.log10(window)))
