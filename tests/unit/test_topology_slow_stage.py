"""Stages of different speed, in virtual time: no queue grows, and no tree expires for that."""

from __future__ import annotations

import time
from collections import Counter, deque
from threading import Lock
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.core.messages import Emission, Heartbeat, SettledAck
from flowctl.instrumentation.summary import lines
from flowctl_storm import Collector, Input, LocalStages, ManualCollector, Topology
from tests.topology_driver import Hub, topology

HEARTBEAT_S = 0.25
INSTANT_S = 1e-5  # what a tuple takes in any stage, and a record in a quick one
BOLTS = 2


class Queues:
    """The bolts of a hub, each with a queue of its own and one slot, in virtual time."""

    def __init__(self, hub: Hub, record_s: dict[str, float]) -> None:
        self.hub = hub
        self.record_s = record_s  # by stage
        self.queues: dict[str, deque[Emission]] = {bolt: deque() for bolt in hub.process}
        self.done_s: dict[str, float] = {}  # when a bolt has finished its oldest tuple
        self.took: Counter[str] = Counter()  # inputs that were processed, by stage
        self.largest: Counter[str] = Counter()  # records of a tuple, by stage
        self.next_beat_s = 0.0

    def service_s(self, emission: Emission) -> float:
        stage = emission.bolt.rpartition(".")[0]
        return INSTANT_S + self.record_s.get(stage, INSTANT_S) * len(emission.records)

    def run(self, *, until_s: float) -> None:
        """Until every tree is complete."""
        hub = self.hub
        while not hub.core.is_drained:
            self.send()
            due = [self.next_beat_s, *self.done_s.values(), hub.core.next_deadline_s()]
            hub.now_s = max(hub.now_s, min(at_s for at_s in due if at_s is not None))
            assert hub.now_s < until_s, f"stuck: {hub.figures}"
            self.finish()
            self.beat()

    def send(self) -> None:
        self.hub.emit()
        for emission in self.hub.in_flight:
            stage = emission.bolt.rpartition(".")[0]
            self.largest[stage] = max(self.largest[stage], len(emission.records))
            self.queues[emission.bolt].append(emission)
            self.begin(emission.bolt)
        self.hub.in_flight.clear()

    def begin(self, bolt: str) -> None:
        if bolt not in self.done_s and self.queues[bolt]:
            self.done_s[bolt] = self.hub.now_s + self.service_s(self.queues[bolt][0])

    def finish(self) -> None:
        now_s = self.hub.now_s
        for bolt in [bolt for bolt, at_s in self.done_s.items() if at_s <= now_s]:
            del self.done_s[bolt]
            emission = self.queues[bolt].popleft()
            self.took[bolt.rpartition(".")[0]] += len(emission.records)
            ack = SettledAck(
                emission.tuple_id,
                emission.attempt,
                wait_s=0.0,
                service_s=self.service_s(emission),
                idle_total_s=0.0,
                settlement=self.hub.process_one(emission),
            )
            self.hub.core.on_ack(bolt, self.hub.epoch[bolt], ack, now_s=now_s)
            self.begin(bolt)
        while self.hub.core.poll_order() is not None:
            pass  # it has begun it

    def beat(self) -> None:
        if self.hub.now_s < self.next_beat_s:
            return
        self.next_beat_s = self.hub.now_s + HEARTBEAT_S
        for bolt, queue in self.queues.items():
            said = Heartbeat(bool(queue), max(0, len(queue) - 1))
            self.hub.core.on_heartbeat(bolt, self.hub.epoch[bolt], said, now_s=self.hub.now_s)


def passing_on(given: Input, out: Collector) -> None:
    out(given.value)


def stages(*names: str, **settings: Any) -> Topology:
    made = topology(**settings)
    for before, name in zip(("s", *names), names, strict=False):
        made.bolt(name, passing_on, count=BOLTS).shuffle(before)
    return made


def run_with(made: Topology, records: int, record_s: dict[str, float], *, until_s: float) -> Queues:
    hub = Hub(made)
    hub.offer(range(records))
    hub.core.end_of_input(now_s=0.0)
    queues = Queues(hub, record_s)
    queues.run(until_s=until_s)
    return queues


@pytest.mark.req("S48", "S52")
@pytest.mark.parametrize("names", [("quick", "slow"), ("slow", "quick"), ("a", "slow", "b")])
def test_a_slow_stage_does_the_work_once_in_its_own_time_wherever_it_stands(
    names: tuple[str, ...],
) -> None:
    """20,000 records, a stage that is instant and one of 10 ms: 87,592 stores and 68,291 expired
    trees in the issue.  The kind: what a stage gets follows what the next one has room for, also
    while nobody knows how fast that is, and in each tuple."""
    records, record_s = 4_000, 0.01  # the trees' time is shorter too
    ideal_s = records * record_s / BOLTS
    made = stages(*names, tree_timeout_s=6.0)
    ran = run_with(made, records, {"slow": record_s}, until_s=10 * ideal_s)
    figures = ran.hub.figures
    assert (figures.complete, figures.expired, figures.replayed) == (records, 0, 0)
    assert ran.took == dict.fromkeys(names, records)
    assert ran.hub.now_s <= 1.15 * ideal_s
    in_a_second = BOLTS / record_s
    for stage in ran.hub.core.stage_figures():
        assert stage.waiting_max <= 2.5 * in_a_second, stage
        assert stage.at_bolts_max <= 2.5 * in_a_second, stage


def test_a_stages_tuples_are_no_larger_than_what_the_next_has_room_for() -> None:
    """A quick stage would take 10,000 records at once, fifty seconds of the slow one's work."""
    ran = run_with(stages("quick", "slow"), 2_000, {"slow": 0.01}, until_s=100.0)
    assert ran.largest["quick"] <= 2 * BOLTS / 0.01
    alone = run_with(stages("quick"), 5_000, {}, until_s=100.0)
    assert alone.largest["quick"] > 2 * BOLTS / 0.01, "the test can fail"


@pytest.mark.req("S48")
@pytest.mark.parametrize("names", [("slow",), ("quick", "slow")])
def test_records_that_take_long_are_done_once(names: tuple[str, ...]) -> None:
    """Five seconds a record: the first tuple takes two minutes, and the next wait behind it.  The
    kind: a tree's time is not used up by what waits, or is worked on by a bolt that is heard of.
    """
    records = 300
    ran = run_with(stages(*names), records, {"slow": 5.0}, until_s=5_000.0)
    assert ran.hub.figures.expired == 0
    assert ran.took == dict.fromkeys(names, records)


def test_on_threads_a_slow_stage_does_the_work_once() -> None:
    """As settings are shipped; the trees' time is short, so that few records show it."""
    records, stored, lock = 400, Counter[int](), Lock()

    def slow(given: Input, out: Collector) -> None:
        time.sleep(0.005)  # what the stage is about
        with lock:
            stored[given.value] += 1

    made = topology(records, tree_timeout_s=0.5)
    made.bolt("quick", passing_on, count=BOLTS).shuffle("s")
    made.bolt("slow", slow, count=BOLTS).shuffle("quick")
    # No copy of what the other bolt is late with: the machine may be busy.
    settings = Settings().with_overrides({"hedge.enabled": False})
    report = made.run(LocalStages(), settings=settings, view="off")
    assert report.trees is not None and report.trees.expired == 0
    assert stored == dict.fromkeys(range(1, records + 1), 1)


class Keeps:
    """Acks nothing in time."""

    def execute(self, given: Input, out: ManualCollector) -> None:
        pass


def test_the_summary_says_first_that_trees_expired_and_what_to_do() -> None:
    """Not in the middle of a line that a user reads last."""
    made = topology(tree_timeout_s=10.0)
    made.bolt("keeps", Keeps).shuffle("s")
    hub = Hub(made)
    hub.offer(["x", "y"])
    for _ in range(25):
        hub.step()
        hub.now_s += 1.0
    report = hub.report()
    assert report.trees is not None and report.trees.expired
    outcome, first = lines(report)[:2]
    assert outcome.startswith("finished")
    assert first == (
        "2 trees expired without a fault and were sent again: bolts held inputs, or said nothing,"
        " for longer than the trees' time. Raise Topology(tree_timeout_s=…), ack sooner, or call"
        " out.prolong(given)"
    )
    made = stages("quick")
    assert not any("without a fault" in line for line in lines(Hub(made).report()))
