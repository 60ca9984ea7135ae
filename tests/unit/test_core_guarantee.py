"""What may be committed when, and what goes again, by guarantee."""

from __future__ import annotations

import pytest

from flowctl.core.events import TupleDropped
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import AckOutcome, Checkpoint, PartitionCheckpoint
from flowctl.core.settings import CoreSettings
from tests.core_driver import Driver

NOT_TRACKED = pytest.mark.parametrize("mode", ["at_most_once", "no_guarantee"])


def driver(*bolts: str, mode: str, **values: object) -> Driver:
    made = Driver(*bolts, guarantee_mode=mode, **values)
    made.core.on_committed()
    return made


def offered(made: Driver, count: int) -> Driver:
    made.offer(count)
    made.core.on_committed()
    return made


@pytest.mark.req("S86")
def test_at_least_once_is_the_default() -> None:
    assert CoreSettings().guarantee.processing is ProcessingGuarantee.AT_LEAST_ONCE
    assert [mode.name for mode in ProcessingGuarantee] == [
        "AT_LEAST_ONCE", "AT_MOST_ONCE", "NO_GUARANTEE",
    ]  # fmt: skip


@pytest.mark.req("S87", "S88", "S89")
@pytest.mark.parametrize(
    ("mode", "acked", "first", "interval", "again"),
    [
        ("at_least_once", True, False, True, True),
        ("at_most_once", False, True, False, False),
        ("no_guarantee", False, False, True, False),
    ],
)
def test_the_rules(mode: str, acked: bool, first: bool, interval: bool, again: bool) -> None:
    rule = ProcessingGuarantee(mode)
    assert rule.commits_acked is acked
    assert rule.commits_before_emit is first
    assert rule.commits_on_interval is interval
    assert rule.sends_again is again


@pytest.mark.req("S87")
def test_at_least_once_commits_what_is_acked_and_no_more() -> None:
    made = Driver("b1")
    made.offer(3)
    made.widen("b1", 3)
    _, second, _ = made.emit()
    made.ack(second)
    saved = made.core.checkpoint().partitions["p"]
    assert saved.position is None
    assert [(r.first, r.last) for r in saved.acked] == [(2, 2)]


@pytest.mark.req("S88")
def test_at_most_once_nothing_is_sent_before_its_position_is_saved() -> None:
    made = driver("b1", "b2", mode="at_most_once")
    made.offer(2)
    assert made.emit() == []
    assert made.core.checkpoint().partitions["p"].position == 2, "what was read is to be saved"
    made.core.on_committed()
    assert len(made.emit()) == 2
    made.offer(1)
    assert made.emit() == [], "nor what was read after that"


@pytest.mark.req("S89")
def test_no_guarantee_commits_what_was_read_whatever_was_acked() -> None:
    made = driver("b1", mode="no_guarantee")
    made.offer(5)
    assert len(made.emit()) > 0
    saved = made.core.checkpoint().partitions["p"]
    assert (saved.position, saved.records, saved.acked) == (5, 5, ())


@pytest.mark.req("S88", "S105", "S109")
@NOT_TRACKED
def test_what_fails_is_dropped_counted_and_told(mode: str) -> None:
    made = offered(driver("b1", "b2", mode=mode), 1)
    [emission] = made.emit()
    assert made.fail(emission) is AckOutcome.DROPPED
    assert made.emit() == []
    assert made.core.is_drained
    assert made.core.counters.tuples_dropped == made.core.counters.records_dropped == 1
    [event] = [e for e in made.log if isinstance(e, TupleDropped)]
    assert (event.partition, event.first, event.last, event.reason) == ("p", 1, 1, "boom")


@pytest.mark.req("S88")
@NOT_TRACKED
@pytest.mark.parametrize("rule", ["signs", "clock"])
def test_what_expires_is_not_sent_again_and_a_late_ack_does_no_harm(mode: str, rule: str) -> None:
    made = offered(driver("b1", "b2", mode=mode, timeout_rule=rule), 1)
    [emission] = made.emit()
    for _ in range(200):
        made.clock.advance(1.0)
        made.core.on_deadline(now_s=made.clock())
        assert made.emit() == []
    assert made.core.is_drained
    assert made.core.counters.tuples_dropped == 1
    assert made.ack(emission) is AckOutcome.DUPLICATE
    assert made.core.counters.tuples_acked == 0


@pytest.mark.req("S88")
@NOT_TRACKED
def test_what_a_lost_bolt_held_is_dropped_also_what_it_may_not_have_begun(mode: str) -> None:
    made = driver("b1", mode=mode)
    made.widen("b1", 3)
    offered(made, 3)
    assert len(made.emit()) == 3
    made.remove("b1", reason="killed")
    made.add("b2")
    assert made.emit() == []
    assert made.core.counters.tuples_dropped == 3


@pytest.mark.req("S88")
@NOT_TRACKED
def test_what_a_bolt_gives_back_unbegun_goes_to_another_for_its_first_time(mode: str) -> None:
    made = driver("b1", mode=mode)
    made.widen("b1", 2)
    offered(made, 2)
    _, queued = made.emit()
    made.add("b2")
    made.give_back("b1", queued.tuple_id)
    [again] = made.emit()
    assert (again.tuple_id, again.bolt) == (queued.tuple_id, "b2")
    assert made.core.counters.tuples_dropped == 0


@pytest.mark.req("S88")
@NOT_TRACKED
def test_no_copies_at_the_end(mode: str) -> None:
    made = driver("b1", "b2", mode=mode, hedge_enabled=True)
    offered(made, 4)
    for _ in range(2):  # both bolts are known
        for emission in made.emit():
            made.clock.advance(0.01)
            made.ack(emission, wait_s=0.0, service_s=0.01, idle_total_s=0.0)
    offered(made, 1)
    [last] = made.emit()
    made.core.end_of_input(now_s=made.clock())
    for _ in range(20):
        made.clock.advance(0.05)
        assert made.emit() == []
    assert made.ack(last) is AckOutcome.ACKED
    assert made.core.counters.tuples_hedged == 0


@pytest.mark.req("S105")
@NOT_TRACKED
def test_a_sink_is_not_told_that_what_was_read_is_processed(mode: str) -> None:
    made = offered(driver("b1", mode=mode), 1)
    [emission] = made.emit()
    assert emission.acked_through is None


@pytest.mark.req("S105")
@NOT_TRACKED
def test_windows_still_bound_what_is_under_way(mode: str) -> None:
    made = offered(driver("b1", mode=mode, window_initial=2), 10)
    assert len(made.emit()) == 2
    assert made.core.intake.uncommitted == 0, "single acks are not tracked"


@NOT_TRACKED
def test_what_an_earlier_run_had_acked_is_left_out(mode: str) -> None:
    checkpoint = Checkpoint({"p": PartitionCheckpoint(2, 2)})
    made = Driver("b1", checkpoint=checkpoint, guarantee_mode=mode)
    made.widen("b1", 10)
    offered(made, 4)
    assert [e.records[0].position for e in made.emit()] == [3, 4]


@pytest.mark.req("S96")
def test_a_retry_needs_no_seek_it_is_still_here() -> None:
    """Storm reads a retry from the source again; here its records are kept until they are acked."""
    made = Driver("b1", "b2", buffer_uncommitted_max=1)
    assert made.offer(2) == 1
    [emission] = made.emit()
    made.fail(emission)
    made.wait_for_deadline()
    [again] = made.emit()
    assert again.records == emission.records
    made.ack(again)
    assert made.position() == 1
