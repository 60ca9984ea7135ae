"""Spans of positions against plain sets of positions, and the tuples that hold them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.ranges.pieces import (
    Pieces,
    Positions,
    counted,
    cut_of,
    joined,
    measure,
    minus,
    within,
    without,
)

PLACE = st.integers(0, 40)


@st.composite
def some_pieces(draw: st.DrawFn, least: int = 0) -> Pieces:
    """Half-open, in order, disjoint, none empty; some touch."""
    bounds = sorted(draw(st.lists(PLACE, min_size=2 * least, max_size=8, unique=True)))
    return tuple(zip(bounds[::2], bounds[1::2], strict=False))


def places(pieces: Pieces) -> list[int]:
    return [place for start, stop in pieces for place in range(start, stop)]


def is_in_order(pieces: Pieces) -> bool:
    bounds = [bound for piece in pieces for bound in piece]
    return bounds == sorted(bounds) and all(start < stop for start, stop in pieces)


@given(some_pieces(), some_pieces(), PLACE, PLACE)
def test_spans_are_sets_of_positions(one: Pieces, other: Pieces, low: int, high: int) -> None:
    every, span = places(one), set(range(low, high))
    results = {
        within(one, low, high): [place for place in every if place in span],
        without(one, low, high): [place for place in every if place not in span],
        minus(one, other): [place for place in every if place not in set(places(other))],
        counted(one, low, high): every[low:high] if low < high else [],
    }
    for found, wanted in results.items():
        assert places(found) == wanted and is_in_order(found)
    assert measure(one) == len(every)
    rest = minus(other, one)
    both = joined(one, rest)
    assert places(both) == sorted({*every, *places(other)}) and is_in_order(both)
    assert all(stop < start for (_, stop), (start, _) in pairwise(both)), "what touches is one span"


@given(some_pieces(), st.integers(-45, 45), st.integers(-45, 45))
def test_positions_are_a_sequence_of_records(pieces: Pieces, first: int, last: int) -> None:
    every, positions = places(pieces), Positions(pieces)
    assert len(positions) == len(every)
    assert [record.position for record in positions] == every
    assert [record.position for record in positions[first:last]] == every[first:last]
    if -len(every) <= first < len(every):
        assert positions[first].position == every[first]
    else:
        with pytest.raises(IndexError):
            positions[first]


@given(some_pieces(least=1), PLACE, PLACE)
def test_a_cut_is_divided_into_what_lies_where(pieces: Pieces, low: int, high: int) -> None:
    cut = cut_of("p", pieces, "v1", is_splittable=True)
    every = places(pieces)
    assert cut.index_of(low) == (every.index(low) if low in every else None)
    parts = [cut.between(low, high), cut.part(low, high)]
    assert places(parts[0].pieces) == [place for place in every if low <= place < high]
    assert places(parts[1].pieces) == (every[low:high] if low < high else [])
    for part in parts:
        assert (part.partition, part.identity, part.is_splittable) == ("p", "v1", True)
        assert part.divisible == len(part.records) == len(places(part.pieces))
        if part.pieces:
            inside = places(part.pieces)
            assert part.bounds == (inside[0], inside[-1] + 1), "it may speak of these"
    left = cut.outside(low, high)
    assert left.bounds == cut.bounds, "it is the same tuple"
    assert places(left.pieces) == [place for place in every if not low <= place < high]
    assert parts[0].joined(left).pieces == joined(parts[0].pieces, left.pieces)
