"""Whose fault a failure is, as a place shows it: what targets, stages and partitions share."""

from __future__ import annotations

from collections import deque

import pytest

from flowctl.core.blame import BAD_END_S, REFUSALS_MAX, Place, fails_alone
from flowctl.core.counters import Counters
from flowctl.core.events import FlowEvent, TargetCameBack, TargetWentDown
from flowctl.core.tuples import NEVER_JUDGED


class Watched(Place):
    """A place, with what it told and counted."""

    def __init__(self, *, is_known: bool = False) -> None:
        self.told: deque[FlowEvent] = deque()
        self.counts = Counters()
        super().__init__(600.0, self.counts, self.told, is_known=is_known)

    def fail(self, *at_s: float, is_refusal: bool = False) -> None:
        for number, now_s in enumerate(at_s):
            self.note_failure(number, slots=1, reason="io", now_s=now_s, is_refusal=is_refusal)


def down(*, is_refusal: bool = False) -> Watched:
    """A place that has worked, and has failed since 5.0 s."""
    place = Watched()
    place.proven_at_s = 1.0
    place.fail(5.0, 5.1, 5.2, 5.4, is_refusal=is_refusal)
    assert place.is_down
    return place


@pytest.mark.parametrize(
    ("partition", "refusals", "expected"),
    [
        ("p", 0, False),
        ("p", REFUSALS_MAX - 1, False),
        ("p", REFUSALS_MAX, True),
        ("redrive:1760000000000", 0, True),
    ],
)
def test_a_letter_fails_alone_and_so_does_what_is_refused_twenty_times(
    partition: str, refusals: int, expected: bool
) -> None:
    assert fails_alone(partition, refusals) is expected


def test_a_failure_lacks_proof_until_something_sent_after_the_last_one_has_succeeded() -> None:
    place = Watched()
    place.proven_at_s = 3.0
    assert place.has_succeeded and not place.is_cleared
    assert not place.lacks_proof(NEVER_JUDGED), "it is the first"
    assert not place.lacks_proof(3.0)
    assert place.lacks_proof(3.1)
    assert place.lacks_proof(3.0, 2.9), "of a bolt that has shown less than the stage"
    assert not place.lacks_proof(3.1, 3.2)


def test_what_never_worked_is_wrong_unless_the_place_is_known() -> None:
    new, known = Watched(), Watched(is_known=True)
    for place in (new, known):
        assert not place.has_succeeded
        place.told.clear()
    assert new.is_cleared and not new.lacks_proof(9.0)
    assert not known.is_cleared and known.lacks_proof(9.0)


def test_ten_seconds_count_from_the_first_failure_since_a_success() -> None:
    place = Watched()
    for first_s, proven_at_s in ((4.0, NEVER_JUDGED), (40.0, 30.0)):
        place.proven_at_s = proven_at_s
        assert not place.fails_for_long(first_s)
        assert not place.fails_for_long(first_s + BAD_END_S - 0.1)
        assert place.fails_for_long(first_s + BAD_END_S)


def test_what_is_left_counts_as_bad_if_it_is_little_after_ten_seconds() -> None:
    place = down()
    assert not place.clear_at_end(few_left=True, now_s=5.0 + BAD_END_S - 0.1)
    assert not place.clear_at_end(few_left=False, now_s=5.0 + BAD_END_S)
    assert place.is_down and place.lacks_proof(9.0)
    assert place.clear_at_end(few_left=True, now_s=5.0 + BAD_END_S)
    assert not place.is_down and place.is_cleared and not place.lacks_proof(9.0)
    came_back = place.told[-1]
    assert isinstance(came_back, TargetCameBack) and "count as bad" in came_back.reason
    place.proven_at_s = 16.0
    assert not place.is_cleared, "a success later than that shows that it works"


def test_a_target_that_says_that_it_is_full_or_away_is_never_cleared() -> None:
    place = down(is_refusal=True)
    assert not place.clear_at_end(few_left=True, now_s=100.0)


def test_a_run_of_failures_is_told_and_so_is_its_end_with_its_length() -> None:
    place = down()
    (went_down,) = place.told
    assert isinstance(went_down, TargetWentDown) and went_down.at_s == 5.4
    assert place.down is not None and (place.down.at_s, place.down.reason) == (5.0, "io")
    place.on_success(4.9, 6.0)
    assert place.is_down, "that was at work before the first call failed"
    place.on_success(5.0, 7.0)
    assert not place.is_down and place.down is None
    came_back = place.told[-1]
    assert isinstance(came_back, TargetCameBack)
    assert (came_back.down_s, came_back.reason, place.counts.target_down_total_s) == (2.0, "", 2.0)


def test_time_alone_may_show_that_it_is_down_or_lost() -> None:
    place = Watched()
    place.fail(0.0, 0.1, 0.1, 0.1)
    assert not place.is_down
    place.on_deadline(0.39)
    assert not place.is_down and not place.told
    place.on_deadline(0.4)
    assert place.is_down and isinstance(place.told[-1], TargetWentDown)
    place.on_deadline(600.0)
    assert place.breaker.is_lost and len(place.told) == 1
