"""A worker's side of a target that many workers share: it leases permits and reports.

A daemon thread exchanges four times a second for each target while there are calls; it renews the
leases even if all other threads wait in calls.  A call itself never waits for an exchange.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from flowctl.core.pacing.law import TargetLaw
from flowctl.core.pacing.leader import Law, Leader
from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Reply, Sums, WorkerReport
from flowctl.core.pacing.quotas import GRANT_S, GrantedPots, Pots, Wish
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
        self.hold_s = GRANT_S  # how long what is granted may be used
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
            self.hold_s,
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
_HOLD_PERIODS: Final = 1.6  # what is granted is used until the next exchange, if that is late
# The targets of one process that exchange four times a second: 400 of .3 ms use .1 core.
_TARGETS_A_PERIOD: Final = 100


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

    :class:`Turns` calls :meth:`turn` four times a second, and :meth:`turn_early` after ``wake``,
    which is called with the gate's lock held; in the simulator that does.
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
        self.exchange: Exchange = exchange
        self._sent_at_s = 0.0
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
        self.crowd = 1.0  # exchanges are so many times rarer, as a process has many targets
        self.is_stopping = False
        self.is_quiet = False  # another target of this process has said that nobody can be asked
        self.has_left: threading.Event = threading.Event()
        self.wake: Callable[[], None] = wake or (lambda: None)

    def stop(self) -> None:
        """Give the lease back soon.  Calls that wait then wait for ever."""
        self.is_stopping = True
        self.wake()

    def join(self, timeout_s: float) -> None:
        """Wait until that is done, after :meth:`stop`."""
        self.has_left.wait(timeout_s)

    @property
    def is_alone(self) -> bool:
        """Whether nobody can be asked, so that it learns alone."""
        return self._alone is not None

    @property
    def sleeps(self) -> bool:
        """Whether there is no lease, and no caller wants one: no turn is due."""
        return self._sleeps

    @property
    def period_s(self) -> float:
        """The time between two turns [s]."""
        return self._period_s * self.crowd

    # -- the gate's: its lock is held ---------------------------------------------------------

    def on_wanted(self, now_s: float) -> None:
        """Wake the thread if it sleeps; otherwise its next report includes the wish."""
        if self._sleeps:
            self._sleeps = False
            self.wake()

    def on_left(self, now_s: float) -> None:
        """Run the law here while the others can't be reached; give back at once any permits beyond
        the lease.
        """
        if self._alone is not None:
            self._alone.on_left(now_s)
        elif self._owes and self._gate.in_flight <= self._gate.permits:
            self._owes = False
            self.wake()

    def known(self) -> Known:
        """Return the limit of the last answer, or the one this process has learned while it is
        alone.
        """
        if self._alone is not None:
            return self._alone.known()
        return Known(self._reporter.known_limit, self._reason, is_shared=True)

    # -- the thread's -------------------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """Learn alone from now on: a defect here must not stop the program that is paced."""
        self._log(logging.ERROR, "pacing_failed", problem=f"{type(error).__name__}: {error}")
        with self._gate.lock:
            self._sleeps = False
            self._go_alone()

    def leave(self) -> None:
        """Send the last report and give the lease back, if the exchange can be reached."""
        if self._sleeps or self._alone is not None:
            return
        with self._gate.lock:
            report = self._reporter.report(self._gate.clock(), TTL_S, None, is_ending=True)
        with suppress(InfrastructureError):
            self.exchange.exchange(report)

    def turn(self) -> None:
        """Exchange once; twice if this worker has something to report that can't wait."""
        self.earn()
        self._exchange_once()
        if self.is_urgent() and self.may_hurry():
            self._exchange_once()

    def turn_early(self) -> bool:
        """Exchange early, unless that was done too often; return whether it was done."""
        if not self.may_hurry():
            return False
        self._exchange_once()
        return True

    def earn(self) -> None:
        """Note that a period is over: it earns a part of an early exchange."""
        self._extra = min(_EXTRA_MOST, self._extra + _EXTRA_A_SECOND * self.period_s)

    def is_urgent(self) -> bool:
        """Whether this worker has something to report that can't wait."""
        gate = self._gate
        with gate.lock:
            gives_back = self._owes and gate.in_flight <= gate.permits
        return self._decision is not None or gives_back

    def may_hurry(self) -> bool:
        """Use an early exchange; return whether there was one."""
        if self._extra < 1:
            return False
        self._extra -= 1
        return True

    def _exchange_once(self) -> None:
        report = self.report()
        try:
            reply = self.exchange.exchange(report)
        except InfrastructureError as error:
            self.unanswered(report, error)
        else:
            self.answered(report, reply)

    def report(self) -> WorkerReport:
        """Return what to say now; the answer goes to :meth:`answered`."""
        gate = self._gate
        with gate.lock:
            self._sent_at_s = gate.clock()
            ttl_s = max(TTL_S, _TTL_PERIODS * self.period_s)
            self._reporter.hold_s = max(GRANT_S, _HOLD_PERIODS * self.period_s)
            report = self._reporter.report(self._sent_at_s, ttl_s, self._decision)
            self._sleeps = report.is_leaving
        return report

    def unanswered(self, report: WorkerReport, error: InfrastructureError) -> None:
        """Note that nobody could be asked."""
        with self._gate.lock:
            if self._pots is not None:
                self._pots.unanswered(report.wishes)
            self._on_away(error)

    def answered(self, report: WorkerReport, reply: Reply) -> None:
        """Take the answer; decide if this worker leads."""
        self._decision = None
        if reply.table is None:
            self._leader.abdicate()
        else:
            self._decision = self._leader.decide(reply)
        sent_at_s = self._sent_at_s
        with self._gate.lock:
            self._reporter.answered(sent_at_s, rate=reply.rate, limit=reply.limit)
            self._reason = reply.reason or "start"  # no leader has decided yet
            self._owes = reply.permits < report.claim.holds
            if not report.is_leaving:
                self._take_grants(reply, sent_at_s)
                self._apply(reply, sent_at_s, sent_at_s + report.ttl_s)

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
        pots.granted(sent_at_s, reply.grants, self._reporter.hold_s)
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
                logging.INFO if self.is_quiet else logging.WARNING,
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
        target, at = self.settings.target, self.exchange.address
        get_logger().log(level, event, target=target, at=at, **fields)
        if level >= logging.WARNING and not is_heard() and sys.stderr is not None:
            # Otherwise a wrong URL would never be noticed: each process would learn a separate
            # limit.
            told = " ".join(fields.values())
            sys.stderr.write(f"flowctl: target {target!r} at {at}: {told}\n")


# -- The thread that takes the turns of all targets ----------------------------------------------


ExchangeAll: TypeAlias = (
    "Callable[[Sequence[tuple[Any, WorkerReport]]], Sequence[Reply | InfrastructureError]]"
)


class Turns:
    """Takes the turns of all targets that this process shares through one Redis, in one thread.

    Thread-safe.  The thread begins with the first target and ends with the last one.
    ``exchange_all``: exchanges and their reports in, their answers or errors out, in one go.
    """

    def __init__(self, exchange_all: ExchangeAll) -> None:
        self._exchange_all = exchange_all
        self._lock = threading.Lock()
        self._woken: deque[LeaseSource] = deque()
        self._event = threading.Event()
        self._sources: set[LeaseSource] = set()
        self._due: list[tuple[float, int, LeaseSource]] = []  # a heap; of those in ``_next``
        self._next: dict[LeaseSource, float] = {}
        self._count = itertools.count()

    def add(self, source: LeaseSource) -> None:
        """Take its turns from now on, as soon as a call wants a permit."""

        def wake() -> None:
            self._woken.append(source)
            self._event.set()

        source.wake = wake
        with self._lock:
            self._sources.add(source)
            if len(self._sources) == 1:
                threading.Thread(target=self._run, name="flowctl-pacing", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._event.wait(self._wait_s())
            self._event.clear()
            turns = self._due_turns()
            early = []
            while self._woken:
                source = self._woken.popleft()
                if source.is_stopping:
                    self._guarded([source], LeaseSource.leave)
                    if self._is_last(source):
                        return
                elif source in turns or source in early:
                    continue
                elif source.may_hurry():
                    early.append(source)
                else:
                    self._later(source)
            for source in turns:
                source.earn()
            self._exchange([*early, *turns])
            self._exchange([each for each in turns if each.is_urgent() and each.may_hurry()])
            for source in (*early, *turns):
                if source.sleeps:
                    self._next.pop(source, None)
                else:
                    self._later(source)

    def _wait_s(self) -> float | None:
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def _due_turns(self) -> list[LeaseSource]:
        found, now_s = [], time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            at_s, _, source = heappop(self._due)
            if self._next.get(source) == at_s:
                found.append(source)
        return found

    def _exchange(self, sources: Sequence[LeaseSource]) -> None:
        """Let all of ``sources`` exchange, in one round trip."""
        if not sources:
            return
        asked = [(source, source.report()) for source in sources]
        replies = self._exchange_all([(each.exchange, report) for each, report in asked])
        for (source, report), reply in zip(asked, replies, strict=True):
            if isinstance(reply, InfrastructureError):
                source.is_quiet = any(each.is_alone for each in self._sources)
                source.unanswered(report, reply)
            else:
                self._guarded([source], LeaseSource.answered, report, reply)

    def _guarded(self, sources: Sequence[LeaseSource], do: Callable[..., None], *args: Any) -> None:
        for source in sources:
            try:
                do(source, *args)
            except Exception as error:
                self._next.pop(source, None)
                source.failed(error)

    def _later(self, source: LeaseSource) -> None:
        if source not in self._sources:
            return
        source.crowd = max(1.0, len(self._next) / _TARGETS_A_PERIOD)
        at_s = self._next[source] = time.monotonic() + source.period_s
        heappush(self._due, (at_s, next(self._count), source))

    def _is_last(self, source: LeaseSource) -> bool:
        """Forget ``source``, which has left; return whether it was the last one."""
        with self._lock:
            self._sources.discard(source)
            is_last = not self._sources
            if is_last:
                self._due.clear()
        source.has_left.set()
        return is_last
