"""Realistic targets in virtual time: rates, windows, drifting knees, and other users."""

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
    """A quota of calls or cost in a time; ``unit`` is as in headers."""

    unit: str

    def has(self, now_s: float, cost: float) -> bool:
        """Whether there is room for a call."""

    def take(self, now_s: float, cost: float) -> None:
        """The call comes in."""

    def left(self, now_s: float) -> tuple[float, float]:
        """Return the rest of the quota, and the time until it is full again [s], as in a header."""


class Bucket:
    """``per_s`` tokens flow in per second, up to ``burst``; a call takes one, or its cost."""

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
    """A limit of calls, or cost, in each ``period_s``; then none until the next period begins."""

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

    ``draw`` returns the duration of a call without load [s].  From ``knee_at`` concurrent calls on
    each takes longer in proportion; with ``collapses`` even longer, so that less is done.  From
    ``takes_at`` concurrent calls on the target refuses; ``others`` of them belong to other users.
    Answers report ``tells`` times the rest of a quota; with 0 they report nothing.

    ``slowness`` has for each finished call the time, and its duration relative to a call alone.
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
        """Return how long the call takes; None if it is refused."""
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
        """Return the limits that its answers report."""
        if not self.tells:
            return ()
        told = []
        for quota in self.quotas:
            remaining, reset_s = quota.left(now_s)
            told.append(Told(quota.unit, None, self.tells * remaining, reset_s))
        return tuple(each for each in told if each.reset_s > 0)
