"""A topology that can't end says which stage holds what, and since when."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.core.events import TreesHeldUp
from flowctl.instrumentation.event_text import sentence
from flowctl_storm import Input, ManualCollector
from tests.topology_driver import Hub, nothing, passing, topology

NO_EXPIRY = {
    "lab.timeout.rto_first_s": 1e5,
    "lab.timeout.rto_min_s": 1e5,
    "lab.timeout.rto_max_s": 1e6,
}


class Keeper:
    """Holds all that it gets, until "go" comes."""

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.held.append(given)
        if given.value == "go":
            while self.held:
                out.ack(self.held.pop())


def holding(values: int = 12, **settings: Any) -> Hub:
    made = topology(tree_timeout_s=1e6, **settings)
    made.bolt("parse", passing).shuffle("s")
    made.bolt("join", Keeper).shuffle("parse")
    hub = Hub(made, overrides=NO_EXPIRY)
    hub.offer(range(values))
    while hub.step():
        pass
    return hub


def told(hub: Hub) -> list[str]:
    hub.step()
    return [sentence(event) for event in hub.events if isinstance(event, TreesHeldUp)]


def wait(hub: Hub, until_s: float) -> None:
    """Let the hub be called when it wants to be, and no bolt say anything."""
    while (due_s := hub.core.next_deadline_s()) is not None and due_s <= until_s:
        hub.now_s = due_s
        hub.emit()
    hub.now_s = until_s


def test_when_no_root_is_done_for_ten_seconds_it_says_who_holds_what() -> None:
    hub = holding()
    hub.core.end_of_input(now_s=hub.now_s)
    wait(hub, 9.0)
    assert told(hub) == []
    wait(hub, 11.0)
    assert told(hub) == [
        "no root was done for 10.0 s, 12 are pending: stage 'join' holds 12 inputs at join.1"
        " since 10 s"
    ]


def test_it_is_told_again_at_growing_intervals_not_all_the_time() -> None:
    hub = holding()
    wait(hub, 300.0)
    assert len(told(hub)) == 7  # after 10, 20, 40, 80, 140, 200 and 260 s
    assert "holds 12 inputs at join.1 since 4:20" in told(hub)[-1]


def test_what_is_done_meanwhile_begins_the_time_anew() -> None:
    hub = holding()
    wait(hub, 9.0)
    hub.offer(["go"], start=13)
    hub.run()
    hub.offer(["more"], start=14)
    hub.step()
    hub.step()
    wait(hub, 18.0)
    assert told(hub) == []
    wait(hub, 22.0)
    assert len(told(hub)) == 1


def test_a_run_that_waits_for_its_source_holds_nothing() -> None:
    hub = holding(0)
    wait(hub, 100.0)
    assert told(hub) == []
    assert hub.core.next_deadline_s() is None


def test_what_a_bolt_works_on_and_what_waits_is_told_too() -> None:
    made = topology(tree_timeout_s=1e6)
    made.bolt("parse", passing).shuffle("s")
    made.bolt("store", nothing, count=2).fields("parse", 0)
    hub = Hub(made, overrides={**NO_EXPIRY, "tuple.records_max": 1})
    hub.offer([["key"]] * 5)
    for _ in range(500):
        hub.emit()
        hub.in_flight = type(hub.in_flight)(
            e for e in hub.in_flight if not e.bolt.startswith("store")
        )
        if not hub.in_flight:
            break
        emission = hub.in_flight.popleft()
        hub.now_s += 0.001
        hub.ack(emission, hub.process_one(emission))
    wait(hub, 11.0)
    [line] = told(hub)
    assert "stage 'store' works on 2 inputs at store." in line
    assert "stage 'store' has 3 inputs waiting" in line


def test_many_bolts_that_hold_are_told_in_one_short_line() -> None:
    made = topology(tree_timeout_s=1e6)
    made.bolt("join", Keeper, count=9).shuffle("s")
    hub = Hub(made, overrides={**NO_EXPIRY, "tuple.records_max": 1, "hedge.enabled": False})
    hub.offer(range(36))
    while hub.step():
        pass
    wait(hub, 11.0)
    [line] = told(hub)
    assert line.count("join.") == 3
    assert "at 6 more" in line


def test_the_limit_that_holds_back_the_rest_is_told() -> None:
    """``max_pending`` below what a bolt collects: nothing can go on, and it says why."""
    hub = holding(50, max_pending=12)
    wait(hub, 11.0)
    [line] = told(hub)
    assert "holds 12 inputs at join.1" in line
    assert "max_pending holds back 38 records" in line


def test_roots_that_wait_for_a_dead_letter_or_a_back_off_are_told() -> None:
    def failing(given: Input, out: Any) -> None:
        raise ValueError("bad")

    made = topology()
    made.bolt("a", failing).shuffle("s")
    settings = {"retry.backoff_first_s": 90.0, "retry.backoff_max_s": 90.0}
    hub = Hub(made, overrides=settings)
    hub.offer(range(3))
    while hub.step():
        pass
    wait(hub, 11.0)
    assert "3 roots wait to be sent again" in told(hub)[0]


def test_an_interrupted_run_says_it_in_its_report() -> None:
    hub = holding()
    wait(hub, 40.0)
    report = hub.report("interrupted")
    assert report.held_up == ("stage 'join' holds 12 inputs at join.1 since 40 s",)
    assert "it waited for: stage 'join' holds 12 inputs at join.1 since 40 s" in report.more()


@pytest.mark.parametrize("outcome", ["finished", "failed"])
def test_another_end_does_not(outcome: str) -> None:
    hub = holding()
    wait(hub, 40.0)
    assert not any("waited for" in line for line in hub.report(outcome).more())


def test_nor_one_that_was_interrupted_while_all_went_well() -> None:
    hub = holding()
    assert hub.report("interrupted").held_up == ()
