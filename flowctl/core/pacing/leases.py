"""What workers and the shared store exchange about a target."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from operator import add, sub
from typing import Final, NamedTuple

# -- A budget of cost per second: one process keeps within its part of it ----------------------
#
# Virtual scheduling (GCRA, ITU-T I.371) without a burst: what was not used is not saved up, so in
# any second at most the rate and one call are begun.


# On a busy machine a thread that sleeps wakes up so late; what it is late may be made up for.
_LATE_S: Final = 0.01
# Of the rate, so that what is made up for in a second stays below it: 1.01 * .99 < 1.
_AIM: Final = 0.99


class RateGate:
    """When the next call may begin.  Pure; not thread-safe.

    ``rate``: cost a second; infinite: no budget; 0: none left for this process.  ``saves_call``:
    a call that comes late does not make those after it late: for a rate that was learned from
    calls, where what is not used would be learned as well.
    """

    __slots__ = ("_debt", "_free_at_s", "rate", "saves_call")

    def __init__(self, rate: float = inf) -> None:
        self.rate: float = rate
        self.saves_call = False
        self._free_at_s = -inf
        self._debt = 0.0  # of calls begun, while there is no rate to pay it with

    def wait_s(self, now_s: float) -> float:
        """How long until a call may begin; 0: now; infinite while there is no rate."""
        if self.rate == inf:
            return 0.0
        return inf if self.rate <= 0 else max(0.0, self._free_at_s - now_s)

    def begin(self, now_s: float, cost: float) -> None:
        """A call of this cost begins; there is a rate."""
        if self.rate < inf:
            call_s = cost / (self.rate * _AIM)
            late_s = max(_LATE_S, call_s) if self.saves_call else _LATE_S
            self._free_at_s = max(self._free_at_s, now_s - late_s) + call_s

    def correct(self, cost: float) -> None:
        """A call turned out to cost so much more; negative: less."""
        if 0 < self.rate < inf:
            self._free_at_s += cost / (self.rate * _AIM)
        elif self.rate <= 0:
            self._debt += cost

    def set_rate(self, rate: float, now_s: float, *, owed: float = 0.0) -> None:
        """From now on another rate; what is owed for calls that have begun is paid with it.

        ``owed``: what counts as owed if there was no rate, so that all who get one at the same
        moment don't call at once.
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
    """Which of the two bounds [cost/s]; 0: there is none."""
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
        """Which part of the calls was refused, 0 to 1; those that failed don't count."""
        asked = self.calls + self.refused
        return self.refused / asked if asked else 0.0

    def plus(self, other: Sums) -> Sums:
        """Return what was done in both."""
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        """Return what was done since ``other``."""
        return Sums(*map(sub, self, other))


class Claim(NamedTuple):
    """What a worker reports about itself.

    ``want``: calls at once that it could use; ``want_rate``: cost a second.  ``holds``: permits
    that it has, at most what it may use before it reads the answer; ``in_flight``: the most at once
    since its last report, with those that rest; ``is_held``: somebody waited for a permit;
    ``resting``: permits that rest as they were refused; ``told_rate``: what the target told it that
    all together may use [cost/s], 0: nothing.
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
    """A leader's: ``goals`` are permits and rate of the workers for whom they change.

    ``rate``: what the target takes [cost/s], as far as it was learned; 0: no bound is known.
    """

    limit: int
    reason: str
    goals: Mapping[str, tuple[int, float]]
    rate: float = 0.0


class WorkerReport(NamedTuple):
    """One exchange, from the worker.  ``done``: since its last report that was answered.

    ``rate``: its part of the budget; ``known_limit`` counts where nothing is stored.
    """

    claim: Claim
    rate: float
    done: Sums
    ttl_s: float
    known_limit: int
    budget: float | None
    is_leaving: bool = False
    decision: Decision | None = None


class Table(NamedTuple):
    """What a leader gets: all workers with a lease, and the sums of what all ever did.

    ``goals``: what they were given.  ``least``, ``most``: bounds that an operator has set.
    ``resets``: how often somebody asked to forget what was learned.  ``budget``: what users allow,
    ``rate``: what was learned [cost/s]; 0: no bound.
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
    """One exchange, to the worker.  ``now_s`` is the clock of the place where all meet.

    ``rate``: its part of ``budget``, which is the least of the user's and of what was learned
    (``is_learned``) [cost/s]; a budget of 0: there is none.  ``workers``: how many
    share the target.  ``table``: this worker leads.  ``reason``: why the limit is what it is.
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
