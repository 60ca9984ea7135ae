"""Translates messages from bolts into calls of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowctl.core.driver import ProlongingCore
from flowctl.core.joined import Beat
from flowctl.core.ranges.core import RangeCore
from flowctl.core.records import Ack, AckOutcome, Rejected
from flowctl.errors import InternalError, ProcessError
from flowctl.prepared import prepare
from flowctl.runtime.claims import Claims
from flowctl.runtime.control import RunControl
from flowctl.runtime.faults import (
    describe_fail,
    fatal_error,
    fenced_error,
    gave_up_error,
    target_down_error,
)
from flowctl.runtime.notifier import ListenerNotifier
from flowctl.runtime.range_inbound import RangeInbound
from flowctl.wire.frames import (
    AckFrame,
    DetailedAckFrame,
    Dying,
    FailFrame,
    Heartbeat,
    RangeFail,
    Reported,
    Revoked,
    SettledFrame,
)
from flowctl.wire.server import Inbound, Joined, Left, Received

prepare(Reported)


class InboundHandler:
    """Passes messages from bolts to the core.  For the sender's thread, with the lock held."""

    def __init__(
        self,
        control: RunControl,
        notifier: ListenerNotifier | None,
        end_connection: Callable[[str], None],
    ) -> None:
        """``end_connection`` is called with the name of a bolt that broke the protocol."""
        self._control = control
        self._notifier = notifier
        self._end_connection = end_connection
        self._claims = Claims(control.core)
        self._dying: dict[str, Dying] = {}  # bolts that said why they will leave
        core = control.core
        self._ranges = (
            RangeInbound(control, core, notifier, self.check_gave_up)
            if isinstance(core, RangeCore)
            else None
        )

    def take(self, item: Inbound, now_s: float) -> None:
        """A bolt connected, left or sent something."""
        core = self._control.core
        if isinstance(item, Received):
            for frame in item.frames:
                breach = self._claims.breach(item.bolt, item.epoch, frame)
                if breach:
                    self._drop(item.bolt, breach, now_s)
                    return
                self._take_frame(item.bolt, item.epoch, frame, now_s)
        elif isinstance(item, Joined):
            self._claims.forget(item.bolt)
            self._dying.pop(item.bolt, None)
            self._control.long_calls.joined(item.bolt)
            self._control.places[item.bolt] = (item.host, item.pid)
            core.add_bolt(item.bolt, slots=item.slots, epoch=item.epoch, now_s=now_s, in_order=True)
        elif isinstance(item, Left):
            consumer = core.bolts.get(item.bolt)
            if consumer is not None and consumer.epoch == item.epoch:
                dying = self._dying.pop(item.bolt, Dying(item.reason))
                self._control.long_calls.left(item.bolt, is_stuck=dying.is_stuck)
                core.remove_bolt(
                    item.bolt, now_s=now_s, reason=dying.reason, lost=not dying.is_told
                )
                self.check_gave_up(None)

    def _drop(self, bolt: str, breach: str, now_s: float) -> None:
        """End it; what it sends after that, and the rest of this batch, is ignored."""
        self._end_connection(bolt)
        self._control.core.drop_peer(bolt, now_s=now_s, reason=breach)
        self.check_gave_up(None)

    def _take_frame(self, bolt: str, epoch: int, frame: object, now_s: float) -> None:
        core = self._control.core
        if isinstance(frame, AckFrame):
            if self._notifier is not None:
                self._notifier.acked(frame.tuple_id)
            core.on_ack(self._ack_of(bolt, epoch, frame), now_s=now_s)
        elif isinstance(frame, Heartbeat):
            # A piece of a range may be put back and begun again: its order says nothing.
            begun = frame.begun if self._ranges is None else ()
            arrived = frame.arrived if frame.arrived >= 0 else None
            beat = Beat(frame.busy_slots, frame.queued, begun, arrived)
            core.on_heartbeat(bolt, epoch, beat, now_s=now_s)
            self._control.long_calls.take(bolt, frame.calls, now_s)
            for told in frame.targets:
                self._control.targets.take(told, now_s)
            if frame.prolonged and isinstance(core, ProlongingCore):
                core.on_prolonged(bolt, epoch, frame.prolonged, now_s=now_s)
        elif isinstance(frame, FailFrame):
            self._take_fail(bolt, epoch, frame, now_s)
        elif isinstance(frame, Revoked):
            core.on_revoked(bolt, epoch, frame.tuple_ids, now_s=now_s)
        elif isinstance(frame, Dying):
            self._dying[bolt] = frame
            self._control.long_calls.left(bolt, is_stuck=frame.is_stuck)
        elif self._ranges is None or not self._ranges.take(bolt, epoch, frame, now_s):
            raise InternalError(f"no rule for a {type(frame).__name__} from bolt {bolt}.")

    def _ack_of(self, bolt: str, epoch: int, frame: AckFrame) -> Ack:
        rejected: Sequence[Rejected] = ()
        settlement, left_out = None, 0
        if frame.__class__ is not AckFrame:  # seldom: something else was told as well
            if isinstance(frame, SettledFrame):
                settlement = self._claims.settlement(bolt, frame)
            if isinstance(frame, DetailedAckFrame):
                rejected, left_out = frame.rejected, frame.left_out
        return Ack(
            bolt=bolt,
            epoch=epoch,
            tuple_id=frame.tuple_id,
            attempt=frame.attempt,
            wait_s=frame.wait_s,
            service_s=frame.service_s,
            idle_total_s=frame.idle_total_s,
            sink_s=frame.sink_s,
            settlement=settlement,
            rejected=rejected,
            left_out=left_out,
        )

    def _take_fail(self, bolt: str, epoch: int, frame: FailFrame, now_s: float) -> None:
        control = self._control
        control.long_calls.overdue += frame.is_overdue
        if frame.fenced:
            # Take it out of flight, or the end would wait for it.
            control.core.on_fail(bolt, epoch, frame.tuple_id, reason=frame.error, now_s=now_s)
            control.fail_soon(fenced_error(frame))
            return
        if frame.fatal:
            # Out of flight, but not by a fail: that could dead-letter good records.
            control.core.on_revoked(bolt, epoch, [frame.tuple_id], now_s=now_s)
            control.fail_soon(fatal_error(bolt, frame))
            return
        reason = describe_fail(control.core.tuple_records(bolt, frame.tuple_id), frame)
        if frame.refused:
            control.core.on_refused(
                bolt,
                epoch,
                frame.tuple_id,
                reason=frame.error,
                after_s=frame.after_s,
                now_s=now_s,
                record_index=frame.record_index,
            )
            return
        outcome = control.core.on_fail(
            bolt,
            epoch,
            frame.tuple_id,
            reason=reason,
            now_s=now_s,
            record_index=frame.record_index,
            is_data_error=frame.is_data_error,
        )
        if outcome is AckOutcome.GAVE_UP:
            self.check_gave_up(frame)

    def check_target(self, now_s: float) -> None:
        """End the run if the target was down for ``retry.give_up_after_s``."""
        core, control = self._control.core, self._control
        down = core.target_down
        if core.is_target_lost and down is not None and control.error is None:
            control.fail_soon(target_down_error(down, now_s))

    def check_gave_up(self, frame: FailFrame | RangeFail | None) -> None:
        """End the run if a tuple was given up; ``frame`` is the fail that caused it, if one did."""
        gave_up = self._control.core.gave_up
        if gave_up is not None and not isinstance(self._control.error, ProcessError):
            self._control.fail_soon(gave_up_error(gave_up, frame))
