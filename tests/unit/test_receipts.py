"""Receipts: which results count, and what a run that begins adopts of what is there."""

from __future__ import annotations

import pytest

from flowctl.core.rangeset import RangeSet
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.runtime.receipts import (
    Entry,
    Segment,
    accepted,
    adopted,
    beyond,
    compacted,
    coverage,
    disjoint,
    flaw,
    missing,
    pieces_of,
)


def entry(start: int, stop: int, *receipts: bytes, partition: str = "p") -> Entry:
    return Entry(partition, start, stop, stop - start, receipts)


def ranges(*pairs: tuple[int, int]) -> RangeSet:
    made = RangeSet()
    for pair in pairs:
        made.add(*pair)
    return made


def test_of_two_entries_that_overlap_the_first_counts() -> None:
    first, other, behind = entry(0, 10, b"a"), entry(5, 15, b"b"), entry(15, 20, b"c")
    assert disjoint([first, other, behind]) == [first, behind]


def test_the_same_positions_of_another_partition_do_not_overlap() -> None:
    both = [entry(0, 10), entry(0, 10, partition="q")]
    assert disjoint(both) == both


def test_what_an_older_driver_adds_after_a_newer_one_began_does_not_count() -> None:
    old = Segment(1, "aa", 0, (entry(0, 10, b"kept"),), is_base=True)
    base = Segment(2, "bb", 0, (entry(0, 10, b"kept"),), is_base=True)
    late = Segment(1, "aa", 1, (entry(10, 20, b"late"),))
    new = Segment(2, "bb", 1, (entry(20, 30, b"new"),))
    assert [one.receipts for one in accepted([late, new, old, base])] == [(b"kept",), (b"new",)]


def test_of_two_drivers_of_the_same_epoch_one_counts() -> None:
    one, other = Segment(1, "aa", 0, (), is_base=True), Segment(1, "bb", 0, (), is_base=True)
    theirs = Segment(1, "aa", 1, (entry(0, 5, b"a"),))
    ours = Segment(1, "bb", 1, (entry(0, 7, b"b"),))
    assert accepted([one, theirs, other, ours]) == [entry(0, 7, b"b")]


def test_segments_count_in_the_order_of_their_numbers() -> None:
    base = Segment(1, "aa", 0, (), is_base=True)
    second = Segment(1, "aa", 2, (entry(0, 9, b"late"),))
    first = Segment(1, "aa", 1, (entry(0, 5, b"first"),))
    assert accepted([second, base, first]) == [entry(0, 5, b"first")]


def test_without_a_base_nothing_counts() -> None:
    assert accepted([Segment(1, "aa", 1, (entry(0, 5),))]) == []


def test_what_is_missing_is_before_between_and_behind() -> None:
    covered = {"p": ranges((2, 4), (6, 8), (20, 30))}
    extents = {"p": (0, 10), "q": (5, 6), "r": (3, 3)}
    assert missing(extents, covered) == [("p", 0, 2), ("p", 4, 6), ("p", 8, 10), ("q", 5, 6)]
    assert missing({"p": (2, 4)}, covered) == []


def test_the_beginning_is_adopted_as_the_cumulative_ack_and_the_rest_as_selective_acks() -> None:
    made = adopted([entry(20, 30), entry(5, 10), entry(0, 5), entry(30, 31)])
    state = PartitionCheckpoint(9, 10, (AckedRange(20, 30, 11),))
    assert made == Checkpoint({"p": state})


def test_what_does_not_begin_at_0_is_all_selective() -> None:
    made = adopted([entry(3, 5)])
    assert made == Checkpoint({"p": PartitionCheckpoint(None, 0, (AckedRange(3, 4, 2),))})


def test_a_checkpoint_that_counts_more_than_the_manifest_is_found() -> None:
    saved = Checkpoint({"p": PartitionCheckpoint(9, 10, (AckedRange(20, 29, 10),))})
    assert beyond(saved, {"p": ranges((0, 10), (20, 30))}) == []
    assert beyond(saved, {"p": ranges((0, 10), (20, 25))}) == [("p", 25, 30)]
    assert beyond(saved, {}) == [("p", 0, 10), ("p", 20, 30)]


@pytest.mark.parametrize("partition", ["p", "q"])
def test_a_base_merges_neighbours_and_keeps_all_receipts(partition: str) -> None:
    entries = [
        entry(5, 9, b"b", partition=partition),
        entry(0, 5, b"a", partition=partition),
        entry(10, 11, b"c", partition=partition),
    ]
    short = compacted(entries)
    assert short == [
        entry(0, 9, b"a", b"b", partition=partition),
        entry(10, 11, b"c", partition=partition),
    ]
    assert [list(one) for one in coverage(short).values()] == [[(0, 9), (10, 11)]]


def test_a_batch_that_was_rejected_whole_is_no_second_result() -> None:
    """Its receipt has an empty span, which may lie within what was done before it."""
    (empty,) = pieces_of(Entry("p", 0, 1, 1, (b"nothing",)), [0])
    assert (empty.start, empty.stop) == (1, 1)
    entries = [Entry("p", 0, 2, 2), empty]
    assert not flaw({"p": (0, 2)}, entries)
    assert disjoint(entries) == entries
