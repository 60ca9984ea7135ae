"""What the core does and no other test would miss: each was broken by hand and nobody noticed.

Through what a driver sees of a core: calls, orders, events, dead letters, the checkpoint.
"""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState, StateChanged, TupleExpired
from flowctl.core.messages import DetailedAck, Emission, Rejected
from flowctl.core.records import AckOutcome, Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointUnavailableError
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.control import RunControl
from flowctl.runtime.sharing import Host
from flowctl.testing.stores import MemoryCheckpointStore
from tests.core_driver import Driver
from tests.runtime_parts import FailingStore

# -- dead letters ----------------------------------------------------------------------------


@pytest.mark.req("S108", "S109")
def test_the_dead_letter_does_not_get_what_was_acked_late() -> None:
    """A tuple was given up, and before it is written down a bolt that had it acks: it is done."""
    driver = Driver("b1", "b2", has_dead_letter=True, timeout_rule="clock", retry_attempts_max=1)
    driver.offer(1)
    [first] = driver.emit()
    driver.wait(4.0)  # it expires at the first bolt, and goes to the other
    [second] = driver.emit()
    assert second.bolt != first.bolt
    assert driver.fail(second) is AckOutcome.GAVE_UP
    assert driver.ack(first) is AckOutcome.LATE
    assert driver.core.poll_dead_letter() is None
    assert driver.position() == 1
    assert driver.core.is_drained


@pytest.mark.req("S109")
def test_nor_does_it_count_when_it_was_acked_while_it_was_written() -> None:
    """Written down and acked by its bolt at the same time: it counts as acked, once."""
    driver = Driver("b1", "b2", has_dead_letter=True, timeout_rule="clock", retry_attempts_max=1)
    driver.offer(1)
    [first] = driver.emit()
    driver.wait(4.0)
    [second] = driver.emit()
    driver.fail(second)
    dead = driver.core.poll_dead_letter()
    assert dead is not None
    assert driver.ack(first) is AckOutcome.LATE
    driver.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=driver.clock())
    assert (driver.core.counters.tuples_dead_lettered, driver.core.counters.records_acked) == (0, 1)


@pytest.mark.req("S109")
def test_what_it_rejected_is_kept_though_the_tuple_had_been_given_up_meanwhile() -> None:
    """The bolt acks late, without a record that it rejected: a dead letter gets that one."""
    driver = Driver("b1", "b2", has_dead_letter=True, timeout_rule="clock", retry_attempts_max=1)
    driver.offer(1)
    [first] = driver.emit()
    driver.wait(4.0)
    [second] = driver.emit()
    assert driver.fail(second) is AckOutcome.GAVE_UP
    ack = DetailedAck(first.tuple_id, first.attempt, rejected=[Rejected(0, "not wanted")])
    assert driver.core.on_ack(first.bolt, 1, ack, now_s=driver.clock()) is AckOutcome.LATE
    dead = driver.core.poll_dead_letter()
    assert dead is not None and dead.gave_up.reason == "rejected: not wanted"
    assert driver.position() is None, "it is not done before it is kept"
    driver.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=driver.clock())
    assert driver.position() == 1
    assert driver.core.checkpoint().records_kept_nowhere == 0


# -- suspects --------------------------------------------------------------------------------


def beating(driver: Driver, by_s: float, bolt: str) -> None:
    """Let time pass in which only ``bolt`` is heard."""
    for _ in range(round(by_s / 0.25)):
        driver.clock.advance(0.25)
        driver.beat(bolt, busy=1)
        driver.wait(0)


@pytest.mark.req("S7", "S48")
def test_what_expired_at_a_suspect_is_asked_back() -> None:
    """If it comes back to life it need not begin what others have: it is told so."""
    driver = Driver("a", "b", window_policy="fixed", window_initial=2)
    for bolt in ("a", "b"):
        driver.beat(bolt)
    driver.offer(4)
    on_a = [emission.tuple_id for emission in driver.emit() if emission.bolt == "a"]
    driver.orders()
    beating(driver, 3.0, "b")
    assert [event.tuple_id for event in driver.events(TupleExpired)] == on_a[:1]
    suspected = [order.tuple_ids for order in driver.orders() if order.bolt == "a"]
    assert suspected == [on_a[:1]], "its oldest, on the suspicion"
    beating(driver, 0.5, "b")
    assert [event.tuple_id for event in driver.events(TupleExpired)] == on_a
    down = [order.tuple_ids for order in driver.orders() if order.bolt == "a"]
    assert down == [on_a[1:]], "and the rest when it is down"


# -- round trips -----------------------------------------------------------------------------


def rtts_s(driver: Driver) -> list[float]:
    """The round trips of the acks that made a bolt slow."""
    return [
        round(event.ack_rtt_s, 6)
        for event in driver.events(StateChanged)
        if event.after is BoltState.SLOW and event.ack_rtt_s is not None
    ]


@pytest.mark.req("S3", "S5")
def test_a_round_trip_is_taken_from_the_sending_and_not_from_the_ack_before() -> None:
    """Two at a bolt: the second one's round trip began when it was sent, not at the first's ack."""
    driver = Driver("b1", window_initial=2, window_threshold_s=1.0, window_growth="ack")
    driver.offer(2)
    first, second = driver.emit()
    driver.clock.advance(0.5)
    driver.ack(first)
    driver.clock.advance(0.75)
    driver.ack(second)
    assert rtts_s(driver) == [1.25]


@pytest.mark.req("S3", "S5")
def test_nor_from_an_ack_that_came_before_the_sending() -> None:
    """The bolt was never empty, so it is waited for since its last ack; its next tuple is not."""
    driver = Driver("b1", window_initial=2, window_threshold_s=1.0, window_growth="ack")
    driver.offer(3)
    first, second = driver.emit()
    driver.clock.advance(0.5)
    driver.ack(first)
    driver.clock.advance(0.75)
    third = driver.emit()[0]
    driver.clock.advance(1.5)
    driver.ack(third)
    assert rtts_s(driver) == [1.5]
    driver.ack(second)


@pytest.mark.req("S3")
def test_a_round_trip_is_taken_from_the_last_sending_and_not_from_the_first() -> None:
    """Sent again to another bolt, it is that bolt's round trip, not the time since the beginning.

    With the first sending's time the second bolt would be judged by what the first one did.
    """
    driver = Driver("b1", "b2", timeout_rule="clock", window_threshold_s=1.0)
    driver.clock.advance(10.0)
    driver.offer(1)
    [first] = driver.emit()
    driver.wait(4.0)
    [second] = driver.emit()
    assert second.bolt != first.bolt
    driver.clock.advance(1.5)
    assert driver.ack(second) is AckOutcome.ACKED
    assert rtts_s(driver) == [1.5]


@pytest.mark.req("S3")
def test_nor_is_a_first_tuple_taken_from_when_its_bolt_came() -> None:
    driver = Driver("b1", window_threshold_s=1.0)
    driver.clock.advance(100.0)
    driver.offer(1)
    [emission] = driver.emit()
    driver.clock.advance(2.0)
    driver.ack(emission)
    assert rtts_s(driver) == [2.0]


# -- partitions that go ----------------------------------------------------------------------


def going(store: MemoryCheckpointStore, *, finish_s: float) -> tuple[Driver, list[Emission], Host]:
    """Two partitions of three records each, all in flight; nothing saves but the host."""
    driver = Driver("b1", window_policy="fixed", window_initial=6)
    driver.offer(3, "p")
    driver.offer(3, "q")
    emissions = driver.emit()
    control = RunControl(driver.core, clock=driver.clock)
    epoch = store.acquire("job")
    saver = Checkpointer(control, store, job="job", epoch=epoch, interval_s=1e6)
    return driver, emissions, Host(control, saver.save, job="job", finish_s=finish_s)


@pytest.mark.req("S113")
def test_what_is_done_is_saved_before_a_partition_goes() -> None:
    """The next driver begins where this one ended, so it must find that in the store."""
    store = MemoryCheckpointStore()
    driver, emissions, host = going(store, finish_s=0.0)
    for emission in emissions[:2]:
        driver.ack(emission)
    saved = host.take_away(["p"])
    assert store.load("job").partitions["p"] == PartitionCheckpoint(2, 2)
    assert saved.partitions["p"] == PartitionCheckpoint(2, 2)
    assert set(driver.core.checkpoint().partitions) == {"q"}, "forgotten, after it was saved"


@pytest.mark.req("S113")
def test_what_is_in_flight_may_end_and_is_saved_before_its_partition_goes() -> None:
    store = MemoryCheckpointStore()
    driver, emissions, host = going(store, finish_s=10.0)
    control = host._control
    looks: list[float] = []

    def ack_one_more(timeout_s: float | None = None) -> bool:
        """Instead of a wait: meanwhile a bolt acks, and time passes."""
        looks.append(driver.clock())
        driver.clock.advance(1.0)
        if emissions:
            driver.ack(emissions.pop(0))
        return False

    control.finished.wait = ack_one_more  # type: ignore[method-assign]
    host.take_away(["p"])
    assert store.load("job").partitions["p"] == PartitionCheckpoint(3, 3)
    assert len(looks) == 3, "and not longer than that"


@pytest.mark.req("S113")
def test_but_not_for_longer_than_the_other_driver_can_wait() -> None:
    store = MemoryCheckpointStore()
    driver, emissions, host = going(store, finish_s=2.0)
    driver.ack(emissions[0])
    host._control.finished.wait = lambda _=None: driver.clock.advance(1.0)  # type: ignore
    host.take_away(["p"])
    assert store.load("job").partitions["p"] == PartitionCheckpoint(1, 1)


@pytest.mark.req("S113")
def test_with_the_store_away_nothing_is_called_saved_that_is_not() -> None:
    store = FailingStore()
    driver, emissions, host = going(store, finish_s=0.0)
    driver.ack(emissions[0])
    store.error = CheckpointUnavailableError("away")
    assert host.take_away(["p"]) == Checkpoint()
    assert store.tries == 1
