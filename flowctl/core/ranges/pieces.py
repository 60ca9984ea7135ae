"""Integer spans of a partition, and tuples that hold spans in place of records.

What is still to be done of a range is most often one span.  It becomes several when a part in its
middle is done, or failed, elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

from flowctl.core.buffer import Cut
from flowctl.core.records import Record

# Half-open spans in order, disjoint, none empty.
Pieces: TypeAlias = tuple[tuple[int, int], ...]


def measure(pieces: Pieces) -> int:
    """Return the number of positions in ``pieces``."""
    return sum(stop - start for start, stop in pieces)


def within(pieces: Pieces, start: int, stop: int) -> Pieces:
    """Return the parts of ``pieces`` in ``[start, stop)``."""
    cut = ((max(a, start), min(b, stop)) for a, b in pieces)
    return tuple((a, b) for a, b in cut if a < b)


def without(pieces: Pieces, start: int, stop: int) -> Pieces:
    """Return the parts of ``pieces`` outside of ``[start, stop)``."""
    if start >= stop or not pieces:
        return pieces
    return within(pieces, pieces[0][0], start) + within(pieces, stop, pieces[-1][1])


def minus(pieces: Pieces, others: Pieces) -> Pieces:
    """Return the parts of ``pieces`` that are in none of ``others``."""
    for start, stop in others:
        pieces = without(pieces, start, stop)
    return pieces


def counted(pieces: Pieces, first: int, last: int) -> Pieces:
    """Return the positions number ``first`` to ``last - 1`` of ``pieces``."""
    found: list[tuple[int, int]] = []
    before = 0
    for start, stop in pieces:
        low = start + max(0, first - before)
        high = min(stop, start + last - before)
        if low < high:
            found.append((low, high))
        before += stop - start
    return tuple(found)


def joined(pieces: Pieces, others: Pieces) -> Pieces:
    """Return ``pieces`` and ``others``, which do not overlap, in order and merged where they
    touch.
    """
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((*pieces, *others)):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


class Positions(Sequence[Record]):
    """Stands for records that the driver has not read: as many as there are positions."""

    __slots__ = ("_length", "pieces")

    def __init__(self, pieces: Pieces) -> None:
        self.pieces: Pieces = pieces
        self._length = measure(pieces)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            first, last, _ = index.indices(self._length)
            return Positions(counted(self.pieces, first, last))
        number = index + self._length if index < 0 else index
        return Record(counted(self.pieces, number, number + 1)[0][0], None)

    def __iter__(self) -> Iterator[Record]:
        for start, stop in self.pieces:
            for position in range(start, stop):
                yield Record(position, None)


_NO_SEQ = 0  # positions are numbers themselves: records are not counted


class RangeCut(Cut, gc=False, eq=False):
    """What a tuple by reference holds: ``pieces`` of one partition, in place of records.

    ``records`` are :class:`Positions`, so that work is counted in positions; or its only record, if
    a bolt reported that: then it can't be divided.  ``bounds``: the pieces on which a bolt that has
    this tuple may report.  ``is_unread``: the source could not be read, so dividing does not help.
    """

    pieces: Pieces
    bounds: tuple[int, int]
    identity: str = ""
    is_splittable: bool = True
    is_unread: bool = False

    @property
    def divisible(self) -> int:
        """See :class:`Cut`."""
        return 1 if self.is_unread else len(self.records)

    def of(self, pieces: Pieces) -> RangeCut:
        """Return the same with other ``pieces`` of it."""
        return RangeCut(
            self.partition,
            _NO_SEQ,
            Positions(pieces),
            0,
            pieces,
            self.bounds,
            self.identity,
            self.is_splittable,
        )

    def index_of(self, position: int) -> int | None:
        """Return how many positions come before ``position``; None: it is not in here."""
        if not self.between(position, position + 1).pieces:
            return None
        return len(self.between(self.pieces[0][0], position).records)

    def parted(self, start: int, stop: int) -> tuple[Pieces, RangeCut]:
        """Return the pieces of it in ``[start, stop)``, and the rest."""
        pieces = self.pieces
        if len(pieces) == 1 and pieces[0][0] == start < stop <= pieces[0][1]:  # the usual case
            end = pieces[0][1]
            return ((start, stop),), self.of(((stop, end),) if stop < end else ())
        return within(pieces, start, stop), self.outside(start, stop)

    def between(self, start: int, stop: int) -> RangeCut:
        """Return the part of it in ``[start, stop)``, for a separate tuple."""
        return self.of(within(self.pieces, start, stop)).rebound()

    def outside(self, start: int, stop: int) -> RangeCut:
        """Return the parts of it outside of ``[start, stop)``."""
        return self.of(without(self.pieces, start, stop))

    def rebound(self) -> RangeCut:
        """Return the same for a separate tuple: a bolt that has it may report on just these
        pieces.
        """
        if self.pieces:
            self.bounds = (self.pieces[0][0], self.pieces[-1][1])
        return self

    def hold(self, record: Record) -> None:
        """Note that ``record`` is all that it holds."""
        self.records = (record,)

    def part(self, start: int, stop: int) -> RangeCut:
        """See :class:`Cut`."""
        return self.of(counted(self.pieces, start, stop)).rebound()

    def joined(self, other: Cut) -> RangeCut:
        """See :class:`Cut`."""
        assert isinstance(other, RangeCut)
        return self.of(joined(self.pieces, other.pieces)).rebound()


def cut_of(partition: str, pieces: Pieces, identity: str, *, is_splittable: bool) -> RangeCut:
    """Return the cut for a new tuple of these ``pieces``, at least one."""
    bounds = (pieces[0][0], pieces[-1][1])
    records = Positions(pieces)
    return RangeCut(partition, _NO_SEQ, records, 0, pieces, bounds, identity, is_splittable)
