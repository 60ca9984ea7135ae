"""What a worker reports of its gate at each exchange."""

from __future__ import annotations

import secrets
from typing import Final

from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Sums, WorkerReport
from flowctl.pacing.call_counts import CallCounts
from flowctl.pacing.gate import Gate
from flowctl.pacing.settings import PaceSettings

# Nothing was called for so long: the permits go back, and the thread sleeps until the next call.
IDLE_S: Final = 2.0
# Of what a worker has used of the budget, as it may use a little more next time.
_RATE_ROOM: Final = 1.5
# Two exchanges in quick succession say nothing about a rate.
_SPAN_MIN_S: Final = 0.1


class Reporter:
    """The gate's lock is held in all calls.  ``rate``, ``known_limit``: of the last answer."""

    def __init__(self, gate: Gate, settings: PaceSettings) -> None:
        self._gate = gate
        self._settings = settings
        self._me = secrets.token_hex(8)
        self._told = Sums()  # what was answered
        self._telling = CallCounts()
        self._told_at_s = self._wanted_at_s = gate.clock()
        self._want_before = 0
        self._used_rate = 0.0
        self.rate: float = 0.0
        limits = settings.limits
        self.known_limit: int = limits.bounds.clamped(limits.in_flight_start)

    def report(
        self, now_s: float, ttl_s: float, decision: Decision | None, *, is_ending: bool = False
    ) -> WorkerReport:
        """Return what to say now.  A worker that leaves gives its permits up at once.

        ``is_ending``: the process ends, so it leaves.
        """
        gate, settings = self._gate, self._settings
        self._telling = counters = gate.take_sums()
        if counters.want:
            self._wanted_at_s = now_s
        is_idle = not gate.in_flight and now_s - self._wanted_at_s >= IDLE_S
        is_leaving = is_ending or is_idle
        if is_leaving:
            gate.set_permits(0)
        done = counters.sums.minus(self._told)
        claim = Claim(
            self._me,
            settings.job,
            settings.weight,
            max(counters.want, self._want_before),
            self._wanted_rate(done, now_s),
            max(gate.permits, gate.in_flight),
            counters.in_flight,
            counters.is_held,
            counters.resting,
        )
        self._want_before = counters.want
        return WorkerReport(
            claim, self.rate, done, ttl_s, self.known_limit, settings.budget, is_leaving, decision
        )

    def answered(self, now_s: float, *, rate: float, limit: int) -> None:
        """The last report has arrived; ``now_s``: when it was made."""
        self._told, self._told_at_s = self._telling.sums, now_s
        self.rate, self.known_limit = rate, limit

    def _wanted_rate(self, done: Sums, now_s: float) -> float:
        if self._telling.is_rate_held:
            return RATE_MOST
        spent_s = now_s - self._told_at_s
        if spent_s >= _SPAN_MIN_S:
            self._used_rate = done.cost / spent_s
        return _RATE_ROOM * self._used_rate
