"""Where records count as done although they were rejected or given up, of one partition.

Rejected records that are kept nowhere are reported until they are done again, also by later runs;
and a sink must not treat records that were given up as written.  Of records that a dead letter
keeps, only the last place is needed.  Those places are part of the checkpoint, so they are saved
with the acks that step over them, and a partition that is set back has them only up to there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import ceil
from typing import Final

from flowctl.core.positions import encode
from flowctl.core.records import LostRange, Position

# All of them are written with each save of their partition: 64 take 1 to 2 kB.  Further places are
# merged into ranges once there are twice as many, so that merging happens once for each 32 of them.
PLACES: Final = 32


def with_lost(
    lost: tuple[LostRange, ...], position: Position, *, is_kept: bool
) -> tuple[LostRange, ...]:
    """Return ``lost`` and the record at ``position``; ``is_kept``: a dead letter has it."""
    key = encode(position)
    is_last = not lost or encode(lost[-1].last) < key
    if is_kept:
        return _marked(lost, position) if is_last else lost
    at = len(lost) if is_last else bisect_right(lost, key, key=_key)
    before = lost[at - 1] if at else None
    if before is not None and before.records and key <= encode(before.last):
        grown = LostRange(before.first, before.last, before.records + 1)
        return (*lost[: at - 1], grown, *lost[at:])
    is_mark = at == len(lost) and before is not None and not before.records
    place = LostRange(position, position, 1)
    found = (*(lost[: at - 1] if is_mark else lost[:at]), place, *lost[at:])
    return found if len(found) <= 2 * PLACES else _joined(found)


def lost_through(lost: tuple[LostRange, ...], position: Position | None) -> tuple[LostRange, ...]:
    """Return what remains of ``lost`` when all after ``position`` is to be done again.

    If ``position`` lies within a range, the number of its records before that is unknown (at least
    one, its first): the highest possible number counts.
    """
    if not lost or position is None:
        return ()
    key = encode(position)
    if encode(lost[-1].last) <= key:
        return lost
    kept = lost[: bisect_right(lost, key, key=_key)]
    if kept and key < encode(kept[-1].last):
        cut = kept[-1]
        return (*kept[:-1], LostRange(cut.first, position, cut.records - 1))
    # The dead letter may have any record up to there; which of the earlier ones is not known.
    return _marked(kept, position)


def kept_nowhere(all_lost: Iterable[tuple[LostRange, ...]]) -> int:
    """Return how many records are kept nowhere, of several partitions together."""
    return sum([span.records for lost in all_lost if lost for span in lost])


def _key(span: LostRange) -> bytes:
    return encode(span.first)


def _marked(lost: tuple[LostRange, ...], position: Position) -> tuple[LostRange, ...]:
    """Return ``lost`` with ``position`` after all others, as a record that the dead letter has."""
    if lost and lost[-1].last == position:
        return lost
    kept = lost[:-1] if lost and not lost[-1].records else lost
    return (*kept, LostRange(position, position, 0))


def _joined(lost: tuple[LostRange, ...]) -> tuple[LostRange, ...]:
    """Merge neighbours until hardly more than ``PLACES`` ranges of about equal size are left.

    Two neighbours stay apart only if their sum is more than twice the average, which bounds their
    number.
    """
    records_max = ceil(2 * sum(span.records for span in lost) / PLACES)
    joined = [lost[0]]
    for span in lost[1:]:
        last = joined[-1]
        if span.records and last.records + span.records <= records_max:
            joined[-1] = LostRange(last.first, span.last, last.records + span.records)
        else:
            joined.append(span)
    return tuple(joined)
