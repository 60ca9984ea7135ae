"""Translates messages from bolts about ranges into calls of the core."""

from __future__ import annotations

from collections.abc import Callable

from flowctl.core.carried import plain_value
from flowctl.core.letters import as_sent
from flowctl.core.positions import show
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.messages import Progress, RangeFailed, RejectedRecord, SplitAnswered
from flowctl.core.records import AckOutcome, Record
from flowctl.runtime.control import RunControl
from flowctl.runtime.faults import fatal_error, fenced_error
from flowctl.runtime.notifier import ListenerNotifier
from flowctl.wire.frames import ProgressFrame, RangeFail, SplitAnswer


class RangeInbound:
    """For the sender's thread, with the lock held."""

    def __init__(
        self,
        control: RunControl,
        core: RangeCore,
        notifier: ListenerNotifier | None,
        check_gave_up: Callable[[RangeFail], None],
    ) -> None:
        self._control = control
        self._core = core
        self._notifier = notifier
        self._check_gave_up = check_gave_up

    def take(self, bolt: str, epoch: int, frame: object, now_s: float) -> bool:
        """Take ``frame`` if it is of ranges; return whether it is."""
        if isinstance(frame, ProgressFrame):
            self._core.on_progress(_progress(bolt, epoch, frame), now_s=now_s)
            is_held_up = self._control.saves_told.reported(
                bolt, epoch, frame.tuple_id, is_awaited=frame.is_awaited
            )
            if frame.is_urgent or is_held_up:
                self._control.save_soon()
            if self._notifier is not None and not self._core.attempts_of(bolt, frame.tuple_id):
                self._notifier.acked(frame.tuple_id)
        elif isinstance(frame, SplitAnswer):
            answer = SplitAnswered(bolt, epoch, frame.tuple_id, frame.request, frame.stop)
            self._core.on_split(answer, now_s=now_s)
        elif isinstance(frame, RangeFail):
            self._take_fail(bolt, epoch, frame, now_s)
        else:
            return False
        return True

    def _take_fail(self, bolt: str, epoch: int, frame: RangeFail, now_s: float) -> None:
        core = self._core
        self._control.long_calls.overdue += frame.is_overdue
        if frame.fenced or frame.fatal:
            # Out of flight, but not by a fail: that could dead-letter good records.
            core.on_revoked(bolt, epoch, [frame.tuple_id], now_s=now_s)
            self._control.fail_soon(
                fenced_error(frame) if frame.fenced else fatal_error(bolt, frame)
            )
            return
        outcome = core.on_range_failed(_failed(bolt, epoch, frame), now_s=now_s)
        if outcome is AckOutcome.GAVE_UP:
            self._check_gave_up(frame)


def _progress(bolt: str, epoch: int, frame: ProgressFrame) -> Progress:
    rejected = [
        RejectedRecord(one.position, as_sent(plain_value(one.value)), one.reason)
        for one in frame.rejected
        if isinstance(one.position, int)
    ]
    return Progress(
        bolt=bolt,
        epoch=epoch,
        tuple_id=frame.tuple_id,
        attempt=frame.attempt,
        start=frame.start,
        done_through=frame.done_through,
        records=frame.records,
        read_s=max(0.0, frame.read_s),
        wait_s=max(0.0, frame.wait_s),
        service_s=max(0.0, frame.service_s),
        sink_s=frame.sink_s,
        idle_total_s=frame.idle_total_s,
        rejected=rejected,
        left_out=frame.left_out,
        receipts=frame.receipts,
        call_s=frame.call_s,
    )


def _failed(bolt: str, epoch: int, frame: RangeFail) -> RangeFailed:
    reason = frame.error
    if frame.record_at is not None and not frame.refused:
        reason = f"{reason}, at record {show(frame.record_at)}"
    record = frame.record
    if record is not None:
        record = Record(record.position, as_sent(plain_value(record.value)))
    return RangeFailed(
        bolt=bolt,
        epoch=epoch,
        tuple_id=frame.tuple_id,
        start=frame.start,
        stop=frame.stop,
        records=frame.records,
        reason=reason,
        record=record,
        record_at=frame.record_at,
        is_refused=frame.refused,
        after_s=frame.after_s,
        is_read_error=frame.is_read_error,
        is_data_error=frame.is_data_error,
    )
