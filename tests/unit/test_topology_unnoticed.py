"""What the hub does and no other test would miss: each was broken by hand and nobody noticed."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.core.events import TupleHedged
from flowctl.core.trees.anchors import Anchored, PendingAcks
from flowctl_storm import Collector, Input, ManualCollector
from tests.topology_driver import Hub, Sink, nothing, topology

NO_EXPIRY = {
    "lab.timeout.rto_first_s": 1e5,
    "lab.timeout.rto_min_s": 1e5,
    "lab.timeout.rto_max_s": 1e6,
}


def stuck(hub: Hub, until_s: float) -> None:
    """Let time pass in seconds; what is sent is lost."""
    while hub.now_s < until_s:
        hub.now_s += 1.0
        hub.emit()
        hub.in_flight.clear()


# -- roots -------------------------------------------------------------------------------------


@pytest.mark.req("S48", "S109")
def test_a_tree_that_expires_is_no_fault_of_its_root_however_often() -> None:
    """A slow bolt must not send good records to the dead letter: expiry counts no attempt."""
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides={**NO_EXPIRY, "retry.attempts_max": 2}, has_dead_letter=True)
    hub.offer(["x"])
    stuck(hub, 120.0)
    assert hub.figures.expired >= 2, "as often as a fault may happen"
    assert hub.core.poll_dead_letter() is None and hub.core.gave_up is None
    assert hub.figures.failed == 0
    hub.kill("a.1")
    hub.run(until_s=1e6)
    assert hub.figures.complete == 1


@pytest.mark.req("S99")
def test_hold_back_takes_roots_that_are_ready_to_go_again() -> None:
    """A root that expired is ready at once; when its partition goes, the next driver has it."""
    made = topology(tree_timeout_s=10.0)
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides=NO_EXPIRY)
    hub.offer(["x"], partition="s:p")
    hub.offer(["y"], partition="s:q")
    hub.emit()
    hub.in_flight.clear()
    for hub.now_s in (10.1, 20.2):
        hub.core.on_deadline(now_s=hub.now_s)  # they expire, and nothing is planted meanwhile
    assert hub.figures.expired == 2
    assert hub.core.handover.hold_back("s:p") == 0, "nothing of it is under way"
    assert hub.core.counters.tuples_handed_over == 1
    hub.kill("a.1")
    hub.emit()
    planted = hub.figures.pending_now
    assert planted == 1, "only the one of the other partition goes again"


@pytest.mark.req("S79", "S110")
@pytest.mark.parametrize(("backoff_s", "wanted_s"), [(3.0, 3.0), (40.0, 7.0)])
def test_the_next_deadline_is_the_tick_or_the_retry_whichever_comes_first(
    backoff_s: float, wanted_s: float
) -> None:
    """One root waits for its back-off, another is pending: neither hides the other's time."""

    def failing(given: Input, out: Collector) -> None:
        if given.value == "bad":
            raise ValueError("bad")

    made = topology(tree_timeout_s=7.0)
    made.bolt("a", failing).shuffle("s")
    settings = {"retry.backoff_first_s": backoff_s, "retry.backoff_max_s": backoff_s}
    hub = Hub(made, overrides={**NO_EXPIRY, **settings, "tuple.records_max": 1})
    hub.offer(["bad", "slow"])
    hub.step()
    hub.emit()
    due_s = hub.core.next_deadline_s()
    assert due_s == pytest.approx(wanted_s, abs=0.01)
    hub.now_s = due_s
    hub.in_flight.clear()
    hub.core.on_deadline(now_s=hub.now_s)
    if backoff_s < 7.0:
        hub.kill("a.1")
        hub.emit()
        assert any(record.value == "bad" for e in hub.in_flight for record in e.records)


# -- what bolts hold and say -------------------------------------------------------------------


class Pairs:
    """Holds the input of "join" until "go" comes, then passes on what it held."""

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        if given.value == "go":
            for held in self.held:
                out.emit(held.value, held)
                out.ack(held)
            out.ack(given)
        else:
            self.held.append(given)
            for held in self.held:
                out.prolong(held)


class Both:
    """Emits one value from its first two inputs, and acks the first one only."""

    def __init__(self) -> None:
        self.seen: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        if given.value not in ("left", "right"):
            out.emit(given.value, given)
            out.ack(given)
            return
        self.seen.append(given)
        if len(self.seen) == 2:
            out.emit("both", self.seen)
            out.ack(self.seen[0])
            out.fail(self.seen[1], "this one fails")


@pytest.mark.req("S64", "S80")
def test_a_held_input_of_two_trees_is_kept_when_one_of_them_ends() -> None:
    """One tree failed, the other waits: what is held for it must still be there when it is used."""
    sink = Sink()
    made = topology(tree_timeout_s=10.0)
    made.bolt("both", Both).shuffle("s")
    made.bolt("hold", Pairs).shuffle("both")
    made.bolt("sink", sink).shuffle("hold")
    hub = Hub(made, overrides={"retry.backoff_first_s": 1e3, "retry.backoff_max_s": 1e3})
    hub.offer(["left", "right"])
    while hub.step():
        pass
    assert hub.core.stage_figures()[1].held_now == 1
    assert hub.figures.failed == 1
    for start in (3, 4):  # each is held too, and prolongs all that is: the left tree lives on
        hub.now_s += 9.0
        hub.offer(["more"], start=start)
        while hub.step():
            pass
    assert hub.core.stage_figures()[1].held_now == 3
    hub.offer(["go"], start=5)
    while hub.step():
        pass
    assert "both" in sink.values
    assert hub.figures.dropped_emits == 0


@pytest.mark.req("S65", "S66")
def test_what_a_bolt_emitted_before_it_failed_the_input_goes_out() -> None:
    """Emits come before fails in a settlement: an alarm that goes with a failed input is sent."""

    class Alarming:
        def execute(self, given: Input, out: ManualCollector) -> None:
            out.emit(f"alarm {given.value}", given)
            out.fail(given, "bad")

    sink = Sink()
    made = topology()
    made.bolt("a", Alarming).shuffle("s")
    made.bolt("sink", sink).shuffle("a")
    hub = Hub(made, overrides={"retry.backoff_first_s": 1e3, "retry.backoff_max_s": 1e3})
    hub.offer(["x"])
    while hub.step():
        pass
    assert sink.values == ["alarm x"]
    assert (hub.figures.failed, hub.figures.dropped_emits) == (1, 0)


def test_what_a_dead_bolt_held_goes_out_though_nothing_else_comes() -> None:
    """It is flushed: nobody else's emit may ever come to that stage."""

    class Keeper:
        def execute(self, given: Input, out: ManualCollector) -> None:
            pass

    made = topology()
    made.bolt("hold", Keeper, count=2).shuffle("s")
    hub = Hub(made)
    hub.offer(range(10))
    while hub.step():
        pass
    assert hub.core.stage_figures()[0].held_now == 10
    held = len(hub.core.stages["hold"].held["hold.1"])
    hub.kill("hold.1", comes_back=False)
    hub.emit()
    assert sum(len(emission.records) for emission in hub.in_flight) == held > 0


@pytest.mark.req("S52")
def test_a_stage_is_full_by_bytes_too() -> None:
    """Few large values must not fill the driver's memory where many small ones are no problem."""
    made = topology()
    made.bolt("a", nothing).shuffle("s")
    hub = Hub(made, overrides={"tuple.records_max": 1, "buffer.bytes_max": 50_000})
    waits_bytes = 0
    for n in range(1, 40):
        if hub.core.intake.buffer.size_bytes < 40_000:
            hub.offer(["x" * 10_000], start=n)
        hub.emit()  # no bolt acks
        [core] = hub.core.stages["a"].cores
        waits_bytes = max(waits_bytes, core.buffer.size_bytes)
    assert 40_000 < waits_bytes <= 50_000
    assert hub.core.intake.buffer.size_bytes >= 40_000, "the rest waits at the source"


@pytest.mark.req("S64", "S80")
def test_an_emit_renews_the_edges_of_its_input() -> None:
    """Who emits from a held input again and again is at work on it: it does not expire."""
    ids = iter(range(1, 100))
    pending = PendingAcks(lambda: next(ids))
    anchor = Anchored({7: 1000})
    made = 0
    for _ in range(4):
        [edges] = pending.emit([anchor], 1)
        made ^= edges[7]
        assert pending.on_tick() == [] == pending.on_tick()
    assert pending.expired == 0
    assert pending.ack(anchor) == [(7, 1000 ^ made)]


@pytest.mark.req("S84")
def test_at_the_end_of_the_input_a_manual_bolts_tuple_is_not_given_to_another_too() -> None:
    """A copy would be held by two bolts, and each might emit or write what it holds."""

    class Acks:
        def execute(self, given: Input, out: ManualCollector) -> None:
            out.ack(given)

    def copies(code: Any) -> int:
        made = topology()
        made.bolt("a", code, count=2).shuffle("s")
        settings = {**NO_EXPIRY, "tuple.records_max": 1, "lab.hedge.share_max": 1.0}
        hub = Hub(made, overrides=settings)
        hub.offer(range(20))
        hub.core.end_of_input(now_s=0.0)
        slow = None
        for _ in range(200):
            if slow is None and hub.in_flight and len(hub.in_flight) > 1:
                slow = hub.in_flight[0].bolt
            hub.in_flight.rotate(-1)
            mine = [e for e in hub.in_flight if e.bolt == slow]
            others = [e for e in hub.in_flight if e.bolt != slow]
            hub.in_flight = type(hub.in_flight)(others)
            if others or not mine:
                hub.step()
            hub.in_flight.extend(mine)
            hub.now_s += 0.05
            hub.emit()
        hub.in_flight.clear()
        hub.step()
        return sum(isinstance(event, TupleHedged) for event in hub.events)

    assert copies(nothing) > 0, "else this shows nothing"
    assert copies(Acks) == 0
