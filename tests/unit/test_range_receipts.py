"""The core of ranges gives out receipts of what it counts as done, and of nothing else."""

from __future__ import annotations

import pytest

from flowctl.core.messages import Processed, Progress, RangeEmission, RejectedRecord
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import AckOutcome, Receipts


def begun(*, has_dead_letter: bool) -> tuple[RangeCore, RangeEmission]:
    """A core whose only bolt has the only range."""
    core = RangeCore(has_dead_letter=has_dead_letter, keeps_receipts=True)
    core.offer_extents({"p": Extent(0, 100)})
    core.end_of_input(now_s=0.0)
    core.add_bolt("b1", slots=1, epoch=1, now_s=0.0, in_order=True)
    emission = core.poll_emit(now_s=0.0)
    assert isinstance(emission, RangeEmission)
    return core, emission


def told(emission: RangeEmission, *rejected: int) -> Progress:
    return Progress(
        tuple_id=emission.tuple_id,
        attempt=1,
        start=0,
        done_through=10,
        idle_total_s=0.0,
        did=Processed(
            records=10,
            service_s=0.1,
            rejected=[RejectedRecord(position, "value", "why") for position in rejected],
            receipts=[b"a file"],
        ),
    )


@pytest.mark.parametrize("has_dead_letter", [False, True])
def test_what_waits_for_the_dead_letter_stands_apart(has_dead_letter: bool) -> None:
    core, emission = begun(has_dead_letter=has_dead_letter)
    assert core.on_progress("b1", 1, told(emission, 3, 7), now_s=0.2) is AckOutcome.ACKED
    apart = [3, 7] if has_dead_letter else []
    nowhere = 0 if has_dead_letter else 2
    kept = core.poll_receipts()
    assert kept == Receipts("p", 0, 10, 10, [b"a file"], kept.apart if kept else (), nowhere)
    assert list(kept.apart) == apart
    state = core.checkpoint().partitions["p"]
    assert state.position == (2 if has_dead_letter else 9)
    assert core.poll_receipts() is None


def test_a_report_that_comes_twice_has_one_receipt() -> None:
    core, emission = begun(has_dead_letter=False)
    assert core.on_progress("b1", 1, told(emission), now_s=0.2) is AckOutcome.ACKED
    assert core.on_progress("b1", 1, told(emission), now_s=0.3) is not AckOutcome.ACKED
    assert core.poll_receipts() is not None
    assert core.poll_receipts() is None


def test_late_progress_of_a_bolt_that_was_given_up_has_none_and_is_not_done() -> None:
    core, emission = begun(has_dead_letter=False)
    core.remove_bolt("b1", now_s=0.1)
    core.add_bolt("b1", slots=1, epoch=2, now_s=0.2, in_order=True)
    core.on_progress("b1", 1, told(emission), now_s=0.3)
    assert core.poll_receipts() is None
    assert core.counters.records_acked == 0
