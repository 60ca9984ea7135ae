"""AdaptiveFlowConsumer alone: the window, and what has to be sent again, of one bolt (S24)."""

from __future__ import annotations

from collections import deque

import pytest

from flowctl.core.buffer import Cut
from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.events import BoltState
from flowctl.core.records import Ack, Record
from flowctl.core.tuples import FlowTuple
from flowctl.testing.clock import ManualClock
from tests.core_driver import core_settings


class Bolt:
    """One consumer, without a spout, a dispatcher or other bolts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sent: list[FlowTuple] = []
        self.consumer = AdaptiveFlowConsumer(
            "a", slots=1, epoch=1, now_s=0.0, events=deque(),
            settings=core_settings(
                window_growth="ack", window_threshold_s=1.0, window_initial=2,
                timeout_rto_first_s=3.0,
            ),
        )  # fmt: skip

    def send_all(self) -> list[int]:
        """As many as its window lets; return their ids."""
        first = len(self.sent)
        while self.consumer.has_room:
            number = len(self.sent) + 1
            self.sent.append(FlowTuple(number, Cut("p", number, [Record(number, None)], 9)))
            self.consumer.on_sent(self.sent[-1], self.clock())
        return [flow_tuple.tuple_id for flow_tuple in self.sent[first:]]

    def ack(self, number: int) -> None:
        ack = Ack(bolt="a", epoch=1, tuple_id=number, attempt=1)
        self.consumer.on_ack(self.sent[number - 1], ack, self.clock())
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
