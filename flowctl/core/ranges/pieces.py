"""Integer spans of a partition, and tuples that hold those in place of records.

What is still to be done of a range is most often one span.  It becomes several when a part in its
middle is done, or failed, elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

from flowctl.core.buffer import Cut
from flowctl.core.records import Record

# Half-open, in order, disjoint, none empty.
Pieces: TypeAlias = tuple[tuple[int, int], ...]


def measure(pieces: Pieces) -> int:
    """How many positions there are."""
    return sum(stop - start for start, stop in pieces)


def within(pieces: Pieces, start: int, stop: int) -> Pieces:
    """What of ``pieces`` lies in ``[start, stop)``."""
    cut = ((max(a, start), min(b, stop)) for a, b in pieces)
    return tuple((a, b) for a, b in cut if a < b)


def without(pieces: Pieces, start: int, stop: int) -> Pieces:
    """What of ``pieces`` lies outside of ``[start, stop)``."""
    if start >= stop or not pieces:
        return pieces
    return within(pieces, pieces[0][0], start) + within(pieces, stop, pieces[-1][1])


def minus(pieces: Pieces, others: Pieces) -> Pieces:
    """What of ``pieces`` is in none of ``others``."""
    for start, stop in others:
        pieces = without(pieces, start, stop)
    return pieces


def counted(pieces: Pieces, first: int, last: int) -> Pieces:
    """The positions that are number ``first`` to ``last - 1`` of ``pieces``."""
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
    """Both, in order, merged where they touch; they do not overlap."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((*pieces, *others)):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


class Positions(Sequence[Record]):
    """Stands for records that nobody on this side has read: as many as there are positions."""

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


_NO_SEQ = 0  # positions are numbers themselves: nobody counts records


class RangeCut(Cut, gc=False, eq=False):
    """What a tuple by reference holds: ``pieces`` of one partition, in place of records.

    ``records`` are :class:`Positions`, so that work is counted in positions; or the one record that
    is there, if a bolt said so: then it can't be divided.  ``bounds``: what a bolt that has this
    tuple may speak of.  ``is_unread``: the source could not be read, so dividing does not help.
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
        """The same with other ``pieces`` of it."""
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
        """How many positions come before ``position``; None: it is not in here."""
        if not self.between(position, position + 1).pieces:
            return None
        return len(self.between(self.pieces[0][0], position).records)

    def between(self, start: int, stop: int) -> RangeCut:
        """What of it lies in ``[start, stop)``, for a tuple of its own."""
        return self.of(within(self.pieces, start, stop)).rebound()

    def outside(self, start: int, stop: int) -> RangeCut:
        """What of it lies outside of ``[start, stop)``."""
        return self.of(without(self.pieces, start, stop))

    def rebound(self) -> RangeCut:
        """The same for a tuple of its own: a bolt that has it may speak of just these pieces."""
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
    """Return what a new tuple of these ``pieces``, at least one, holds."""
    bounds = (pieces[0][0], pieces[-1][1])
    records = Positions(pieces)
    return RangeCut(partition, _NO_SEQ, records, 0, pieces, bounds, identity, is_splittable)
