"""The send buffer: records that were read and not yet sent (S23), bounded in records and bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from flowctl.core.carried import CarriedRecord
from flowctl.core.records import NOTHING, Record, joined

NO_SIZE = -1  # the size of NOTHING, which is never sent
_SCALAR_BYTES = 9  # msgpack's largest number: a tag and eight bytes
# msgspec also takes sets, tuples, dates and more, but a bolt would get lists and text: callers
# check records before they offer them (flowctl/wire/values.py), and make those exact that hold such
# parts.  This only catches values that were not checked.
_SENT_AS_THEY_ARE = (str, bytes, int, float, list, dict)
_TEXTS = ({str}, {bytes})
_encode = msgspec.msgpack.Encoder().encode


def size_of(value: Any) -> int:
    """Return about how many bytes ``value`` takes on the wire (text counts its characters).

    ``NO_SIZE`` for :data:`flowctl.core.records.NOTHING`.
    """
    kind = value.__class__
    if kind is str or kind is bytes:
        return len(value)
    if value is None or kind is int or kind is float or kind is bool:
        return _SCALAR_BYTES
    if kind is dict or kind is list:
        return len(_encode(value))
    if value is NOTHING:
        return NO_SIZE
    if not isinstance(value, _SENT_AS_THEY_ARE):
        raise TypeError(f"{kind.__name__} does not arrive as it is sent")
    return len(_encode(value))


def size_of_record(record: Record) -> int:
    """As :func:`size_of`, of what a record holds."""
    if record.__class__ is CarriedRecord:
        return len(record.packed.data)
    return size_of(record.value)


def sizes_of(records: Sequence[Record]) -> list[int]:
    """As :func:`size_of_record`, of many: most often all hold text."""
    values = [record.value for record in records]
    if set(map(type, values)) in _TEXTS:
        return list(map(len, values))
    return [size_of_record(record) for record in records]


class _Run:
    """A contiguous run of one partition; ``taken`` of its records are gone."""

    __slots__ = ("largest", "partition", "records", "seq", "sizes", "taken")

    def __init__(
        self, partition: str, seq: int, records: Sequence[Record], sizes: Sequence[int]
    ) -> None:
        self.partition = partition
        self.seq = seq
        self.records = records
        self.sizes = sizes
        self.largest = max(sizes)
        self.taken = 0


class Cut(msgspec.Struct, gc=False, eq=False):
    """Records cut off the buffer for one tuple: one partition, contiguous from ``seq``."""

    partition: str
    seq: int
    records: Sequence[Record]
    size_bytes: int

    @property
    def divisible(self) -> int:
        """Into how many parts it can be cut, at most."""
        return len(self.records)

    def part(self, start: int, stop: int) -> Cut:
        """Return its records ``start`` to ``stop``; bytes are shared out evenly, not counted."""
        records = self.records[start:stop]
        size_bytes = self.size_bytes * len(records) // len(self.records)
        return Cut(self.partition, self.seq + start, records, size_bytes)

    def joined(self, other: Cut) -> Cut:
        """Return this and ``other``, which follows it, as one."""
        records = joined(self.records, other.records)
        return Cut(self.partition, self.seq, records, self.size_bytes + other.size_bytes)


class SendBuffer:
    """First in, first out.  ``records`` and ``size_bytes`` say how full it is.  Not thread-safe."""

    __slots__ = ("records", "runs", "size_bytes")

    def __init__(self) -> None:
        self.runs: deque[_Run] = deque()
        self.records: int = 0
        self.size_bytes: int = 0

    def __bool__(self) -> bool:
        return self.records > 0

    def put(
        self, partition: str, seq: int, records: Sequence[Record], sizes: Sequence[int]
    ) -> None:
        """Append a run; ``sizes`` are its records' sizes in bytes."""
        # A tuple, as its slices are tuples too: the garbage collector soon stops tracking tuples of
        # records, but would traverse lists until they are acked.
        self.runs.append(_Run(partition, seq, tuple(records), sizes))
        self.records += len(records)
        self.size_bytes += sum(sizes)

    def drop(self, partition: str) -> int:
        """Remove all that is left of ``partition``; return how many records that was.  O(runs)."""
        dropped = 0
        kept: deque[_Run] = deque()
        for run in self.runs:
            if run.partition != partition:
                kept.append(run)
                continue
            dropped += len(run.records) - run.taken
            self.size_bytes -= sum(run.sizes[run.taken :])
        self.runs = kept
        self.records -= dropped
        return dropped

    def take_last(self) -> Cut:
        """Take back the run that was put last, whole; none of it may have been cut yet."""
        run = self.runs.pop()
        size_bytes = sum(run.sizes)
        self.records -= len(run.records)
        self.size_bytes -= size_bytes
        return Cut(run.partition, run.seq, run.records, size_bytes)

    def cut(self, records_max: int, bytes_max: int) -> Cut:
        """Take up to ``records_max`` records and ``bytes_max`` bytes, at least one record.

        Goes on into the next run if that continues this one, so that tuples are full although
        a producer polls in small pieces.  Raises IndexError when empty.
        """
        run = self.runs[0]
        cut = self._cut_run(run, records_max, bytes_max)
        if records_max == 1:
            return cut
        merged: list[Record] | None = None  # copied once, however many small runs there are
        while self.runs and self.runs[0] is not run:
            following = self.runs[0]
            missing = records_max - len(cut.records)
            room = bytes_max - cut.size_bytes
            continues = (
                following.partition == cut.partition
                and following.seq == cut.seq + len(cut.records)
                and following.sizes[following.taken] <= room
            )
            if not continues or missing <= 0:
                break
            more = self._cut_run(following, missing, room)
            if merged is None:
                cut.records = merged = list(cut.records)
            merged.extend(more.records)
            cut.size_bytes += more.size_bytes
            run = following
        return cut

    def _cut_run(self, run: _Run, records_max: int, bytes_max: int) -> Cut:
        begin, records = run.taken, run.records
        stop = begin + records_max
        if stop > len(records):
            stop = len(records)
        taken: Sequence[Record]
        if stop - begin == 1:  # one record goes whatever its size; the rest is mostly for more
            size_bytes = run.sizes[begin]
            # Not a list: with 48,000 in flight the garbage collector would traverse each.
            taken = (records[begin],)
        else:
            stop, size_bytes = self._fitting(run, begin, stop, bytes_max)
            taken = records[begin:stop]
        cut = Cut(run.partition, run.seq + begin, taken, size_bytes)
        run.taken = stop
        if stop == len(records):
            self.runs.popleft()
        self.records -= stop - begin
        self.size_bytes -= size_bytes
        return cut

    @staticmethod
    def _fitting(run: _Run, begin: int, stop: int, bytes_max: int) -> tuple[int, int]:
        """Return where the records from ``begin`` that fit end, at most ``stop``, and their
        bytes.
        """
        sizes = run.sizes[begin:stop]
        if run.largest * len(sizes) > bytes_max:  # only then can the sum be too large
            fitting = sum(1 for total in accumulate(sizes) if total <= bytes_max)
            stop = begin + max(1, fitting)
            sizes = run.sizes[begin:stop]
        return stop, sum(sizes)
