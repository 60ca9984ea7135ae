"""What workers and the shared store exchange about a target."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add, sub
from typing import NamedTuple

# No budget, or all of it is wanted: more than any.
RATE_MOST = 1e12


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
    ``resting``: permits that rest as they were refused.
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


class Decision(NamedTuple):
    """A leader's: ``goals`` are permits and rate of the workers for whom they change."""

    limit: int
    reason: str
    goals: Mapping[str, tuple[int, float]]


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
    ``resets``: how often somebody asked to forget what was learned.
    """

    claims: tuple[Claim, ...]
    goals: Mapping[str, tuple[int, float]]
    total: Sums
    least: int | None = None
    most: int | None = None
    resets: int = 0


class Reply(NamedTuple):
    """One exchange, to the worker.  ``now_s`` is the clock of the place where all meet.

    ``rate``: its part of ``budget`` [cost/s]; a budget of 0: there is none.  ``workers``: how many
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
