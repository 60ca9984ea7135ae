"""Retries: after which pause, how often, and in which order.

One rule of pauses and one queue for all that can fail: tuples, roots of a topology, inputs that a
target refused, the rows of a partition, a bolt, a store (S18, S110).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

from flowctl.core.settings import RetrySettings

_DOUBLINGS_MAX: Final = 32  # 2^32: past any bound, and no float overflows
# Up to half of the wait is cut at random, so that tuples that failed together (because a database
# went away) do not all come back at the same moment.
_JITTER_SHARE: Final = 0.5
# A record that can't be taken fails in company first and then alone, or alone twice: a page of HTML
# in place of an answer is a ValueError too, and passes.
CONTENT_ATTEMPTS_MAX: Final = 2


class Pause(NamedTuple):
    """How long to wait before the next try: ``first_s``, doubled with each failure in a row, and
    at most ``most_s``.

    A random part of it, up to ``jitter_share``, is left out, so that callers that failed together
    do not come back together.
    """

    first_s: float
    most_s: float
    jitter_share: float = 0.0

    def after(self, failures: int, chance: Callable[[], float] | None = None) -> float:
        """Return the pause after this number of failures in a row [s].

        ``chance`` gives numbers from 0 to 1; None: no jitter.
        """
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        wait_s = min(self.most_s, self.first_s * 2.0**doublings)
        return wait_s if chance is None else wait_s * (1.0 - self.jitter_share * chance())

    def asked(self, failures: int, after_s: float) -> float:
        """Return the pause where a target asked to be left alone for ``after_s``.

        A request shorter than our own pause is honoured once; from the next failure on our own
        pauses apply.
        """
        return after_s if failures <= 1 else max(after_s, self.after(failures - 1))

    def waits(self) -> Iterator[float]:
        """Yield the pauses of a caller that fails again and again; after a success, begin anew."""
        return map(self.after, count(1))


#: Between calls of a target that refuses, or takes nothing: two calls a second do not keep a
#: restart busy, and its return is noticed within 2 s.
TARGET: Final = Pause(0.5, 2.0)
#: A target that asks for an hour may mean one client of many.  So a slot of a bolt, and a permit of
#: ``paced``, rest for this long at most; the call that was refused waits all of it [s].
ASKED_MOST_S: Final = 5.0
#: Before a bolt is started again.  A short restart goes unnoticed; 5 s is what a user still calls
#: "comes back by itself", and keeps a hopeless bolt (.3 s of work per start on Spark) near 5 % of a
#: core.
RESTART: Final = Pause(0.1, 5.0)
#: The same after its worker died: it should be back soon however often it is killed.  A process
#: that kills its worker is stopped by the attempts of its tuple.
RESTART_KILLED: Final = Pause(0.1, 1.0)
#: A bolt that lived this long [s] had connected and worked: its earlier failures do not count.
WELL_AFTER_S: Final = 10.0
#: Between a bolt's tries to connect: the spout listens before it starts bolts, so what fails is a
#: full accept queue or a short failure of the network.  Eight tries take 6 s.
CONNECT: Final = Pause(0.05, 3.2)
CONNECT_TRIES: Final = 8
#: Between tries to reach a relay: a restart is short, and everything to be sent waits for it.
RELAY: Final = Pause(0.02, 0.5)
#: A checkpoint store that is away is tried again at least this often [s].
_STORE_MOST_S: Final = 5.0


def pause_of_store(interval_s: float) -> Pause:
    """Return the pauses of a driver that saves every ``interval_s``, for while the store is
    away.
    """
    return Pause(interval_s, _STORE_MOST_S)


T = TypeVar("T", bound=Hashable)


class RetryQueue(Generic[T]):
    """The items to be tried again: for each its time, and a bound on its attempts.

    Pure; not thread-safe.  ``scheduled`` holds the items, ready or not, and ``doubted`` those that
    a bolt may be working on; do not change them.  ``chance`` gives numbers from 0 to 1 for the
    jitter (None: no jitter).  Ready items go by ``rank``, the lowest first; without a rank, or if
    ranks are equal, in the order in which they became ready.

    Taking out is lazy: an entry of a heap counts only while it is its item's newest.
    """

    __slots__ = (
        "_attempts_max", "_chance", "_fault", "_numbers", "_passed", "_rank", "_ready", "_refusal",
        "_waiting", "doubted", "scheduled",
    )  # fmt: skip

    def __init__(
        self,
        settings: RetrySettings | None = None,
        chance: Callable[[], float] | None = None,
        rank: Callable[[T], Any] | None = None,
    ) -> None:
        settings = settings or RetrySettings()
        most_s = settings.backoff_max_s
        self._fault = Pause(settings.backoff_first_s, most_s, _JITTER_SHARE)
        # The longest wait after a refusal, or a failure that may be the target's fault: as long as
        # a target that is down is left alone.  The end of a job should not have to wait longer.
        self._refusal = self._fault._replace(most_s=min(TARGET.most_s, most_s))
        self._attempts_max = settings.attempts_max
        self._chance = chance
        self._rank = rank
        # Item → when it is due, and the number of its newest entry.
        self.scheduled: dict[T, tuple[float, int]] = {}
        self.doubted: dict[T, None] = {}
        # Numbers order entries with equal times, so that both survive (S110).
        self._numbers = count(1)
        self._waiting: list[tuple[float, int, T]] = []  # ordered by due time
        self._ready: list[tuple[Any, int, T]] = []
        self._passed: list[tuple[Any, int, T]] = []  # ready too, but there was no room for them

    def __len__(self) -> int:
        return len(self.scheduled)

    # -- it failed -----------------------------------------------------------------------

    def fault(self, item: T, faults: int, now_s: float) -> float | None:
        """Schedule ``item`` after the back-off for this number of ``faults``; return when it is
        ready.

        None: its attempts have run out, and it is not scheduled (S110).
        """
        if faults >= self._attempts_max:
            return None
        ready_at_s = now_s + self._fault.after(faults, self._chance)
        self.add(item, not_before_s=ready_at_s, now_s=now_s)
        return ready_at_s

    def refusal(
        self, item: T, refusals: int, now_s: float, *, after_s: float | None = None
    ) -> float:
        """Schedule ``item`` after ``refusals``, or failures that were not its fault; return when it
        is ready.  Its own faults do not matter.

        ``after_s``: what the target asked for; None: it did not say.
        """
        if after_s is None:
            after_s = self._refusal.after(refusals, self._chance)
        self.add(item, not_before_s=now_s + after_s, now_s=now_s)
        return now_s + after_s

    def add(self, item: T, *, not_before_s: float, now_s: float) -> None:
        """Schedule ``item``, ready at ``not_before_s``; this replaces an earlier entry."""
        self.doubted.pop(item, None)
        if not_before_s > now_s:
            number = next(self._numbers)
            self.scheduled[item] = (not_before_s, number)
            heappush(self._waiting, (not_before_s, number, item))
        else:
            self._make_ready(item, not_before_s)

    def _make_ready(self, item: T, due_s: float) -> None:
        entry = self._readied(item, due_s)
        if self._passed:  # or what comes again and again would keep those waiting for ever
            self._passed.append(entry)
        else:
            heappush(self._ready, entry)

    def _readied(self, item: T, due_s: float) -> tuple[Any, int, T]:
        number = next(self._numbers)  # its place in the order of becoming ready
        self.scheduled[item] = (due_s, number)
        return (0 if self._rank is None else self._rank(item), number, item)

    def doubt(self, item: T, *, until_s: float, now_s: float) -> None:
        """Schedule at ``until_s`` an item that a bolt may be working on.

        Before that only an idle bolt may get it, with :meth:`discard`.
        """
        self.add(item, not_before_s=until_s, now_s=now_s)
        self.doubted[item] = None

    def park(self, item: T) -> None:
        """Keep ``item`` until it is added again or discarded; nothing makes it ready."""
        self.scheduled[item] = (inf, 0)

    def is_parked(self, item: T) -> bool:
        """Whether it waits for something other than time."""
        return self.due_s(item) == inf

    def discard(self, item: T) -> bool:
        """Take ``item`` out, because it is done after all; True if it was scheduled."""
        self.doubted.pop(item, None)
        return self.scheduled.pop(item, None) is not None

    def discard_where(self, is_meant: Callable[[T], bool]) -> list[T]:
        """Take out and return all items that ``is_meant`` accepts, ready or not.  O(all)."""
        meant = [item for item in self.scheduled if is_meant(item)]
        for item in meant:
            self.discard(item)
        return meant

    # -- time passes ---------------------------------------------------------------------

    def due_s(self, item: T) -> float | None:
        """Return when ``item`` is ready; None: it is not scheduled."""
        newest = self.scheduled.get(item)
        return None if newest is None else newest[0]

    def next_due_s(self) -> float | None:
        """Return when the next waiting item becomes ready, or None."""
        waiting = self._waiting
        while waiting and not self._is_newest(waiting[0]):
            heappop(waiting)
        return waiting[0][0] if waiting else None

    def _is_newest(self, entry: tuple[Any, int, T]) -> bool:
        newest = self.scheduled.get(entry[2])
        return newest is not None and newest[1] == entry[1]

    def ripen(self, now_s: float) -> None:
        """Make ready the items that have waited long enough; stop at the first that has not
        (S111).
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_s:
            entry = heappop(waiting)
            if self._is_newest(entry):
                self.doubted.pop(entry[2], None)
                self._make_ready(entry[2], entry[0])

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`take` gives something."""
        while True:
            if not self._ready:
                self._ready, self._passed = self._passed, self._ready
                heapify(self._ready)
            if not self._ready or self._is_newest(self._ready[0]):
                return bool(self._ready)
            heappop(self._ready)

    def take(self) -> T | None:
        """Take out and return the next ready item, or None; :meth:`put_back` undoes it.

        Items that were put back come again after all others that were ready have had a turn.
        """
        if not self.has_ready:
            return None
        item = heappop(self._ready)[2]
        del self.scheduled[item]
        return item

    def start_over(self) -> None:
        """Let :meth:`take` begin with the lowest rank of all that are ready, passed ones too."""
        for entry in self._passed:
            heappush(self._ready, entry)
        self._passed.clear()

    def put_back(self, item: T) -> None:
        """Put back an item from :meth:`take` that could not go yet."""
        self._passed.append(self._readied(item, -inf))
