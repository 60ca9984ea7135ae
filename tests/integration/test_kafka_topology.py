"""A consumer group of Kafka as the spout of a topology: two drivers share a topic."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from fault_parts import until

from flowctl.config import Settings
from flowctl.core.events import PartitionGiven, PartitionTakenAway
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl.topology import Collector, Input, LocalStages, Topology, TopologyReport
from flowctl_kafka import KafkaTopics
from tests.kafka_parts import MockKafka
from tests.runtime_parts import Witness

RECORDS = 8_000
RECORD_S = 0.002


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


class Member:
    """A driver of the group: a topology of two stages, in a thread."""

    def __init__(self, kafka: MockKafka, topic: str, name: str, mode: str) -> None:
        self.name = name
        self.seen: list[int] = []
        self.view = Witness()
        self.store = MemoryCheckpointStore()
        self.error: BaseException | None = None
        self.report: TopologyReport | None = None
        self.record_s = RECORD_S
        self._mode = mode
        self._topology = Topology(name)
        source = KafkaTopics(
            topic,
            servers=kafka.servers,
            group=topic,
            until_end=True,
            commit_s=0.2,
            config={"session.timeout.ms": 5_000},  # the mock's time for a rebalance, less a second
        )
        self._topology.spout("kafka", source)
        self._topology.bolt("parse", self._parse, count=2).shuffle("kafka")
        self._topology.bolt("store", self._store, count=3).fields("parse", 0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _parse(self, given: Input, out: Collector) -> None:
        out([int(given.value)])

    def _store(self, given: Input, out: Collector) -> None:
        time.sleep(self.record_s)
        self.seen.append(given.value[0])

    def _run(self) -> None:
        limits = {"tuple.records_max": 50, "checkpoint.interval_s": 0.1}
        settings = Settings().with_overrides({"guarantee.mode": self._mode, **limits})
        try:
            self.report = self._topology.run(
                LocalStages(), checkpoint=self.store, settings=settings, view=self.view
            )
        except BaseException as error:
            self.error = error

    def events(self, kind: type[Any]) -> set[str]:
        return {event.partition for event in self.view.events if isinstance(event, kind)}


@pytest.mark.req("S99", "S108", "S113")
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.timeout(120)
def test_a_second_topology_takes_over_half_and_gives_it_back(kafka: MockKafka, mode: str) -> None:
    topic = f"topology-{mode}"
    kafka.fill(topic, RECORDS)
    first = Member(kafka, topic, "first", mode)
    until(lambda: len(first.seen) > 200, "the first driver")
    until(lambda: any(p.offset > 0 for p in kafka.committed(topic, topic)), "its commit")
    committed = {p.partition: max(0, p.offset) for p in kafka.committed(topic, topic)}
    second = Member(kafka, topic, "second", mode)
    until(lambda: len(second.seen) > 200 or not second.thread.is_alive(), "the second driver")
    first.record_s = second.record_s = 0.0
    both = (first, second)
    for member in both:
        member.thread.join(90)
        assert not member.thread.is_alive() and member.error is None, member.error
    names = {f"kafka:{topic}-{n}" for n in range(MockKafka.PARTITIONS)}
    taken = first.events(PartitionTakenAway)
    assert taken == names, "an eager rebalance"
    assert second.events(PartitionGiven) & taken
    seen = Counter(first.seen + second.seen)
    doubled = [n for n, times in seen.items() if times > 1]
    missing = set(range(RECORDS)) - seen.keys()
    print(f"{mode}: {len(first.seen)} + {len(second.seen)}, {len(missing)} missing,"
          f" {len(doubled)} doubled")  # fmt: skip
    if mode == "at_least_once":
        assert not missing
        below = [n for n in second.seen if n // 4 < committed[n % 4]]
        assert not below, "what the group knew to be done ran again"
    else:
        assert not doubled
    stored = [member.store.load(member.name).partitions for member in both]
    for name in names:
        ends = [part[name].position for part in stored if name in part]
        assert max(end or 0 for end in ends) == RECORDS / 4 - 1  # type: ignore[type-var]
    for member in both:
        assert member.report is not None and member.report.trees is not None
        assert member.report.trees.pending_now == 0
