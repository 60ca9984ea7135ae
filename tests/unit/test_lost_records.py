"""Where records count as done without their effect: exact, bounded, and right after a rewind."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.lost import PLACES, lost_through, with_lost
from flowctl.core.records import LostRange, PartitionCheckpoint, Position

Lost = tuple[LostRange, ...]


def lost_at(*positions: Position, is_kept: bool = False) -> Lost:
    lost: Lost = ()
    for position in positions:
        lost = with_lost(lost, position, is_kept=is_kept)
    return lost


def nowhere(lost: Lost) -> int:
    return PartitionCheckpoint(lost=lost).records_kept_nowhere


@pytest.mark.parametrize("shape", [lambda n: n, lambda n: (n, None), lambda n: f"{n:09}"])
def test_in_whatever_order_they_come_they_stand_in_that_of_the_source(shape) -> None:  # type: ignore[no-untyped-def]
    lost = lost_at(*[shape(n) for n in (40, 3, 7, 2_000_000)])
    assert [span.first for span in lost] == [shape(n) for n in (3, 7, 40, 2_000_000)]
    assert nowhere(lost) == 4


def test_of_what_a_dead_letter_has_only_the_last_place_is_kept() -> None:
    assert lost_at(3, 9, 7, is_kept=True) == (LostRange(9, 9, 0),)
    lost = with_lost(lost_at(3, 9, is_kept=True), 5, is_kept=False)
    assert lost == (LostRange(5, 5, 1), LostRange(9, 9, 0)), "a letter's place stays the last"
    lost = with_lost(lost, 12, is_kept=False)
    assert lost == (LostRange(5, 5, 1), LostRange(12, 12, 1)), "another is last now"
    assert with_lost(lost, 8, is_kept=True) == lost
    lost = with_lost(with_lost(lost, 14, is_kept=True), 15, is_kept=True)
    assert lost == (LostRange(5, 5, 1), LostRange(12, 12, 1), LostRange(15, 15, 0))


def test_back_before_a_place_it_is_done_again_and_counts_no_more() -> None:
    lost = lost_at(3, 5, 9)
    assert lost_through(lost, 9) == lost_through(lost, 12) == lost
    assert nowhere(lost_through(lost, 8)) == 2
    assert nowhere(lost_through(lost, 3)) == 1
    assert lost_through(lost, None) == ()


@pytest.mark.parametrize("position", range(12))
def test_no_sink_takes_for_written_what_may_have_been_given_up_before_a_rewind(
    position: int,
) -> None:
    lost = with_lost(lost_at(3, 5), 9, is_kept=True)  # the dead letter may have others before it
    given_up = PartitionCheckpoint(lost=lost_through(lost, position)).given_up
    assert given_up == min(position, 9)


def test_beyond_64_places_neighbours_become_ranges_of_about_as_many_records_each() -> None:
    at_most = lost_at(*range(0, 10 * 2 * PLACES, 10))
    assert len(at_most) == 2 * PLACES
    lost = with_lost(at_most, 10 * 2 * PLACES, is_kept=False)
    assert lost == tuple(LostRange(n, n + 40, 5) for n in range(0, 10 * 2 * PLACES, 50))
    with_mark = with_lost(lost, 900, is_kept=True)
    assert with_mark == (*lost, LostRange(900, 900, 0))
    assert with_lost(lost, 640, is_kept=True) == lost, "it is no later than the last"
    grown = with_lost(with_mark, 65, is_kept=False)
    assert grown == (lost[0], LostRange(50, 90, 6), *lost[2:], LostRange(900, 900, 0))
    assert lost_through(grown, 75) == (lost[0], LostRange(50, 75, 5)), "one at least comes after"
    assert lost_through(grown, 45) == (lost[0], LostRange(45, 45, 0))


def test_what_the_dead_letter_has_last_is_never_joined_with_what_is_kept_nowhere() -> None:
    lost = with_lost(lost_at(*range(2 * PLACES - 1)), 5_000, is_kept=True)
    for position in range(1_000, 1_003):  # they come late, before it
        lost = with_lost(lost, position, is_kept=False)
    assert lost[-1] == LostRange(5_000, 5_000, 0)
    assert nowhere(lost) == 2 * PLACES + 2 and len(lost) <= PLACES + 2


@given(
    places=st.sets(st.integers(0, 100_000), max_size=600),
    seed=st.integers(0, 99),
    again=st.integers(0, 100_000),
)
def test_many_places_stay_few_ranges_and_none_is_forgotten(
    places: set[int], seed: int, again: int
) -> None:
    """The number is exact until a partition goes back to within a range, and never too small."""
    order = sorted(places)
    random.Random(seed).shuffle(order)
    lost = lost_at(*order)
    assert nowhere(lost) == len(places)
    assert len(lost) <= 2 * PLACES
    assert all(one.last < two.first for one, two in pairwise(lost))  # type: ignore[operator]
    assert max((span.records for span in lost), default=1) <= max(1, 4 * len(places) // PLACES + 1)
    left = nowhere(lost_through(lost, again))
    right = len([place for place in places if place <= again])
    assert (left == 0) == (right == 0), "whether there are any is known exactly"
    assert right <= left <= right + 4 * len(places) // PLACES
