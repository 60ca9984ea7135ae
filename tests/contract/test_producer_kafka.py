"""KafkaTopics keeps the contract of a producer, on the client's mock cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka")

from flowctl.ports import FlowProducer, SharingProducer
from flowctl.testing.producer_conformance import ProducerConformance
from flowctl_kafka import KafkaTopics, key_and_value
from tests.kafka_parts import MockKafka

_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


@pytest.mark.req("S22", "S118")
class TestKafkaTopics(ProducerConformance):
    @pytest.fixture(autouse=True)
    def source(self, kafka: MockKafka) -> None:
        self.kafka = kafka
        self.topic = f"with-dashes-{next(_numbers)}"
        kafka.write(self.topic, [b"a", b"", None, b"d"], partition=0)
        kafka.write(self.topic, [b"only"], partition=2)

    def producer(self) -> FlowProducer:
        return KafkaTopics(self.topic, servers=self.kafka.servers, until_end=True)

    def test_it_can_share_its_partitions(self) -> None:
        assert isinstance(self.producer(), SharingProducer)


@pytest.mark.req("S22")
class TestTwoTopics(TestKafkaTopics):
    def producer(self) -> FlowProducer:
        other = f"{self.topic}-too"
        if not hasattr(self, "is_filled"):
            self.is_filled = True
            self.kafka.write(other, [b"x", b"y"], partition=3)
        return KafkaTopics(
            [self.topic, other],
            servers=self.kafka.servers,
            until_end=True,
            translate=key_and_value,
        )
