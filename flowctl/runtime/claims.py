"""What a bolt reports is checked against what it was given before it is used.

A peer that holds the run's key is not a stranger, and may still be wrong: another version, a
defect, failing memory, or somebody who got hold of the key.  None of that may end the run, move
another bolt's tuples, or spoil what is learned from times.  So each frame is checked once, when it
arrives; what can't be true is a breach, and the peer that sent it is dropped.

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
from flowctl.core.pacing.figures import TARGETS_MAX
from flowctl.core.ranges.core import RangeCore
from flowctl.core.trees.settlement import Settlement, Watched
from flowctl.runtime.claim_limits import TEXT_MAX, fail_breach, is_duration, times_breach
from flowctl.runtime.range_breach import breach as range_breach
from flowctl.wire.frames import (
    AckFrame,
    DetailedAckFrame,
    Dying,
    FailFrame,
    Heartbeat,
    ProgressFrame,
    RangeFail,
    Revoked,
    SettledFrame,
    SplitAnswer,
)

# No bolt has more waiting: windows are bounded by far less, and so are strays.
_QUEUED_MAX: Final = 1 << 31
_RECORDS_MAX: Final = 1 << 31  # no tuple has more, as a frame is 256 MB by default
# As what msgpack holds: an extension arrives as a Packed, and nothing else has a size.
_VALUES: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict, Packed})


class Claims:
    """Checks frames.  For the sender's thread, with the core's lock held."""

    def __init__(self, core: DriverCore) -> None:
        self._core = core
        # The inputs that a topology's bolt said to hold beyond their tuples, by tuple, and whether
        # that ack was the tuple's first: only then does the hub count these inputs as held by it.
        self._kept: dict[str, dict[int, bool]] = {}

    def forget(self, bolt: str) -> None:
        """A connection of ``bolt`` begins or ends: it holds nothing."""
        self._kept.pop(bolt, None)

    def breach(self, bolt: str, epoch: int, frame: object) -> str:
        """Return what can't be true in ``frame``; "" if nothing, or if its epoch is over."""
        consumer = self._core.bolts.get(bolt)
        if consumer is None or consumer.epoch != epoch:
            return ""
        if isinstance(frame, AckFrame):
            return self._ack(consumer, frame)
        if isinstance(frame, Heartbeat):
            return _heartbeat(consumer, frame)
        if isinstance(frame, FailFrame):
            return self._fail(consumer, frame)
        if isinstance(frame, Revoked):
            for tuple_id in frame.tuple_ids:
                if not self._core.may_speak_of(bolt, tuple_id):
                    return f"it gave back tuple {tuple_id}, which it was never sent"
            return ""
        if isinstance(frame, Dying):
            return ""
        return self._of_range(consumer, frame)

    def _of_range(self, consumer: AdaptiveFlowConsumer, frame: object) -> str:
        if isinstance(self._core, RangeCore):
            return range_breach(self._core, consumer, frame)
        if isinstance(frame, ProgressFrame | RangeFail | SplitAnswer):
            return "it reported on a range, but this job has none"
        return ""

    def settlement(self, bolt: str, frame: SettledFrame) -> Settlement:
        """Return what the hub may use: nothing about inputs that others have by now.

        Call it once for each frame that is not a breach, before the core receives the frame.
        """
        said = frame.settlement
        consumer = self._core.bolts.get(bolt)
        is_own = consumer is not None and frame.tuple_id in consumer.flight
        # A late ack also counts as first if nobody else has acked the tuple yet.
        is_first = is_own or self._core.attempts_of(bolt, frame.tuple_id) > 0
        kept = self._kept.get(bolt)
        if is_own and kept is None and not said.held:
            return said  # the usual case
        kept = kept if kept is not None else self._kept.setdefault(bolt, {})
        believed = {input_id for input_id, was_first in kept.items() if was_first}
        believed |= self._inputs(bolt, frame)
        for input_id in (*said.acked, *(failed.input_id for failed in said.failed)):
            kept.pop(input_id, None)
        kept.update(dict.fromkeys(said.held, is_first))
        if not kept:
            del self._kept[bolt]
        if believed.issuperset(_named(said)):
            return said
        return msgspec.structs.replace(
            said,
            acked=[i for i in said.acked if i in believed],
            failed=[failed for failed in said.failed if failed.input_id in believed],
            prolonged=[i for i in said.prolonged if i in believed],
            emits=[e for e in said.emits if not e.anchors or not believed.isdisjoint(e.anchors)],
        )

    def _inputs(self, bolt: str, frame: SettledFrame) -> set[Any]:
        records = self._core.tuple_records(bolt, frame.tuple_id)
        return {record.position for record in records}

    # -- kinds of frames -------------------------------------------------------------------

    def _ack(self, consumer: AdaptiveFlowConsumer, frame: AckFrame) -> str:
        impossible = times_breach(
            frame.wait_s, frame.service_s, frame.idle_total_s, frame.sink_s or 0.0
        )
        if impossible:
            return impossible
        core, bolt, tuple_id = self._core, consumer.bolt, frame.tuple_id
        flow_tuple = consumer.flight.get(tuple_id)
        if flow_tuple is not None:  # nearly always, and without a call for each tuple
            sent = flow_tuple.attempt
        elif core.may_speak_of(bolt, tuple_id):
            sent = core.attempts_of(bolt, tuple_id)
        else:
            return f"it acked tuple {tuple_id}, which it was never sent"
        if frame.attempt < 1 or (sent and frame.attempt > sent):
            return (
                f"it acked sending {frame.attempt} of tuple {tuple_id}, which was sent {sent} times"
            )
        if frame.__class__ is AckFrame:  # no details to check
            return ""
        if isinstance(frame, DetailedAckFrame):
            return self._details(consumer, frame)
        if isinstance(frame, SettledFrame):
            return self._settled(consumer, frame)
        return ""

    def _details(self, consumer: AdaptiveFlowConsumer, frame: DetailedAckFrame) -> str:
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
        """How often it was sent to the bolt; unknown for a tuple that others have by now."""
        if tuple_id not in consumer.flight:
            return _RECORDS_MAX
        return len(self._core.tuple_records(consumer.bolt, tuple_id))

    def _settled(self, consumer: AdaptiveFlowConsumer, frame: SettledFrame) -> str:
        said, bolt = frame.settlement, consumer.bolt
        for emit in said.emits:
            if emit.value.__class__ not in _VALUES:
                return f"it emitted a {type(emit.value).__name__}"
        if said.watched is not None and not _can_be(said.watched):
            return "it counted or measured what is not possible"
        if frame.tuple_id not in consumer.flight:
            return ""  # others have it: see settlement()
        return _stranger_of(said, self._inputs(bolt, frame), self._kept.get(bolt, ()))

    def _fail(self, consumer: AdaptiveFlowConsumer, frame: FailFrame) -> str:
        tuple_id = frame.tuple_id
        if not self._core.may_speak_of(consumer.bolt, tuple_id):
            return f"it failed tuple {tuple_id}, which it was never sent"
        index, records = frame.record_index, self._records(consumer, tuple_id)
        if index is not None and not 0 <= index < records:
            return f"it failed record {index} of {records}"
        return fail_breach(frame)


def _heartbeat(consumer: AdaptiveFlowConsumer, frame: Heartbeat) -> str:
    if not 0 <= frame.busy_slots <= consumer.slots:
        return f"{frame.busy_slots} of {consumer.slots} slots are busy"
    if not 0 <= frame.queued <= _QUEUED_MAX:
        return f"{frame.queued} tuples are queued"
    if frame.arrived > (sent := consumer.sent + consumer.called):
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
        if len(told.target) + len(told.job) + len(told.reason) > TEXT_MAX:
            return "the name of a target is too long"
    return ""


def _stranger_of(said: Settlement, own: Collection[Any], kept: Collection[int]) -> str:
    """Return what names an input that the bolt never received, given a tuple and what it kept."""
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
        is_duration(total_s) and n >= 0 for kind in sums for total_s, n in kind.values()
    )
