"""The retransmission time-out: how long to wait for an ack."""

from __future__ import annotations

from flowctl.core.settings import TimeoutSettings

# RFC 6298 section 2: gains 1/8 and 1/4, four deviations.
_SRTT_GAIN = 1 / 8
_RTTVAR_GAIN = 1 / 4
_DEVIATIONS = 4
# RFC 6298 5.5: back off by doubling; undone by the next sample.
_BACKOFF = 2
# RFC 6298 2.4. A time-out that no heartbeat is asked about costs a second processing when wrong.
_UNCHECKED_MIN_S = 1.0
# A time-out that was wrong doubles the factor K up to 16; K halves in 30 s (after Eifel's
# response, RFC 4015: be more patient with a path that proved us wrong, for a while).
_PATIENCE_MAX = 16.0
_PATIENCE_HALF_LIFE_S = 30.0


class RttEstimator:
    """The RTO of one bolt, after RFC 6298.  All in seconds.  Read ``rto_s``.

    What is sampled is up to the caller: whole round trips, or, with a timer on the oldest tuple
    that every ack restarts, round trips less the wait at the bolt.
    Emissions carry their attempt, so every sample belongs to a known sending and Karn's rule
    (no sample from a retransmission that can't be told apart) is met by construction.
    """

    __slots__ = (
        "_backed_off_until_s",
        "_backoff",
        "_is_checked",
        "_patience",
        "_patient_since_s",
        "_settings",
        "_unchecked_min_s",
        "rto_s",
        "rttvar_s",
        "srtt_s",
    )

    def __init__(self, settings: TimeoutSettings) -> None:
        self._settings = settings
        self._backoff = 1.0
        self._backed_off_until_s = float("-inf")
        self._patience = 1.0
        self._patient_since_s = 0.0
        self._unchecked_min_s = max(settings.rto_min_s, _UNCHECKED_MIN_S)
        self._is_checked = True
        self.srtt_s: float | None = None
        self.rttvar_s: float = 0.0
        # The time after which an emission without an ack expires.
        self.rto_s: float = min(settings.rto_max_s, settings.rto_first_s)

    def on_sample(self, now_s: float, rtt_s: float, *, is_checked: bool = True) -> None:
        """Take the time that one ack took; ``is_checked``: a time-out is held against signs."""
        if self._backoff != 1.0:
            self._backoff = 1.0
            self._backed_off_until_s = float("-inf")
        srtt_s = self.srtt_s
        if srtt_s is None:
            self.srtt_s = rtt_s  # RFC 6298 2.2
            self.rttvar_s = rtt_s / 2
        else:  # 2.3
            self.rttvar_s += _RTTVAR_GAIN * (abs(srtt_s - rtt_s) - self.rttvar_s)
            self.srtt_s = srtt_s + _SRTT_GAIN * (rtt_s - srtt_s)
        if self._patience > 1.0 and now_s - self._patient_since_s >= _PATIENCE_HALF_LIFE_S:
            self._patience /= 2
            self._patient_since_s = now_s
        self._is_checked = is_checked
        self._update()

    def back_off(self, now_s: float) -> None:
        """A time-out fired: wait longer for the next one.

        Once for all tuples that were under way then: their time-outs are one event.
        """
        if now_s >= self._backed_off_until_s:
            self._backed_off_until_s = now_s + self.rto_s
            self._backoff *= _BACKOFF
            self._update()

    def on_spurious(self, now_s: float) -> None:
        """A time-out was wrong: its tuple was processed after all."""
        self._patience = min(_PATIENCE_MAX, 2 * self._patience)
        self._patient_since_s = now_s
        self._update()

    def _update(self) -> None:
        # Comparisons, not min and max: this runs at each ack, and calls cost more than the rest.
        settings = self._settings
        if self.srtt_s is None:
            rto_s = settings.rto_first_s * self._patience
        else:
            rto_s = (self.srtt_s + _DEVIATIONS * self.rttvar_s) * self._patience
            least_s = settings.rto_min_s if self._is_checked else self._unchecked_min_s
            if rto_s < least_s:
                rto_s = least_s
        rto_s *= self._backoff
        self.rto_s = rto_s if rto_s < settings.rto_max_s else settings.rto_max_s
