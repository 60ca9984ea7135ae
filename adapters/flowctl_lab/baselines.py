"""Window policies of other projects, to compare flowctl with (ADR 7).  Pure, as the core is.

Importing this module adds them to the values of ``lab.window.policy``.
"""

from __future__ import annotations

import abc
import math

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window import POLICIES
from flowctl.core.window.policy import AckSample

# -- One decision per round, on the round's mean RTT: what Netflix's limits have in common -----


WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again


class RoundSampled(abc.ABC):
    """The common part of Netflix's three limits: one sample per round, its mean RTT.

    By their documentation, limits move once per sampling window; ``WindowedLimit.java`` with
    ``ImmutableAverageSampleWindow.java`` does that, with windows of 1 s and at least 10 samples.
    Here the sampling window is one round trip, with any number of samples: from a decision to the
    ack of a tuple sent after it.  Where the original requires half of the limit in flight, the
    window must have been full.  A loss counts at once, but not again for tuples sent before the
    last decrease; the age of a lost tuple doesn't count as an RTT (RFC 6298, Karn).
    """

    __slots__ = ("_acks", "_limited", "_max", "_round_start_s", "_shrunk_at_s", "_sum_s", "window")

    work_max_s: float | None = None  # counts in tuples

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self.window: float = self._bounded(float(learned or settings.initial))
        self._shrunk_at_s = float("-inf")
        self._begin_round(float("-inf"))

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Add the sample to the round; move the window when the round is over."""
        self._acks += 1
        self._sum_s += sample.ack_rtt_s
        self._limited |= sample.was_limited
        if sample.sent_at_s < self._round_start_s:
            return None  # sent before the last decision: no evidence about it
        before = self.window
        signal = self._judge(self._sum_s / self._acks, self._limited)
        if self.window < before:
            self._shrunk_at_s = sample.now_s
        self._begin_round(sample.now_s)
        return signal

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """Shrink the window for a loss, once for tuples that were in flight together."""
        if sent_at_s < self._shrunk_at_s:
            return
        self._lose()
        self._shrunk_at_s = now_s
        self._begin_round(now_s)

    @abc.abstractmethod
    def _judge(self, rtt_s: float, limited: bool) -> Signal:
        """Move the window by a round's mean RTT; return the verdict on that RTT."""

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


# -- Additive increase, multiplicative decrease, driven by loss alone: Netflix's AIMDLimit -----
#
# After https://github.com/Netflix/concurrency-limits, ``AIMDLimit.java`` (the rule itself: Chiu
# and Jain 1989). Plus one, or times 0.9 at a loss; an RTT over a time-out of seconds is a loss. A
# queue is not seen until something expires.
#
# The original never goes below 20; here the smallest window is 1. For its sampling see
# :class:`flowctl.core.window.baselines.RoundSampled`.


_BACKOFF_RATIO = 0.9  # AIMDLimit.Builder.backoffRatio
_TIMEOUT_S = 5.0  # AIMDLimit.DEFAULT_TIMEOUT


class AimdWindow(RoundSampled):
    """Grows by one tuple per round and shrinks to 0.9 at a loss, in whole tuples.

    ``threshold_s`` is the time-out: this policy ignores RTTs below it.
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


# -- The ratio of a long average of the RTT to the last one: Netflix's Gradient2Limit ----------
#
# After https://github.com/Netflix/concurrency-limits, ``Gradient2Limit.java``::
#
#     gradient = 1.5 x long RTT / RTT, within 0.5 ... 1
#     window   = 0.8 window + 0.2 (gradient x window + 4)
#
# The long RTT is an exponential average over some 600 samples, so that no minimum has to be
# known. It follows a queue that builds up slowly: then the gradient stays 1 and the window grows
# to its bound. And no RTT brings the window below 8, where 0.5 x 8 + 4 = 8. Both are the
# formula's.
#
# The original never goes below 20, and at a loss takes the tuple's age for an RTT, which would
# grow a window below 8. Here the smallest window is 1, and a loss is the formula with the
# smallest gradient and nothing for a queue: 0.9 x window. For its sampling see
# ``rounds.RoundSampled``.


_SMOOTHING = 0.2  # Gradient2Limit.Builder.smoothing
_QUEUE = 4  # Gradient2Limit.Builder.queueSize
_TOLERANCE = 1.5  # Gradient2Limit.Builder.rttTolerance
_GRADIENT_MIN = 0.5  # Gradient2Limit._update: outliers must not take more than half
_LONG_WARMUP = 10  # Gradient2Limit: ExpAvgMeasurement(longWindow, 10), plain mean until then
_LONG_GAIN = 2 / (600 + 1)  # Gradient2Limit.Builder.longWindow, in ExpAvgMeasurement.factor
# Gradient2Limit._update: where the long average is more than twice the RTT, a load has ended, and
# the average is made to decay faster.
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
        """Return the long average including this RTT; one that is far too long is reduced."""
        self._samples += 1
        gain = 1 / self._samples if self._samples <= _LONG_WARMUP else _LONG_GAIN
        long_s = self._long_s + gain * (rtt_s - self._long_s)
        self._long_s = long_s * _LONG_DECAY if long_s > _LONG_FAR * rtt_s else long_s
        return long_s


# -- TCP Vegas for request limits: Netflix's VegasLimit ----------------------------------------
#
# After https://github.com/Netflix/concurrency-limits, ``VegasLimit.java`` (the idea: Brakmo and
# Peterson, "TCP Vegas", 1995). The queue at the bolt is estimated from the RTT alone, and kept
# between two bounds that grow with the order of magnitude of the window::
#
#     d = max(1, floor(log10 window))           queue = ceil(window (1 - base / rtt))
#
#     queue <= d        window + 6 d            nothing queues: grow fast
#     queue <  3 d      window + d
#     queue >  6 d      window - d              so does a loss
#
# ``base`` is the smallest RTT seen; after some 30 windows of samples the next RTT replaces it,
# whatever it is. If a queue stands there, that RTT is too large: the queue looks short, and the
# window grows once more. This is the policy's known weakness, and is kept.
#
# Each limiter of the original draws when to probe, uniformly from 15 to 30 windows; here it is
# the mean, so that bolts alike probe together. For its sampling see ``rounds.RoundSampled``.


_VEGAS_ALPHA = 3  # VegasLimit.Builder.alphaFunc: 3 log10
_VEGAS_BETA = 6  # VegasLimit.Builder.betaFunc: 6 log10
# VegasLimit.Builder.probeMultiplier is 30, resetProbeJitter multiplies by U(0.5, 1): mean 22.5.
_PROBE_WINDOWS = 30 * 0.75


class VegasWindow(RoundSampled):
    """Keeps three to six tuples (times ``d``) queued, as estimated from the RTT.

    ``threshold_s`` is the RTT above which the last round would have shown too long a queue; None
    while the window is too small for such a queue, and just after the base was set.
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
        if probes or rtt_s < self._base_s:  # a sample that becomes the base doesn't move the window
            self._samples = 0 if probes else self._samples
            self._base_s = rtt_s
            self.threshold_s = None
            return Signal.IN_RANGE
        step = _digits(self.window)
        room = self.window - _VEGAS_BETA * step  # room for tuples that don't queue
        self.threshold_s = self._base_s * self.window / room if room > 0 else None
        queue = math.ceil(self.window * (1 - self._base_s / rtt_s)) if rtt_s else 0
        if limited:
            self._move(queue, step)
        return Signal.OVER if queue > _VEGAS_BETA * step else Signal.IN_RANGE

    def _move(self, queue: int, step: int) -> None:
        if queue <= step:
            self.window: float = self._bounded(self.window + _VEGAS_BETA * step)
        elif queue < _VEGAS_ALPHA * step:
            self.window = self._bounded(self.window + step)
        elif queue > _VEGAS_BETA * step:
            self.window = self._bounded(self.window - step)

    def _lose(self) -> None:
        self.window = self._bounded(self.window - _digits(self.window))


def _digits(window: float) -> int:
    """Return the decimal logarithm, rounded down, at least 1: ``Log10RootIntFunction``."""
    return max(1, int(math.log10(window)))


# -- Adaptive request concurrency: the limiter of the sinks of Vector --------------------------
#
# After https://github.com/vectordotdev/vector,
# ``src/sinks/util/adaptive_concurrency/controller.rs`` and its RFC 2020-04-06-1858. One decision
# per average RTT, from the mean RTT since the last one (``now``), against an exponential average
# of such means (``past``) and its standard deviation::
#
#     full, no loss, now <= past                     window + 1
#     a loss, or now >= past + 2.5 deviations        0.9 window, rounded down
#
# What differs: the original starts at 1 and stops at 200, here both are settings. It looks
# whether the window was full since the last decision; an ack here tells whether it was full since
# its tuple was sent, up to one RTT earlier.


_WINDOW_MIN = 1.0  # below one tuple a bolt could never be heard again
_DECREASE_RATIO = 0.9  # AdaptiveConcurrencySettings.decrease_ratio
_ALPHA = 0.4  # AdaptiveConcurrencySettings.ewma_alpha
_DEVIATIONS = 2.5  # AdaptiveConcurrencySettings.rtt_deviation_scale


class ArcWindow:
    """Moves in whole tuples; ``threshold_s`` is the mean RTT at which it would shrink next."""

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
        """Add the RTT to the mean; decide when the average RTT has passed."""
        self._acks += 1
        self._mean_s += (sample.ack_rtt_s - self._mean_s) / self._acks
        self._full |= sample.was_limited
        if self.threshold_s is None:  # the first ack: also counts in the first decision
            self._remember(self._mean_s)
            self._decide_at_s = sample.now_s + self._past_s
            return Signal.IN_RANGE
        return self._decide(sample.now_s)

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """Note a loss: the next decision, which may be due now, is a decrease."""
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


POLICIES.update(
    {"aimd": AimdWindow, "arc": ArcWindow, "gradient2": Gradient2Window, "vegas": VegasWindow}
)
