"""Additive increase, multiplicative decrease, driven by loss alone: Netflix's AIMDLimit.

After https://github.com/Netflix/concurrency-limits, ``AIMDLimit.java`` (the rule itself: Chiu and
Jain 1989).  An ack adds one, a loss takes a tenth; an ack that took longer than the time-out is
a loss.  A queue is not seen until something expires.

What differs: the original never goes below 20 and shrinks at each loss.  Here the smallest window
is 1, and losses of tuples that were sent before the last decrease count as part of it.
"""

from __future__ import annotations

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

_WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again
_BACKOFF_RATIO = 0.9  # AIMDLimit.Builder.backoffRatio
_TIMEOUT_S = 5.0  # AIMDLimit.DEFAULT_TIMEOUT


class AimdWindow:
    """Plus one an ack, times 0.9 at a loss, in whole tuples.

    ``threshold_s`` is the time-out: no RTT below it tells this policy anything.
    """

    __slots__ = ("_max", "_shrunk_at_s", "window")

    threshold_s: float | None = _TIMEOUT_S

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self.window = float(int(min(self._max, max(_WINDOW_MIN, learned or settings.initial))))
        self._shrunk_at_s = float("-inf")

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Grow by one, if the window was in use; shrink if the ack took too long."""
        if sample.ack_rtt_s > _TIMEOUT_S:
            return Signal.OVER if self._shrink(sample.now_s, sample.sent_at_s) else None
        if sample.was_limited:
            self.window = min(self._max, self.window + 1)
        return Signal.IN_RANGE

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A loss: a tenth less, rounded down, once for what was in flight together."""
        self._shrink(now_s, sent_at_s)

    def _shrink(self, now_s: float, sent_at_s: float) -> bool:
        if sent_at_s < self._shrunk_at_s:
            return False
        self.window = max(_WINDOW_MIN, float(int(self.window * _BACKOFF_RATIO)))
        self._shrunk_at_s = now_s
        return True
