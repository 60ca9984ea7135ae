"""What the leader of a target decides, once an epoch, on what all workers have said."""

from __future__ import annotations

from flowctl.core.pacing.law import Bounds, TargetLaw
from flowctl.core.pacing.leases import RATE_MOST, Decision, Reply, Sums, Table
from flowctl.core.pacing.sample import Sample
from flowctl.core.pacing.shares import Shares, rates

# A part of the budget moves if it changes by this part of itself: less is noise of one call.
_RATE_STEP = 0.02
# Two exchanges this close together are one sample: a leader may report twice to tell a decision.
_SPAN_MIN_S = 0.1


class Leader:
    """The law, and the memory of who was short of what.  Pure; not thread-safe.

    A worker that takes over begins at the limit that was stored.
    """

    __slots__ = ("_at_s", "_bounds", "_law", "_leave", "_resets", "_shares", "_tick_s", "_total")

    def __init__(self, bounds: Bounds, *, leave: float, tick_s: float) -> None:
        self._bounds = bounds
        self._leave = leave
        self._tick_s = tick_s
        self._law: TargetLaw | None = None
        self._shares = Shares()
        self._at_s = 0.0
        self._total = Sums()
        self._resets = 0

    def abdicate(self) -> None:
        """Another leads: what is learned from now on is its."""
        self._law = None

    def decide(self, reply: Reply) -> Decision | None:
        """Return what changes; None: nothing.  ``reply`` has a table."""
        table = reply.table
        assert table is not None
        law = self._law
        if law is None or table.resets != self._resets:
            law = self._begin(reply, table)
        elif reply.now_s - self._at_s >= _SPAN_MIN_S:
            law.bounds = self._bounded(table)
            law.on_sample(reply.now_s, self._sample(reply.now_s, table, reply.budget > 0))
        goals = self._goals(reply, table, law.limit)
        if law.limit == reply.limit and not goals:
            return None
        return Decision(law.limit, law.reason, goals)

    def _begin(self, reply: Reply, table: Table) -> TargetLaw:
        is_reset = self._law is not None
        # A server that was emptied has no calls, but workers reported the limit that they knew.
        is_new = not table.total.calls and reply.limit == self._bounds.start
        known = None if is_reset or is_new else reply.limit
        law = TargetLaw(self._bounded(table), leave=self._leave, tick_s=self._tick_s, known=known)
        self._law, self._resets = law, table.resets
        self._at_s, self._total = reply.now_s, table.total
        return law

    def _bounded(self, table: Table) -> Bounds:
        """The user's bounds, narrowed by those of an operator."""
        least, most, start = self._bounds
        if table.most is not None:
            most = table.most
        if table.least is not None:
            least = table.least
        return Bounds(min(least, most), most, start)

    def _sample(self, now_s: float, table: Table, has_budget: bool) -> Sample:
        done = table.total.minus(self._total)
        span_s = now_s - self._at_s
        self._at_s, self._total = now_s, table.total
        claims = table.claims
        return Sample.of(
            span_s,
            done,
            in_flight=sum(claim.in_flight for claim in claims),
            is_held=any(claim.is_held for claim in claims),
            is_rate_held=has_budget and any(claim.want_rate >= RATE_MOST for claim in claims),
            resting=sum(claim.resting for claim in claims),
        )

    def _goals(self, reply: Reply, table: Table, limit: int) -> dict[str, tuple[int, float]]:
        permits = self._shares.permits(reply.now_s, limit, table.claims)
        parts = rates(reply.budget * (1 - self._leave), table.claims) if reply.budget else {}
        goals = {}
        for worker, share in permits.items():
            had, had_rate = table.goals[worker]
            rate = parts.get(worker, 0.0)
            if abs(rate - had_rate) <= _RATE_STEP * had_rate:
                rate = had_rate
            if (share, rate) != (had, had_rate):
                goals[worker] = share, rate
        return goals
