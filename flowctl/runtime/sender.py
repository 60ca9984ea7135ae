"""The sender: the one loop that talks to bolts, and the only code here that sleeps.

Under the lock it asks the core what to do; outside it does the I/O.  Acks that are waiting are
taken in batches.
"""

from __future__ import annotations

import threading
from collections import deque

from flowctl.core.driver import ProlongingCore
from flowctl.core.events import FlowEvent
from flowctl.core.records import Ack, AckOutcome, Emission, RevokeOrder
from flowctl.errors import FencedError, InternalError, ProcessError, SourceError
from flowctl.runtime.control import RunControl
from flowctl.runtime.dead_letters import DeadLetters
from flowctl.runtime.faults import describe_fail, gave_up_error, unsendable_error
from flowctl.runtime.listening import Listening
from flowctl.wire.frames import (
    AckFrame,
    FailFrame,
    Heartbeat,
    Revoke,
    Revoked,
    SettledFrame,
    TupleFrame,
)
from flowctl.wire.server import Inbound, Joined, Left, Received, SpoutServer

# Emissions decided under one hold of the lock: the first bolts should get work while the rest is
# decided, and acks should not wait for more than about 2 ms (some 8 us each).
_EMITS_MAX = 256
# Bytes of emissions encoded before they are handed to the sockets, for the same reason.
_EMIT_BYTES_MAX = 4 << 20
# Longest sleep: the core's next deadline and wake-ups end it earlier; this bounds a defect.
_SLEEP_MAX_S = 0.5


class Sender(threading.Thread):
    """Drives the core until the run is finished.  ``events`` is drained by whoever shows them."""

    def __init__(
        self,
        control: RunControl,
        server: SpoutServer,
        *,
        dead_letters: DeadLetters | None = None,
        listening: Listening | None = None,
    ) -> None:
        super().__init__(name="flowctl-sender", daemon=True)
        self._control = control
        self._server = server
        self._dead_letters = dead_letters
        self._listening = listening
        self.events: deque[FlowEvent] = deque(maxlen=100_000)  # a view that died can't eat memory
        self.last_fail: FailFrame | None = None
        control.wake = server.wake

    def run(self) -> None:
        try:
            timeout_s = 0.0
            while not self._control.finished.is_set():
                timeout_s = self._step(timeout_s)
        except BaseException as error:
            self._control.fail(error)
            self._control.finished.set()

    def _step(self, timeout_s: float) -> float:
        """One turn of the loop; return how long the next may wait for traffic."""
        control, core = self._control, self._control.core
        inbound = self._server.poll(timeout_s)
        now_s = control.clock()
        with control.lock:
            for item in inbound:
                self._take(item, now_s)
            core.on_deadline(now_s=now_s)
            if core.gave_up is not None:  # a topology's trees also fail by acks and by time
                self._check_gave_up(None)
            emissions, is_more = self._decide(now_s)
            orders = self._drain_orders()
            self._take_events()
            deadline_s = core.next_deadline_s()
            if control.reader_waits and core.intake.has_room:
                control.room.notify()
            if self._is_finished():
                control.finished.set()
        self._send(emissions, orders)
        if self._listening is not None:
            for emission in emissions:
                self._listening.emitted(emission)
            self._listening.flush()
        if is_more:
            return 0.0
        if deadline_s is None:
            return _SLEEP_MAX_S
        return min(_SLEEP_MAX_S, max(0.0, deadline_s - control.clock()))

    def _is_finished(self) -> bool:
        """Everything read is acked; or, when stopping, nothing is in flight."""
        core = self._control.core
        if self._control.stopping.is_set():
            if self._sends_committed() and core.intake.buffer:
                return False
            return all(not consumer.flight for consumer in core.bolts.values())
        return self._control.reader_done.is_set() and core.is_drained

    def _take_events(self) -> None:
        core = self._control.core
        while (event := core.poll_event()) is not None:
            self.events.append(event)
            if self._listening is not None:
                self._listening.happened(event)
        if self._dead_letters is not None:
            while (dead := core.poll_dead()) is not None:
                self._dead_letters.put(dead)

    def _sends_committed(self) -> bool:
        """Stopping in order: what is committed already and not sent would be lost, so send it."""
        core = self._control.core
        is_orderly = self._control.error is None and not core.intake.is_held
        return core.guarantee.commits_before_emit and is_orderly

    def _decide(self, now_s: float) -> tuple[list[Emission], bool]:
        """Emissions for this turn, and whether there may be more at once."""
        emissions: list[Emission] = []
        if self._control.stopping.is_set() and not self._sends_committed():
            return emissions, False
        size_bytes = 0
        poll_emit = self._control.core.poll_emit
        while len(emissions) < _EMITS_MAX and size_bytes < _EMIT_BYTES_MAX:
            emission = poll_emit(now_s=now_s)
            if emission is None:
                return emissions, False
            emissions.append(emission)
            size_bytes += emission.size_bytes
        return emissions, True

    def _drain_orders(self) -> list[RevokeOrder]:
        orders = []
        while (order := self._control.core.poll_order()) is not None:
            orders.append(order)
        return orders

    def _send(self, emissions: list[Emission], orders: list[RevokeOrder]) -> None:
        """Encode and hand over.  A bolt that just went is reported by the next poll."""
        send = self._server.send
        for e in emissions:
            records = list(e.records)
            try:
                send(
                    e.bolt,
                    TupleFrame(e.tuple_id, e.attempt, e.partition, e.acked_through, records),
                )
            except SourceError as error:
                self._refuse(e, error)
        for order in orders:
            send(order.bolt, Revoke(order.tuple_ids))
        if emissions or orders:
            self._server.flush()

    def _refuse(self, emission: Emission, error: SourceError) -> None:
        """A record can't be put on the wire: the run ends; what else is in flight still counts."""
        control = self._control
        with control.lock:
            consumer = control.core.bolts[emission.bolt]
            control.core.on_fail(
                emission.bolt,
                consumer.epoch,
                emission.tuple_id,
                reason=error.problem,
                now_s=control.clock(),
            )
            control.fail_soon(unsendable_error(emission.partition, emission.records, error))

    def _take(self, item: Inbound, now_s: float) -> None:
        core = self._control.core
        if isinstance(item, Received):
            for frame in item.frames:
                self._take_frame(item.bolt, item.epoch, frame, now_s)
        elif isinstance(item, Joined):
            core.add_bolt(item.bolt, slots=item.slots, epoch=item.epoch, now_s=now_s, in_order=True)
        elif isinstance(item, Left):
            consumer = core.bolts.get(item.bolt)
            if consumer is not None and consumer.epoch == item.epoch:
                core.remove_bolt(item.bolt, now_s=now_s, reason=item.reason)
                self._check_gave_up(None)

    def _take_frame(self, bolt: str, epoch: int, frame: object, now_s: float) -> None:
        core = self._control.core
        if isinstance(frame, AckFrame):
            if self._listening is not None:
                self._listening.acked(frame.tuple_id)
            core.on_ack(
                Ack(
                    bolt=bolt,
                    epoch=epoch,
                    tuple_id=frame.tuple_id,
                    attempt=frame.attempt,
                    wait_s=frame.wait_s,
                    service_s=frame.service_s,
                    idle_total_s=frame.idle_total_s,
                    sink_s=frame.sink_s,
                    settlement=frame.settlement if isinstance(frame, SettledFrame) else None,
                ),
                now_s=now_s,
            )
        elif isinstance(frame, Heartbeat):
            core.on_heartbeat(
                bolt, epoch, busy_slots=frame.busy_slots, queued=frame.queued, now_s=now_s
            )
            if frame.prolonged and isinstance(core, ProlongingCore):
                core.on_prolonged(bolt, epoch, frame.prolonged, now_s=now_s)
        elif isinstance(frame, FailFrame):
            self._take_fail(bolt, epoch, frame, now_s)
        elif isinstance(frame, Revoked):
            core.on_revoked(bolt, epoch, frame.tuple_ids, now_s=now_s)
        else:
            raise InternalError(f"no rule for a {type(frame).__name__} from bolt {bolt}.")

    def _take_fail(self, bolt: str, epoch: int, frame: FailFrame, now_s: float) -> None:
        control = self._control
        if frame.fenced:
            # Out of flight, or the end would wait for it.
            control.core.on_fail(bolt, epoch, frame.tuple_id, reason=frame.error, now_s=now_s)
            control.fail_soon(
                FencedError(
                    f"the sink refused this driver's write: {frame.error}.",
                    remedy="A newer driver of this job is running; let it go on.",
                )
            )
            return
        reason = describe_fail(control.core.tuple_records(frame.tuple_id, bolt=bolt), frame)
        outcome = control.core.on_fail(bolt, epoch, frame.tuple_id, reason=reason, now_s=now_s)
        if outcome is AckOutcome.GAVE_UP:
            self._check_gave_up(frame)

    def _check_gave_up(self, frame: FailFrame | None) -> None:
        gave_up = self._control.core.gave_up
        if gave_up is not None and not isinstance(self._control.error, ProcessError):
            self._control.fail_soon(gave_up_error(gave_up, frame))
