"""Partitions of a topology's spouts that come and go: the hub, and what producers are offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flowctl.core.events import PartitionGiven, PartitionTakenAway
from flowctl.core.guarantee import ProcessingGuarantee
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint, Record
from flowctl.ports import SharingProducer, SourceChunk, SourceHost
from flowctl_storm import Collector, Input
from flowctl_storm.topology_job import Sources, sources_of
from tests.listener_parts import Log
from tests.runtime_parts import ListProducer
from tests.topology_driver import Hub, Sink, nothing, passing, topology


def two_stages(sink: Any, **how: Any) -> Hub:
    made = topology()
    made.bolt("a", passing).shuffle("s")
    made.bolt("b", sink).shuffle("a")
    hub = Hub(made, **how)
    hub.offer(range(1, 6), partition="s:p")
    hub.offer(range(11, 16), partition="s:q")
    return hub


def take_away(hub: Hub, partition: str) -> None:
    hub.core.handover.take_away(partition, now_s=hub.now_s)


@pytest.mark.req("S99", "S108", "S113")
def test_the_roots_of_what_is_taken_away_are_forgotten_and_late_acks_change_nothing() -> None:
    log, sink = Log(), Sink()
    hub = two_stages(sink, listener=log)
    hub.emit()
    assert hub.core.handover.hold_back("s:p") == 5
    take_away(hub, "s:p")
    assert set(hub.core.checkpoint().partitions) == {"s:q"}
    hub.run()
    assert len(sink.values) == 10, "what is in the stages runs out"
    assert hub.core.checkpoint().partitions == {"s:q": PartitionCheckpoint(5, 5)}
    assert (hub.figures.complete, hub.figures.ledger_now, hub.figures.orphans) == (5, 0, 0)
    assert (len(hub.core.roots.trees), hub.core.counters.tuples_handed_over) == (0, 5)
    hub.step()
    [event] = [e for e in hub.events if isinstance(e, PartitionTakenAway)]
    assert (event.partition, event.position, event.handed_over) == ("s:p", None, 5)
    hub.tell()
    assert sum(what == "ack" for what, *_ in log.said) == 10, "a listener hears of them (S108)"


@pytest.mark.req("S99", "S108")
def test_roots_that_fail_after_their_partition_went_do_not_go_again() -> None:
    seen: list[Any] = []

    def failing(given: Input, out: Collector) -> None:
        seen.append(given.value)
        raise ValueError("each time")

    hub = two_stages(failing, overrides={"retry.attempts_max": 2})
    hub.emit()
    take_away(hub, "s:p")
    take_away(hub, "s:q")
    while hub.step():
        pass
    assert hub.core.is_drained and hub.core.gave_up is None
    assert (len(seen), hub.figures.failed, hub.figures.replayed) == (10, 0, 0)


@pytest.mark.req("S99")
def test_what_waits_to_go_again_or_to_be_planted_goes_to_the_other_driver() -> None:
    def failing(given: Input, out: Collector) -> None:
        raise ValueError("each time")

    hub = two_stages(failing)
    while hub.step():
        pass
    hub.offer(range(6, 9), partition="s:p", start=6)
    assert hub.core.handover.hold_back("s:p") == 0
    assert hub.core.intake.buffer.records == 0
    take_away(hub, "s:p")
    assert hub.core.intake.uncommitted == hub.figures.pending_now == 5
    hub.now_s += 60
    hub.emit()
    assert {record.value for e in hub.in_flight for record in e.records} == set(range(11, 16))


@pytest.mark.req("S109")
def test_what_waits_for_the_dead_letter_is_the_other_drivers_too() -> None:
    def failing(given: Input, out: Collector) -> None:
        if given.value != 15:
            raise ValueError("each time")

    hub = two_stages(failing, overrides={"retry.attempts_max": 1}, has_dead_letter=True)
    while hub.step():
        pass
    dead = hub.core.poll_dead_letter()
    assert dead is not None and dead.gave_up.partition == "s:p"
    assert hub.core.handover.hold_back("s:p") == 5
    take_away(hub, "s:p")
    hub.core.on_dead_lettered(dead.gave_up.tuple_id, now_s=hub.now_s)
    assert hub.core.counters.tuples_dead_lettered == 0
    left = []
    while (dead := hub.core.poll_dead_letter()) is not None:
        left.append(dead.gave_up.partition)
    assert left == ["s:q"] * 4


@pytest.mark.req("S99")
def test_given_again_it_goes_on_where_the_other_left_it_while_old_trees_run_out() -> None:
    sink = Sink()
    hub = two_stages(sink)
    hub.emit()
    take_away(hub, "s:p")
    state = PartitionCheckpoint(3, 3, (AckedRange(5, 5, 1),))
    hub.core.handover.give("s:p", state, now_s=hub.now_s)
    assert hub.core.checkpoint().partitions["s:p"] == state
    records = [Record(n, 10 * n) for n in range(1, 8)]
    assert hub.core.offer("s:p", records, now_s=hub.now_s) == 7
    hub.run()
    assert sorted(value for value in sink.values if value > 19) == [40, 60, 70]
    assert hub.core.checkpoint().partitions["s:p"].position == 7
    assert hub.core.intake.uncommitted == 0
    [event] = [e for e in hub.events if isinstance(e, PartitionGiven)]
    assert (event.partition, event.position) == ("s:p", 3)


@pytest.mark.req("S88", "S99")
def test_what_was_committed_before_it_was_planted_is_still_ours() -> None:
    sink = Sink()
    hub = two_stages(sink, overrides={"guarantee.mode": "at_most_once"})
    hub.core.on_committed()
    assert hub.core.handover.hold_back("s:p") == 0
    take_away(hub, "s:p")
    hub.run()
    assert sorted(sink.values) == [*range(1, 6), *range(11, 16)]
    assert hub.core.counters.records_acked == 10
    assert set(hub.core.checkpoint().partitions) == {"s:q"}


# -- producers -----------------------------------------------------------------------------------


class Group(ListProducer):
    """A producer that shares; ``is_kept`` is its answer to ``keep``."""

    def __init__(self, count: int) -> None:
        super().__init__(count, poll_max=2)
        self.host: SourceHost | None = None
        self.is_kept = True

    def attach(self, host: SourceHost) -> None:
        self.host = host

    def keep(self) -> bool:
        return self.is_kept


class Host:
    """Notes what it is asked."""

    job = "job"
    guarantee = ProcessingGuarantee.AT_LEAST_ONCE

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def saved(self) -> Checkpoint:
        state = PartitionCheckpoint(1, 1)
        return Checkpoint({"one:p": state, "two:p": state, "one:q:r": state})

    def uncommitted(self, partition: str) -> int:
        self.asked.append(partition)
        return 3

    def give(self, partition: str, state: PartitionCheckpoint) -> None:
        self.asked.append((partition, state))

    def take_away(self, partitions: Sequence[str]) -> Checkpoint:
        self.asked.append(partitions)
        return self.saved()


@pytest.mark.req("S99", "S103")
def test_a_spouts_producer_is_offered_its_own_names() -> None:
    one, two, host = Group(4), Group(4), Host()
    both = Sources({"one": one, "two": two, "plain": ListProducer(1)})
    assert isinstance(both, SharingProducer)
    both.attach(host)
    assert one.host is not None and two.host is not None
    assert (one.host.job, two.host.job) == ("job:one", "job:two")
    assert set(one.host.saved().partitions) == {"p", "q:r"}
    assert one.host.uncommitted("p") == 3
    state = PartitionCheckpoint(5, 5)
    two.host.give("p", state)
    assert set(one.host.take_away(["p", "q:r"]).partitions) == {"p", "q:r"}
    assert host.asked == ["one:p", ("two:p", state), ["one:p", "one:q:r"]]


@pytest.mark.req("S99")
def test_a_chunk_is_put_away_only_if_it_is_of_the_producer_that_lost_partitions() -> None:
    one, two = Group(4), Group(4)
    both = sources_of({"one": one, "two": two})
    both.open(Checkpoint())
    one.is_kept = False
    assert both.poll(2) == SourceChunk("one:p", [Record(1, "record 1"), Record(2, "record 2")])
    assert not both.keep()
    chunk = both.poll(2)
    assert chunk is not None and chunk.partition == "two:p"
    assert both.keep()


@pytest.mark.req("S99")
def test_one_that_has_ended_is_still_heard_of_and_goes_on_if_it_is_given_more() -> None:
    one, other = Group(2), ListProducer(100, poll_max=1)
    both = sources_of({"one": one, "other": other})
    both.open(Checkpoint())
    polled = [both.poll(5) for _ in range(10)]
    assert [c.partition for c in polled if c is not None].count("one:p") == 1
    one.is_kept, one.count = False, 4
    assert "one:p" in {c.partition for c in (both.poll(5), both.poll(5)) if c is not None}
    other.count = one.count = 0
    assert [both.poll(5) for _ in range(3)][-1] is None


def test_a_plain_producer_is_never_put_away() -> None:
    plain = sources_of({"plain": ListProducer(4)})
    plain.open(Checkpoint())
    plain.poll(2)
    assert plain.keep()
    hub = Hub(topology_of_nothing())
    assert hub.core.handover.hold_back("s:unknown") == 0


def topology_of_nothing() -> Any:
    made = topology()
    made.bolt("a", nothing).shuffle("s")
    return made
