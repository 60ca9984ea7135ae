"""What happens to something that failed: it is sent again after a back-off, given up, or dropped.

One set of rules for whatever can fail: the roots of a topology, the tuples of a spout (S109, S110).
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from flowctl.core.retry import backoff_s
from flowctl.core.settings import RetrySettings


class Failing(Protocol):
    """What can fail.  ``faults`` counts how often it did; only :class:`Attempts` writes it.

    Equal only to itself, as it is a key.
    """

    faults: int


T = TypeVar("T", bound=Failing)


class Fate(enum.Enum):
    """What follows from a failure."""

    AGAIN = "again"  # it waits for its back-off; Attempts.due_s says until when
    GAVE_UP = "gave_up"  # its attempts ran out
    DROPPED = "dropped"  # nothing is sent again in this mode


@dataclass(frozen=True)
class GivenUp(Generic[T]):
    """Something whose attempts ran out: why, and when."""

    item: T
    reason: str
    at_s: float


class Attempts(Generic[T]):
    """What is sent again and when, and what is not.  Pure and not thread-safe.

    ``sends_again`` False: what fails is dropped (S88).  ``has_dead_letter``: what is given up waits
    for :meth:`poll_dead_letter`; else the first of it is kept as :attr:`gave_up`, and the run has
    to fail.
    ``chance`` gives numbers from 0 to 1 for the jitter of back-offs; None: no jitter.  What is
    ready goes out by ``rank``, the lowest first, and else in the order in which it became ready.

    Taking out is lazy: an entry of a heap counts only while it is its item's newest.
    """

    __slots__ = (
        "_dying",
        "_has_dead_letter",
        "_numbers",
        "_rank",
        "_ready",
        "_scheduled",
        "_waiting",
        "chance",
        "gave_up",
        "sends_again",
        "settings",
    )

    def __init__(
        self,
        settings: RetrySettings,
        *,
        sends_again: bool = True,
        has_dead_letter: bool = False,
        chance: Callable[[], float] | None = None,
        rank: Callable[[T], float] | None = None,
    ) -> None:
        self.settings: RetrySettings = settings
        self.chance: Callable[[], float] | None = chance
        self.gave_up: GivenUp[T] | None = None
        self.sends_again: bool = sends_again
        self._has_dead_letter = has_dead_letter
        self._rank = rank
        self._numbers = count()
        self._scheduled: dict[T, tuple[float, int]] = {}  # when, and which entry is its newest
        # Numbers make two with the same time differ: both survive, the first one first (S110).
        self._waiting: list[tuple[float, int, T]] = []
        self._ready: list[tuple[float, int, T]] = []
        self._dying: deque[GivenUp[T]] = deque()

    def __len__(self) -> int:
        """How many are to go again, now or later."""
        return len(self._scheduled)

    # -- it failed -----------------------------------------------------------------------

    def fault(self, item: T, reason: str, now_s: float, *, keeps: bool = True) -> Fate:
        """Count a fault of ``item``: it is sent again after its back-off, or not at all.

        ``keeps`` False: if it is given up, no dead letter may keep it, and the run has to fail.
        """
        item.faults += 1
        if not self.sends_again:
            return Fate.DROPPED
        if item.faults >= self.settings.attempts_max:
            self.give_up(item, reason, now_s, keeps=keeps)
            return Fate.GAVE_UP
        wait_s = backoff_s(item.faults, self.settings, self.chance)
        return self.again(item, now_s + wait_s, now_s)

    def again(self, item: T, not_before_s: float, now_s: float) -> Fate:
        """``item`` is sent again from ``not_before_s`` on, and no fault is counted."""
        if not self.sends_again:
            return Fate.DROPPED
        if not_before_s > now_s:
            number = next(self._numbers)
            self._scheduled[item] = (not_before_s, number)
            heappush(self._waiting, (not_before_s, number, item))
        else:
            self._make_ready(item, not_before_s)
        return Fate.AGAIN

    def give_up(self, item: T, reason: str, now_s: float, *, keeps: bool = True) -> None:
        """``item`` does not go again, however often it has failed; ``keeps`` as above."""
        given_up = GivenUp(item, reason, now_s)
        if self._has_dead_letter and keeps:
            self._dying.append(given_up)
        elif self.gave_up is None:
            self.gave_up = given_up

    def poll_dead_letter(self) -> GivenUp[T] | None:
        """Return the next one that was given up, to be kept elsewhere, or None."""
        return self._dying.popleft() if self._dying else None

    # -- it goes again -------------------------------------------------------------------

    def ripen(self, now_s: float) -> None:
        """Make ready what has waited long enough; stops at the first that has not (S111)."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_s:
            due_s, number, item = heappop(waiting)
            if self._scheduled.get(item) == (due_s, number):
                self._make_ready(item, due_s)

    def _make_ready(self, item: T, due_s: float) -> None:
        number = next(self._numbers)  # its place in the order of becoming ready
        self._scheduled[item] = (due_s, number)
        rank = 0.0 if self._rank is None else self._rank(item)
        heappush(self._ready, (rank, number, item))

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`take` gives something."""
        ready = self._ready
        while ready and not self._is_newest(ready[0]):
            heappop(ready)
        return bool(ready)

    def take(self) -> T | None:
        """Take out the next one that is ready, or None."""
        if not self.has_ready:
            return None
        item = heappop(self._ready)[2]
        del self._scheduled[item]
        return item

    def due_s(self, item: T) -> float | None:
        """From when on ``item`` is sent again; None: it is not."""
        scheduled = self._scheduled.get(item)
        return None if scheduled is None else scheduled[0]

    def next_due_s(self) -> float | None:
        """When the next one that waits becomes ready, or None."""
        waiting = self._waiting
        while waiting and not self._is_newest(waiting[0]):
            heappop(waiting)
        return waiting[0][0] if waiting else None

    def _is_newest(self, entry: tuple[float, int, T]) -> bool:
        scheduled = self._scheduled.get(entry[2])
        return scheduled is not None and scheduled[1] == entry[1]

    # -- it does not go again after all --------------------------------------------------

    def discard(self, item: T) -> bool:
        """Take ``item`` out, because it is done after all; True if it was to be sent again."""
        return self._scheduled.pop(item, None) is not None

    def discard_where(self, is_meant: Callable[[T], bool]) -> list[T]:
        """Take out and return all that ``is_meant``, ready or not.  O(all)."""
        meant = [item for item in self._scheduled if is_meant(item)]
        for item in meant:
            del self._scheduled[item]
        return meant
