"""A consumer group of Kafka as the spout of a topology: two drivers share a topic."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("confluent_kafka")

from collections.abc import Iterator

from group_parts import Member, take_over, topic_of_group

from flowctl.config import Settings
from flowctl_storm import Collector, Input, LocalStages, Topology, TopologyReport
from tests.kafka_parts import MockKafka

RECORDS = 8_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


class TopologyMember(Member):
    """A topology of two stages."""

    def __init__(self, kafka: MockKafka, topic: str, name: str, mode: str) -> None:
        super().__init__(name)
        self.report: TopologyReport | None = None
        limits = {"tuple.records_max": 50, "checkpoint.interval_s": 0.1}
        self._settings = Settings().with_overrides({"guarantee.mode": mode, **limits})
        self._topology = Topology(name)
        self._topology.spout("kafka", topic_of_group(kafka, topic))
        self._topology.bolt("parse", self._parse, count=2).shuffle("kafka")
        self._topology.bolt("store", self._store, count=3).fields("parse", 0)

    def _parse(self, given: Input, out: Collector) -> None:
        out([int(given.value)])

    def _store(self, given: Input, out: Collector) -> None:
        time.sleep(self.record_s)
        self.seen.append(given.value[0])

    def conduct(self) -> None:
        self.report = self._topology.run(
            LocalStages(), checkpoint=self.store, settings=self._settings, view=self.view
        )


@pytest.mark.on_change("kafka")
@pytest.mark.req("S99", "S108", "S113")
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.timeout(120)
def test_a_second_topology_takes_over_half_and_gives_it_back(kafka: MockKafka, mode: str) -> None:
    topic = f"topology-{mode}"
    both = take_over(
        kafka,
        topic,
        lambda name: TopologyMember(kafka, topic, name, mode),
        mode=mode,
        records=RECORDS,
        prefix="kafka:",
    )
    for member in both:
        assert member.report is not None and member.report.trees is not None
        assert member.report.trees.pending_now == 0
