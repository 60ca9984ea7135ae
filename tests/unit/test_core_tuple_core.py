"""TupleCore by itself, as a stage of a topology holds it: no source, no ledger, no checkpoint."""

from __future__ import annotations

import pytest

from flowctl.core.events import TupleDropped, TupleGaveUp
from flowctl.core.messages import Ack, Emission, Fail
from flowctl.core.records import AckOutcome, Record
from flowctl.core.supply import Backlog
from flowctl.core.tuple_core import TupleCore
from tests.core_driver import core_settings


class Hand:
    """A core with one backlog and some bolts, driven by hand at second 0 and later."""

    def __init__(self, *bolts: str, **settings: object) -> None:
        self.backlog = Backlog()
        self.core = TupleCore(core_settings(tuple_records_max=1, **settings), self.backlog)
        for bolt in bolts:
            self.core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0)

    def put(self, *positions: int) -> None:
        self.backlog.put("stage", [Record(n, f"v{n}") for n in positions])

    def emit(self, now_s: float = 0.0) -> Emission:
        emission = self.core.poll_emit(now_s=now_s)
        assert emission is not None
        return emission

    def fail(self, emission: Emission, now_s: float = 0.0) -> AckOutcome:
        fail = Fail(emission.tuple_id, emission.attempt, "boom", is_data_error=True)
        return self.core.on_fail(emission.bolt, 1, fail, now_s=now_s)

    def kinds(self) -> set[type]:
        kinds = set()
        while (event := self.core.poll_event()) is not None:
            kinds.add(type(event))
        return kinds


def test_what_was_put_goes_out_and_is_done() -> None:
    hand = Hand("a")
    hand.put(1, 2)
    assert hand.core.buffer.records == 2
    emission = hand.emit()
    assert [record.position for record in emission.records] == [1]
    assert emission.acked_through is None, "nobody keeps account"
    assert hand.core.on_ack("a", 1, Ack(emission.tuple_id, 1), now_s=0.1) is AckOutcome.ACKED
    assert not hand.core.is_drained, "one record waits"
    emission = hand.emit()
    assert [record.position for record in emission.records] == [2]
    hand.core.on_ack("a", 1, Ack(emission.tuple_id, 1), now_s=0.2)
    assert hand.core.is_drained
    assert hand.core.poll_lost() is None


def test_what_is_given_up_is_handed_to_the_caller_and_forgotten() -> None:
    hand = Hand("a", "b", retry_attempts_max=1)
    hand.put(1, 2)
    first = hand.emit()
    assert hand.fail(first) is AckOutcome.GAVE_UP
    assert hand.core.has_lost
    lost = hand.core.poll_lost()
    assert lost is not None
    assert ([r.position for r in lost.records], lost.bolt, lost.reason) == ([1], first.bolt, "boom")
    assert hand.core.poll_lost() is None
    assert hand.core.tuple_records(first.bolt, first.tuple_id) == ()
    assert TupleGaveUp not in hand.kinds(), "what it means is the caller's to tell"


def test_what_was_given_up_is_not_in_flight() -> None:
    """Counted twice, it would take room from the others while a target is troubled."""
    hand = Hand("a", "b", retry_attempts_max=1)
    hand.put(1, 2)
    hand.fail(hand.emit())
    assert hand.core.in_flight == 0
    hand.emit()
    assert hand.core.in_flight == 1


@pytest.mark.parametrize("lost", [True, False])
def test_where_nothing_goes_again_what_a_bolt_held_is_the_callers(lost: bool) -> None:
    hand = Hand("a", guarantee_mode="no_guarantee")
    hand.put(1)
    hand.emit()
    hand.core.remove_bolt("a", now_s=1.0, reason="it left", lost=lost)
    dropped = hand.core.poll_lost()
    assert dropped is not None
    assert (dropped.bolt, dropped.reason) == ("a", "bolt a went: it left")
    assert hand.core.counters.tuples_dropped == 1
    assert hand.core.is_drained
    assert TupleDropped not in hand.kinds()
