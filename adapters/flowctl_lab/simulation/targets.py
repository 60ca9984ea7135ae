"""Programs that share a paced target, in virtual time: the real gates, leases and law.

Only the threads, the clock and the server are simulated: each worker's callers call in a closed
loop, and its thread takes its turn four times a second.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from flowctl.core.pacing.law import TargetLaw
from flowctl.core.pacing.leader import Law
from flowctl.failure.headers import Told
from flowctl.pacing.client import PERIOD_S, LeaseSource
from flowctl.pacing.gate import Gate, Waiter
from flowctl.pacing.target_settings import PaceSettings
from flowctl_lab.simulation.target_place import Place

_REFUSED_S = 0.002  # a refusal comes back at once


class Clock:
    """Virtual time, with the due calls in order."""

    def __init__(self) -> None:
        self.now_s: float = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Call ``do`` at ``at_s``, or now if that time is over."""
        self._count += 1
        heappush(self._due, (max(at_s, self.now_s), self._count, do))

    def run(self, until_s: float) -> None:
        """Go on until then."""
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, do = heappop(self._due)
            do()
        self.now_s = until_s


@dataclass
class Target:
    """A target: a call takes ``call_s``, longer above ``knee`` calls, refused above ``takes``.

    Each other concurrent call makes it longer by ``slope`` of itself.  ``done`` has the times of
    successful calls, by job, and ``refused`` of refusals; ``most`` is the maximum of concurrent
    calls.
    """

    call_s: float = 0.1
    knee: float = float("inf")
    takes: float = float("inf")
    slope: float = 0.0
    inside: int = 0
    done: list[tuple[float, str, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    most: int = 0

    def enter(self, now_s: float, cost: float = 1.0) -> float | None:
        """Return how long the call takes; None if it is refused."""
        if self.inside >= self.takes:
            self.refused.append(now_s)
            return None
        self.inside += 1
        self.most = max(self.most, self.inside)
        slower = 1 + self.slope * (self.inside - 1)
        return self.call_s * slower * max(1.0, self.inside / self.knee)

    def told(self, now_s: float) -> tuple[Told, ...]:
        """Return the limits that its answers report."""
        return ()


class Worker:
    """A process with ``callers`` threads that only call.

    From begin to end of ``frozen`` it does nothing at all; its calls inside the target go on.
    """

    def __init__(
        self,
        clock: Clock,
        target: Target,
        source: LeaseSource,
        gate: Gate,
        *,
        cost: Callable[[], float],
    ) -> None:
        self._clock, self._target, self._gate = clock, target, gate
        self._source = source
        self._cost = cost
        self.frozen: tuple[float, float] = (0.0, 0.0)
        self.job: str = source.settings.job

    def start(self, callers: int, first_turn_s: float) -> None:
        """Start the worker now; its thread's turns begin at ``first_turn_s``."""
        for _ in range(callers):
            self._later(self._clock.now_s, self._ask)
        self._later(first_turn_s, self._turn)

    def _later(self, at_s: float, do: Callable[[], None]) -> None:
        def unless_frozen() -> None:
            from_s, until_s = self.frozen
            if from_s <= self._clock.now_s < until_s:
                self._clock.at(until_s, unless_frozen)
            else:
                do()

        self._clock.at(at_s, unless_frozen)

    def _turn(self) -> None:
        self._source.turn()
        self._later(self._clock.now_s + PERIOD_S, self._turn)

    def turn_early(self) -> None:
        """Take a turn early, as the thread was woken up."""
        self._later(self._clock.now_s, self._hurry)

    def _hurry(self) -> None:
        self._source.turn_early()

    def _ask(self) -> None:
        self._ask_for(self._cost())

    def _ask_for(self, cost: float) -> None:
        if self._gate.try_enter(cost):
            self._call(cost)
            return
        waiter: list[Waiter] = []
        since_s = self._clock.now_s

        def look() -> None:
            if not waiter:
                return
            wait_s = self._gate.next_turn(waiter[0], cost, since_s)
            if wait_s is None:
                waiter.clear()
                self._call(cost)
            elif wait_s < 1.0:  # a wake-up ends a longer pause
                self._later(self._clock.now_s + wait_s + 1e-4, look)

        waiter.append(self._gate.queue(lambda: self._later(self._clock.now_s, look)))
        self._later(self._clock.now_s, look)

    def _call(self, cost: float) -> None:
        now_s = self._clock.now_s
        call_s = self._target.enter(now_s, cost)
        if call_s is None:
            self._later(now_s + _REFUSED_S, lambda: self._was_refused(cost))
            return
        self._clock.at(now_s + call_s, lambda: self._left_target(cost))
        self._later(now_s + call_s, lambda: self._was_done(now_s, cost))

    def _left_target(self, cost: float) -> None:
        self._target.inside -= 1
        self._target.done.append((self._clock.now_s, self.job, cost))

    def _was_done(self, began_s: float, cost: float) -> None:
        self._gate.leave_done(began_s, cost)
        self._gate.tell(self._target.told(self._clock.now_s))
        self._ask()

    def _was_refused(self, cost: float) -> None:
        self._gate.tell(self._target.told(self._clock.now_s))
        wait_s = self._gate.leave_refused(None)
        self._later(self._clock.now_s + wait_s, lambda: self._ask_for(cost))


class World:
    """A target, its workers and their shared state; the workers' leader runs ``law``."""

    def __init__(
        self, target: Target, *, seed: int = 1, law: Callable[..., Law] = TargetLaw
    ) -> None:
        self.clock: Clock = Clock()
        self.target = target
        self.place: Place = Place(lambda: self.clock.now_s)
        self.workers: list[Worker] = []
        self._law = law
        self._chance = random.Random(seed)

    def add(
        self,
        workers: int,
        *,
        callers: int = 1,
        cost: float | Callable[[], float] = 1.0,
        **settings: Any,
    ) -> list[Worker]:
        """Start ``workers`` now and return them.  ``cost`` is of a call, or a function."""
        drawn = cost if callable(cost) else lambda: cost
        added = [self._worker(drawn, settings) for _ in range(workers)]
        for worker in added:
            worker.start(callers, self.clock.now_s + self._chance.uniform(0, PERIOD_S))
        self.workers += added
        return added

    def _worker(self, cost: Callable[[], float], settings: dict[str, Any]) -> Worker:
        gate = Gate(clock=lambda: self.clock.now_s, chance=self._chance)
        paced = PaceSettings(target="simulated", redis="-", **settings)
        woken: list[Callable[[], None]] = []

        def wake() -> None:
            woken[0]()

        source = LeaseSource(gate, paced, self.place, wake, self._law)
        gate.source = source
        worker = Worker(self.clock, self.target, source, gate, cost=cost)
        woken.append(worker.turn_early)
        return worker

    def goodput(self, from_s: float, until_s: float, job: str | None = None) -> float:
        """Return the cost per second that the target has done, of all jobs or one."""
        found = (
            cost for at_s, of, cost in self.target.done
            if from_s <= at_s < until_s and job in (None, of)
        )  # fmt: skip
        return sum(found) / (until_s - from_s)

    def refused(self, from_s: float, until_s: float) -> float:
        """Return the share of the calls that was refused."""
        refused = sum(from_s <= at_s < until_s for at_s in self.target.refused)
        done = sum(from_s <= at_s < until_s for at_s, _, _ in self.target.done)
        return refused / max(1, refused + done)
