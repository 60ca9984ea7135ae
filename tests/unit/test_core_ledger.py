"""Out-of-order acks in, checkpoint out."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest

from flowctl.core.ledger import PartitionLedger
from flowctl.core.records import AckedRange, PartitionCheckpoint, Position, Record
from flowctl.errors import SourceError
from tests.core_driver import Driver

pytestmark = pytest.mark.on_change()


def ledger_with(count: int) -> PartitionLedger:
    """A ledger that has read records at positions 1 … count (seq 0 … count-1)."""
    ledger = PartitionLedger("p")
    ledger.admit([Record(n, None) for n in range(1, count + 1)])
    return ledger


def ack(ledger: PartitionLedger, *positions: int) -> Position | None:
    for n in positions:
        ledger.ack(n - 1, n, n, n)
    return ledger.cumulative


@pytest.mark.req("S11", "S99")
def test_acks_1_3_4_give_1_then_2_gives_4() -> None:
    ledger = ledger_with(5)
    assert ack(ledger, 1, 3, 4) == 1
    assert ack(ledger, 2) == 4


@pytest.mark.req("S11", "S12")
def test_the_same_through_the_core_as_positions() -> None:
    driver = Driver("a", window_initial=4)
    driver.offer(4)
    sent = {emission.records[0].position: emission for emission in driver.emit()}
    for position in (1, 3, 4):
        driver.ack(sent[position])
    assert driver.position() == 1
    assert driver.acked_above() == [(3, 4, 2)]
    driver.ack(sent[2])
    assert driver.position() == 4
    assert driver.acked_above() == []


@pytest.mark.req("S14")
def test_a_hole_repeats_the_same_value_and_is_never_passed() -> None:
    ledger = ledger_with(9)
    seen = [ack(ledger, n) for n in (1, 4, 3, 6, 2, 8, 9, 5, 7)]
    assert seen == [1, 1, 1, 1, 4, 4, 4, 6, 9]


@pytest.mark.req("S12")
def test_positions_are_the_sources_own() -> None:
    ledger = PartitionLedger("p")
    places: list[Position] = [(0, "a"), (0, "b"), (7, "a"), (7, "c")]
    ledger.admit([Record(place, None) for place in places])
    ledger.ack(2, 4, places[2], places[3])
    assert ledger.checkpoint() == PartitionCheckpoint(None, 0, (AckedRange((7, "a"), (7, "c"), 2),))
    ledger.ack(0, 2, places[0], places[1])
    assert ledger.checkpoint() == PartitionCheckpoint((7, "c"), 4, ())


@pytest.mark.parametrize("seed", range(5))
def test_edges_of_merged_ranges_keep_their_positions(seed: int) -> None:
    ledger, order = ledger_with(60), list(range(1, 61))
    random.Random(seed).shuffle(order)
    done: set[int] = set()
    for n in order:
        ack(ledger, n)
        done.add(n)
        checkpoint = ledger.checkpoint()
        covered = set(range(1, checkpoint.records + 1))
        assert checkpoint.position == (checkpoint.records or None)
        for span in checkpoint.acked:
            numbers = range(span.first, span.last + 1)  # type: ignore[operator, arg-type]
            assert len(numbers) == span.records
            covered |= set(numbers)
        assert covered == done


def test_reading_a_checkpoint_changes_nothing() -> None:
    ledger = ledger_with(5)
    ack(ledger, 1, 3)
    assert ledger.checkpoint() == ledger.checkpoint()
    assert ack(ledger, 2) == 3


@pytest.mark.req("S101", "S102")
@pytest.mark.parametrize("bad", [[2], [3], [4, 4], [5, 4], ["5"]])
def test_positions_that_do_not_rise_are_refused(bad: list[Position]) -> None:
    ledger = ledger_with(3)
    with pytest.raises(SourceError, match="must rise"):
        ledger.admit([Record(place, None) for place in bad])


# -- restored from an earlier run -----------------------------------------------------------

RESTORED = PartitionCheckpoint(10, 10, (AckedRange(13, 14, 2), AckedRange(17, 17, 1)))


def admitted(ledger: PartitionLedger, *positions: int) -> list[list[Position]]:
    runs = ledger.admit([Record(n, None) for n in positions])
    return [[record.position for record in run] for _, run in runs]


@pytest.mark.req("S13", "S102")
def test_restored_ranges_are_skipped_exactly() -> None:
    ledger = PartitionLedger("p", RESTORED)
    assert admitted(ledger, *range(9, 21)) == [[11, 12], [15, 16], [18, 19, 20]]
    assert ledger.skipped == 5  # 9, 10, 13, 14, 17
    assert ledger.next_seq == 20


@pytest.mark.req("S13")
@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_however_they_are_read(chunk: int) -> None:
    ledger = PartitionLedger("p", RESTORED)
    numbers = list(range(11, 21))
    new = [
        position
        for begin in range(0, 10, chunk)
        for run in admitted(ledger, *numbers[begin : begin + chunk])
        for position in run
    ]
    assert new == [11, 12, 15, 16, 18, 19, 20]


@pytest.mark.req("S13")
def test_a_producer_may_leave_them_out() -> None:
    ledger = PartitionLedger("p", RESTORED)
    assert admitted(ledger, 11, 12, 15) == [[11, 12], [15]]
    assert admitted(ledger, 16, 18) == [[16], [18]]
    assert (ledger.skipped, ledger.next_seq) == (0, 18)


@pytest.mark.req("S13")
def test_acking_around_them_joins_them_to_the_cumulative_ack() -> None:
    ledger = PartitionLedger("p", RESTORED)
    for seq, run in ledger.admit([Record(n, None) for n in range(11, 19)]):
        ledger.ack(seq, seq + len(run), run[0].position, run[-1].position)
    assert ledger.checkpoint() == PartitionCheckpoint(18, 18, ())


@pytest.mark.req("S13")
def test_a_second_crash_before_they_are_reached_keeps_them() -> None:
    ledger = PartitionLedger("p", RESTORED)
    assert ledger.checkpoint() == RESTORED
    ((seq, _),) = ledger.admit([Record(11, None)])
    ledger.ack(seq, seq + 1, 11, 11)
    assert ledger.checkpoint() == msgspec.structs.replace(RESTORED, position=11, records=11)


@pytest.mark.req("S13")
def test_a_second_crash_after_some_were_reached_keeps_all() -> None:
    ledger = PartitionLedger("p", RESTORED)
    ledger.admit([Record(11, None), Record(12, None), Record(15, None)])
    ledger.ack(14, 15, 15, 15)
    assert ledger.checkpoint().acked == (AckedRange(13, 15, 3), AckedRange(17, 17, 1))


@pytest.mark.req("S97", "S99")
def test_records_that_no_longer_exist_are_jumped() -> None:
    ledger = PartitionLedger("p", RESTORED)
    ((seq, _run),) = ledger.admit([Record(20, None)])  # 11, 12, 15, 16, 18, 19 are gone
    ledger.ack(seq, seq + 1, 20, 20)
    assert ledger.checkpoint() == PartitionCheckpoint(20, 14, ())


def test_a_mark_is_kept_until_the_end_is() -> None:
    ledger = PartitionLedger("p", PartitionCheckpoint(0, 1, mark="old"))
    assert ledger.checkpoint().mark == "old"
    [(start, run)] = ledger.admit([Record(1, "b")])
    ledger.mark = "new"
    assert ledger.checkpoint().mark == "new"
    ledger.end = "end"
    assert ledger.checkpoint().mark == "new"
    ledger.ack(start, start + len(run), 1, 1)
    assert ledger.checkpoint() == PartitionCheckpoint(1, 2, (), "end")


def test_at_the_end_of_the_input_ranges_left_out_count_as_reached() -> None:
    ledger = PartitionLedger("p", RESTORED)
    for seq, run in ledger.admit([Record(n, None) for n in (11, 12, 15, 16)]):
        ledger.ack(seq, seq + len(run), run[0].position, run[-1].position)
    assert ledger.checkpoint().position == 16
    ledger.end_of_input()
    assert ledger.checkpoint() == PartitionCheckpoint(17, 17, ())


# -- memory -----------------------------------------------------------------------------


@pytest.mark.req("S101")
def test_memory_grows_with_the_holes_not_with_the_acks() -> None:
    # The gate is 50 MB for 1,000,000 acked records in tuples of one record with 1 % holes; a
    # tenth of it has to fit a tenth, as what is kept is per hole: two positions and four ints.
    records, tuple_size, share_max_bytes = 100_000, 1, 5 << 20
    chosen = random.Random(7)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ledger = PartitionLedger("p")
        ledger.next_seq = records
        for seq in range(0, records, tuple_size):
            if chosen.random() >= 0.01:
                stop = seq + tuple_size
                ledger.ack(seq, stop, (seq, seq * 100), (stop, stop * 100))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 800 < ledger.holes < 1_200
    assert used < share_max_bytes
