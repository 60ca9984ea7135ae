"""What the leader of a target decides, once an epoch, from the reports of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final, Protocol

from flowctl.core.pacing.law import Bounds, TargetLaw
from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Reply, Sums, Table, least_rate
from flowctl.core.pacing.sample import Sample

# -- Who gets how many of a target's permits, and how much of its budget -----------------------
# Fair: jobs by weight, the workers of a job equally, and none more than it can use (max-min
# fairness, by filling up).  Permits are whole, so the remainder goes round: the worker that lacked
# permits for longest gets the next one, and keeps it for some seconds, as a permit is idle while it
# moves.


# A permit moves when another worker lacks this many more permit-seconds than its holder.  With two
# or more workers for each permit it moves after 8 s, and is idle for some .2 s of that.
_KEPT: Final = 8.0
# A worker is owed at most this many permit-seconds, so that permits it missed while it was frozen
# do not count.
_OWED_MAX: Final = 2 * _KEPT


def fair(total: float, claims: Sequence[tuple[float, float]]) -> list[float]:
    """Share ``total`` by weight; no claim gets more than it wants.  ``claims``: (weight, want)."""
    shares = [0.0] * len(claims)
    # The claim that wants least for its weight is satisfied first; the others share the rest.
    order = sorted(range(len(claims)), key=lambda i: claims[i][1] / claims[i][0])
    weights = sum(weight for weight, _ in claims)
    for i in order:
        weight, want = claims[i]
        shares[i] = min(want, total * weight / weights) if weights > 0 else 0.0
        total -= shares[i]
        weights -= weight
    return shares


class Shares:
    """The leader's memory of which workers lacked permits.  Pure; not thread-safe."""

    __slots__ = ("_at_s", "_owed")

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}  # permit-seconds; "j:" a job, "w:" a worker
        self._at_s: float | None = None

    def permits(self, now_s: float, limit: int, claims: Sequence[Claim]) -> dict[str, int]:
        """Return each worker's permits: ``limit`` in all, or twice what is wanted if that is
        less.
        """
        spent_s = 0.0 if self._at_s is None else min(1.0, max(0.0, now_s - self._at_s))
        self._at_s = now_s
        # A permit that rests after a refusal can be used by another worker.
        claims = [each._replace(want=max(0, each.want - each.resting)) for each in claims]
        known, self._owed = self._owed, {}
        jobs = _by_job(claims)
        wants = [(each[0].weight, float(sum(c.want for c in each))) for each in jobs.values()]
        of_jobs = self._rounded(
            [f"j:{job}" for job in jobs],
            fair(limit, wants),
            [sum(c.holds for c in each) for each in jobs.values()],
            (known, spent_s),
        )
        given: dict[str, int] = {}
        for each, total in zip(jobs.values(), of_jobs, strict=True):
            shares = self._rounded(
                [f"w:{c.worker}" for c in each],
                fair(total, [(1.0, float(c.want)) for c in each]),
                [c.holds for c in each],
                (known, spent_s),
            )
            given |= {c.worker: share for c, share in zip(each, shares, strict=True)}
        return _with_spare(given, limit, claims)

    def _rounded(
        self,
        names: Sequence[str],
        shares: Sequence[float],
        holds: Sequence[int],
        memory: tuple[Mapping[str, float], float],
    ) -> list[int]:
        """Return whole permits, as many as the shares together; the remainder goes round."""
        known, spent_s = memory
        given = [int(share + 1e-9) for share in shares]
        spare = int(sum(shares) + 1e-6) - sum(given)
        owed = [known.get(name, 0.0) for name in names]
        open_ = [i for i, share in enumerate(shares) if share - given[i] > 1e-9]
        open_.sort(key=lambda i: owed[i] + _KEPT * (holds[i] > given[i]), reverse=True)
        # Permits that came together don't leave together: a permit is idle while it moves.
        moves = 1 + int(2 * spare * spent_s / _KEPT)
        staying = [i for i in open_ if holds[i] > given[i]][: max(0, spare - moves)]
        for i in list(dict.fromkeys([*staying, *open_]))[:spare]:
            given[i] += 1
        for i, name in enumerate(names):
            debt = owed[i] + (shares[i] - given[i]) * spent_s
            self._owed[name] = max(-_OWED_MAX, min(_OWED_MAX, debt))
        return given


def _by_job(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    jobs: dict[str, list[Claim]] = {}
    for claim in claims:
        jobs.setdefault(claim.job, []).append(claim)
    return jobs


def _with_spare(given: dict[str, int], limit: int, claims: Sequence[Claim]) -> dict[str, int]:
    """Give permits that no worker wants now to the busy ones: they may want more in a moment."""
    spare = limit - sum(given.values())
    if spare > 0:
        more = fair(spare, [(1.0, float(claim.want)) for claim in claims])
        for claim, share in zip(claims, more, strict=True):
            given[claim.worker] += int(share)
    return given


def rates(budget: float, claims: Sequence[Claim]) -> dict[str, float]:
    """Return each worker's share of the budget [cost/s]; all of it, if there is any worker."""
    jobs = _by_job(claims)
    each = [(c.weight / len(jobs[c.job]), c.want_rate) for c in claims]
    shares = fair(budget, each)
    spare = max(0.0, budget - sum(shares)) / len(claims) if claims else 0.0
    return {c.worker: share + spare for c, share in zip(claims, shares, strict=True)}


# -- What the leader of a target decides, once an epoch, on what all workers have said ---------


# A share of the budget moves if it changes by this share of itself: less is the noise of one call.
_RATE_STEP = 0.02
# Two exchanges this close together [s] are one sample: a leader may report twice to publish a
# decision.
_SPAN_MIN_S = 0.1


class Law(Protocol):
    """The law that a leader follows: :class:`flowctl.core.pacing.law.TargetLaw`, or another for
    comparison.

    ``limit``: calls in flight; ``rate``: cost a second, infinite without a bound.
    """

    limit: int
    rate: float
    reason: str
    bounds: Bounds

    def on_sample(self, now_s: float, sample: Sample) -> None:
        """Take a sample of the time since the last one, and decide."""


class Leader:
    """The law, and the memory of which worker lacked what.  Pure; not thread-safe.

    A worker that takes over begins at the limit that was stored.
    """

    __slots__ = (
        "_at_s", "_bounds", "_law", "_leave", "_made", "_resets", "_shares", "_tick_s", "_total",
    )  # fmt: skip

    def __init__(
        self,
        bounds: Bounds,
        *,
        leave: float,
        tick_s: float,
        law: Callable[..., Law] = TargetLaw,
    ) -> None:
        self._made = law
        self._bounds = bounds
        self._leave = leave
        self._tick_s = tick_s
        self._law: Law | None = None
        self._shares = Shares()
        self._at_s = 0.0
        self._total = Sums()
        self._resets = 0

    def abdicate(self) -> None:
        """Stop leading: another worker learns from now on."""
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
        rate = law.rate if law.rate < inf else 0.0
        goals = self._goals(reply.now_s, table, law.limit, self._budget(table, rate))
        if law.limit == reply.limit and rate == table.rate and not goals:
            return None
        return Decision(law.limit, law.reason, goals, rate)

    def _begin(self, reply: Reply, table: Table) -> Law:
        is_reset = self._law is not None
        # A server that lost its data has no calls, but workers reported the limit that they knew.
        is_new = not table.total.calls and reply.limit == self._bounds.start
        known = None if is_reset or is_new else reply.limit
        rate = inf if known is None or not table.rate else table.rate
        law = self._made(
            self._bounded(table), leave=self._leave, tick_s=self._tick_s, known=known, rate=rate
        )
        self._law, self._resets = law, table.resets
        self._at_s, self._total = reply.now_s, table.total
        return law

    def _bounded(self, table: Table) -> Bounds:
        """Return the user's bounds, narrowed by the bounds of an operator."""
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
            # The worker that heard it last knows best; of remaining amounts, that is the smallest.
            told_rate=min((claim.told_rate for claim in claims if claim.told_rate), default=0.0),
        )

    def _budget(self, table: Table, rate: float) -> float:
        """Return the rate that all workers together may use [cost/s]; a learned one leaves room by
        itself.
        """
        return least_rate(table.budget * (1 - self._leave), rate)

    def _goals(
        self, now_s: float, table: Table, limit: int, budget: float
    ) -> dict[str, tuple[int, float]]:
        permits = self._shares.permits(now_s, limit, table.claims)
        parts = rates(budget, table.claims) if budget else {}
        goals = {}
        for worker, share in permits.items():
            had, had_rate = table.goals[worker]
            rate = parts.get(worker, 0.0)
            if abs(rate - had_rate) <= _RATE_STEP * had_rate:
                rate = had_rate
            if (share, rate) != (had, had_rate):
                goals[worker] = share, rate
        return goals
