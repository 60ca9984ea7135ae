"""Quotas: so much of a unit in a window, several at once; a call takes from all of them or none.

A window up to an hour is spread: a little may come at once, the rest comes evenly, so that in *any*
span as long as the window at most the quota is begun, wherever the service's own windows begin.  A
day or a month is counted by the calendar and used as fast as other limits allow; then it is used
up until the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, inf
from typing import Final, NamedTuple, TypeAlias

#: The unit of which each call takes one.
CALLS: Final = "calls"
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
# What may come at once, as a share of a quota that is spread: it makes up for late callers, and
# what comes evenly is smaller by as much.
_AT_ONCE: Final = 0.02
# A call arrives later than it began by up to this share of the window, so that two windows' ends
# don't meet in the service.
_LATE_SHARE: Final = 0.01
#: What workers share is used up to this long after it was granted [s]: the time between two
#: exchanges, and some more.
GRANT_S: Final = 0.4


class Quota(NamedTuple):
    """So much (``amount``) of ``unit`` in each window, named as the user did.

    ``window_s``: its length; a month has 31 days here, and "ever" never ends.  ``zone``: whose
    calendar days and months have.  ``job``: only this job's calls count; "": those of all.
    """

    amount: float
    unit: str
    window: str
    window_s: float
    zone: str = "UTC"
    job: str = ""

    @property
    def is_spread(self) -> bool:
        """Whether calls are spread over the window; else they are counted in it."""
        return self.window_s <= HOUR_S

    @property
    def key(self) -> str:
        """The name under which its use is kept; programs may give different amounts."""
        zone = "" if self.zone == "UTC" else f" {self.zone}"
        return f"{self.unit}/{self.window}{zone}{f' {self.job}' if self.job else ''}"

    @property
    def text(self) -> str:
        """As people write it: ``500 calls/min``."""
        if self.window == "ever":
            return f"{self.amount:,.12g} {self.unit}"
        zone = "" if self.zone == "UTC" else f" {self.zone}"
        return f"{self.amount:,.12g} {self.unit}/{self.window}{zone}"

    def pace(self, hold_s: float) -> tuple[float, float]:
        """Return what may come at once, and what comes a second after that.

        ``hold_s``: how late a call may begin after it was allowed to.
        """
        at_once = _AT_ONCE * self.amount
        late_s = max(_LATE_SHARE * self.window_s, hold_s)
        if self.unit == CALLS:  # whole numbers: the first of them needs no room
            at_once = float(floor(at_once))
            return at_once + 1, (self.amount - at_once) / (self.window_s + late_s)
        return at_once, (self.amount - at_once) / (self.window_s + late_s)


#: Begin and end of the window of a quota that a moment is in (Unix seconds).
Spans: TypeAlias = Callable[[Quota, float], tuple[float, float]]


class Pot:
    """What is left of one quota.  Pure; not thread-safe.

    ``share`` is this process' part of it.
    """

    __slots__ = ("_amount", "_at_once", "_end_s", "_full_at_s", "_rate", "_spans", "quota", "used")

    def __init__(self, quota: Quota, spans: Spans, *, share: float = 1.0) -> None:
        at_once, rate = quota.pace(0.0)
        self.quota: Quota = quota
        self._spans = spans
        self._amount = quota.amount * share
        self._at_once, self._rate = at_once, rate * share
        self._full_at_s = -inf  # when nothing of what was used counts any more (GCRA's TAT)
        self._end_s = -inf
        self.used: float = 0.0  # in the window that now is in

    def look(self, wall_s: float) -> None:
        """Begin a new window if it is time."""
        if wall_s >= self._end_s:
            _, self._end_s = self._spans(self.quota, wall_s)
            self.used = 0.0

    def wait_s(self, now_s: float, wall_s: float, cost: float) -> float:
        """Return how long until a call of this cost may begin [s]; 0: now.

        A cost above what may come at once only waits longer, until that much has come evenly.
        """
        if self.quota.is_spread:
            return max(0.0, self._full_at_s + (cost - self._at_once) / self._rate - now_s)
        self.look(wall_s)
        return self._end_s - wall_s if self.used + cost > self._amount * _ROUNDING else 0.0

    def take(self, now_s: float, wall_s: float, cost: float) -> None:
        """Take as much, or give it back (below 0)."""
        if not self.quota.is_spread:
            self.look(wall_s)
            self.used += cost
        elif cost >= 0:
            self._full_at_s = max(self._full_at_s, now_s) + cost / self._rate
        else:  # more than what may come at once is not there
            least_s = min(self._full_at_s, now_s)
            self._full_at_s = max(least_s, self._full_at_s + cost / self._rate)


# Sums of costs such as $.002 are not exact.
_ROUNDING: Final = 1 + 1e-9
#: What a call takes of each quota, in their order.
Costs: TypeAlias = Sequence[float]


class Lack(NamedTuple):
    """Why a call can't begin now: which quota, and for how long [s]; infinite: not known yet.

    ``is_over``: a counted window is used up, and ``wait_s`` is its rest.
    """

    quota: Quota
    wait_s: float
    is_over: bool = False


class Pots:
    """What a process may use of all quotas of a target, on its own.  Pure; not thread-safe."""

    __slots__ = ("_pots", "quotas", "taken")

    def __init__(self, quotas: Sequence[Quota], spans: Spans, *, share: float = 1.0) -> None:
        self.quotas: tuple[Quota, ...] = tuple(quotas)
        self._pots = [Pot(quota, spans, share=share) for quota in quotas]
        self.taken: list[float] = [0.0] * len(self._pots)

    def lack(self, now_s: float, wall_s: float, costs: Costs) -> Lack | None:
        """Return what the call has to wait for longest; None: it may begin."""
        found: Lack | None = None
        for pot, cost in zip(self._pots, costs, strict=True):
            wait_s = pot.wait_s(now_s, wall_s, cost)
            if wait_s > 0 and (found is None or wait_s > found.wait_s):
                found = Lack(pot.quota, wait_s, not pot.quota.is_spread)
        return found

    def take(self, now_s: float, wall_s: float, costs: Costs) -> None:
        """Let a call begin for which nothing lacks."""
        for i, cost in enumerate(costs):
            self._pots[i].take(now_s, wall_s, cost)
            self.taken[i] += cost

    #: Add to what a begun call took; below 0: take away.
    correct = take

    def used_before(self, wall_s: float, used: Sequence[float]) -> None:
        """Note what was used of the counted windows before, by all together."""
        for pot, before in zip(self._pots, used, strict=True):
            pot.look(wall_s)
            pot.used = before


# -- Quotas that workers share -------------------------------------------------------------------


class Wish(NamedTuple):
    """What a worker says of a quota at an exchange.

    ``first``: what the next call takes, ``mean``: each after it.  ``change``: what its calls took
    beyond what it was granted; below 0: what it gives back.  ``begin_s``, ``end_s``: the window.
    """

    quota: Quota
    first: float
    mean: float
    change: float
    begin_s: float
    end_s: float


class Grant(NamedTuple):
    """What a worker may use of a quota until its next exchange.

    ``left``: what nobody has been granted of the window, which ends in ``reset_s``.
    """

    amount: float
    left: float
    reset_s: float


class GrantedPots:
    """What a process was granted of quotas that workers share.  Pure; not thread-safe."""

    __slots__ = (
        "_begun", "_costs", "_first", "_has", "_left", "_spans", "_sums", "_until_s", "quotas",
    )  # fmt: skip

    def __init__(self, quotas: Sequence[Quota], spans: Spans) -> None:
        self.quotas: tuple[Quota, ...] = tuple(quotas)
        self._spans = spans
        self._has = [0.0] * len(self.quotas)  # below 0: calls took more than they were to
        self._until_s = -inf  # what it has is used until then
        self._left = [(inf, -inf)] * len(self.quotas)  # by whoever comes first, and until when
        self._first: Costs | None = None  # what a caller waits for
        self._begun, self._sums = 0, [0.0] * len(self.quotas)  # since the last wish
        self._costs = [0.0] * len(self.quotas)  # of a call, on average

    def lack(self, now_s: float, wall_s: float, costs: Costs) -> Lack | None:
        """As :meth:`Pots.lack`."""
        del wall_s
        lasts, lacks = now_s < self._until_s, None
        for i, cost in enumerate(costs):
            has = self._has[i] if lasts else 0.0
            if cost <= has * _ROUNDING:
                continue
            left, until_s = self._left[i]
            if cost > (self._has[i] + left) * _ROUNDING and now_s < until_s:
                return Lack(self.quotas[i], until_s - now_s, is_over=True)
            lacks = Lack(self.quotas[i], inf)
        if lacks is not None:
            self.expect(costs)
        return lacks

    def take(self, now_s: float, wall_s: float, costs: Costs) -> None:
        """As :meth:`Pots.take`."""
        self.correct(now_s, wall_s, costs)
        self._begun += 1

    def correct(self, now_s: float, wall_s: float, costs: Costs) -> None:
        """As :meth:`Pots.correct`."""
        del now_s, wall_s
        for i, cost in enumerate(costs):
            self._has[i] -= cost
            self._sums[i] += cost

    def expect(self, costs: Costs) -> None:
        """Note what a caller waits for, which has no permit yet."""
        self._first = costs

    def wishes(self, wall_s: float, waiting: int) -> tuple[int, tuple[Wish, ...]]:
        """Return how many calls may come until the next exchange, and what they take.

        What it has is given back with this, as others may need it.
        """
        if self._begun:
            self._costs = [each / self._begun for each in self._sums]
        first = self._costs if self._first is None else self._first
        calls = max(waiting, self._first is not None) + ceil(_MORE * self._begun)
        made = tuple(
            Wish(quota, first[i], self._costs[i] or first[i], -self._has[i], *span)
            for i, quota in enumerate(self.quotas)
            for span in [self._spans(quota, wall_s)]
        )
        self._has = [0.0] * len(self.quotas)
        self._first, self._begun, self._sums = None, 0, [0.0] * len(self.quotas)
        return calls, made

    def granted(self, now_s: float, grants: Sequence[Grant], hold_s: float) -> None:
        """Take the answer to the wishes that were made at ``now_s``; it lasts ``hold_s``."""
        self._until_s = now_s + hold_s
        for i, grant in enumerate(grants):
            self._has[i] += grant.amount
            if not self.quotas[i].is_spread:
                self._left[i] = grant.left, now_s + grant.reset_s

    def unanswered(self, wishes: Sequence[Wish]) -> None:
        """Note that the wishes may not have arrived: debts are told again."""
        for i, wish in enumerate(wishes):
            self._has[i] -= max(0.0, wish.change)

    def alone(self, now_s: float, wall_s: float, workers: int) -> Pots:
        """Return this process' part of what is left, while the others can't be reached."""
        pots = Pots(self.quotas, self._spans, share=1 / max(1, workers))
        used = [
            (quota.amount - left) / max(1, workers) if now_s < until_s else 0.0
            for quota, (left, until_s) in zip(self.quotas, self._left, strict=True)
        ]
        pots.used_before(wall_s, used)
        return pots

    def was_alone(self, pots: Pots) -> None:
        """Add what was used meanwhile to what is told next."""
        self._has = [has - taken for has, taken in zip(self._has, pots.taken, strict=True)]


# A worker asks for this many times the calls that it began, as it may make a few more next time.
_MORE: Final = 1.5
