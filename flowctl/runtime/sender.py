"""The sender: the only thread that talks to bolts, running the loop of a spout.

Under the lock it asks the core what to do; outside it does the I/O.  Waiting acks are taken in
batches.  It waits for traffic, but never past the core's next deadline.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from flowctl.config import WaitSettings
from flowctl.core.driver import TellingCore, Turn
from flowctl.core.events import FlowEvent
from flowctl.core.messages import Emission, End, Fail
from flowctl.core.ranges.core import RangeCore
from flowctl.errors import FlowctlError, SourceError
from flowctl.instrumentation.event_text import EventLogger
from flowctl.instrumentation.logging import light_logger
from flowctl.instrumentation.snapshot import WaitReason, Waits
from flowctl.runtime.control import RunControl
from flowctl.runtime.dead_letters import DeadLetters
from flowctl.runtime.faults import unsendable_error
from flowctl.runtime.inbound import InboundHandler
from flowctl.runtime.losses import Losses, is_loss, stopped
from flowctl.runtime.notifier import ListenerNotifier
from flowctl.threads import GuardedThread
from flowctl.waiting.idling import Episode, Idling, SlowCalls
from flowctl.waiting.strategies import (
    Parking,
    WaitInterrupted,
    WaitSituation,
    WaitStrategy,
    make_wait_strategy,
)
from flowctl.wire.frames import Saved
from flowctl.wire.server import Inbound, SpoutServer

# -- The order in which the spout's loop does things, one turn at a time -----------------------
#
# The sender's thread drives it; a test steps it by hand. Differences from Storm's loop:
#
# - The inbox is drained at every turn: acks make room, so taking them later would only delay.
# - There is one task.  The reader asks several sources in turn, before the core's buffer.
# - The task enforces its limits itself: what is pending stops new tuples, never retries, and only
#   the core can tell them apart.
# - What is refused stays in the core's buffer, in its order, and is asked for again: with an
#   overflow buffer in the loop, one bolt that takes nothing would hold up all others.  What a
#   bolt's connection does not take at once waits in that bolt's outbox, within its window.
#
# A bolt's turn is :meth:`flowctl.bolts.link.Link.report_and_take`: it takes nothing while its
# report can't be sent, and has no limit of its own. A spout takes acks whatever else is waiting,
# so even if all queues are full they always drain.


# How late an activation is noticed [s] if the loop is not woken.
INACTIVE_POLL_S: Final = 0.1


class Spout(Protocol):
    """The object that the loop drives.  All calls come from the loop's thread; none may block."""

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
        """End the active state; the loop may not be stepped again."""
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


# -- The sender --------------------------------------------------------------------------------


# Emissions decided in one hold of the lock: the first bolts should get work while the rest is
# decided, and acks should not wait for more than about 2 ms (some 8 us each).
_EMITS_MAX = 256
# Behind a relay that stands still, look again after this [s]: often for a heartbeat of 250 ms.
_RELAY_WAIT_S = 0.01
# Bytes of emissions encoded before they are handed to the sockets, for the same reason.
_EMIT_BYTES_MAX = 4 << 20


class Outlets(NamedTuple):
    """Where the core's reports on tuples go, apart from the emissions themselves.

    ``dead_letters`` gets tuples that were given up, ``notifier`` notifies a user's listener,
    ``losses`` ends the run when there are too many, and ``news`` gets what a
    :class:`flowctl.core.driver.TellingCore` reports; all but the first are for the sender's thread.
    """

    dead_letters: DeadLetters | None = None
    notifier: ListenerNotifier | None = None
    losses: Losses | None = None
    news: Callable[[object], None] | None = None


class Sender(GuardedThread):
    """Drives the core until the run is finished.  ``events`` is drained by the view.

    Its loop (:class:`flowctl.runtime.sender.SpoutLoop`) drives this object.  It is active from when
    bolts for all stages are connected until the run stops.
    """

    def __init__(
        self,
        control: RunControl,
        server: SpoutServer,
        *,
        wait: WaitSettings | None = None,
        outlets: Outlets | None = None,
        logger: EventLogger | None = None,
    ) -> None:
        super().__init__("flowctl-sender", on_death=self._died)
        self._control = control
        self._server = server
        outlets = outlets or Outlets()
        self._dead_letters, self._notifier, self._losses, self._on_news = outlets
        self._telling = control.core if isinstance(control.core, TellingCore) else None
        self._saved: list[tuple[str, Saved]] = []  # to be sent to bolts
        self._news: list[object] = []  # news collected with the lock held, sent without it
        self._inbound_handler = InboundHandler(control, self._notifier, server.drop_bolt)
        # so that a dead view can't fill the memory
        self.events: deque[FlowEvent] = deque(maxlen=100_000)
        self._logger = logger or light_logger()
        self._inbound: list[Inbound] | None = None  # of the last wait; None: poll first
        self._was_served = False
        self._waits_for = WaitReason.NOTHING
        self._next_s: float | None = None  # when the core wants a turn if nothing happens
        self.loop: SpoutLoop = SpoutLoop(
            self,
            strategy=partial(make_wait_strategy, wait or WaitSettings(), park=self._park),
            park=self._park,
            clock=control.clock,
            logger=self._logger,
        )
        control.wake = server.wake
        control.spout_waits = self._waits

    def work(self) -> None:
        try:
            while not self._control.finished.is_set():
                self.loop.step()
        except WaitInterrupted:
            pass
        finally:
            self.loop.close()

    def _died(self, error: FlowctlError) -> None:
        """Wait for nothing more in flight, as no thread is left to take acks."""
        self._control.fail(error)
        self._control.finished.set()

    def _park(self, timeout_s: float) -> None:
        """Wait for messages from bolts, a wake-up or the core's next deadline."""
        control = self._control
        if control.finished.is_set():  # an event set later comes with a wake-up
            raise WaitInterrupted
        if timeout_s > 0:
            if self._next_s is not None:  # other threads that change the core wake this one
                wait_s = max(0.0, self._next_s - control.clock())
                if self._server.is_carried:  # work that is due may have to wait for the relay
                    wait_s = max(wait_s, _RELAY_WAIT_S)
                timeout_s = min(timeout_s, wait_s)
            self._inbound = self._server.poll(timeout_s)

    def _waits(self) -> Waits:
        return Waits(
            backpressure_s=self.loop.waited_s(WaitReason.BACKPRESSURE),
            max_pending_s=self.loop.waited_s(WaitReason.MAX_PENDING),
            no_input_s=self.loop.waited_s(WaitReason.NO_INPUT),
            last_tuples_s=self.loop.waited_s(WaitReason.LAST_TUPLES),
            empty_emit_streak=self.loop.empty_emit_streak,
        )

    # -- what the loop drives --------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether there are bolts for every stage and the run has not stopped."""
        if not self._was_served:
            self._was_served = self._control.core.is_served
        is_stopping = self._control.stopping.is_set() and not self._sends_committed()
        return self._was_served and not is_stopping

    def activate(self) -> None:
        """Bolts are connected."""
        self._logger.log(logging.DEBUG, "spout_activated")

    def deactivate(self) -> None:
        """Stop sending: acks are still taken.  Ranges end after the batch in progress."""
        core = self._control.core
        if isinstance(core, RangeCore):
            with self._control.lock:
                core.wind_up(self._control.clock())
        self._logger.log(logging.DEBUG, "spout_deactivated")

    def receive(self) -> int:
        """Process inbound frames, and if inactive expired deadlines; return how many bolts sent
        something."""
        inbound, self._inbound = self._inbound, None
        if inbound is None:
            inbound = self._server.poll(0.0)
        control = self._control
        turn: Turn | None = None
        now_s = control.clock()
        with control.lock:
            for item in inbound:
                self._inbound_handler.take(item, now_s)
            self._check_failed(now_s)  # a topology's trees also fail by acks
            if not self.is_active:  # otherwise next_tuple does it
                turn = control.turn(
                    now_s,
                    emits_max=0,
                    bytes_max=None,
                    heard_until_s=self._server.heard_until_s,
                )
                self._conclude(turn, now_s)
        if turn is not None:
            self._send(turn)
        return len(inbound)

    def _check_failed(self, now_s: float) -> None:
        """End the run if the core can't go on."""
        core = self._control.core
        if core.gave_up is not None:
            self._inbound_handler.check_gave_up(None)
        if core.is_target_lost:
            self._inbound_handler.check_target(now_s)

    def next_tuple(self) -> int:
        """Send what windows allow, as much as is decided in one hold of the lock."""
        control = self._control
        with control.lock:
            now_s = control.clock()
            turn = control.turn(
                now_s,
                emits_max=_EMITS_MAX,
                bytes_max=_EMIT_BYTES_MAX,
                heard_until_s=self._server.heard_until_s,
            )
            self._waits_for = WaitReason.NOTHING if turn.is_more else self._find_reason()
            self._conclude(turn, now_s)
        self._send(turn)
        return len(turn.emissions)

    def waits_for(self) -> WaitReason:
        """Why nothing more is sent at the moment."""
        return self._waits_for

    def _find_reason(self) -> WaitReason:
        """Return why nothing more may be sent.  Holding the lock."""
        control, core = self._control, self._control.core
        intake = core.intake
        if not intake.buffer:
            is_full = intake.is_full
            if control.store_away_since_s is not None:  # meanwhile acked records can't be saved
                is_full = is_full or control.reader_waits
            if is_full:
                return WaitReason.MAX_PENDING
            return WaitReason.LAST_TUPLES if control.reader_done.is_set() else WaitReason.NO_INPUT
        if intake.is_held:
            return WaitReason.NO_INPUT
        return WaitReason.MAX_PENDING if core.is_at_limit else WaitReason.BACKPRESSURE

    def _conclude(self, turn: Turn, now_s: float) -> None:
        """Act on a turn's changes of the core.  Holding the lock."""
        control, core = self._control, self._control.core
        self._next_s = turn.next_s
        self._saved += control.saves_told.take(core.bolts)
        self._check_failed(now_s)  # trees and targets also fail by time
        self._take_events(turn)
        if control.reader_waits and core.intake.has_room:
            control.room.notify()
        if self._is_finished():
            control.finished.set()
        if not self.is_active:
            self._waits_for = WaitReason.NOTHING  # go on at once: the next turn deactivates

    def _is_finished(self) -> bool:
        """Whether everything read is acked, or, when stopping, nothing is in flight.

        Committed records that are never sent again must first pass all stages of a topology:
        between two stages nothing is in flight.
        """
        core = self._control.core
        if self._control.stopping.is_set():
            if self._control.error is None and core.guarantee.commits_before_emit:
                # Held: the reader is just saving what it read, so that has to be sent as well.
                return core.is_drained
            return all(not consumer.flight for consumer in core.bolts.values())
        return self._control.reader_done.is_set() and core.is_drained

    def _take_events(self, turn: Turn) -> None:
        if self._telling is not None:
            self._news += self._telling.take_news()
        has_lost = False
        for event in turn.events:
            self.events.append(event)
            has_lost = has_lost or is_loss(event)
            if self._notifier is not None:
                self._notifier.happened(event)
        if self._dead_letters is not None:
            for dead in turn.dead:
                self._dead_letters.put(dead)
        losses, control = self._losses, self._control
        if has_lost and losses is not None and losses.is_too_many(control.core.counters):
            control.fail_soon(stopped())

    def _sends_committed(self) -> bool:
        """Whether, in an orderly stop, committed but unsent records are sent, as they would be
        lost.
        """
        core = self._control.core
        is_orderly = self._control.error is None and not core.intake.is_held
        return core.guarantee.commits_before_emit and is_orderly

    def _send(self, turn: Turn) -> None:
        """Encode and send.  A bolt that has just gone is reported by the next poll."""
        send = self._server.send
        for e in turn.emissions:
            try:
                send(e.bolt, e)
            except SourceError as error:
                self._refuse(e, error)
        for order in turn.orders:
            send(order.bolt, order)
            if isinstance(order, End):
                self._server.close_bolt(order.bolt)
        saved, self._saved = self._saved, []
        for bolt, told in saved:
            send(bolt, told)
        if turn.emissions or turn.orders or saved:
            self._server.flush()
        if self._notifier is not None:
            for emission in turn.emissions:
                self._notifier.emitted(emission)
            self._notifier.flush()
        if self._news:
            self._tell_news()

    def _tell_news(self) -> None:
        told, self._news = self._news, []
        if self._on_news is not None:
            for news in told:
                self._on_news(news)

    def take_rest(self) -> None:
        """Take what happened after the thread had ended, such as the last dead letters."""
        core = self._control.core
        with self._control.lock:
            while (event := core.poll_event()) is not None:
                self.events.append(event)
            if self._telling is not None:
                self._news += self._telling.take_news()
        self._tell_news()

    def _refuse(self, emission: Emission, error: SourceError) -> None:
        """End the run because of a record that can't be encoded; other tuples in flight still
        count.
        """
        control = self._control
        with control.lock:
            consumer = control.core.bolts[emission.bolt]
            fail = Fail(emission.tuple_id, emission.attempt, error.problem)
            control.core.on_fail(emission.bolt, consumer.epoch, fail, now_s=control.clock())
            control.fail_soon(unsendable_error(emission.partition, emission.records, error))
        self._waits_for = WaitReason.NOTHING  # go on at once: the next turn deactivates
