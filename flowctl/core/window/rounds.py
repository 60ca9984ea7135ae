"""One decision per round, on the round's mean RTT: what Netflix's limits have in common."""

from __future__ import annotations

import abc

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again


class RoundSampled(abc.ABC):
    """What the three limits of Netflix share: one sample a round, its mean RTT.

    Their documentation has the limits move once per sampling window; ``WindowedLimit.java`` with
    ``ImmutableAverageSampleWindow.java`` does that, with windows of 1 s and at least 10 samples.
    Here the window is one round trip, whatever it holds: from a decision to the ack of a tuple
    sent after it.  Where the original asks for half of the limit in flight, the window must have
    been full.  A loss counts at once, and not again for tuples sent before the last decrease;
    the age of a lost tuple is not taken for an RTT (RFC 6298, Karn).
    """

    __slots__ = ("_acks", "_limited", "_max", "_round_start_s", "_shrunk_at_s", "_sum_s", "window")

    work_max_s: float | None = None  # counts in tuples

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self.window: float = self._bounded(float(learned or settings.initial))
        self._shrunk_at_s = float("-inf")
        self._begin_round(float("-inf"))

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Count it in; when the round is over, move."""
        self._acks += 1
        self._sum_s += sample.ack_rtt_s
        self._limited |= sample.was_limited
        if sample.sent_at_s < self._round_start_s:
            return None  # sent before the last decision: says nothing about it
        before = self.window
        signal = self._judge(self._sum_s / self._acks, self._limited)
        if self.window < before:
            self._shrunk_at_s = sample.now_s
        self._begin_round(sample.now_s)
        return signal

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A loss: shrink, once for what was in flight together."""
        if sent_at_s < self._shrunk_at_s:
            return
        self._lose()
        self._shrunk_at_s = now_s
        self._begin_round(now_s)

    @abc.abstractmethod
    def _judge(self, rtt_s: float, limited: bool) -> Signal:
        """Move the window by a round's mean RTT; say what that RTT means."""

    @abc.abstractmethod
    def _lose(self) -> None:
        """Shrink the window for a loss."""

    def _bounded(self, window: float) -> float:
        return max(WINDOW_MIN, min(self._max, window))

    def _begin_round(self, now_s: float) -> None:
        self._round_start_s = now_s
        self._acks = 0
        self._sum_s = 0.0
        self._limited = False
