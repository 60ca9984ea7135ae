"""The shared state of simulated workers of a paced target: flowctl_redis' script, in memory."""

from __future__ import annotations

from collections.abc import Callable

from flowctl.core.pacing.leases import Claim, Reply, Sums, Table, WorkerReport, least_rate
from flowctl.errors import InfrastructureError

_LEADER_S = 1.0  # as in pace.lua


class _Entry:
    """The state of one worker: its report, its permits, its grant."""

    __slots__ = ("claim", "goal", "holds", "rate", "rate_goal", "till_s")

    def __init__(self, claim: Claim, holds: int, rate: float, goal: int) -> None:
        self.claim = claim
        self.holds = holds
        self.rate = self.rate_goal = rate
        self.goal = goal
        self.till_s = 0.0


class Place:
    """A :class:`flowctl.pacing.client.Exchange` for all workers of one target.

    While ``is_away`` exchanges fail.  ``exchanges`` is their number so far.  ``leased`` are the
    permits that workers hold, including dead workers until a leader has looked.  Not thread-safe.
    """

    address = "the simulator"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_away = False
        self.exchanges: int = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything, as a server that is restarted empty."""
        self.limit: int | None = None
        self.learned_rate: float = 0.0  # 0: none
        self.reason = ""
        self.total: Sums = Sums()
        self.jobs: dict[str, Sums] = {}
        self.entries: dict[str, _Entry] = {}
        self.leased: int = 0
        self._rated = 0.0
        self._leader: str | None = None
        self._leader_until_s = 0.0

    def exchange(self, report: WorkerReport) -> Reply:
        """See ``pace.lua``, which has the same steps."""
        if self.is_away:
            raise InfrastructureError("the simulated server is away.", remedy="Wait.")
        self.exchanges += 1
        now_s, me = self._clock(), report.claim.worker
        self._decide(report)
        self._add(report)
        budget = least_rate(report.budget or 0.0, self.learned_rate)
        permits, rate = self._lease(report, now_s, budget)
        table = None
        if not report.is_leaving and (self._leader == me or self._leader_until_s <= now_s):
            self._leader, self._leader_until_s = me, now_s + _LEADER_S
            table = self._table(now_s, report.budget or 0.0)
        assert self.limit is not None
        workers = len(self.entries)
        is_learned = budget != (report.budget or 0.0)
        return Reply(
            now_s, self.limit, permits, rate, workers, budget, table, self.reason, is_learned
        )

    def _decide(self, report: WorkerReport) -> None:
        decision = report.decision
        if decision is not None and self._leader == report.claim.worker:
            self.limit, self.reason = decision.limit, decision.reason
            self.learned_rate = decision.rate
            for worker, (goal, rate) in decision.goals.items():
                if (entry := self.entries.get(worker)) is not None:
                    entry.goal, entry.rate_goal = goal, rate
        if self.limit is None:
            self.limit = report.known_limit

    def _add(self, report: WorkerReport) -> None:
        job = report.claim.job
        self.total = self.total.plus(report.done)
        self.jobs[job] = self.jobs.get(job, Sums()).plus(report.done)

    def _lease(self, report: WorkerReport, now_s: float, budget: float) -> tuple[int, float]:
        claim, limit = report.claim, self.limit or 0
        mine = self.entries.pop(claim.worker, None)
        if mine is not None:
            self.leased, self._rated = self.leased - mine.holds, self._rated - mine.rate
        free, free_rate = limit - self.leased, budget - self._rated
        if mine is None:
            room, room_rate = max(0, free), max(0.0, free_rate)
            goal = min(max(claim.holds, 1), room)
            mine = _Entry(claim, min(claim.holds, room), min(report.rate, room_rate), goal)
        else:
            mine.holds, mine.rate = min(mine.holds, claim.holds), min(mine.rate, report.rate)
        permits, rate = mine.goal, mine.rate_goal
        if report.is_leaving:
            if self._leader == claim.worker:
                self._leader, self._leader_until_s = None, 0.0
            return permits, rate
        if permits > mine.holds:
            mine.holds += max(0, min(permits, free) - mine.holds)
            permits = mine.holds
        if rate > mine.rate:
            mine.rate += max(0.0, min(rate, free_rate) - mine.rate)
            rate = mine.rate
        mine.claim, mine.till_s = claim._replace(holds=mine.holds), now_s + report.ttl_s
        self.entries[claim.worker] = mine
        self.leased, self._rated = self.leased + mine.holds, self._rated + mine.rate
        return permits, rate

    def _table(self, now_s: float, budget: float) -> Table:
        self.entries = {name: e for name, e in self.entries.items() if e.till_s > now_s}
        self.leased = sum(entry.holds for entry in self.entries.values())
        self._rated = sum(entry.rate for entry in self.entries.values())
        goals = {name: (e.goal, e.rate_goal) for name, e in self.entries.items()}
        return Table(
            tuple(e.claim for e in self.entries.values()),
            goals,
            self.total,
            budget=budget,
            rate=self.learned_rate,
        )
