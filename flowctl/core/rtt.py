"""How long things take: ack round trips, the retransmission time-out, service per record."""

from __future__ import annotations

from flowctl.core.settings import TimeoutSettings

# RFC 6298 section 2: gains 1/8 and 1/4, four deviations.
_SRTT_GAIN = 1 / 8
_RTTVAR_GAIN = 1 / 4
_DEVIATIONS = 4
# RFC 6298 5.5: back off by doubling; undone by the next sample.
_BACKOFF = 2
# Service per record: the last eight tuples or so decide, as for SRTT.
_SERVICE_GAIN = 1 / 8


class RttEstimator:
    """Smoothed RTT, its deviation and the RTO of one bolt, after RFC 6298.  All in seconds.

    Emissions carry their attempt, so every sample belongs to a known sending and Karn's rule
    (no sample from a retransmission that can't be told apart) is met by construction.
    """

    __slots__ = (
        "_backed_off_until_s",
        "_backoff",
        "_settings",
        "latest_rtt_s",
        "rttvar_s",
        "service_per_record_s",
        "srtt_s",
    )

    def __init__(self, settings: TimeoutSettings) -> None:
        self._settings = settings
        self._backoff = 1.0
        self._backed_off_until_s = float("-inf")
        self.srtt_s: float | None = None
        self.rttvar_s = 0.0
        self.latest_rtt_s: float | None = None
        self.service_per_record_s: float | None = None

    def on_sample(self, rtt_s: float, service_s: float | None, records: int) -> None:
        """Take the round trip of one ack; ``service_s`` is the bolt's own measure, if any."""
        self.latest_rtt_s = rtt_s
        self._backoff = 1.0
        self._backed_off_until_s = float("-inf")
        if self.srtt_s is None:
            self.srtt_s = rtt_s  # RFC 6298 2.2
            self.rttvar_s = rtt_s / 2
        else:  # 2.3
            self.rttvar_s += _RTTVAR_GAIN * (abs(self.srtt_s - rtt_s) - self.rttvar_s)
            self.srtt_s += _SRTT_GAIN * (rtt_s - self.srtt_s)
        per_record_s = (rtt_s if service_s is None else service_s) / records
        if self.service_per_record_s is None:
            self.service_per_record_s = per_record_s
        else:
            self.service_per_record_s += _SERVICE_GAIN * (per_record_s - self.service_per_record_s)

    def back_off(self, now_s: float) -> None:
        """A time-out fired: wait longer for the next one.

        Once for all tuples that were under way then: their time-outs are one event.
        """
        if now_s >= self._backed_off_until_s:
            self._backed_off_until_s = now_s + self.rto_s
            self._backoff *= _BACKOFF

    @property
    def rto_s(self) -> float:
        """The time after which an emission without an ack expires."""
        settings = self._settings
        if self.srtt_s is None:
            rto_s = settings.rto_first_s
        else:
            rto_s = max(settings.rto_min_s, self.srtt_s + _DEVIATIONS * self.rttvar_s)
        return min(settings.rto_max_s, rto_s * self._backoff)
