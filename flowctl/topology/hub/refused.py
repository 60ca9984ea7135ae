"""Inputs that a target refused: their stage gets them again later, without counting a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from flowctl.core.retry import backoff_s
from flowctl.core.settings import RetrySettings
from flowctl.topology.hub.stage import Parcel, Stage


class Waiting(NamedTuple):
    """A refused input, and when it is sent again."""

    due_s: float
    number: int  # distinguishes two with the same time
    stage: Stage
    parcel: Parcel


class Refused:
    """Part of ``Router``, not thread-safe.  ``total`` counts refusals of single inputs.

    An input waits as long as its target asked for; if the target did not say, for a back-off that
    grows with each refusal in a row.
    """

    def __init__(self, settings: RetrySettings, chance: Callable[[], float] | None) -> None:
        self.total: int = 0
        self._settings = settings
        self._chance = chance
        self._numbers = count()
        self._waiting: list[Waiting] = []

    def __iter__(self) -> Iterator[Waiting]:
        """All that are waiting, in no particular order."""
        return iter(self._waiting)

    def refused_for_s(self, parcel: Parcel, now_s: float) -> float | None:
        """For how long ``parcel`` has been refused, if that is too long."""
        since_s = parcel.refused_since_s
        if since_s is None or now_s - since_s < self._settings.give_up_after_s:
            return None
        return now_s - since_s

    def add(self, stage: Stage, parcel: Parcel, after_s: float | None, now_s: float) -> None:
        """``parcel`` was refused at ``stage``, which no longer has it."""
        self.total += 1
        parcel.refusals += 1
        if parcel.refused_since_s is None:
            parcel.refused_since_s = now_s
        if after_s is None:
            after_s = backoff_s(parcel.refusals, self._settings, self._chance)
        stage.refused_now += 1
        heappush(self._waiting, Waiting(now_s + after_s, next(self._numbers), stage, parcel))

    def take(self, now_s: float) -> Waiting | None:
        """Return the next one that is due, or None."""
        if not self._waiting or self._waiting[0].due_s > now_s:
            return None
        waiting = heappop(self._waiting)
        waiting.stage.refused_now -= 1
        return waiting

    def next_s(self) -> float | None:
        """When :meth:`take` will return one, or None."""
        return self._waiting[0].due_s if self._waiting else None
