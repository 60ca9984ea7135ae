"""Keep each bolt just full, counted in seconds of work: the control law of docs/control.md.

An ack says how long the tuple waited, how long it was worked on, and how long the bolt had been
idle before.  So nothing has to be inferred from round trips, and no baseline can drift::

    H = C (S + Lh) + m          work that keeps C slots busy over the path, plus a margin
    window = H / S + 1

A bolt has room while it holds less than H seconds of work; the window in tuples is for the eye.
``S`` is the service time of a tuple, ``Lh`` the longest path of late, ``C`` the slots.  The margin
grows by the idle time that was seen while the window was full, and shrinks when every tuple of
two rounds had to wait longer than a tuple takes.
"""

from __future__ import annotations

from typing import Final

from flowctl.core.cost import ServiceModel
from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample
from flowctl.core.window.rtt_only import RttOnlyWindow

_WINDOW_MIN = 1.0
# Idle below this share of the time is noise of clocks and schedulers.
_IDLE_SHARE = 0.01
_ROUND_ACKS_MIN = 2
# Shrink only on evidence that jitter does not give: this many acks over at least two rounds, all
# of which waited.
_SHRINK_ACKS = 16
_SHRINK_ROUNDS = 2
# Take away three quarters of the excess: the rest may be noise, and half a service time stays.
_SHRINK_GAIN = 0.75
_WORK_MIN = 0.5


_IN_RANGE: Final = Signal.IN_RANGE  # a name, as a member of an enum costs .2 us an ack


class JustFullWindow:
    """One bolt's window from its telemetry; without telemetry, as in ``rtt_only``.

    A bolt that comes back starts small again: one ack is enough to learn its window, and a window
    learned from calls that had nothing to do would flood a bolt whose calls are slow now.
    """

    __slots__ = (
        "_bare",
        "_idle_s",
        "_ignore_idle_until_s",
        "_last_idle_s",
        "_margin_s",
        "_max",
        "_round_acks",
        "_round_start_s",
        "_rounds",
        "_settings",
        "_shrink_acks",
        "_wait_min_s",
        "threshold_s",
        "window",
        "work_max_s",
    )  # fmt: skip

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        self._max = float(settings.max)
        self._settings = settings
        self._bare: RttOnlyWindow | None = None  # made by the first ack without telemetry
        del learned
        self.window: float = max(_WINDOW_MIN, min(self._max, float(settings.initial)))
        self.threshold_s: float | None = None
        self.work_max_s: float | None = None  # until the first ack the window counts
        self._margin_s = 0.0
        self._last_idle_s = float("inf")  # the first ack has none before it to compare with
        self._ignore_idle_until_s = float("-inf")
        self._round_start_s = float("-inf")
        self._begin_round(float("-inf"))
        self._begin_watch()

    def _begin_round(self, now_s: float) -> None:
        self._round_start_s = now_s
        self._round_acks = 0
        self._idle_s = 0.0

    def _begin_watch(self) -> None:
        """Begin to collect evidence for a decrease."""
        self._wait_min_s = float("inf")
        self._shrink_acks = 0
        self._rounds = 0

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Take the telemetry; at the end of a round decide once."""
        wait_s, idle_total_s = sample.wait_s, sample.idle_total_s
        if wait_s is None or sample.service_s is None:
            return self._infer(sample)
        self._round_acks += 1
        if wait_s < self._wait_min_s:
            self._wait_min_s = wait_s
        if idle_total_s is not None:
            if sample.was_limited and idle_total_s > self._last_idle_s:
                self._idle_s += idle_total_s - self._last_idle_s
            self._last_idle_s = idle_total_s
        signal = None
        if self.work_max_s is not None:
            if sample.sent_at_s < self._round_start_s or self._round_acks < _ROUND_ACKS_MIN:
                return None
            signal = self._decide(sample.now_s, sample.service, sample.slots)
            self._begin_round(sample.now_s)
        work_s = self.work_max_s = self._work_s(sample.service, sample.slots)
        service_s = sample.service.mean_s
        if service_s > 0:
            window = work_s / service_s + 1  # over one, as work is never negative
            self.window = window if window < self._max else self._max
        return signal

    def _infer(self, sample: AckSample) -> Signal | None:
        """A bolt that reports no times: what round trips alone show."""
        self._bare = self._bare or RttOnlyWindow(self._settings)
        signal = self._bare.on_ack(sample)
        self.window = self._bare.window
        return signal

    def _decide(self, now_s: float, model: ServiceModel, slots: int) -> Signal:
        self._rounds += 1
        self._shrink_acks += self._round_acks
        idle_s = self._idle_s if now_s >= self._ignore_idle_until_s else 0.0
        if idle_s > _IDLE_SHARE * (idle_s + self._round_acks * model.mean_s):
            self._margin_s += idle_s * slots
            # What was sent before this change can't show it yet.
            self._ignore_idle_until_s = now_s + model.path_peak_s
            self._begin_watch()
            return _IN_RANGE
        if self._shrink_acks < _SHRINK_ACKS or self._rounds < _SHRINK_ROUNDS:
            return _IN_RANGE
        service_s, wait_s = model.mean_s, self._wait_min_s
        self._begin_watch()
        if wait_s <= service_s:
            return _IN_RANGE
        work_s = self._work_s(model, slots)
        excess_s = (wait_s - service_s) * work_s / (model.path_s + service_s + wait_s)
        least_s = _WORK_MIN * service_s
        self._margin_s -= min(_SHRINK_GAIN * excess_s, max(0.0, work_s - least_s))
        return Signal.OVER

    def _work_s(self, model: ServiceModel, slots: int) -> float:
        work_s = slots * (model.mean_s + model.path_peak_s) + self._margin_s
        least_s = _WORK_MIN * model.mean_s
        return work_s if work_s > least_s else least_s

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """A time-out says nothing of how much work fits: the bolt is BUSY until it speaks."""
        if self._bare is not None:
            self._bare.on_expired(now_s, sent_at_s)
            self.window = self._bare.window
