"""Additive increase, additive decrease: the algorithm of the design document (S4–S6, S15–S17).

An ack in the normal range grows the window by ``step``, one over the threshold shrinks it by
``step``, an expiry shrinks it by one at once.  No slow start, no exponential growth: bolts begin
idle, and blind growth does not raise throughput.

"Linear" is meant per round trip: W acks a round trip at +1 each would double the
window.  ``growth="ack"`` is the document's letter, kept for comparison.
"""

from __future__ import annotations

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

_WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again
# A minimum RTT is forgotten after this long, so that a route or a sink may change: as the
# min-RTT filter of BBR (10 s, draft-cardwell-iccrg-bbr-congestion-control 4.3.3).
_BASE_RTT_LIFE_S = 10.0
# An ack is slow if it took more than this many times as long as without a queue: at 2, about one
# tuple waits for each one in service.
_THRESHOLD_RATIO = 2.0


class AiadWindow:
    """The literal rule, per round or per ack.

    The threshold is ``threshold_s`` where given.  Otherwise it is twice what the tuple would have
    taken without a queue: its RTT less its wait at the bolt; for a bolt that does not tell its
    wait, the smallest RTT of the last ten to twenty seconds.
    """

    __slots__ = (
        "_base_s",
        "_base_since_s",
        "_base_was_s",
        "_limited",
        "_over",
        "_round_acks",
        "_round_start_s",
        "_settings",
        "_shrunk_at_s",
        "threshold_s",
        "window",
    )

    work_max_s: float | None = None  # counts in tuples

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._settings = settings
        self.window: float = float(min(settings.max, max(_WINDOW_MIN, learned or settings.initial)))
        self.threshold_s: float | None = settings.threshold_s
        self._round_start_s = float("-inf")
        self._shrunk_at_s = float("-inf")
        self._round_acks = 0
        self._over = 0
        self._limited = False
        self._base_since_s = float("-inf")
        self._base_s = float("inf")
        self._base_was_s = float("inf")

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Judge the RTT; move now (per ack) or when the round is over (per round)."""
        over = sample.ack_rtt_s > self._threshold(sample)  # equality is normal (1.9-F)
        if self._settings.growth == "ack":
            return self._move(over, sample.was_limited)
        self._round_acks += 1
        self._over += over
        self._limited |= sample.was_limited
        if sample.sent_at_s < self._round_start_s:
            return None  # sent before the last change: says nothing about it
        signal = self._move(2 * self._over > self._round_acks, self._limited)
        if signal is Signal.OVER:
            self._shrunk_at_s = sample.now_s
        self._begin_round(sample.now_s)
        return signal

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """Minus one, immediately (S6); per round, not again for what was sent before that."""
        if self._settings.growth == "round" and sent_at_s < self._shrunk_at_s:
            return
        self.window = max(_WINDOW_MIN, self.window - 1)
        self._shrunk_at_s = now_s
        self._begin_round(now_s)

    def _begin_round(self, now_s: float) -> None:
        self._round_start_s = now_s
        self._round_acks = 0
        self._over = 0
        self._limited = False

    def _move(self, over: bool, limited: bool) -> Signal:
        step = self._settings.step
        if over:
            self.window = max(_WINDOW_MIN, self.window - step)
            return Signal.OVER
        if limited:  # an unused window shows nothing and does not grow (RFC 7661)
            self.window = min(float(self._settings.max), self.window + step)
        return Signal.IN_RANGE

    def _threshold(self, sample: AckSample) -> float:
        if self._settings.threshold_s is not None:
            return self._settings.threshold_s
        if sample.wait_s is not None:
            base_s = sample.ack_rtt_s - sample.wait_s
        else:
            base_s = self._smallest_rtt(sample)
        self.threshold_s = _THRESHOLD_RATIO * base_s
        return self.threshold_s

    def _smallest_rtt(self, sample: AckSample) -> float:
        if sample.now_s - self._base_since_s > _BASE_RTT_LIFE_S:
            self._base_since_s = sample.now_s
            self._base_was_s, self._base_s = self._base_s, sample.ack_rtt_s
        self._base_s = min(self._base_s, sample.ack_rtt_s)
        return min(self._base_s, self._base_was_s)
