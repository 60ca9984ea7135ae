"""Passes messages of bolts to the core, and those about the run to the run."""

from __future__ import annotations

from collections.abc import Callable

from flowctl.core.messages import (
    Ack,
    Fail,
    Heartbeat,
    Progress,
    RangeFail,
    Revoked,
    SettledAck,
    SplitAnswer,
)
from flowctl.core.ranges.core import RangeCore
from flowctl.core.records import AckOutcome
from flowctl.errors import ProcessError
from flowctl.prepared import prepare
from flowctl.runtime.claims import Claims
from flowctl.runtime.control import RunControl
from flowctl.runtime.faults import fatal_error, fenced_error, gave_up_error, target_down_error
from flowctl.runtime.notifier import ListenerNotifier
from flowctl.wire.frames import Dying, ToSpout
from flowctl.wire.server import Inbound, Joined, Left, Received

prepare(ToSpout)


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
        self.claims = Claims(control.core)
        self._dying: dict[str, Dying] = {}  # bolts that reported why they will leave

    def take(self, item: Inbound, now_s: float) -> None:
        """Take one item: a bolt connected, left or sent something."""
        core = self._control.core
        if isinstance(item, Received):
            for frame in item.frames:
                breach = self.claims.breach(item.bolt, item.epoch, frame)
                if breach:
                    self._drop(item.bolt, breach, now_s)
                    return
                self._take_frame(item.bolt, item.epoch, frame, now_s)
        elif isinstance(item, Joined):
            self.claims.forget(item.bolt)
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
        """End a bolt; what it sends after that, and the rest of this batch, is ignored."""
        self._end_connection(bolt)
        self._control.core.drop_peer(bolt, now_s=now_s, reason=breach)
        self.check_gave_up(None)

    def _take_frame(self, bolt: str, epoch: int, frame: ToSpout, now_s: float) -> None:
        core = self._control.core
        if isinstance(frame, Ack):
            if self._notifier is not None:
                self._notifier.acked(frame.tuple_id)
            if isinstance(frame, SettledAck):
                frame = self.claims.believed(bolt, frame)
            core.on_ack(bolt, epoch, frame, now_s=now_s)
        elif isinstance(frame, Heartbeat):
            core.on_heartbeat(bolt, epoch, frame, now_s=now_s)
            self._control.long_calls.take(bolt, frame.calls, now_s)
            for told in frame.targets:
                self._control.targets.take(told, now_s)
        elif isinstance(frame, Fail | RangeFail):
            self._take_fail(bolt, epoch, frame, now_s)
        elif isinstance(frame, Revoked):
            core.on_revoked(bolt, epoch, frame, now_s=now_s)
        elif isinstance(frame, Dying):
            self._dying[bolt] = frame
            self._control.long_calls.left(bolt, is_stuck=frame.is_stuck)
        elif isinstance(core, RangeCore):  # otherwise it was a breach, or its epoch is over
            self._take_of_range(core, bolt, epoch, frame, now_s)

    def _take_of_range(
        self, core: RangeCore, bolt: str, epoch: int, frame: Progress | SplitAnswer, now_s: float
    ) -> None:
        if isinstance(frame, SplitAnswer):
            core.on_split(bolt, epoch, frame, now_s=now_s)
            return
        core.on_progress(bolt, epoch, frame, now_s=now_s)
        is_held_up = self._control.saves_told.reported(
            bolt, epoch, frame.tuple_id, is_awaited=frame.did.is_awaited
        )
        if frame.did.is_urgent or is_held_up:
            self._control.save_soon()
        if self._notifier is not None and not core.attempts_of(bolt, frame.tuple_id):
            self._notifier.acked(frame.tuple_id)

    def _take_fail(self, bolt: str, epoch: int, said: Fail | RangeFail, now_s: float) -> None:
        control, core = self._control, self._control.core
        fail = said.fail if isinstance(said, RangeFail) else said
        control.long_calls.overdue += fail.is_overdue
        if fail.is_fenced or fail.is_fatal:
            # Out of flight, or the end would wait for it.
            if said is fail and fail.is_fenced:
                core.on_fail(bolt, epoch, fail, now_s=now_s)
            else:  # not by a fail: that could dead-letter good records
                core.on_revoked(bolt, epoch, Revoked([fail.tuple_id]), now_s=now_s)
            control.fail_soon(fenced_error(fail) if fail.is_fenced else fatal_error(bolt, fail))
            return
        if said is fail:
            outcome = core.on_fail(bolt, epoch, fail, now_s=now_s)
        elif isinstance(said, RangeFail) and isinstance(core, RangeCore):
            outcome = core.on_range_fail(bolt, epoch, said, now_s=now_s)
        else:
            return  # it was a breach, or its epoch is over
        if outcome is AckOutcome.GAVE_UP:
            self.check_gave_up(fail)

    def check_target(self, now_s: float) -> None:
        """End the run if the target was down for ``retry.give_up_after_s``."""
        core, control = self._control.core, self._control
        down = core.target_down
        if core.is_target_lost and down is not None and control.error is None:
            control.fail_soon(target_down_error(down, now_s))

    def check_gave_up(self, fail: Fail | None) -> None:
        """End the run if a tuple was given up; ``fail`` is what caused it, if something did."""
        gave_up = self._control.core.gave_up
        if gave_up is not None and not isinstance(self._control.error, ProcessError):
            self._control.fail_soon(gave_up_error(gave_up, fail))
