"""What a bolt says of an input that takes longer, on its way to the hub and there."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.core.messages import Heartbeat
from flowctl.core.records import Record, Span
from flowctl_storm import Input
from flowctl_storm.worker.inputs import Collector, ManualCollector
from tests.topology_driver import Hub, nothing, passing, topology

TICKS = 4  # until a tree expires
NO_EXPIRY = {
    "lab.timeout.rto_first_s": 1e5,
    "lab.timeout.rto_min_s": 1e5,
    "lab.timeout.rto_max_s": 1e6,
}


def working_for_three_ticks(*, prolongs: bool, epoch: int | None = None) -> Hub:
    """A tuple of five roots at the second stage for three times the trees' time-out."""
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", nothing).shuffle("a")
    hub = Hub(made, overrides=NO_EXPIRY)
    hub.offer(range(5))
    hub.step()
    hub.emit()
    [emission] = hub.in_flight
    ids: list[Any] = [record.position for record in emission.records]
    for _ in range(6):
        hub.now_s += 5.1
        hub.core.on_deadline(now_s=hub.now_s)
        if prolongs:
            bolt = emission.bolt
            beat = Heartbeat(1, 0, prolonged=[*ids, 999])
            hub.core.on_heartbeat(
                bolt, hub.epoch[bolt] if epoch is None else epoch, beat, now_s=hub.now_s
            )
    return hub


@pytest.mark.req("S79")
def test_what_is_prolonged_while_it_is_worked_on_does_not_expire() -> None:
    hub = working_for_three_ticks(prolongs=True)
    assert hub.figures.expired == 0
    hub.run()
    assert (hub.figures.complete, hub.figures.replayed, hub.figures.ledger_now) == (5, 0, 0)


@pytest.mark.req("S48")
def test_what_is_not_prolonged_expires() -> None:
    assert working_for_three_ticks(prolongs=False).figures.expired == 5


def test_a_connection_that_is_over_prolongs_nothing() -> None:
    assert working_for_three_ticks(prolongs=True, epoch=99).figures.expired == 5


@pytest.mark.req("S79")
@pytest.mark.parametrize("refuses", [True, False])
def test_a_tree_does_not_expire_just_after_its_bolt_said_that_it_was_refused(refuses: bool) -> None:
    """The bolt was silent for long before that; what was refused waits to be sent again."""
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides=NO_EXPIRY)
    hub.offer(range(5))
    hub.emit()
    for _ in range(TICKS - 1):
        hub.now_s += 5.1
        hub.core.on_deadline(now_s=hub.now_s)
    assert hub.figures.expired == 0
    if refuses:
        for emission in hub.in_flight:
            hub.fail(emission, "503", is_refused=True)
    hub.now_s += 5.1
    hub.core.on_deadline(now_s=hub.now_s)
    assert hub.figures.expired == (0 if refuses else 5)


def batch_of(count: int, told: list[Any] | None) -> Batch:
    records = [Record(n, "x") for n in range(count)]
    batch = Batch(records, Span("job", "p", 0, count - 1, 1), bolt="b.1", attempt=1)
    if told is not None:
        batch.tell_prolonged = lambda input_id, all_of: told.append((input_id, len(all_of)))
    return batch


@pytest.mark.parametrize("kind", [Collector, ManualCollector])
def test_a_collector_tells_at_once_and_without_a_link_it_is_no_error(kind: Any) -> None:
    out, told, given = kind(), [], Input(2, "x", "s")
    out.prolong(given)
    out.batch = batch_of(3, None)
    out.prolong(given)
    out.batch = batch_of(3, told)
    out.prolong(given)
    assert told == [(2, 3)]


def test_a_manual_bolt_says_it_once_with_its_ack_and_takes_it_back_if_it_raises() -> None:
    out = ManualCollector()
    first, second = Input(1, "x", "s"), Input(2, "x", "s")
    for _ in range(3):
        out.prolong(first)
    mark = out.mark()
    out.prolong(second)
    out.take_back(mark)
    assert out.settlement([first]).prolonged == [1]
    assert out.settlement([]).prolonged == []
