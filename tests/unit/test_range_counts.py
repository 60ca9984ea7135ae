"""What ranges count: records of which only a part is new, and what came late."""

from __future__ import annotations

from flowctl.core.messages import RejectedRecord, Revoked
from flowctl.core.records import AckOutcome
from tests.range_driver import MB, Ranges


def test_of_a_report_whose_half_was_done_before_half_the_records_count() -> None:
    ranges = Ranges("a")
    ours, *_ = ranges.emit()
    ranges.wait(0.1, "a")
    ranges.did(ours, 0, 100_000, records=1_000)
    assert ranges.core.counters.records_acked == 1_000
    ranges.wait(0.1, "a")
    assert ranges.did(ours, 50_000, 150_000, records=1_000) is AckOutcome.ACKED
    assert ranges.core.counters.records_acked == 1_500
    assert ranges.state.records == 1_500


def test_what_a_bolt_did_that_was_given_up_counts_as_late() -> None:
    ranges = Ranges("a", "b", stop=2 * MB)
    ours, theirs = ranges.emit()
    ranges.end()
    ranges.wait(0.1, "a", "b")
    ranges.did(theirs, theirs.start, theirs.stop)
    for _ in range(40):
        ranges.wait(0.25, "b")
        again = [e for e in ranges.emit() if e.start <= ours.start < e.stop]
        if again:
            break
    assert again and again[0].bolt == "b"
    assert ranges.did(ours, 0, 1_000) is AckOutcome.LATE
    assert ranges.core.counters.acks_late == 1
    assert ranges.did(ours, 0, 1_000) is AckOutcome.DUPLICATE
    assert (ranges.core.counters.acks_late, ranges.core.counters.acks_duplicate) == (1, 1)


def test_a_share_of_positions_that_are_records_is_known_after_the_first_report() -> None:
    ranges = Ranges("a")
    ours, *_ = ranges.emit()
    share = ranges.core.book.records_share
    assert share() == 0.0
    ranges.wait(0.1, "a")
    ranges.did(ours, 0, 100_000, records=500)
    assert share() == 500 / 100_000


def test_a_failure_told_by_a_bolt_that_does_not_hold_the_range_changes_nothing() -> None:
    ranges = Ranges("a", "b")
    ours, *_ = [emission for emission in ranges.emit() if emission.bolt == "a"]
    before = dict(ranges.core.book.pending), ranges.core.counters.pieces
    assert ranges.failed(ours, ours.start, ours.start + 100, bolt="b") is AckOutcome.DUPLICATE
    assert (dict(ranges.core.book.pending), ranges.core.counters.pieces) == before
    assert not ranges.emit(), "nothing is sent again"


def test_what_was_rejected_in_a_part_that_is_told_again_counts_once() -> None:
    """Two bolts did the same: the second tells of more."""
    ranges = Ranges("a", "b", stop=1000)
    (e,) = ranges.emit()
    ranges.core.on_revoked("a", 1, Revoked([e.tuple_id]), now_s=ranges.clock())
    (again,) = ranges.emit()
    bad = [RejectedRecord(position, None, "no use") for position in (399, 400)]
    ranges.did(e, 0, 400, bolt="a", rejected=bad[:1])
    ranges.did(again, 0, 1000, rejected=bad)
    assert ranges.core.counters.records_rejected == 2


def test_records_that_process_left_out_are_counted_beside_what_is_done() -> None:
    ranges = Ranges("a", stop=1000)
    (e,) = ranges.emit()
    ranges.did(e, 0, 400, left_out=2)
    ranges.did(e, 400, 1000, left_out=5)
    assert ranges.core.counters.records_left_out == 7


def test_a_bolt_has_acked_a_range_when_nothing_of_it_is_left() -> None:
    ranges = Ranges("a", stop=1_000)
    (e,) = ranges.emit()
    bolt = ranges.core.bolts["a"]
    ranges.did(e, 0, 500)
    assert (bolt.acked, bolt.records_acked) == (0, 5)
    ranges.did(e, 500, 1_000)
    assert (bolt.acked, bolt.records_acked) == (1, 10)


def test_a_record_of_a_range_whose_every_call_raises_late_is_given_up() -> None:
    """The kind, by reference: a fault that nobody waits for any more is one all the same."""
    ranges = Ranges("a", "b", stop=2 * MB, settings={"retry_attempts_max": 2})
    on_a, on_b = ranges.emit()
    for emission in (on_a, on_b):
        ranges.wait(0.1, "a", "b")
        ranges.did(emission, emission.start, emission.start + 1_000)
    ranges.did(on_b, on_b.start + 1_000, on_b.stop)
    for _ in range(240):  # a beats, and is at work on its next record
        ranges.wait(0.25, "a", "b")
    (moved,) = ranges.emit()
    assert (moved.bolt, moved.start, moved.stop) == ("b", 1_000, MB)
    one = {"records": 1, "record_at": 1_000}
    assert ranges.failed(on_a, 1_000, 1_100, **one) is AckOutcome.FAILED
    rest, behind, alone = ranges.emit()
    assert [(e.start, e.stop) for e in (rest, behind, alone)] == [
        (1_100, MB), (1_001, 1_100), (1_000, 1_001),
    ]  # fmt: skip
    assert ranges.did(rest, 1_100, MB) is AckOutcome.ACKED, "it need not wait for the record"
    assert ranges.failed(alone, 1_000, 1_001, **one) is AckOutcome.GAVE_UP
    assert ranges.core.gave_up is not None and ranges.core.gave_up.attempts == 2
