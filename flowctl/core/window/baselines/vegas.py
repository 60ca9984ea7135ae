"""TCP Vegas for request limits: Netflix's VegasLimit.

After https://github.com/Netflix/concurrency-limits, ``VegasLimit.java`` (the idea: Brakmo and
Peterson, "TCP Vegas", 1995).  The queue at the bolt is estimated from the RTT alone, and kept
between two bounds that grow with the order of magnitude of the window::

    d = max(1, floor(log10 window))           queue = ceil(window (1 - base / rtt))

    queue <= d        window + 6 d            nothing queues: grow fast
    queue <  3 d      window + d
    queue >  6 d      window - d              so does a loss

``base`` is the smallest RTT seen; after some 30 windows of samples the next RTT replaces it,
whatever it is.  If a queue stands there, that RTT is too large: the queue looks short, and the
window grows once more.  This is the policy's known weakness, and is kept.

Each limiter of the original draws when to probe, uniformly from 15 to 30 windows; here it is the
mean, so that bolts alike probe together.  For its sampling see ``rounds.RoundSampled``.
"""

from __future__ import annotations

import math

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.rounds import RoundSampled

_ALPHA = 3  # VegasLimit.Builder.alphaFunc: 3 log10
_BETA = 6  # VegasLimit.Builder.betaFunc: 6 log10
# VegasLimit.Builder.probeMultiplier is 30, resetProbeJitter multiplies by U(0.5, 1): mean 22.5.
_PROBE_WINDOWS = 30 * 0.75


class VegasWindow(RoundSampled):
    """Keeps three to six tuples (times ``d``) queued, as far as the RTT tells.

    ``threshold_s`` is the RTT above which the last round meant a queue that is too long; None
    while the window is too small for such a queue, and when the base has just been set.
    """

    __slots__ = ("_base_s", "_samples", "threshold_s")

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        super().__init__(settings, learned=learned)
        self.threshold_s: float | None = None
        self._base_s = math.inf
        self._samples = 0

    def _judge(self, rtt_s: float, limited: bool) -> Signal:
        self._samples += 1
        probes = self._samples >= _PROBE_WINDOWS * self.window
        if probes or rtt_s < self._base_s:  # a sample that becomes the base moves nothing
            self._samples = 0 if probes else self._samples
            self._base_s = rtt_s
            self.threshold_s = None
            return Signal.IN_RANGE
        step = _digits(self.window)
        room = self.window - _BETA * step  # what may be in flight beside the longest queue
        self.threshold_s = self._base_s * self.window / room if room > 0 else None
        queue = math.ceil(self.window * (1 - self._base_s / rtt_s)) if rtt_s else 0
        if limited:
            self._move(queue, step)
        return Signal.OVER if queue > _BETA * step else Signal.IN_RANGE

    def _move(self, queue: int, step: int) -> None:
        if queue <= step:
            self.window: float = self._bounded(self.window + _BETA * step)
        elif queue < _ALPHA * step:
            self.window = self._bounded(self.window + step)
        elif queue > _BETA * step:
            self.window = self._bounded(self.window - step)

    def _lose(self) -> None:
        self.window = self._bounded(self.window - _digits(self.window))


def _digits(window: float) -> int:
    """The decimal logarithm, rounded down, at least 1: ``Log10RootIntFunction``."""
    return max(1, int(math.log10(window)))
