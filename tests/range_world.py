"""Bolts that read ranges, and the records that they find there: for the machines that drive a core.

A partition is a list of positions where records begin.  A bolt works on its ranges in the order in
which it got them, and says what real ones say; what it says waits in its outbox until it is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowctl.core.messages import (
    Fail,
    Processed,
    Progress,
    RangeEmission,
    RangeFail,
    RejectedRecord,
    Revoke,
    Split,
    SplitAnswer,
)
from flowctl.core.records import Record

RecordKey = tuple[str, int]


class Said(NamedTuple):
    """What a bolt said, on its way."""

    bolt: str
    epoch: int
    message: Progress | RangeFail | SplitAnswer


POSITION_S = 0.001  # what a position takes a healthy bolt


class Source:
    """Where records begin, and which of them are bad."""

    def __init__(self, starts: Mapping[str, Sequence[int]]) -> None:
        self.starts = starts
        self.poison: set[RecordKey] = set()  # process raises
        self.rejected: set[RecordKey] = set()  # process rejects
        self.processed: Counter[RecordKey] = Counter()

    def between(self, partition: str, start: int, stop: int) -> list[int]:
        """The positions of the records that begin in ``[start, stop)``."""
        starts = self.starts[partition]
        return list(starts[bisect_left(starts, start) : bisect_left(starts, stop)])


class WorkingRange:
    """One range at its bolt; ``at``: everything below is settled."""

    def __init__(self, emission: RangeEmission) -> None:
        self.emission = emission
        self.at, self.stop = emission.start, emission.stop
        self.answers: dict[int, int] = {}


class RangeBolt:
    """A bolt as it is, not as the core sees it."""

    def __init__(self, name: str, epoch: int, source: Source) -> None:
        self.name, self.epoch, self.source = name, epoch, source
        self.is_frozen = False
        self.ranges: deque[WorkingRange] = deque()
        self.outbox: deque[Said] = deque()

    def take(self, emission: RangeEmission) -> None:
        """A range arrived; one that it has already is ignored."""
        if all(r.emission.tuple_id != emission.tuple_id for r in self.ranges):
            self.ranges.append(WorkingRange(emission))

    def give_back(self, order: Revoke) -> list[int]:
        """Let go of what it was asked for and has not begun; return that."""
        waiting = [r for r in list(self.ranges)[1:] if r.emission.tuple_id in order.tuple_ids]
        for working in waiting:
            self.ranges.remove(working)
        return [working.emission.tuple_id for working in waiting]

    def split(self, order: Split) -> Said:
        """Answer, and keep to it.  The range at the front is begun: idle bolts claim at once."""
        for working in self.ranges:
            if working.emission.tuple_id == order.tuple_id:
                if order.request not in working.answers:
                    kept = working.at + int(order.keep * (working.stop - working.at))
                    if working is self.ranges[0]:
                        kept = max(kept, min(working.at + 1, working.stop))
                    working.stop = working.answers[order.request] = kept
                stop = working.answers[order.request]
                if working.at >= working.stop:
                    self.ranges.remove(working)
                return self._answer(order, stop)
        return self._answer(order, 0)

    def _answer(self, order: Split, stop: int) -> Said:
        return self._said(SplitAnswer(order.tuple_id, order.request, stop))

    def _said(self, message: Progress | RangeFail | SplitAnswer) -> Said:
        return Said(self.name, self.epoch, message)

    def work(self, records: int) -> None:
        """Process a batch of up to so many records of the range at the front."""
        if self.is_frozen or not self.ranges:
            return
        working, source = self.ranges[0], self.source
        partition = working.emission.partition
        found = source.between(partition, working.at, working.stop)[:records]
        through = working.stop
        if len(found) == records:
            following = source.between(partition, found[-1] + 1, working.stop)
            through = following[0] if following else working.stop
        start, working.at = working.at, through
        self._tell(working, start, found)
        if working.at >= working.stop:
            self.ranges.popleft()

    def _tell(self, working: WorkingRange, start: int, found: list[int]) -> None:
        emission, source = working.emission, self.source
        keys = [(emission.partition, position) for position in found]
        bad = [key for key in keys if key in source.poison]
        if bad:
            fail = Fail(emission.tuple_id, emission.attempt, "boom", is_data_error=True)
            record = Record(found[0], None) if len(found) == 1 else None
            failed = RangeFail(fail, start, working.at, len(found), record=record)
            self.outbox.append(self._said(failed))
            return
        source.processed.update(keys)
        did = Processed(
            records=len(found),
            service_s=POSITION_S * (working.at - start),
            rejected=[
                RejectedRecord(position, position, "no use")
                for partition, position in keys
                if (partition, position) in source.rejected
            ],
        )
        sent = (emission.tuple_id, emission.attempt)
        self.outbox.append(self._said(Progress(*sent, start, working.at, 0.0, did)))
