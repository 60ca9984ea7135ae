"""What workers and the shared store exchange about a target."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from operator import add, sub
from typing import Final, NamedTuple

from flowctl.core.pacing.quotas import Grant, Wish

# -- A budget of cost per second: one process keeps within its part of it ----------------------
#
# Virtual scheduling (GCRA, ITU-T I.371) without a burst: what was not used is not saved up, so in
# any second at most the rate and one call are begun.


# On a busy machine a sleeping thread wakes up this late [s]; the delay may be made up for.
_LATE_S: Final = 0.01
# Share of the rate, so that the time made up for in a second stays below it: 1.01 * .99 < 1.
_AIM: Final = 0.99


class RateGate:
    """When the next call may begin.  Pure; not thread-safe.

    ``rate``: cost a second; infinite: no budget; 0: none left for this process.  ``saves_call``: a
    late call does not delay the calls after it.  This is for a rate that was learned from calls:
    there, unused rate would be learned as a lower rate.
    """

    __slots__ = ("_debt", "_free_at_s", "rate", "saves_call")

    def __init__(self, rate: float = inf) -> None:
        self.rate: float = rate
        self.saves_call = False
        self._free_at_s = -inf
        self._debt = 0.0  # cost of calls begun while there is no rate to pay it with

    def wait_s(self, now_s: float) -> float:
        """Return how long until a call may begin [s]; 0: now; infinite while there is no rate."""
        if self.rate == inf:
            return 0.0
        return inf if self.rate <= 0 else max(0.0, self._free_at_s - now_s)

    def begin(self, now_s: float, cost: float) -> None:
        """Let a call of this cost begin; there is a rate."""
        if self.rate < inf:
            call_s = cost / (self.rate * _AIM)
            late_s = max(_LATE_S, call_s) if self.saves_call else _LATE_S
            self._free_at_s = max(self._free_at_s, now_s - late_s) + call_s

    def correct(self, cost: float) -> None:
        """Add ``cost`` to what a begun call was charged; negative: take away."""
        if 0 < self.rate < inf:
            self._free_at_s += cost / (self.rate * _AIM)
        elif self.rate <= 0:
            self._debt += cost

    def set_rate(self, rate: float, now_s: float, *, owed: float = 0.0) -> None:
        """Use another rate from now on; the debt for calls that have begun is paid with it.

        ``owed``: the debt to start with if there was no rate, so that workers that get one at the
        same moment don't all call at once.
        """
        if rate == self.rate:
            return
        if self.rate == inf:
            self._debt += owed
        if 0 < self.rate < inf:
            self._debt = max(0.0, self._free_at_s - now_s) * self.rate
        if 0 < rate < inf:
            self._free_at_s = now_s + self._debt / rate
            self._debt = 0.0
        self.rate = rate


# -- What workers and the shared store exchange about a target ---------------------------------


# No budget, or all of it is wanted: more than any.
RATE_MOST = 1e12


def least_rate(budget: float, learned: float) -> float:
    """Return the smaller of the two bounds [cost/s]; 0: there is none."""
    return min(budget, learned) if budget > 0 and learned > 0 else budget or learned


class Sums(NamedTuple):
    """What was done; ``cost`` and ``call_s`` are of calls that succeeded."""

    calls: int = 0
    cost: float = 0.0
    call_s: float = 0.0
    refused: int = 0
    failed: int = 0
    waited_s: float = 0.0

    @property
    def refused_share(self) -> float:
        """The share of the calls that was refused, 0 to 1; calls that failed don't count."""
        asked = self.calls + self.refused
        return self.refused / asked if asked else 0.0

    def plus(self, other: Sums) -> Sums:
        """Return the sums of both together."""
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        """Return the sums since ``other``."""
        return Sums(*map(sub, self, other))


class Claim(NamedTuple):
    """What a worker reports about itself.

    ``want``: calls at once that it could use; ``want_rate``: cost a second.  ``holds``: permits
    that it has: the most it may use before it reads the answer; ``in_flight``: the most at once
    since its last report, with those that rest; ``is_held``: a caller waited for a permit;
    ``resting``: permits that rest after a refusal; ``told_rate``: the rate that the target allows
    all workers together [cost/s]; 0: it reports none.
    """

    worker: str
    job: str
    weight: float
    want: int
    want_rate: float
    holds: int
    in_flight: int = 0
    is_held: bool = False
    resting: int = 0
    told_rate: float = 0.0


class Decision(NamedTuple):
    """A leader's decision: ``goals`` are permits and rate of the workers for which they change.

    ``rate``: the rate that the target takes [cost/s], as far as learned; 0: no bound is known.
    """

    limit: int
    reason: str
    goals: Mapping[str, tuple[int, float]]
    rate: float = 0.0


class WorkerReport(NamedTuple):
    """A worker's side of one exchange.

    ``done``: the sums since its last answered report.  ``rate``: its share of the budget;
    ``known_limit`` counts if no limit is stored.  ``calls``: how many it may begin until the next
    exchange, of which ``wishes`` say what they take of each quota; what
    is granted is used within ``hold_s``.
    """

    claim: Claim
    rate: float
    done: Sums
    ttl_s: float
    known_limit: int
    budget: float | None
    is_leaving: bool = False
    decision: Decision | None = None
    calls: int = 0
    wishes: tuple[Wish, ...] = ()
    hold_s: float = 0.0


class Table(NamedTuple):
    """What a leader gets: all workers with a lease, and the sums over all workers ever.

    ``goals``: the permits and rates that they were given.  ``least``, ``most``: bounds that an
    operator has set.  ``resets``: how often an operator reset what was learned.  ``budget``: the
    rate that users allow, ``rate``: the learned rate [cost/s]; 0: no bound.
    """

    claims: tuple[Claim, ...]
    goals: Mapping[str, tuple[int, float]]
    total: Sums
    least: int | None = None
    most: int | None = None
    resets: int = 0
    budget: float = 0.0
    rate: float = 0.0


class Reply(NamedTuple):
    """The answer to a worker in one exchange.

    ``now_s`` is the clock of the shared store.  ``rate``: its share of ``budget``, which is the
    smaller of the user's and the learned one (``is_learned``) [cost/s]; a budget of 0: there is
    none.  ``workers``: how many share the target.  ``table``: this worker leads.  ``reason``: why
    the limit is what it is.  ``grants``: what it may use of each quota.
    """

    now_s: float
    limit: int
    permits: int
    rate: float
    workers: int
    budget: float
    table: Table | None = None
    reason: str = ""
    is_learned: bool = False
    grants: tuple[Grant, ...] = ()
