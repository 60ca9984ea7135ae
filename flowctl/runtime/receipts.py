"""Receipts: what ``process`` returned for the records that it did, kept with the acks.  Pure.

A manifest is a log of :class:`Entry`, in the order in which the acks were accepted.  It is the
truth about which results count; the checkpoint is derived from it.  A result that no accepted entry
names, such as the file of a bolt that died after writing it, does not exist for readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from flowctl.core.rangeset import RangeSet
from flowctl.core.records import AckedRange, Checkpoint, LostRange, PartitionCheckpoint


class Entry(msgspec.Struct, frozen=True, gc=False):
    """``[start, stop)`` of ``partition`` is done; it holds ``records``.

    ``receipts`` together hold all its results: records that were left out have none.  An empty span
    with receipts is possible too, if the rest of a part is settled otherwise.  ``kept_nowhere`` of
    its records were rejected and are in no dead letter.
    """

    partition: str
    start: int
    stop: int
    records: int
    receipts: tuple[bytes, ...] = ()
    kept_nowhere: int = 0


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Entries that were written in one step by the driver of ``epoch``.

    A driver begins with a ``base``: all earlier entries that it adopts.  From then on entries of
    older drivers do not count.  ``number`` counts the segments of one driver.  Its random ``token``
    tells it from another driver that believes it has the same epoch.
    """

    epoch: int
    token: str
    number: int
    entries: tuple[Entry, ...]
    is_base: bool = False


def accepted(segments: Iterable[Segment]) -> list[Entry]:
    """Return the entries that count, each position at most once.

    The newest base counts, and the entries that the same driver added to it.  The order of
    ``segments`` does not matter.
    """
    return disjoint(written(segments))


def written(segments: Iterable[Segment]) -> list[Entry]:
    """Return all that the newest driver wrote, in order: its base, and what it added to it."""
    known = list(segments)
    newest = max(((one.epoch, one.token) for one in known if one.is_base), default=None)
    of_newest = [one for one in known if (one.epoch, one.token) == newest]
    of_newest.sort(key=lambda one: one.number)
    return [entry for segment in of_newest for entry in segment.entries]


def disjoint(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries, in order, without those parts that an earlier entry covers."""
    covered: dict[str, RangeSet] = {}
    kept = []
    for entry in entries:
        done = covered.setdefault(entry.partition, RangeSet())
        if not _meets(done, entry.start, entry.stop):
            _add(done, entry)
            kept.append(entry)
    return kept


def flaw(extents: Mapping[str, tuple[int, int]], entries: Sequence[Entry]) -> str:
    """Return why ``entries`` do not cover a source with ``extents``, each record once; "" if they
    do.

    A position may have no entry, or two; or an entry belongs to another source.
    """
    covered: dict[str, RangeSet] = {}
    for one in entries:
        start, stop = extents.get(one.partition, (0, 0))
        done = covered.setdefault(one.partition, RangeSet())
        what = f"results of {one.partition} {one.start} to {one.stop}"
        if one.partition not in extents or one.start < start or one.stop > stop:
            return f"there are {what}, which is not in the input"
        if _meets(done, one.start, one.stop):
            return f"there are two {what}, or of a part of it"
        _add(done, one)
    gaps = missing(extents, covered)
    return f"there is no result for {gaps[0]}" if gaps else ""


def pieces_of(whole: Entry, apart: Iterable[int]) -> list[Entry]:
    """Return ``whole`` without the positions ``apart``, which are not done yet.

    The first piece gets the receipts, and the records kept nowhere; records are shared out by
    length.
    """
    spans, at = [], whole.start
    for position in sorted(apart):
        if at < position:
            spans.append((at, position))
        at = position + 1
    if at < whole.stop or not spans:
        spans.append((at, max(at, whole.stop)))
    made, rest = [], (whole.receipts, whole.kept_nowhere)
    for start, stop in spans:
        records = round(whole.records * (stop - start) / (whole.stop - whole.start))
        made.append(Entry(whole.partition, start, stop, records, *rest))
        rest = ((), 0)
    return made


def coverage(entries: Iterable[Entry]) -> dict[str, RangeSet]:
    """Return the spans that ``entries`` cover, by partition."""
    covered: dict[str, RangeSet] = {}
    for entry in entries:
        _add(covered.setdefault(entry.partition, RangeSet()), entry)
    return covered


def missing(
    extents: Mapping[str, tuple[int, int]], covered: Mapping[str, RangeSet]
) -> list[tuple[str, int, int]]:
    """Return which parts of ``extents`` (start and stop, by partition) are not covered."""
    gaps = []
    for partition, (start, stop) in extents.items():
        at = start
        for low, high in covered.get(partition, ()):
            if low >= stop:
                break
            if at < low:
                gaps.append((partition, at, low))
            at = max(at, high)
        if at < stop:
            gaps.append((partition, at, stop))
    return gaps


def adopted(entries: Sequence[Entry]) -> Checkpoint:
    """Return the checkpoint by which exactly these disjoint entries are done.

    The part covered from position 0 on is the cumulative ack; the rest are selective acks, which a
    ledger that begins elsewhere takes as well.
    """
    partitions = {}
    lost: dict[str, list[LostRange]] = {}
    for one in sorted(entries, key=lambda one: (one.partition, one.start)):
        if one.kept_nowhere:
            place = LostRange(one.start, one.stop - 1, one.kept_nowhere)
            lost.setdefault(one.partition, []).append(place)
    for partition, (first, *rest) in _merged(entries).items():
        places = tuple(lost.get(partition, ()))
        if first.first == 0:
            state = PartitionCheckpoint(first.last, first.records, tuple(rest), lost=places)
        else:
            state = PartitionCheckpoint(None, 0, (first, *rest), lost=places)
        partitions[partition] = state
    return Checkpoint(partitions)


def beyond(saved: Checkpoint, covered: Mapping[str, RangeSet]) -> list[tuple[str, int, int]]:
    """Return the parts that are done according to ``saved`` but missing in ``covered``, by
    partition.

    The manifest is written before the checkpoint: if there is something, entries were lost.
    """
    done = {}
    for partition, state in saved.partitions.items():
        spans = [(span.first, span.last) for span in state.acked]
        if state.position is not None:
            spans.insert(0, (0, state.position))
        done[partition] = [
            (first, last + 1)
            for first, last in spans
            if isinstance(first, int) and isinstance(last, int) and first <= last
        ]
    return [
        gap
        for partition, spans in done.items()
        for span in spans
        for gap in missing({partition: span}, covered)
    ]


def compacted(entries: Sequence[Entry]) -> list[Entry]:
    """Return the same coverage and receipts in as few entries as possible.

    Neighbours are merged, so that a base is about as long as its receipts are.
    """
    result: list[Entry] = []
    for entry in sorted(entries, key=lambda one: (one.partition, one.start, one.stop)):
        last = result[-1] if result else None
        if last is not None and (last.partition, last.stop) == (entry.partition, entry.start):
            result[-1] = Entry(
                last.partition,
                last.start,
                entry.stop,
                last.records + entry.records,
                last.receipts + entry.receipts,
                last.kept_nowhere + entry.kept_nowhere,
            )
        else:
            result.append(entry)
    return result


def _merged(entries: Iterable[Entry]) -> dict[str, list[AckedRange]]:
    """Return the entries by partition, in order, with neighbours merged; both ends inclusive."""
    spans: dict[str, list[AckedRange]] = {}
    for entry in sorted(entries, key=lambda one: (one.partition, one.start, one.stop)):
        if entry.start == entry.stop:
            continue
        before = spans.setdefault(entry.partition, [])
        first, records = entry.start, entry.records
        if before and before[-1].last == entry.start - 1:
            merged = before.pop()
            assert isinstance(merged.first, int)
            first, records = merged.first, records + merged.records
        before.append(AckedRange(first, entry.stop - 1, records))
    return spans


def _add(done: RangeSet, entry: Entry) -> None:
    if entry.start < entry.stop:
        done.add(entry.start, entry.stop)


def _meets(done: RangeSet, start: int, stop: int) -> bool:
    """Whether positions from ``start`` to ``stop`` are done; an empty span has none."""
    return start < stop and any(low < stop and start < high for low, high in done)
