"""A worker's side of a target that many workers share: it leases permits and reports.

A daemon thread exchanges four times a second while there are calls; it renews the leases even if
all other threads wait in calls.  A call itself never waits for an exchange.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, Protocol

from flowctl.core.pacing.law import TargetLaw
from flowctl.core.pacing.leader import Law, Leader
from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Reply, Sums, WorkerReport
from flowctl.core.pacing.quotas import GrantedPots, Pots, Wish
from flowctl.errors import InfrastructureError
from flowctl.instrumentation.logging import get_logger, is_heard
from flowctl.pacing.budgets import span_of
from flowctl.pacing.call_counts import CallCounts
from flowctl.pacing.gate import Gate, Known
from flowctl.pacing.in_process import TICK_S, LocalSource
from flowctl.pacing.target_settings import PaceSettings

# -- What a worker reports of its gate at each exchange ----------------------------------------


# After this long without a call [s] the permits are given back, and the thread sleeps until the
# next call.
IDLE_S: Final = 2.0
# A worker asks for this many times the budget that it used, as it may use a little more next time.
_RATE_ROOM: Final = 1.5
# Two exchanges in quicker succession [s] say nothing about a rate.
_SPAN_MIN_S: Final = 0.1


class Reporter:
    """Makes a worker's reports.

    All calls need the gate's lock.  ``rate``, ``known_limit``: from the last answer.
    """

    def __init__(self, gate: Gate, settings: PaceSettings) -> None:
        self._gate = gate
        self._settings = settings
        self._me = secrets.token_hex(8)
        self._told = Sums()  # the sums of the last answered report
        self._telling = CallCounts()
        self._told_at_s = self._wanted_at_s = gate.clock()
        self._rate_held_at_s = -inf
        self._want_before = 0
        self._used_rate = 0.0
        self.rate: float = 0.0
        limits = settings.limits
        self.known_limit: int = limits.bounds.clamped(limits.in_flight_start)

    def report(
        self, now_s: float, ttl_s: float, decision: Decision | None, *, is_ending: bool = False
    ) -> WorkerReport:
        """Return the report to send now.  A worker that leaves gives its permits up at once.

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
            counters.told_rate,
        )
        self._want_before = counters.want
        calls, wishes = self._wishes()
        return WorkerReport(
            claim,
            self.rate,
            done,
            ttl_s,
            self.known_limit,
            settings.budget,
            is_leaving,
            decision,
            0 if is_leaving else calls,
            wishes,
        )

    def _wishes(self) -> tuple[int, tuple[Wish, ...]]:
        pots = self._gate.pots
        if not isinstance(pots, GrantedPots):  # there are no quotas, or nobody could be asked
            return 0, ()
        return pots.wishes(self._gate.wall(), self._gate.waiting)

    def answered(self, now_s: float, *, rate: float, limit: int) -> None:
        """Note that the last report, made at ``now_s``, has arrived."""
        self._told, self._told_at_s = self._telling.sums, now_s
        self.rate, self.known_limit = rate, limit

    def _wanted_rate(self, done: Sums, now_s: float) -> float:
        if self._telling.is_rate_held:
            self._rate_held_at_s = now_s
        if self._gate.permits and now_s - self._rate_held_at_s < IDLE_S:
            # Also while all of its callers are in calls: a share of the budget is lost while it
            # moves.
            return RATE_MOST
        spent_s = now_s - self._told_at_s
        if spent_s >= _SPAN_MIN_S:
            self._used_rate = done.cost / spent_s
        return _RATE_ROOM * self._used_rate


# -- A worker's part of a target that many workers share ---------------------------------------


# Four exchanges a second; above a thousand workers less often, so that all of them stay below
# 5,000 a second, which one Redis does with a part of a core.
PERIOD_S: Final = 0.25
_WORKERS_A_PERIOD: Final = 1000
# One more exchange a second for what can't wait: a leader's decision, a permit that a caller waits
# for.
_EXTRA_A_SECOND: Final = 1.0
_EXTRA_MOST: Final = 2.0
# A lease ends after this, if it is not renewed: eight heartbeats. With the leader's next look a
# killed worker's permits are back within 3 s.
TTL_S: Final = 2.0
_TTL_PERIODS: Final = 8


class Exchange(Protocol):
    """The place where the workers of a target meet; used by one thread."""

    @property
    def address(self) -> str:
        """The address as text, without secrets."""

    def exchange(self, report: WorkerReport) -> Reply:
        """Report, and get the lease; InfrastructureError if it can't be reached."""


class LeaseSource:
    """A :class:`flowctl.pacing.gate.Source`; while the exchange can't be reached, it runs the law
    alone.

    :meth:`start` starts the thread.  The simulator has none: it calls :meth:`turn` four times a
    second, and :meth:`turn_early` after ``wake``, which is called with the gate's lock held.
    """

    def __init__(
        self,
        gate: Gate,
        settings: PaceSettings,
        exchange: Exchange,
        wake: Callable[[], None] | None = None,
        law: Callable[..., Law] = TargetLaw,
    ) -> None:
        self._gate = gate
        self.settings = settings
        self._exchange = exchange
        self._reporter = Reporter(gate, settings)
        self._leader = Leader(
            settings.limits.bounds, leave=settings.leave, tick_s=PERIOD_S, law=law
        )
        self._decision: Decision | None = None
        self._period_s = PERIOD_S
        self._extra = _EXTRA_MOST
        self._alone: LocalSource | None = None
        self._reason = "start"
        self._workers = 1
        self._wall_ahead_s = 0.0
        self._pots: GrantedPots | None = None
        if settings.quotas:
            self._pots = gate.pots = GrantedPots(settings.quotas, span_of)
        self._owes = False  # holds more permits than it may: others wait for them
        self._sleeps = True  # no lease, and no caller wants one
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flowctl-pacing", daemon=True)
        self._wake = wake or self._woken.set

    def start(self) -> None:
        """Begin to exchange as soon as a call wants a permit."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon, which gives the lease back.  Calls that wait then wait for ever."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread after :meth:`stop`."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the gate's: its lock is held ---------------------------------------------------------

    def on_wanted(self, now_s: float) -> None:
        """Wake the thread if it sleeps; otherwise its next report includes the wish."""
        if self._sleeps:
            self._sleeps = False
            self._wake()

    def on_left(self, now_s: float) -> None:
        """Run the law here while the others can't be reached; give back at once any permits beyond
        the lease.
        """
        if self._alone is not None:
            self._alone.on_left(now_s)
        elif self._owes and self._gate.in_flight <= self._gate.permits:
            self._owes = False
            self._wake()

    def known(self) -> Known:
        """Return the limit of the last answer, or the one this process has learned while it is
        alone.
        """
        if self._alone is not None:
            return self._alone.known()
        return Known(self._reporter.known_limit, self._reason, is_shared=True)

    # -- the thread's -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._woken.wait(None if self._sleeps else self._period_s):
                    self._woken.clear()
                    if self._stopping.is_set() or self.turn_early():
                        continue
                    time.sleep(self._period_s)
                self.turn()
            self.leave()
        except Exception as error:  # a defect here must not stop the program that is paced
            self._log(logging.ERROR, "pacing_failed", problem=f"{type(error).__name__}: {error}")
            with self._gate.lock:
                self._go_alone()

    def leave(self) -> None:
        """Send the last report and give the lease back, if the exchange can be reached."""
        if self._sleeps or self._alone is not None:
            return
        with self._gate.lock:
            report = self._reporter.report(self._gate.clock(), TTL_S, None, is_ending=True)
        with suppress(InfrastructureError):
            self._exchange.exchange(report)

    def turn(self) -> None:
        """Exchange once; twice if this worker has something to report that can't wait."""
        self._extra = min(_EXTRA_MOST, self._extra + _EXTRA_A_SECOND * self._period_s)
        self._exchange_once()
        gate = self._gate
        with gate.lock:
            gives_back = self._owes and gate.in_flight <= gate.permits
        if (self._decision is not None or gives_back) and self._may_hurry():
            self._exchange_once()

    def turn_early(self) -> bool:
        """Exchange early, unless that was done too often; return whether it was done."""
        if not self._may_hurry():
            return False
        self._exchange_once()
        return True

    def _may_hurry(self) -> bool:
        if self._extra < 1:
            return False
        self._extra -= 1
        return True

    def _exchange_once(self) -> None:
        gate = self._gate
        with gate.lock:
            sent_at_s = gate.clock()
            ttl_s = max(TTL_S, _TTL_PERIODS * self._period_s)
            report = self._reporter.report(sent_at_s, ttl_s, self._decision)
            self._sleeps = report.is_leaving
        try:
            reply = self._exchange.exchange(report)
        except InfrastructureError as error:
            with gate.lock:
                if self._pots is not None:
                    self._pots.unanswered(report.wishes)
                self._on_away(error)
            return
        self._decision = None
        if reply.table is None:
            self._leader.abdicate()
        else:
            self._decision = self._leader.decide(reply)
        with gate.lock:
            self._reporter.answered(sent_at_s, rate=reply.rate, limit=reply.limit)
            self._reason = reply.reason or "start"  # no leader has decided yet
            self._owes = reply.permits < report.claim.holds
            if not report.is_leaving:
                self._take_grants(reply, sent_at_s)
                self._apply(reply, sent_at_s, sent_at_s + ttl_s)

    def _apply(self, reply: Reply, sent_at_s: float, valid_until_s: float) -> None:
        self._period_s = PERIOD_S * max(1.0, reply.workers / _WORKERS_A_PERIOD)
        self._workers = reply.workers
        if self._alone is not None:
            self._alone = None
            self._log(logging.INFO, "pacing_shared_again")
        rate = reply.rate if reply.budget else inf
        self._gate.set_rate(rate, sent_at_s, is_learned=reply.is_learned)
        self._gate.set_permits(reply.permits, valid_until_s)

    def _take_grants(self, reply: Reply, sent_at_s: float) -> None:
        gate, pots = self._gate, self._pots
        if pots is None:
            return
        if isinstance(gate.pots, Pots):
            pots.was_alone(gate.pots)
            gate.pots = pots
        pots.granted(sent_at_s, reply.grants)
        # Days end by the clock that all share.
        self._wall_ahead_s = reply.now_s - sent_at_s
        gate.wall = self._shared_wall

    def _shared_wall(self) -> float:
        return self._gate.clock() + self._wall_ahead_s

    # -- while nobody can be asked ------------------------------------------------------------

    def _on_away(self, error: InfrastructureError) -> None:
        """Use the leased permits while the lease lasts, then learn alone."""
        gate = self._gate
        if self._alone is None and not (gate.permits and gate.clock() < gate.valid_until_s):
            self._log(
                logging.WARNING,
                "pacing_alone",
                problem=error.problem,
                remedy="This process learns its own limit until the others can be reached again.",
            )
            self._go_alone()

    def _go_alone(self) -> None:
        gate, settings = self._gate, self.settings
        had = gate.permits or 1
        law = TargetLaw(settings.limits.bounds, leave=settings.leave, tick_s=TICK_S, known=had)
        rate = self._reporter.rate or settings.rate
        self._alone = LocalSource(gate, law, rate=rate)
        if self._pots is not None:
            gate.pots = self._pots.alone(gate.clock(), gate.wall(), self._workers)

    def _log(self, level: int, event: str, **fields: Any) -> None:
        target, at = self.settings.target, self._exchange.address
        get_logger().log(level, event, target=target, at=at, **fields)
        if level >= logging.WARNING and not is_heard() and sys.stderr is not None:
            # Otherwise a wrong URL would never be noticed: each process would learn a separate
            # limit.
            told = " ".join(fields.values())
            sys.stderr.write(f"flowctl: target {target!r} at {at}: {told}\n")
