"""Kafka topics as a source, :class:`KafkaTopics` and :class:`KafkaRanges`, and as a sink.

The sink is :class:`KafkaSink`.  Needs ``flowctl-spark[kafka]``.
"""

from __future__ import annotations

from flowctl.core.records import NOTHING
from flowctl_kafka.ranges import KafkaRanges
from flowctl_kafka.sink import KafkaSink
from flowctl_kafka.topics import KafkaTopics
from flowctl_kafka.translate import Routed, by_topic, key_and_value, value_of

__all__ = [
    "NOTHING",
    "KafkaRanges",
    "KafkaSink",
    "KafkaTopics",
    "Routed",
    "by_topic",
    "key_and_value",
    "value_of",
]
