"""Who does what: the consumer for its one bolt (S24), the spout between all of them (S23)."""

from __future__ import annotations

from collections import deque

import pytest

from flowctl.core.buffer import Cut
from flowctl.core.consumer import AdaptiveFlowConsumer, NewBolt
from flowctl.core.events import BoltState
from flowctl.core.messages import Ack
from flowctl.core.records import Record
from flowctl.core.tuples import FlowTuple
from flowctl.testing.clock import ManualClock
from tests.core_driver import Driver, core_settings


class Bolt:
    """One consumer, without a spout, a dispatcher or other bolts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sent: list[FlowTuple] = []
        self.consumer = AdaptiveFlowConsumer(
            NewBolt("a", slots=1, epoch=1, now_s=0.0),
            core_settings(
                window_growth="ack", window_threshold_s=1.0, window_initial=2,
                timeout_rto_first_s=3.0,
            ),
            deque(),
        )  # fmt: skip

    def send_all(self) -> list[int]:
        """As many as its window lets; return their ids."""
        first = len(self.sent)
        while self.consumer.has_room:
            number = len(self.sent) + 1
            self.sent.append(FlowTuple(number, Cut("p", number, [Record(number, None)], 9)))
            self.consumer.on_sent(self.sent[-1], self.clock(), True)
        return [flow_tuple.tuple_id for flow_tuple in self.sent[first:]]

    def ack(self, number: int) -> None:
        self.consumer.on_ack(self.sent[number - 1], Ack(number, 1), self.clock())
        self.consumer.refresh()


@pytest.mark.req("S24")
def test_it_lets_in_what_its_window_holds_and_moves_it_by_its_own_acks() -> None:
    bolt = Bolt()
    assert bolt.send_all() == [1, 2]
    bolt.clock.advance(0.5)
    bolt.ack(1)
    assert (bolt.consumer.window, bolt.send_all()) == (3, [3, 4])
    bolt.clock.advance(2.0)
    bolt.ack(2)
    assert (bolt.consumer.window, bolt.consumer.state) == (2, BoltState.SLOW)
    assert bolt.send_all() == []


@pytest.mark.req("S24")
def test_it_knows_when_a_tuple_is_overdue_and_what_has_to_go_again() -> None:
    bolt = Bolt()
    bolt.send_all()
    assert [flow_tuple.deadline_s for flow_tuple in bolt.sent] == [3.0, 3.0]
    bolt.clock.advance(3.0)
    bolt.consumer.on_expired(bolt.sent, bolt.clock(), silent=False)
    assert (bolt.consumer.window, bolt.consumer.state) == (1, BoltState.BUSY)
    assert [flow_tuple.tuple_id for flow_tuple in bolt.consumer.take_all()] == [1, 2]
    assert bolt.consumer.held == 0


# -- the spout ---------------------------------------------------------------------------------


@pytest.mark.req("S23")
def test_the_spout_buffers_what_one_poll_gave_until_consumers_take_it() -> None:
    driver = Driver("a", "b", window_policy="fixed", window_initial=2)
    driver.offer(10)
    emissions = driver.emit()
    assert driver.core.intake.buffer.records == 6
    for left, emission in zip((5, 4, 3, 2), emissions, strict=True):
        driver.ack(emission)
        driver.emit()
        assert driver.core.intake.buffer.records == left


@pytest.mark.req("S23")
def test_it_hands_each_ack_fail_and_heartbeat_to_the_consumer_of_its_bolt() -> None:
    driver = Driver("a", "b", window_growth="ack", window_threshold_s=1.0, window_initial=2)
    driver.offer(4)
    emissions = driver.emit()
    on_a = [emission for emission in emissions if emission.bolt == "a"]
    a, b = (driver.core.bolts[bolt] for bolt in "ab")
    driver.clock.advance(0.1)
    driver.ack(on_a[0])
    assert (a.acked, a.window, a.held) == (1, 3, 1)
    driver.fail(on_a[1])
    assert a.held == 0
    driver.beat("a")
    assert a.sends_heartbeats
    assert (b.acked, b.window, b.held, b.sends_heartbeats) == (0, 2, 2, False)
