"""The order in which the spout's loop does things, one turn at a time.

The sender's thread drives it; a test steps it by hand.  Differences from Storm's loop:

- The inbox is drained at every turn: acks make room, so taking them later would only delay.
- There is one task.  The reader asks several sources in turn, before the core's buffer.
- The task enforces its limits itself: what is pending stops new tuples, never retries, and only the
  core can tell them apart.
- What is refused stays in the core's buffer, in its order, and is asked for again: with an overflow
  buffer in the loop, one bolt that takes nothing would hold up all others.  What a bolt's
  connection does not take at once waits in that bolt's outbox, within its window.

A bolt's turn is :meth:`flowctl.bolts.link.Link.report_and_take`: it takes nothing while its report
can't be sent, and has no limit of its own.  A spout takes acks whatever else is waiting, so even if
all queues are full they always drain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from flowctl.instrumentation.events import EventLogger
from flowctl.instrumentation.snapshot import WaitReason
from flowctl.waiting.episodes import Episode, SlowCalls
from flowctl.waiting.idling import Idling
from flowctl.waiting.strategies import Parking, WaitSituation, WaitStrategy

# How late an activation is noticed if nobody wakes the loop.
INACTIVE_POLL_S: Final = 0.1


class Spout(Protocol):
    """What the loop drives.  All calls come from its thread; none may block."""

    @property
    def is_active(self) -> bool:
        """Whether it may emit."""

    def receive(self) -> int:
        """Take everything that arrived, acks first; return how many messages."""

    def activate(self) -> None:
        """Called once at each change from inactive to active."""

    def deactivate(self) -> None:
        """Called once at each change from active to inactive, and at the loop's end."""

    def next_tuple(self) -> int:
        """Emit what is allowed, or some of it; return how many tuples."""

    def waits_for(self) -> WaitReason:
        """Why the last :meth:`next_tuple` emitted no more; NOTHING: more may be emitted at once."""


class SpoutLoop:
    """A spout's turns.  For one thread; the times may be read from any.

    ``strategy`` makes the wait strategy of a situation, ``park`` is the wait of an inactive loop.
    ``empty_emit_streak`` counts the waits since the last emission.
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
            episode = Episode(f"{name}_began", f"{name}_ended", logger=logger)
            return Idling(strategy(situation), episode, clock=clock)

        self._spout = spout
        self._park = park
        self._clock = clock
        self._slow_calls = SlowCalls(logger=logger)
        self._idlings = {
            WaitReason.BACKPRESSURE: idling(WaitSituation.BACK_PRESSURE_WAIT, "backpressure"),
            WaitReason.MAX_PENDING: idling(WaitSituation.SPOUT_WAIT, "max_pending"),
            WaitReason.NO_INPUT: idling(WaitSituation.SPOUT_WAIT, "no_input"),
            WaitReason.LAST_TUPLES: idling(WaitSituation.SPOUT_WAIT, "last_tuples"),
        }
        self._waits_for = WaitReason.NOTHING
        self.empty_emit_streak: int = 0
        self.was_active: bool = False

    def waited_s(self, reason: WaitReason) -> float:
        """Time waited for ``reason`` so far [s]."""
        return self._idlings[reason].episode.waited_s

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
        self._over(WaitReason.NOTHING)
        if self.was_active:
            self.was_active = False
            self._spout.deactivate()

    def _idle(self, received: int, emitted: int) -> None:
        """Wait if, and only if, nothing more can be emitted."""
        if emitted:
            self.empty_emit_streak = 0
            self._over(WaitReason.NOTHING)
        reason = self._spout.waits_for()
        if reason is WaitReason.NOTHING or received > 1:  # the next turn finds work without a wait
            return
        if reason is not self._waits_for:
            self._over(reason)
        if reason is not WaitReason.BACKPRESSURE:
            self.empty_emit_streak += 1
        self._idlings[reason].wait()

    def _over(self, now_for: WaitReason) -> None:
        if self._waits_for is not WaitReason.NOTHING:
            self._idlings[self._waits_for].over()
        self._waits_for = now_for
