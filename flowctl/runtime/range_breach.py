"""What a bolt reports about ranges is checked against what it was given, as claims.py does."""

from __future__ import annotations

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.ranges.core import RangeCore
from flowctl.runtime.claim_limits import fail_breach, times_breach
from flowctl.wire.frames import ProgressFrame, RangeFail, SplitAnswer


def breach(core: RangeCore, consumer: AdaptiveFlowConsumer, frame: object) -> str:
    """Return what can't be true in a frame about ranges; "" if nothing, or for other frames.

    Call it with the core's lock held.
    """
    if not isinstance(frame, ProgressFrame | RangeFail | SplitAnswer):
        return ""
    bolt, tuple_id = consumer.bolt, frame.tuple_id
    if tuple_id not in consumer.flight and not core.may_speak_of(bolt, tuple_id):
        return f"it reported on range {tuple_id}, which it was never sent"
    if isinstance(frame, SplitAnswer):
        return ""
    sent = core.attempts_of(bolt, tuple_id)
    if frame.attempt < 1 or (sent and frame.attempt > sent):
        return f"it reported on sending {frame.attempt} of range {tuple_id}, sent {sent} times"
    if isinstance(frame, RangeFail):
        return _fail(core, frame)
    return _progress(core, frame)


def _fail(core: RangeCore, frame: RangeFail) -> str:
    if not core.may_tell_of(frame.tuple_id, frame.start, frame.stop):
        return f"it failed {frame.start} to {frame.stop} of range {frame.tuple_id}"
    return fail_breach(frame)


def _progress(core: RangeCore, frame: ProgressFrame) -> str:
    impossible = times_breach(
        frame.read_s,
        frame.wait_s,
        frame.service_s,
        frame.sink_s or 0.0,
        frame.idle_total_s,
        frame.call_s,
    )
    if impossible:
        return impossible
    if not core.may_tell_of(frame.tuple_id, frame.start, frame.done_through):
        return f"it did {frame.start} to {frame.done_through} of range {frame.tuple_id}"
    if frame.records < 0 or not 0 <= frame.left_out <= frame.records:
        return f"{frame.left_out} records were left out of {frame.records}"
    return _rejected(frame)


def _rejected(frame: ProgressFrame) -> str:
    last = frame.start - 1
    for one in frame.rejected:
        position = one.position
        if not isinstance(position, int) or not last < position < frame.done_through:
            return f"it rejected the record at {position!r} after {last}"
        last = position
    if len(frame.rejected) > frame.records:
        return f"it rejected {len(frame.rejected)} of {frame.records} records"
    return ""
