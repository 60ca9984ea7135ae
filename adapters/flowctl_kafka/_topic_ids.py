"""Ids of topics (KIP-516), which distinguish a topic from a later one of the same name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from flowctl.errors import SourceError
from flowctl_kafka._client import TIMEOUT_S

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

# Log errors only: settings of consumers have no effect here, and the client would warn of each.
_LOG_LEVEL: Final = 3


class TopicIds:
    """Asks the brokers for the ids of topics.  Thread-safe.

    Brokers older than Kafka 2.8 have none.  If the first request fails, no others are made: waiting
    for an answer before each range would cost more than the ids are worth.
    """

    def __init__(
        self, servers: str, config: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    ) -> None:
        self._servers = servers
        self._config = config
        self._admin: AdminClient | None = None
        self._is_answered = False
        self._is_given_up = False

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Return the current ids of the topics, as the brokers report them."""
        if self._is_given_up:
            return {}
        found = self._ask(topics)
        self._is_answered = self._is_answered or bool(found)
        self._is_given_up = not self._is_answered
        return found

    def check(self, partition: str, topic: str, was: str) -> None:
        """Raise :class:`SourceError` if the id of ``topic`` is no longer ``was`` ("": unknown)."""
        now = self.of([topic]).get(topic, was) if was else was
        if now != was:
            raise SourceError(
                f"{partition}: the topic was deleted and created again: its id was {was}, and is"
                f" {now}.",
                remedy="To process the new topic from its beginning, give the job another name.",
            )

    def _ask(self, topics: Collection[str]) -> dict[str, str]:
        from confluent_kafka import KafkaException, TopicCollection

        found = {}
        try:
            admin = self._connected()
            cluster = admin.list_topics(next(iter(topics)), timeout=TIMEOUT_S)
            if cluster.controller_id not in cluster.brokers:
                return {}  # otherwise the client would wait for a controller
            asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=TIMEOUT_S)
        except KafkaException:
            return {}
        for topic, answer in asked.items():
            try:
                uuid = answer.result().topic_id
            except KafkaException:  # the topic doesn't exist, or describing it isn't allowed
                continue
            if uuid.get_most_significant_bits() or uuid.get_least_significant_bits():
                found[topic] = str(uuid)
        return found

    def _connected(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            given = self._config() if callable(self._config) else self._config
            settings = {**given, "bootstrap.servers": self._servers, "log_level": _LOG_LEVEL}
            self._admin = AdminClient(settings, logger=logging.getLogger("flowctl.kafka"))
        return self._admin
