"""The order in which the spout's loop does things, one turn at a time.

The sender's thread drives it, a test steps it by hand.  What differs from Storm's loop:

- The inbox is drained at every turn: acks make room, so to look for them later only delays.
- There is one task.  The reader asks several sources in turn, before the core's buffer.
- The task keeps its limits itself: what is pending stops new tuples, never retries,
  and only the core tells them apart.
- What is refused stays in the core's buffer, in its order, and is asked for again: an overflow
  buffer of the loop would let one bolt that takes nothing hold up all others.  What a bolt's
  connection does not take at once waits in that bolt's outbox, within its window.

A bolt's turn is :meth:`flowctl.bolts.link.Link.report_and_take`: it takes nothing while what it
reported is refused, and has no limit of its own.  A spout takes acks whatever else waits,
so full queues all around always come loose.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, Protocol

from flowctl.instrumentation.events import EventLogger
from flowctl.waiting.idling import Idling
from flowctl.waiting.strategies import Parking, WaitSituation, WaitStrategy
from flowctl.waiting.stretches import SlowCalls, Stretch

# How late an activation is seen where nobody wakes the loop.
INACTIVE_POLL_S: Final = 0.1


class Hindrance(enum.Enum):
    """Why a spout can't emit more just now."""

    BACK_PRESSURE = "windows full"  # or the cap of a sink that all bolts share is reached
    MAX_PENDING = "limit of pending"  # of tuples in flight, or of uncommitted records
    NO_INPUT = "no input"  # the source is slow or at its end; or its position is not saved yet


class Spout(Protocol):
    """What the loop drives.  All calls come from its thread; none may block."""

    @property
    def is_active(self) -> bool:
        """Whether it may emit."""

    def receive(self) -> int:
        """Take all that came, acks first of all; return how many messages."""

    def activate(self) -> None:
        """Once at each change from inactive to active."""

    def deactivate(self) -> None:
        """Once at each change from active to inactive, and at the loop's end."""

    def next_tuple(self) -> int:
        """Emit what is allowed, or some of it; return how many tuples."""

    def hindrance(self) -> Hindrance | None:
        """Why the last :meth:`next_tuple` emitted no more; None: more may be emitted at once."""


class SpoutLoop:
    """A spout's turns.  For one thread; the times may be read from any.

    ``strategy`` makes the wait strategy of a situation, ``park`` is the wait of an inactive loop.
    ``empty_emit_streak`` counts the waits without an emission between.
    """

    def __init__(
        self,
        spout: Spout,
        *,
        strategy: Callable[[WaitSituation], WaitStrategy],
        park: Parking,
        clock: Callable[[], float],
        logger: EventLogger | None = None,
    ) -> None:
        def idling(situation: WaitSituation, name: str) -> Idling:
            stretch = Stretch(f"{name}_began", f"{name}_ended", logger=logger)
            return Idling(strategy(situation), stretch, clock=clock)

        self._spout = spout
        self._park = park
        self._clock = clock
        self._slow_calls = SlowCalls(logger=logger)
        self._backpressure = idling(WaitSituation.BACK_PRESSURE_WAIT, "backpressure")
        self._no_input = idling(WaitSituation.SPOUT_WAIT, "no_input")
        self._max_pending = idling(WaitSituation.SPOUT_WAIT, "max_pending")
        self._idlings = {
            Hindrance.BACK_PRESSURE: self._backpressure,
            Hindrance.MAX_PENDING: self._max_pending,
            Hindrance.NO_INPUT: self._no_input,
        }
        self._waits_for: Hindrance | None = None
        self.empty_emit_streak: int = 0
        self.was_active: bool = False

    @property
    def skipped_backpressure_s(self) -> float:
        """Time waited because windows were full [s]."""
        return self._backpressure.stretch.skipped_s

    @property
    def skipped_max_pending_s(self) -> float:
        """Time waited because as much was pending as may be [s]."""
        return self._max_pending.stretch.skipped_s

    @property
    def skipped_no_input_s(self) -> float:
        """Time waited because there was nothing to send [s]."""
        return self._no_input.stretch.skipped_s

    def step(self) -> None:
        """Do one turn.  Raises what the spout raises, and ``WaitInterrupted`` from a wait."""
        began_s = self._clock()
        received = self._spout.receive()
        received_s = self._clock()
        if received:
            self._slow_calls.took("ack", received_s - began_s)
        if not self._spout.is_active:
            self._deactivate()
            self._park(INACTIVE_POLL_S)
            return
        if not self.was_active:
            self.was_active = True
            self._spout.activate()
        emitted = self._spout.next_tuple()
        self._slow_calls.took("next_tuple", self._clock() - received_s)
        self._idle(received, emitted)

    def close(self) -> None:
        """End what is under way; the loop may not be stepped again."""
        self._deactivate()

    def _deactivate(self) -> None:
        self._over(None)
        if self.was_active:
            self.was_active = False
            self._spout.deactivate()

    def _idle(self, received: int, emitted: int) -> None:
        """Wait if nothing more can be emitted; exactly then."""
        if emitted:
            self.empty_emit_streak = 0
            self._over(None)
        hindrance = self._spout.hindrance()
        if hindrance is None or received > 1:  # the next turn finds work without a wait
            return
        if hindrance is not self._waits_for:
            self._over(hindrance)
        if hindrance is not Hindrance.BACK_PRESSURE:
            self.empty_emit_streak += 1
        self._idlings[hindrance].wait()

    def _over(self, now_for: Hindrance | None) -> None:
        if self._waits_for is not None:
            self._idlings[self._waits_for].over()
        self._waits_for = now_for
