"""A tuple that comes twice is done once, and what comes again on purpose is taken."""

from __future__ import annotations

from flowctl.bolts import reading
from flowctl.bolts.reading import KnownTuples


def test_a_copy_is_known():
    tuples = KnownTuples()
    assert [tuples.add(n) for n in (1, 2, 1, 3, 2)] == [True, True, False, True, False]
    assert tuples.arrived == 5  # as the spout counts what it sends


def test_what_was_failed_refused_or_given_back_may_come_again():
    tuples = KnownTuples()
    tuples.add(1)
    tuples.add(2)
    tuples.forget(1, 99)  # 99 never came: a revoke may name any
    assert [tuples.add(n) for n in (1, 2)] == [True, False]


def test_a_copy_is_known_however_many_came_since_in_whatever_order():
    tuples = KnownTuples()
    ids = [*range(0, 2000, 2), *range(1, 2000, 2)]
    assert [tuples.add(n) for n in ids] == [True] * 2000
    assert [tuples.add(n) for n in reversed(ids)] == [False] * 2000


def test_the_oldest_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(reading, "KNOWN_MIN", 3)
    tuples = KnownTuples()
    for n in range(7):
        tuples.add(n)
    assert [tuples.add(n) for n in (6, 5, 4, 3)] == [False] * 4
    assert tuples.add(2)


def test_an_old_one_that_is_forgotten_may_come_again(monkeypatch):
    monkeypatch.setattr(reading, "KNOWN_MIN", 3)
    tuples = KnownTuples()
    for n in range(5):
        tuples.add(n)
    tuples.forget(0, 4)
    assert [tuples.add(n) for n in (0, 4, 1)] == [True, True, False]


def test_what_several_slots_are_at_work_on_is_known():
    tuples = KnownTuples(slots=2)
    tuples.begin(1)
    tuples.begin(2)
    tuples.end(1)
    tuples.end(99)  # a range's piece is not begun here
    assert tuples.begun == [2]


def test_one_slot_tells_it_by_its_acks():
    tuples = KnownTuples()
    tuples.begin(1)
    assert tuples.begun == []
