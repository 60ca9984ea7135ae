"""Ranges while the target fails in ways nobody recognises: faults of what is cut from them."""

from __future__ import annotations

import pytest

from flowctl.core.messages import RangeEmission
from tests.range_driver import Ranges

pytestmark = pytest.mark.on_change()

STOP = 100 * (1 << 20)


def with_a_failed_part() -> tuple[Ranges, RangeEmission, RangeEmission]:
    """Two bolts are at work, the first has succeeded, and then a part of its range failed at .1 s.

    Return that part, as it is sent again, and the range of the other bolt.
    """
    ranges = Ranges("a", "b", stop=STOP, has_dead_letter=True)
    one, other, _, last = ranges.emit()
    ranges.wait(0.05, "a", "b")
    ranges.did(one, one.start, one.start + 1_000)
    ranges.did(other, other.start, other.start + 1_000)
    ranges.did(last, last.start, last.stop)  # so there is room at the bolt of the other
    ranges.wait(0.05, "a", "b")
    ranges.failed(one, one.start + 1_000, one.start + 2_000)
    again: list[RangeEmission] = []
    while not (again := [e for e in again if e.start == one.start + 1_000]):
        ranges.wait(0.02, "a", "b")
        again = ranges.emit()
    return ranges, again[0], other


def faults(ranges: Ranges, at: int) -> int:
    """How often counted what holds the position ``at``."""
    (found,) = {
        waiting.faults
        for waiting in ranges.core.to_go_again
        if waiting.cut.records[0].position == at
    }
    return found


def test_a_part_of_what_failed_remembers_that_it_did() -> None:
    """Nothing has succeeded since, so its second failure does not count either."""
    ranges, again, _ = with_a_failed_part()
    ranges.failed(again, again.start, again.start + 500)
    assert faults(ranges, again.start) == 1


def test_a_report_of_what_was_done_before_the_failure_proves_nothing() -> None:
    ranges, again, other = with_a_failed_part()
    ranges.did(other, other.start + 1_000, other.start + 2_000)  # since .05 s; it failed at .1 s
    ranges.failed(again, again.start, again.stop)
    assert faults(ranges, again.start) == 1


def test_a_report_of_what_was_begun_after_the_failure_does() -> None:
    ranges, again, other = with_a_failed_part()
    ranges.did(other, other.start + 1_000, other.start + 2_000)
    ranges.wait(0.02, "a", "b")
    ranges.did(other, other.start + 2_000, other.start + 3_000)
    ranges.failed(again, again.start, again.stop)
    assert ranges.core.counters.tuples_cut, "its second fault: it is searched for the record"
