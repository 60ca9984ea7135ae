"""What a bolt reports is checked against what it was given before it is used.

A peer with the run's key may still send something wrong: because of another version, a defect,
failing memory, or a stolen key.  None of that may end the run, move another bolt's tuples, or spoil
the estimates made from times.  So each frame is checked once, when it arrives; what can't be true
is a breach, and the peer that sent it is dropped.

A report that can be true but no longer matters is not a breach: bolts report late on tuples that
were given to others meanwhile or are done.  They are judged by what they were ever sent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from flowctl.core.carried import Packed
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.driver import DriverCore
from flowctl.core.messages import (
    Ack,
    DetailedAck,
    Fail,
    Heartbeat,
    Progress,
    RangeFail,
    Revoked,
    SettledAck,
    SplitAnswer,
)
from flowctl.core.pacing.figures import TARGETS_MAX
from flowctl.core.ranges.core import RangeCore
from flowctl.core.trees.settlement import Settlement, Watched
from flowctl.wire.frames import Dying

# No bolt has more waiting tuples: the bounds on windows are far lower, and strays are few.
_QUEUED_MAX: Final = 1 << 31
_RECORDS_MAX: Final = 1 << 31  # no tuple has more, as a frame is 256 MB by default
# Three years: longer than any process runs, and far from where sums lose their precision.
_SECONDS_MAX: Final = 1e8
# Sums of clock differences may end up slightly below 0.
_SECONDS_MIN: Final = -1e-3
# The most characters of a text.  An error is sent with 1,000 and a traceback with 4,000
# (failure/texts.py): room for other versions, but not enough to fill the driver's memory.
_TEXT_MAX: Final = 1 << 16
# Types that msgpack holds: an extension arrives as a Packed, and no other type has a size.
_VALUES: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, Packed})


class Claims:
    """Checks frames.  For the sender's thread, with the core's lock held."""

    def __init__(self, core: DriverCore) -> None:
        self._core = core
        # Inputs that a topology's bolt reported to hold beyond their tuples, by tuple, and whether
        # that ack was the tuple's first: only then does the hub count these inputs as held by the
        # bolt.
        self._kept: dict[str, dict[int, bool]] = {}

    def forget(self, bolt: str) -> None:
        """Forget what ``bolt`` holds, as a connection of it begins or ends."""
        self._kept.pop(bolt, None)

    def breach(self, bolt: str, epoch: int, frame: object) -> str:
        """Return the impossible part of ``frame``; "" if there is none, or if its epoch is over."""
        consumer = self._core.bolts.get(bolt)
        if consumer is None or consumer.epoch != epoch:
            return ""
        if isinstance(frame, Ack):
            return self._ack(consumer, frame)
        if isinstance(frame, Heartbeat):
            return self._heartbeat(consumer, frame)
        if isinstance(frame, Fail):
            return self._fail(consumer, frame)
        if isinstance(frame, Revoked):
            for tuple_id in frame.tuple_ids:
                if not self._core.may_speak_of(bolt, tuple_id):
                    return f"it gave back tuple {tuple_id}, which it was never sent"
            return ""
        if isinstance(frame, Progress | RangeFail | SplitAnswer):
            if isinstance(self._core, RangeCore):
                return _of_range(self._core, consumer, frame)
            return "it reported on a range, but this job has none"
        assert isinstance(frame, Dying)
        return ""

    def believed(self, bolt: str, frame: SettledAck) -> SettledAck:
        """Return the part of ``frame`` that the hub may use: nothing about inputs that other bolts
        have by now.

        Call it once for each frame that is not a breach, before the core receives the frame.
        """
        said = frame.settlement
        consumer = self._core.bolts.get(bolt)
        is_own = consumer is not None and frame.tuple_id in consumer.flight
        # A late ack also counts as first if no other bolt has acked the tuple yet.
        is_first = is_own or self._core.attempts_of(bolt, frame.tuple_id) > 0
        kept = self._kept.get(bolt)
        if is_own and kept is None and not said.held:
            return frame  # the usual case
        kept = kept if kept is not None else self._kept.setdefault(bolt, {})
        believed = {input_id for input_id, was_first in kept.items() if was_first}
        believed |= self._inputs(bolt, frame)
        for input_id in (*said.acked, *(failed.input_id for failed in said.failed)):
            kept.pop(input_id, None)
        kept.update(dict.fromkeys(said.held, is_first))
        if not kept:
            del self._kept[bolt]
        if believed.issuperset(_named(said)):
            return frame
        said = msgspec.structs.replace(
            said,
            acked=[i for i in said.acked if i in believed],
            failed=[failed for failed in said.failed if failed.input_id in believed],
            prolonged=[i for i in said.prolonged if i in believed],
            emits=[e for e in said.emits if not e.anchors or not believed.isdisjoint(e.anchors)],
        )
        return msgspec.structs.replace(frame, settlement=said)

    def _inputs(self, bolt: str, frame: SettledAck) -> set[Any]:
        records = self._core.tuple_records(bolt, frame.tuple_id)
        return {record.position for record in records}

    # -- kinds of frames -------------------------------------------------------------------

    def _ack(self, consumer: AdaptiveFlowConsumer, frame: Ack) -> str:
        impossible = _times_breach(
            frame.wait_s, frame.service_s, frame.idle_total_s, frame.sink_s or 0.0
        )
        if impossible:
            return impossible
        core, bolt, tuple_id = self._core, consumer.bolt, frame.tuple_id
        flow_tuple = consumer.flight.get(tuple_id)
        if flow_tuple is not None:  # the usual case, without a call for each tuple
            sent = flow_tuple.attempt
        elif core.may_speak_of(bolt, tuple_id):
            sent = core.attempts_of(bolt, tuple_id)
        else:
            return f"it acked tuple {tuple_id}, which it was never sent"
        if frame.attempt < 1 or (sent and frame.attempt > sent):
            return (
                f"it acked sending {frame.attempt} of tuple {tuple_id}, which was sent {sent} times"
            )
        if frame.__class__ is Ack:  # no details to check
            return ""
        if isinstance(frame, DetailedAck):
            return self._details(consumer, frame)
        if isinstance(frame, SettledAck):
            return self._settled(consumer, frame)
        return ""

    def _details(self, consumer: AdaptiveFlowConsumer, frame: DetailedAck) -> str:
        records = self._records(consumer, frame.tuple_id)
        last = -1
        for rejected in frame.rejected:
            if not last < rejected.index < records:
                return f"it rejected record {rejected.index} after {last} of {records}"
            last = rejected.index
        if not 0 <= frame.left_out <= records:
            return f"{frame.left_out} records were left out of {records}"
        return ""

    def _records(self, consumer: AdaptiveFlowConsumer, tuple_id: int) -> int:
        """Return how many records the tuple has; unknown if other bolts have the tuple by now."""
        if tuple_id not in consumer.flight:
            return _RECORDS_MAX
        return len(self._core.tuple_records(consumer.bolt, tuple_id))

    def _settled(self, consumer: AdaptiveFlowConsumer, frame: SettledAck) -> str:
        said, bolt = frame.settlement, consumer.bolt
        for emit in said.emits:
            if emit.value.__class__ not in _VALUES:
                return f"it emitted a {type(emit.value).__name__}"
        if said.watched is not None and not _can_be(said.watched):
            return "it counted or measured what is not possible"
        if frame.tuple_id not in consumer.flight:
            return ""  # others have it: see settlement()
        return _stranger_of(said, self._inputs(bolt, frame), self._kept.get(bolt, ()))

    def _fail(self, consumer: AdaptiveFlowConsumer, frame: Fail) -> str:
        tuple_id = frame.tuple_id
        if not self._core.may_speak_of(consumer.bolt, tuple_id):
            return f"it failed tuple {tuple_id}, which it was never sent"
        index, records = frame.record_index, self._records(consumer, tuple_id)
        if index is not None and not 0 <= index < records:
            return f"it failed record {index} of {records}"
        if frame.is_read_error:
            return f"it could not read tuple {tuple_id}, which was sent by value"
        return _fail_breach(frame)

    def _heartbeat(self, consumer: AdaptiveFlowConsumer, frame: Heartbeat) -> str:
        # A piece of a range may be put back and begun again, so their order says nothing.
        if frame.begun and isinstance(self._core, RangeCore):
            return "it is at work on tuples, but this job has ranges"
        return _heartbeat(consumer, frame)


def _heartbeat(consumer: AdaptiveFlowConsumer, frame: Heartbeat) -> str:
    if not 0 <= frame.busy_slots <= consumer.slots:
        return f"{frame.busy_slots} of {consumer.slots} slots are busy"
    if not 0 <= frame.queued <= _QUEUED_MAX:
        return f"{frame.queued} tuples are queued"
    sent = consumer.sent + consumer.called
    if frame.arrived is not None and not 0 <= frame.arrived <= sent:
        return f"{frame.arrived} tuples came to it, of {sent} that it was sent"
    if len(frame.begun) > consumer.slots:
        return f"{consumer.slots} slots are at work on {len(frame.begun)} tuples"
    if len(frame.calls) > consumer.slots:
        return f"{len(frame.calls)} calls of {consumer.slots} slots take long"
    if wrong := [call.for_s for call in frame.calls if not 0 <= call.for_s < math.inf]:
        return f"a call takes {wrong[0]} s"
    return _targets(frame)


def _targets(frame: Heartbeat) -> str:
    if len(frame.targets) > TARGETS_MAX:
        return f"it reports on {len(frame.targets)} targets at once"
    for told in frame.targets:
        numbers = (told.limit, told.calls, told.call_s, told.refused, told.waited_s)
        if not all(0 <= number < math.inf for number in numbers):
            return f"the figures of a target are {numbers}"
        if len(told.target) + len(told.job) + len(told.reason) > _TEXT_MAX:
            return "the name of a target is too long"
    return ""


def _stranger_of(said: Settlement, own: Collection[Any], kept: Collection[int]) -> str:
    """Return the name of an input that the bolt never received, given a tuple and the inputs it
    kept.
    """
    for input_id in _named(said):
        if input_id not in own and input_id not in kept:
            return f"it settled input {input_id}, which it was never sent"
    for input_id in said.held:
        if input_id not in own:
            return f"it holds input {input_id}, which is not of its tuple"
    return ""


def _named(said: Settlement) -> Iterable[int]:
    for emit in said.emits:
        yield from emit.anchors
    for failed in said.failed:
        yield failed.input_id
    yield from said.acked
    yield from said.prolonged


def _can_be(said: Watched) -> bool:
    counts = (said.executed, said.acked, said.failed, said.emitted)
    sums = (said.execute_s, said.process_s)
    return all(n >= 0 for kind in counts for n in kind.values()) and all(
        _is_duration(total_s) and n >= 0 for kind in sums for total_s, n in kind.values()
    )


def _is_duration(seconds: float) -> bool:
    """Whether a bolt can have measured it; nan and infinity can't be measured."""
    return _SECONDS_MIN <= seconds <= _SECONDS_MAX


def _times_breach(*times_s: float | None) -> str:
    """Check durations, which every bolt with a connection measures."""
    for seconds in times_s:
        # Inline, as this is checked for each ack.
        if seconds is None or not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
            return f"times of {', '.join(map(str, times_s))} s are not possible"
    return ""


def _fail_breach(fail: Fail) -> str:
    """Check what a bolt reports about an error, and how long it wants to wait after it."""
    if fail.after_s is not None and not 0 <= fail.after_s <= _SECONDS_MAX:
        return f"it wants to wait for {fail.after_s} s"
    if len(fail.error) > _TEXT_MAX or len(fail.traceback) > _TEXT_MAX:
        return f"an error of {max(len(fail.error), len(fail.traceback))} characters"
    return ""


# -- ranges ------------------------------------------------------------------------------------


def _of_range(
    core: RangeCore, consumer: AdaptiveFlowConsumer, frame: Progress | RangeFail | SplitAnswer
) -> str:
    bolt, tuple_id = consumer.bolt, frame.tuple_id
    if tuple_id not in consumer.flight and not core.may_speak_of(bolt, tuple_id):
        return f"it reported on range {tuple_id}, which it was never sent"
    if isinstance(frame, SplitAnswer):
        return ""
    sent = core.attempts_of(bolt, tuple_id)
    if frame.attempt < 1 or (sent and frame.attempt > sent):
        return f"it reported on sending {frame.attempt} of range {tuple_id}, sent {sent} times"
    if isinstance(frame, RangeFail):
        if not core.may_tell_of(tuple_id, frame.start, frame.stop):
            return f"it failed {frame.start} to {frame.stop} of range {tuple_id}"
        return _fail_breach(frame.fail)
    return _progress(core, frame)


def _progress(core: RangeCore, frame: Progress) -> str:
    did = frame.did
    impossible = _times_breach(
        did.read_s, did.wait_s, did.service_s, did.sink_s or 0.0, frame.idle_total_s, did.call_s
    )
    if impossible:
        return impossible
    if not core.may_tell_of(frame.tuple_id, frame.start, frame.done_through):
        return f"it did {frame.start} to {frame.done_through} of range {frame.tuple_id}"
    if did.records < 0 or not 0 <= did.left_out <= did.records:
        return f"{did.left_out} records were left out of {did.records}"
    last = frame.start - 1
    for one in did.rejected:
        if not last < one.position < frame.done_through:
            return f"it rejected the record at {one.position} after {last}"
        last = one.position
    if len(did.rejected) > did.records:
        return f"it rejected {len(did.rejected)} of {did.records} records"
    return ""
