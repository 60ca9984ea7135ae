"""Whole runs over the mock cluster, inside the test's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.ports import CheckpointStore
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_kafka import KafkaTopics
from tests.kafka_parts import MockKafka


def run(
    producer: KafkaTopics,
    store: CheckpointStore | None = None,
    *,
    job: str = "job",
    process: Callable[[Batch], object] = lambda batch: None,
    **settings: Any,
) -> list[Any]:
    """Run to the end; return the values that were processed, each once: nothing is copied."""
    seen: list[Any] = []

    def note(batch: Batch) -> None:
        process(batch)
        seen.extend(record.value for record in batch)

    FlowControlSpout(
        name=job,
        producer=producer,
        bolts=LocalBolts(note, count=2),
        checkpoint=store or MemoryCheckpointStore(),
        settings=Settings().with_overrides({"hedge.enabled": False, **settings}),
    ).run(view="off")
    return seen


def numbers(values: list[Any]) -> list[int]:
    return sorted(int(value) for value in values)


def source(kafka: MockKafka, topic: str | list[str], **how: Any) -> KafkaTopics:
    return KafkaTopics(topic, servers=kafka.servers, until_end=True, **how)
