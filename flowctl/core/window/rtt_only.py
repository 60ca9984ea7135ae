"""The window of a bolt whose acks report no times: delivery rate x base RTT.

The model is BBR's (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5),
2016; draft-cardwell-iccrg-bbr-congestion-control, "the draft" below), counted in records::

    H      = rate x base RTT + max(aggregation, n / 2)   n: records of a tuple of late
    window = H / n + 1 tuples                            there is room while less than H is held

``rate`` is the largest delivery rate of ten rounds (the draft's BBR.max_bw), ``base RTT`` the
smallest RTT of max(3 s, 50 RTT) (BBR.min_rtt), ``aggregation`` by how much acks that leave
together were ahead of that rate (BBR.extra_acked).  Slots need not be known: a bolt of C slots
delivers at C times the rate.  Half a tuple, and the one that overshoots, bridge the noise of
single tuples; BBR, with packets by the hundred, holds twice the product.

S15 to S17 (no slow start, no exponential growth) are about the document's own rule, ``aiad``.
Start-up doubles here: a path that holds n tuples is found in log n round trips, and doubling
ends with the first sign of a queue.
"""

from __future__ import annotations

from collections import deque

from flowctl.core.settings import WindowSettings
from flowctl.core.state import Signal
from flowctl.core.window.policy import AckSample

_WINDOW_MIN = 1.0
# The draft's MaxBwFilterLen and BBRExtraAckedFilterLen: two cycles, and ten rounds.
_FILTER_ROUNDS = 10
# The draft's MinRTTFilterLen is 10 s, for paths that change seldom.  A bolt's service time is in
# its RTT and changes within seconds; 50 RTT keep the price of a dip below 1 %.
_BASE_LIFE_S = 3.0
_BASE_LIFE_RTTS = 50
# The draft's BBRCheckFullBWReached: the pipe is full when three rounds did not bring a quarter.
_GROWTH = 1.25
_FULL_ROUNDS = 3
# Two acks make a rate; and start-up can tell a queue from the first tuple's own round trip.
_ROUND_ACKS_MIN = 2
# An RTT a quarter above the base shows a queue (HyStart++, RFC 9406, asks for an eighth, of
# eight samples; here it is one).
_QUEUE_SEEN = 1.25
# Half a tuple: what acks are ahead of the rate by chance, with nothing aggregated.
_NOISE = 0.5
# The draft's ProbeBW_UP gain, in one of eight phases, as in the first BBR (ACM Queue, figure 4).
_PROBE_GAIN = 1.25
_PROBE_ROUNDS = 8
# To see the path without a queue, hold less than fills it, as in ProbeBW_DOWN of the first BBR:
# half as much (the draft's ProbeRTT) would cost a long path twice the work.
_DIP_GAIN = 0.75
# A dip is not needed if an RTT this near to the base was seen by itself.
_NEAR = 1.05
# Mean records of a tuple: the last twenty decide.
_RECORDS_GAIN = 0.05


class RttOnlyWindow:
    """One bolt's window from round trips and the rate of acks.  Pure; not thread-safe.

    One decision a round: from a decision to the ack of a tuple that was sent after it, at least
    two acks.  A round is one of start-up, cruise, probe (one of eight: a quarter more than the
    path holds) and dip (a quarter less, when no RTT near the base was seen for its whole life).

    A bolt that comes back starts small again, as in ``just_full``: start-up takes a few round
    trips, and a window learned from quick calls would flood a bolt whose calls are slow now.
    """

    __slots__ = (
        "_acked",
        "_acks",
        "_ahead",
        "_ahead_acked",
        "_ahead_since_s",
        "_base_before_s",
        "_base_s",
        "_base_since_s",
        "_cruise",
        "_full_rate",
        "_is_dipping",
        "_is_starting",
        "_max",
        "_most_ahead",
        "_rate",
        "_rates",
        "_records",
        "_round_began_s",
        "_rounds",
        "_saved",
        "_shrunk_at_s",
        "_still_rounds",
        "threshold_s",
        "window",
    )  # fmt: skip

    work_max_s: float | None = None  # counts in tuples

    def __init__(self, settings: WindowSettings, *, learned: float | None = None) -> None:
        del learned
        self._max = float(settings.max)
        self.window: float = self._bounded(float(settings.initial))
        self.threshold_s: float | None = None
        self._records = 0.0
        self._rate = 0.0
        self._rates: deque[float] = deque(maxlen=_FILTER_ROUNDS)  # records a second, per round
        self._base_s = self._base_before_s = float("inf")
        self._base_since_s = float("-inf")
        self._most_ahead: deque[float] = deque(maxlen=_FILTER_ROUNDS)  # records, per round
        self._ahead_acked = 0
        self._ahead_since_s = float("-inf")
        self._begin_round(float("-inf"))
        self._rounds = 0
        self._cruise = self.window
        self._is_starting = True
        self._full_rate = 0.0
        self._still_rounds = 0
        self._is_dipping = False
        self._saved: float | None = None  # the window before a time-out
        self._shrunk_at_s = float("-inf")

    def on_ack(self, sample: AckSample) -> Signal | None:
        """Count it in; at the end of a round decide once."""
        if not self._records:  # the first ack: its own round trip begins the first round
            self._records = float(sample.records)
            self._round_began_s = sample.sent_at_s
            self._base_since_s = sample.now_s
        self._count(sample)
        if self._saved is not None:  # it lives: the time-out was about that tuple alone
            self.window, self._saved = self._saved, None
            self._begin_round(sample.now_s)  # what was sent before was sent by another window
            return Signal.IN_RANGE
        if sample.sent_at_s < self._round_began_s or self._acks < _ROUND_ACKS_MIN:
            return None
        took_s = sample.now_s - self._round_began_s
        if took_s <= 0:
            return None
        signal = self._decide(sample, self._acked / took_s)
        self._begin_round(sample.now_s)
        return signal

    def _begin_round(self, now_s: float) -> None:
        self._round_began_s = now_s
        self._acks = self._acked = 0
        self._ahead = 0.0

    # -- what is measured ----------------------------------------------------------------

    def _count(self, sample: AckSample) -> None:
        records = sample.records
        self._records += _RECORDS_GAIN * (records - self._records)
        self._acks += 1
        self._acked += records
        # A small tuple's RTT is not what a mean one takes.
        if records >= self._records and sample.ack_rtt_s < self._base_s:
            self._base_s = sample.ack_rtt_s
        if not self._rates:
            return
        # The draft's BBRUpdateACKAggregation; but the ack that it begins with does not count:
        # one tuple may be all that the path holds.
        expected = self._rate * (sample.now_s - self._ahead_since_s)
        ahead = self._ahead_acked + records - expected
        if ahead > 0:
            self._ahead_acked += records
            self._ahead = max(self._ahead, ahead)
        else:
            self._ahead_acked = 0
            self._ahead_since_s = sample.now_s

    def _take_round(self, rate: float, limited: bool) -> None:
        """The draft's BBRUpdateMaxBw: a round that the producer limited shows no less than it."""
        if limited or rate >= self._rate:
            self._rates.append(rate)
            self._rate = max(self._rates)
            # While the rate still rises, to be ahead of it means nothing.
            self._most_ahead.append(0.0 if self._is_starting else self._ahead)

    @property
    def _path_s(self) -> float:
        """The base RTT."""
        return min(self._base_s, self._base_before_s)

    def _tuples(self, gain: float) -> float:
        """What the path holds, ``gain`` times, in tuples."""
        return gain * self._rate * self._path_s / self._records

    def _enough(self) -> float:
        """The window that keeps the bolt busy."""
        return self._tuples(1.0) + max(_NOISE, max(self._most_ahead) / self._records) + 1

    # -- what is decided -----------------------------------------------------------------

    def _decide(self, sample: AckSample, rate: float) -> Signal:
        limited = sample.was_limited
        self._take_round(rate, limited)
        self._rounds += 1
        before, self._cruise = self._cruise, self._enough()
        window = self._start(sample) if self._is_starting else self._steady(sample)
        # A window that nobody uses does not grow; and none more than twofold, whatever tuples of
        # odd sizes do to the model.
        most = 2 * int(self.window) + 1 if limited else self.window
        window = min(window, most)
        if window < self.window:
            self._shrunk_at_s = sample.now_s
        self.window = self._bounded(window)
        return Signal.OVER if self._cruise <= before - 1 else Signal.IN_RANGE

    def _start(self, sample: AckSample) -> float:
        """Double until the pipe is full; no further once a queue is seen."""
        if sample.was_limited:
            if self._rate >= _GROWTH * self._full_rate:
                self._full_rate = self._rate
                self._still_rounds = 0
            else:
                self._still_rounds += 1
            if self._still_rounds >= _FULL_ROUNDS:
                self._is_starting = False
                return self._cruise
            if sample.ack_rtt_s <= _QUEUE_SEEN * self._path_s:
                # The rate is a round behind: twice what is known, not four times what is there.
                return max(self._cruise, min(2 * self.window, 2 * (self._tuples(1.0) + 1)))
        return max(self.window, self._cruise)

    def _steady(self, sample: AckSample) -> float:
        if self._is_dip_due(sample):
            return self._tuples(_DIP_GAIN)
        if self._rounds % _PROBE_ROUNDS == 0:
            return max(self._cruise, self._tuples(_PROBE_GAIN))
        return self._cruise

    def _is_dip_due(self, sample: AckSample) -> bool:
        """Whether the base is too old and was not seen again; if it was, or after a dip,
        forget it."""
        age_s = sample.now_s - self._base_since_s
        if age_s < _BASE_LIFE_S or age_s < _BASE_LIFE_RTTS * self._path_s:
            return False
        if self._base_s == float("inf"):  # only small tuples of late
            return False
        if sample.was_limited and not self._is_dipping and self._base_s > _NEAR * self._path_s:
            self._is_dipping = True
            return True
        self._is_dipping = False
        self._base_before_s, self._base_s = self._base_s, float("inf")
        self._base_since_s = sample.now_s
        return False

    def on_expired(self, now_s: float, sent_at_s: float) -> None:
        """One tuple at a time until the bolt speaks again; then the window is as it was."""
        if sent_at_s < self._shrunk_at_s or self._saved is not None:
            return
        self._saved = self.window
        self.window = _WINDOW_MIN
        self._shrunk_at_s = now_s

    def _bounded(self, window: float) -> float:
        return max(_WINDOW_MIN, min(self._max, window))
