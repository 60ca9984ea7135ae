"""Partitions that are taken away and given in mid-run, and records with nothing in them."""

from __future__ import annotations

import pytest

from flowctl.config import Settings
from flowctl.core.events import PartitionGiven, PartitionTakenAway
from flowctl.core.records import (
    NOTHING,
    AckedRange,
    AckOutcome,
    Checkpoint,
    PartitionCheckpoint,
    Record,
)
from flowctl.testing import MemoryCheckpointStore
from flowctl_storm import LocalStages, Topology
from tests.core_driver import Driver
from tests.runtime_parts import a_spout


def two_partitions(**values: object) -> Driver:
    driver = Driver("b1", "b2", **values)
    driver.widen("b1", 4)
    driver.widen("b2", 4)
    driver.offer(4, "p")
    driver.offer(4, "q")
    return driver


def take_away(driver: Driver, partition: str) -> None:
    driver.core.handover.take_away(partition, now_s=driver.clock())
    driver.settle()


@pytest.mark.req("S99", "S108", "S113")
def test_what_is_taken_away_is_neither_sent_nor_committed_and_late_acks_change_nothing() -> None:
    driver = two_partitions()
    emissions = driver.emit()
    first = [e for e in emissions if e.partition == "p"]
    driver.ack(first[0])
    take_away(driver, "p")
    assert set(driver.core.checkpoint().partitions) == {"q"}
    assert driver.ack(first[1]) is AckOutcome.DUPLICATE
    assert driver.fail(first[2]) is AckOutcome.DUPLICATE
    assert driver.core.counters.tuples_handed_over == 3
    [event] = driver.events(PartitionTakenAway)
    assert (event.partition, event.position, event.handed_over) == ("p", 1, 3)
    for emission in [*driver.emit(), *(e for e in emissions if e.partition == "q")]:
        assert emission.partition == "q"
        driver.ack(emission)
    assert driver.core.is_drained


@pytest.mark.req("S99")
def test_what_waits_to_go_again_or_to_go_at_all_goes_to_the_other_driver() -> None:
    driver = Driver("b1", window_initial=1)
    driver.offer(5, "p")
    [emission] = driver.emit()
    driver.fail(emission)
    assert driver.core.handover.hold_back("p") == 0, "nothing of it is in flight"
    driver.settle()
    driver.wait(60)
    assert driver.emit() == []
    take_away(driver, "p")
    assert driver.core.is_drained
    assert driver.core.intake.uncommitted == 0


@pytest.mark.req("S99")
def test_what_is_ready_to_go_again_goes_to_the_other_driver_too() -> None:
    """Its back-off is over, and no bolt has had room for it yet."""
    driver = Driver("b1", window_initial=1)
    driver.offer(1, "p")
    driver.offer(1, "q")
    [emission] = driver.emit()
    driver.fail(emission)
    [other] = driver.emit()
    driver.wait(60)  # ready, but the only place is taken
    assert (emission.partition, other.partition) == ("p", "q")
    driver.core.handover.hold_back("p")
    driver.settle()
    driver.ack(other)
    assert driver.emit() == []
    assert driver.core.is_drained


@pytest.mark.req("S113")
def test_held_back_it_may_finish_what_is_in_flight() -> None:
    driver = two_partitions()
    emissions = [e for e in driver.emit() if e.partition == "p"]
    assert driver.core.handover.hold_back("p") == 4
    for emission in emissions:
        driver.ack(emission)
    assert driver.core.handover.hold_back("p") == 0
    assert driver.position("p") == 4


@pytest.mark.req("S99")
def test_given_again_it_goes_on_where_the_other_left_it() -> None:
    driver = two_partitions()
    driver.emit()
    take_away(driver, "p")
    state = PartitionCheckpoint(7, 7, (AckedRange(9, 10, 2),))
    driver.core.handover.give("p", state, now_s=driver.clock())
    assert driver.core.checkpoint().partitions["p"] == state
    records = [Record(n, n) for n in range(6, 13)]
    driver.core.offer("p", records, now_s=driver.clock())
    driver.settle()
    driver.remove("b1", lost=False)
    driver.add("b3")
    driver.widen("b3", 20)
    sent = [e.records[0].position for e in driver.emit() if e.partition == "p"]
    assert sent == [8, 11, 12]
    assert [e.position for e in driver.events(PartitionGiven)] == [7]


@pytest.mark.req("S88", "S99")
def test_what_was_committed_before_it_was_sent_is_still_ours_to_send() -> None:
    driver = Driver("b1", window_initial=1, guarantee_mode="at_most_once")
    driver.offer(3, "p")
    driver.core.on_committed()
    assert driver.core.handover.hold_back("p") == 0
    take_away(driver, "p")
    sent = []
    while emissions := driver.emit():
        for emission in emissions:
            sent.append(emission.records[0].position)
            driver.ack(emission)
    assert sent == [1, 2, 3]


def offer_values(driver: Driver, *values: object) -> None:
    records = [Record(n, value) for n, value in enumerate(values, start=1)]
    assert driver.core.offer("p", records, now_s=driver.clock()) == len(records)
    driver.settle()


@pytest.mark.req("S107")
@pytest.mark.parametrize(
    "values",
    [
        ("a", NOTHING, "b"),
        (NOTHING, "a", NOTHING, NOTHING),
        (NOTHING,),
        (NOTHING, NOTHING, "a"),
        (None, NOTHING, b"", 0),
    ],
)
def test_nothing_is_not_sent_and_counts_as_acked(values: tuple[object, ...]) -> None:
    driver = Driver("b1")
    driver.widen("b1", 10)
    offer_values(driver, *values)
    emissions = driver.emit()
    sent = [record.value for e in emissions for record in e.records]
    assert sent == [value for value in values if value is not NOTHING]
    for emission in reversed(emissions):
        driver.ack(emission)
    state = driver.core.checkpoint().partitions["p"]
    assert (state.position, state.records, state.acked) == (len(values), len(values), ())
    assert driver.core.is_drained


@pytest.mark.req("S107")
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once", "no_guarantee"])
def test_report_and_checkpoint_count_records_with_nothing_to_process_alike(mode: str) -> None:
    """Kind: one number, told differently in two places.  The report counted 2 of 4 records, the
    checkpoint 4; so with 2 tuples under way, a kill was said to run none of them again."""
    store = MemoryCheckpointStore()
    report = a_spout(
        producer=["a", NOTHING, "b", NOTHING],
        checkpoint=store,
        settings=Settings().with_overrides({"guarantee.mode": mode}),
    ).run(view="quiet")
    saved = sum(state.records for state in store.load("j").partitions.values())
    assert (report.records_acked, report.records_total, report.records_saved) == (4, 4, 4)
    assert saved == 4


@pytest.mark.req("S107")
def test_a_topology_counts_them_alike_too() -> None:
    store = MemoryCheckpointStore()
    made = Topology("j")
    made.spout("s", ["a", NOTHING, "b", NOTHING])
    made.bolt("b", lambda given, out: None).shuffle("s")
    report = made.run(LocalStages(), view="quiet", checkpoint=store)
    assert (report.records_acked, report.records_total, report.records_saved) == (4, 4, 4)


@pytest.mark.req("S107")
def test_nothing_behind_a_hole_is_kept_as_a_range() -> None:
    driver = Driver("b1")
    offer_values(driver, "a", NOTHING, NOTHING)
    driver.emit()
    assert driver.position() is None
    assert driver.acked_above() == [(2, 3, 2)]


@pytest.mark.req("S107")
@pytest.mark.parametrize("mode", ["at_most_once", "no_guarantee"])
def test_nothing_in_the_other_modes(mode: str) -> None:
    driver = Driver("b1", guarantee_mode=mode, checkpoint=Checkpoint())
    offer_values(driver, NOTHING, "a", NOTHING)
    driver.core.on_committed()
    [emission] = driver.emit()
    assert [record.value for record in emission.records] == ["a"]
    assert driver.position() == 3


def test_what_is_given_while_tuples_of_it_are_out_forgets_those_first() -> None:
    """Their acks would meet a ledger that is gone."""
    driver = Driver("a", tuple_records_max=1)
    driver.offer(1)
    [emission] = driver.emit()
    state = driver.core.checkpoint().partitions["p"]
    driver.core.handover.give("p", state, now_s=driver.clock())
    assert driver.ack(emission) is AckOutcome.DUPLICATE
    assert (driver.core.counters.tuples_handed_over, driver.core.counters.tuples_acked) == (1, 0)
    assert driver.core.is_drained
