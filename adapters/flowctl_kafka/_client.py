"""Create the consumer of confluent-kafka and classify its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowctl.errors import ConfigError, MissingExtraError, SourceError
from flowctl.failure.classify import meaning_of_kafka

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

# Longest wait for an answer [s].  It takes milliseconds; a restarting broker is back within this
# time.
TIMEOUT_S = 10.0
_OURS = (
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "on_commit",
    # a rebalance revokes and reassigns all partitions: the only protocol supported here
    "partition.assignment.strategy",
)


def make_consumer(
    servers: str,
    group: str | None,
    config: Mapping[str, Any],
    *,
    refresh_s: float,
    on_commit: Callable[[Any, Any], None],
) -> Consumer:
    """Return a consumer that commits nothing by itself.  Raises :class:`ConfigError`.

    ``on_commit`` gets the results of asynchronous commits.
    """
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError:
        raise MissingExtraError("KafkaTopics", "confluent-kafka", "kafka") from None
    for name in _OURS:
        if name in config:
            raise ConfigError(
                f"config[{name!r}]", "is set by flowctl.", remedy="Leave it out; see KafkaTopics."
            )
    settings: dict[str, Any] = {
        # If an offset no longer exists (retention), reading goes on at the first existing one.
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "topic.metadata.refresh.interval.ms": max(10, int(refresh_s * 1_000)),
        **config,
        "bootstrap.servers": servers,
        "group.id": group or "flowctl",  # required; without a group nothing is committed to it
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "on_commit": on_commit,
    }
    try:
        return Consumer(settings, logger=logging.getLogger("flowctl.kafka"))
    except KafkaException as error:  # its text names the field, and never contains a secret value
        raise ConfigError(
            "config", str(error.args[0].str()), remedy="See librdkafka's settings."
        ) from None


def list_partitions(consumer: Consumer, topics: Sequence[str], servers: str) -> list[str]:
    """Return the names of all partitions, sorted by topic and number."""
    from confluent_kafka import KafkaException

    found: list[tuple[str, int]] = []
    for topic in topics:
        try:
            metadata = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise unreachable(servers, error.args[0]) from error
        if metadata.error is not None or not metadata.partitions:
            why = metadata.error.str() if metadata.error is not None else "no partitions"
            raise SourceError(f"topic {topic!r}: {why}.", remedy="Check the topic's name.")
        found += [(topic, number) for number in metadata.partitions]
    return [f"{topic}-{number}" for topic, number in sorted(found)]


def split_name(name: str) -> tuple[str, int]:
    """Return the topic and the number in a partition's name."""
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def name_of(partition: TopicPartition) -> str:
    """Return the partition's name as used in checkpoints."""
    return f"{partition.topic}-{partition.partition}"


def unreachable(servers: str, error: KafkaError) -> SourceError:
    """Return the error for brokers that don't answer."""
    return SourceError(
        f"Kafka at {servers}: {error.str()}.", remedy="Check the address and that it runs."
    )


def is_passing(error: KafkaError) -> bool:
    """Whether the client recovers from ``error`` by itself."""
    meaning = meaning_of_kafka(error)
    return meaning is not None and meaning.is_refusal
