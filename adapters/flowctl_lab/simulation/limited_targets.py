"""Targets as they are: rates, windows, knees that drift, others that use them, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from flowctl.failure.headers import Told
from flowctl_lab.simulation.targets import Target

Over = Callable[[float], float]  # a number that changes over time


class Quota(Protocol):
    """What came in, in a time; ``unit`` as in headers."""

    unit: str

    def has(self, now_s: float, cost: float) -> bool:
        """Whether there is room for a call."""

    def take(self, now_s: float, cost: float) -> None:
        """The call comes in."""

    def left(self, now_s: float) -> tuple[float, float]:
        """What is left, and until it is whole again [s]: what a header tells."""


class Bucket:
    """``per_s`` tokens a second flow in, at most ``burst``; a call takes one, or its cost."""

    def __init__(self, per_s: Over, burst: float, *, by_cost: bool = False) -> None:
        self._per_s, self._burst, self._by_cost = per_s, burst, by_cost
        self._tokens, self._at_s = burst, 0.0
        self.unit: str = "tokens" if by_cost else "requests"

    def _fill(self, now_s: float) -> None:
        more = (now_s - self._at_s) * self._per_s(now_s)
        self._tokens, self._at_s = min(self._burst, self._tokens + more), now_s

    def has(self, now_s: float, cost: float) -> bool:
        """See :class:`Quota`."""
        self._fill(now_s)
        return self._tokens >= (cost if self._by_cost else 1.0)

    def take(self, now_s: float, cost: float) -> None:
        """See :class:`Quota`."""
        self._tokens -= cost if self._by_cost else 1.0

    def left(self, now_s: float) -> tuple[float, float]:
        """See :class:`Quota`."""
        self._fill(now_s)
        return self._tokens, (self._burst - self._tokens) / self._per_s(now_s)


class Window:
    """So many calls, or so much cost, in each ``period_s``; then none until the next begins."""

    def __init__(
        self, most: float, period_s: float, *, since_s: float = 0.0, by_cost: bool = False
    ) -> None:
        self._most, self._period_s, self._since_s, self._by_cost = most, period_s, since_s, by_cost
        self._used, self._window = 0.0, -1
        self.unit: str = "tokens" if by_cost else "requests"

    def _turn(self, now_s: float) -> None:
        window = int((now_s + self._since_s) // self._period_s)
        if window != self._window:
            self._used, self._window = 0.0, window

    def has(self, now_s: float, cost: float) -> bool:
        """See :class:`Quota`."""
        self._turn(now_s)
        return self._used + (cost if self._by_cost else 1.0) <= self._most

    def take(self, now_s: float, cost: float) -> None:
        """See :class:`Quota`."""
        self._used += cost if self._by_cost else 1.0

    def left(self, now_s: float) -> tuple[float, float]:
        """See :class:`Quota`."""
        self._turn(now_s)
        until_s = self._period_s - (now_s + self._since_s) % self._period_s
        return self._most - self._used, until_s


@dataclass
class LimitedTarget(Target):
    """A target whose parts may change with time.

    ``draw``: how long a call takes if nobody is in the way [s].  ``knee_at``: calls inside from
    which each takes longer in proportion; ``collapses``: even more, so that less is done.
    ``takes_at``: calls inside from which it refuses; ``others``: of those, what somebody else has
    there.  ``tells``: answers tell so many times what is left; 0: they tell nothing.

    ``slowness``: for each call that was done, when, and how much longer it took than alone.
    """

    draw: Callable[[random.Random, float], float] = lambda chance, now_s: 0.1
    seed: int = 1
    knee_at: Over = lambda now_s: inf
    takes_at: Over = lambda now_s: inf
    others: Over = lambda now_s: 0.0
    collapses: bool = False
    quotas: tuple[Quota, ...] = ()
    slowness: list[tuple[float, float]] = field(default_factory=list)
    tells: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def enter(self, now_s: float, cost: float = 1.0) -> float | None:
        """Return how long the call takes; None: refused."""
        inside = self.inside + self.others(now_s)
        if inside + 1 > self.takes_at(now_s) or not all(q.has(now_s, cost) for q in self.quotas):
            self.refused.append(now_s)
            return None
        for quota in self.quotas:
            quota.take(now_s, cost)
        self.inside += 1
        self.most = max(self.most, self.inside)
        over = max(1.0, (inside + 1) / self.knee_at(now_s))
        slower = over * over if self.collapses else over
        self.slowness.append((now_s, slower))
        return slower * self.draw(self._chance, now_s)

    def told(self, now_s: float) -> tuple[Told, ...]:
        """What its answers tell of limits."""
        if not self.tells:
            return ()
        told = []
        for quota in self.quotas:
            remaining, reset_s = quota.left(now_s)
            told.append(Told(quota.unit, None, self.tells * remaining, reset_s))
        return tuple(each for each in told if each.reset_s > 0)
