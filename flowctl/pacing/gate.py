"""The state of a target in one process: its permits, its share of the budget, and the callers that
wait.

A *source* tells the gate how many permits it has: the law in this process
(:class:`flowctl.pacing.in_process.LocalSource`), or leases from Redis
(:class:`flowctl.pacing.client.LeaseSource`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf
from typing import Final, NamedTuple, Protocol

from flowctl.core.pacing.leases import RateGate
from flowctl.core.pacing.quotas import Costs, GrantedPots, Lack, Pots
from flowctl.core.retry import ASKED_MOST_S, TARGET
from flowctl.failure.headers import Told
from flowctl.pacing.budgets import used_up_error
from flowctl.pacing.call_counts import CallCounts

# Random share of a wait: calls that were refused together don't come back together.
_JITTER: Final = 0.25
# A caller that waits for a permit looks at least this often [s], even if it is not woken.
_LOOK_S: Final = 1.0


class Known(NamedTuple):
    """A limit and the reason for it; ``is_shared``: it holds for all callers of the target."""

    limit: int
    reason: str
    is_shared: bool


class Source(Protocol):
    """Decides how many permits a gate has; every method is called with the gate's lock held."""

    def on_wanted(self, now_s: float) -> None:
        """Note that a caller waits for a permit."""

    def on_left(self, now_s: float) -> None:
        """Note that a call ended; its figures are in the gate's counters."""

    def known(self) -> Known:
        """Return the limit as far as this process knows it."""


class Waiter:
    """A caller that waits for a permit; ``wake`` may be called from any thread."""

    __slots__ = ("wake",)

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake: Callable[[], None] = wake


class Gate:
    """Thread-safe.  ``lock`` guards all of it; what takes long is done outside.

    ``clock``: monotonic seconds; ``chance``: random numbers for waits that should not end together.
    ``target`` is for messages; a quota that is used up for longer than ``patience_s`` is an error.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
        target: str = "",
        patience_s: float = inf,
    ) -> None:
        self._target = target
        self._patience_s = patience_s
        self.lock: threading.Lock = threading.Lock()
        self.clock = clock
        self._chance = chance or random.Random()
        self.counters: CallCounts = CallCounts()
        self.rate: RateGate = RateGate()
        self.pots: Pots | GrantedPots | None = None  # None: there are no quotas
        self.wall: Callable[[], float] = time.time  # Unix seconds, by which days end
        self._lacks_until_s = -inf  # when the first in line may find what it lacks
        self.permits: int = 0
        self.valid_until_s: float = (
            inf  # until when the permits are valid: a lease may end while this process is frozen
        )
        self.in_flight: int = 0
        self.source: Source | None = None
        self._waiting: deque[Waiter] = deque()
        self._resting: list[float] = []  # a heap of times until which refused permits rest
        self._refused_in_row = 0
        self._told: dict[str, tuple[float, float]] = {}  # rates by unit: cost/s, and until when

    @property
    def is_idle(self) -> bool:
        """Whether no caller is in a call of the target, or waits for one."""
        with self.lock:
            return not self.in_flight and not self._waiting

    # -- entering -----------------------------------------------------------------------------

    def try_enter(self, cost: float, costs: Costs = ()) -> bool:
        """Take a permit if one is free and no caller waits for it.

        ``cost``: what the call takes of a rate, ``costs``: of each quota.  Raises
        :class:`flowctl.errors.QuotaUsedUpError` if one is used up for longer than ``patience_s``.
        """
        with self.lock:
            return not self._waiting and self._admit(self.clock(), cost, costs)

    def enter(self, cost: float, costs: Costs = ()) -> None:
        """Take a permit; wait for it.  Raises as :meth:`try_enter`."""
        if self.try_enter(cost, costs):
            return
        woken = threading.Event()
        waiter, since_s = self.queue(woken.set), self.clock()
        try:
            while (wait_s := self.next_turn(waiter, cost, since_s, costs)) is not None:
                woken.wait(wait_s)
                woken.clear()
        except BaseException:
            self.give_up(waiter)
            raise

    def queue(self, wake: Callable[[], None]) -> Waiter:
        """Wait in line; ``wake`` is called when it is worth asking :meth:`next_turn` again."""
        waiter = Waiter(wake)
        with self.lock:
            self._waiting.append(waiter)
            want = self.in_flight + len(self._waiting)
            self.counters.want = max(self.counters.want, want)
        return waiter

    def next_turn(
        self, waiter: Waiter, cost: float, since_s: float, costs: Costs = ()
    ) -> float | None:
        """Return None if the permit is taken, else how long to wait before asking again [s]."""
        with self.lock:
            now_s = self.clock()
            if self._waiting[0] is not waiter:
                return _LOOK_S
            if not self._admit(now_s, cost, costs):
                return self._look_in_s(now_s)
            self._waiting.popleft()
            self.counters.waited_s += now_s - since_s
            self._wake_first()
            return None

    def give_up(self, waiter: Waiter) -> None:
        """Leave the line."""
        with self.lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            self._wake_first()

    def _admit(self, now_s: float, cost: float, costs: Costs) -> bool:
        self._end_rests(now_s)
        counters = self.counters
        used = self.in_flight + len(self._resting)
        if used >= self.permits or now_s >= self.valid_until_s:
            counters.is_held = True
            if isinstance(self.pots, GrantedPots):
                self.pots.expect(costs)
            if self.source is not None:
                self.source.on_wanted(now_s)
            return False
        if self.rate.wait_s(now_s) > 0:
            counters.is_rate_held = True
            return False
        if self.pots is not None and not self._take_quotas(self.pots, now_s, costs):
            return False
        self.rate.begin(now_s, cost)
        self.in_flight += 1
        counters.in_flight = max(counters.in_flight, used + 1)
        counters.want = max(counters.want, self.in_flight)
        return True

    def _take_quotas(self, pots: Pots | GrantedPots, now_s: float, costs: Costs) -> bool:
        wall_s = self.wall()
        lack = pots.lack(now_s, wall_s, costs)
        if lack is None:
            pots.take(now_s, wall_s, costs)
            return True
        self._refuse_used_up(lack, wall_s)
        self._lacks_until_s = now_s + lack.wait_s
        if self.source is not None:
            self.source.on_wanted(now_s)
        return False

    def _refuse_used_up(self, lack: Lack, wall_s: float) -> None:
        if lack.is_over and (lack.wait_s > self._patience_s or lack.wait_s == inf):
            raise used_up_error(self._target, lack.quota, wall_s + lack.wait_s)

    def correct(self, cost: float, costs: Costs) -> None:
        """Add to what a begun call takes, of a rate and of each quota; below 0: take away."""
        with self.lock:
            self.rate.correct(cost)
            if self.pots is not None:
                self.pots.correct(self.clock(), self.wall(), costs)

    def _end_rests(self, now_s: float) -> None:
        while self._resting and self._resting[0] <= now_s:
            heappop(self._resting)

    def _look_in_s(self, now_s: float) -> float:
        """Return when the first in line may get its permit, if nothing else happens."""
        if self.in_flight + len(self._resting) >= self.permits:
            until_s = self._resting[0] - now_s if self._resting else inf
        else:
            until_s = max(self.rate.wait_s(now_s), self._lacks_until_s - now_s)
        return min(until_s, _LOOK_S)

    # -- leaving ------------------------------------------------------------------------------

    def leave_done(self, began_s: float, cost: float) -> None:
        """Note that a call succeeded."""
        with self.lock:
            now_s = self.clock()
            counters = self.counters
            counters.calls += 1
            counters.cost += cost
            counters.call_s += now_s - began_s
            self._refused_in_row = 0
            self._left(now_s)

    def leave_failed(self) -> None:
        """Note that a call ended in a way that says nothing about how much the target can take.

        But it was not refused, and so ends the row of refusals, as in :mod:`flowctl.bolts.pauses`:
        while bad rows are looked for, hardly a call succeeds.
        """
        with self.lock:
            self.counters.failed += 1
            self._refused_in_row = 0
            self._left(self.clock())

    def leave_refused(self, after_s: float | None) -> float:
        """Note that a call was refused; return how long its caller should wait [s].

        ``after_s``: the time that the target asked for; None: it asked for none.  The permit rests
        as long, up to 5 s.
        """
        with self.lock:
            now_s = self.clock()
            self.counters.refused += 1
            wait_s = self._pause_s(after_s)
            heappush(self._resting, now_s + min(wait_s, ASKED_MOST_S))
            self.counters.resting = max(self.counters.resting, len(self._resting))
            self._left(now_s)
            return wait_s

    def _pause_s(self, after_s: float | None) -> float:
        """Return a pause that grows with each round of permits refused in a row."""
        rounds = 1 + self._refused_in_row // max(1, self.permits)
        self._refused_in_row += 1
        wait_s = TARGET.after(rounds) if after_s is None else TARGET.asked(rounds, after_s)
        is_asked = wait_s == after_s
        return wait_s if is_asked else wait_s * self._chance.uniform(1 - _JITTER, 1 + _JITTER)

    def _left(self, now_s: float) -> None:
        self.in_flight -= 1
        if self.source is not None:
            self.source.on_left(now_s)
        self._wake_first()

    def tell(self, told: Iterable[Told]) -> None:
        """Take what the target says is left, and until when: the amount is spread evenly over that
        time.

        Limits on tokens count if calls have a cost, which is then taken to be in tokens.
        """
        with self.lock:
            now_s, counters = self.clock(), self.counters
            mean_cost = counters.cost / counters.calls if counters.calls else 1.0
            for unit, _, remaining, reset_s in told:
                is_cost = bool(unit) and unit != "requests"
                if is_cost and counters.cost == counters.calls:
                    continue
                # If nothing is left, one call probes when the time is over.
                left = max(remaining if is_cost else remaining * mean_cost, mean_cost / 2)
                self._told[unit] = left / reset_s, now_s + reset_s

    def _told_rate(self, now_s: float) -> float:
        told = [rate for rate, until_s in self._told.values() if now_s < until_s]
        return min(told, default=0.0)

    # -- the source's -------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of waiting callers; the lock must be held."""
        return len(self._waiting)

    def set_permits(self, permits: int, valid_until_s: float = inf) -> None:
        """Take the number of permits from the source; the lock must be held.

        Calls in flight go on.
        """
        self.permits = permits
        self.valid_until_s = valid_until_s
        self._wake_first()

    def set_rate(self, rate: float, now_s: float, *, is_learned: bool) -> None:
        """Take this process' share of the budget [cost/s]; the lock must be held.

        Processes that get one at the same moment, after calls without a budget, begin at different
        times.
        """
        own, counters = self.rate, self.counters
        own.saves_call = is_learned
        if rate < own.rate == inf and counters.calls:
            owed = self._chance.random() * counters.cost / counters.calls
            own.set_rate(rate, now_s, owed=owed)
        elif rate != own.rate:
            own.set_rate(rate, now_s)

    def take_sums(self) -> CallCounts:
        """Return the sums, and restart the peaks; the lock must be held."""
        now_s = self.clock()
        if self._told:
            self.counters.told_rate = self._told_rate(now_s)
        sums = self.counters.copy()
        self._end_rests(now_s)
        counters = self.counters
        counters.in_flight = self.in_flight + len(self._resting)
        counters.resting = len(self._resting)
        counters.want = self.in_flight + len(self._waiting)
        # A caller that waits through a whole interval waits in the next one too.
        lacks_permit = self.in_flight + len(self._resting) >= self.permits
        counters.is_held = bool(self._waiting) and lacks_permit
        has_budget = self.rate.rate < inf
        counters.is_rate_held = bool(self._waiting) and has_budget and not lacks_permit
        return sums

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].wake()
