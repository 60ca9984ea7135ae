"""Topics of Kafka as a source by reference: the bolts read them with consumers of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowctl.arguments import check_arguments
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, SourceError
from flowctl.logs import ModuleLogger
from flowctl_kafka._client import TIMEOUT_S, is_passing, list_partitions, split_name, unreachable
from flowctl_kafka._offsets import KafkaReader, check_travels, new_consumer, tell_vanished
from flowctl_kafka._topic_ids import TopicIds
from flowctl_kafka.translate import Translate, value_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer


class KafkaRanges:
    """Messages of topics, read by the bolts: a :class:`flowctl.range_ports.RangeProducer`.

    ``topics``, ``servers`` and ``translate`` are as for ``KafkaTopics``; ``translate`` runs on the
    workers.  A partition is named ``topic-number``, and a record's position is its offset.  Reading
    begins at the first offset that there is, or after the checkpoint.  ``until_end``: it ends at
    the offsets that were the last ones at the start; otherwise partitions grow, and the run never
    ends.  Offsets that no longer exist (compaction, retention) are skipped.

    Each bolt has its own consumer, which belongs to no group and commits nothing.  ``config`` goes
    to the clients, on the driver and on the workers.  It travels, so it must not contain secrets:
    give a function that returns them instead, which is called where they are needed.

    A topic that was deleted and created again is recognised by its id and refused, if the brokers
    give topics ids (Kafka 2.8 and later); otherwise only if it ends below what was done of it.

    Raises :class:`SourceError` if offsets do not fit the topic, and for permanent errors.  Calls
    come from one thread.
    """

    @check_arguments("topics", "servers", "translate", "until_end", "config")
    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        servers: str,
        translate: Translate = value_of,
        until_end: bool = False,
        config: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics or not all(self._topics):
            raise ConfigError("topics", "no topic given.", remedy="Name a topic.")
        self._servers = servers
        self._config = check_travels(config or {})
        self._until_end = until_end
        self._reader = KafkaReader(servers, self._config, translate)
        self._consumer: Consumer | None = None
        self._extents: dict[str, Extent] = {}
        self._topic_ids = TopicIds(servers, self._config)

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        """The offsets that there are by now; asked again, those that have been added too."""
        from confluent_kafka import KafkaException

        if self._consumer is None:
            self._consumer = new_consumer(self._servers, self._config)
        try:
            found = self._look(self._consumer)
        except KafkaException as error:
            if not self._extents or not is_passing(error.args[0]):
                raise unreachable(self._servers, error.args[0]) from error
            ModuleLogger("flowctl.kafka").warning("kafka_trouble", reason=str(error))
            return self._extents  # nothing is known to be new
        if not self._extents:
            for name in found.keys() & checkpoint.partitions.keys():
                _check_place(name, found[name], checkpoint.partitions[name].position)
                tell_vanished(name, checkpoint.partitions[name].position, found[name].start)
        self._extents = found
        return found

    def reader(self) -> KafkaReader:
        """What the bolts read with."""
        return self._reader

    def close(self) -> None:
        """Close the connection; may be repeated."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _look(self, consumer: Consumer) -> dict[str, Extent]:
        from confluent_kafka import TopicPartition

        found: dict[str, Extent] = {}
        ids = self._topic_ids.of(self._topics)
        for name in list_partitions(consumer, self._topics, self._servers):
            before = self._extents.get(name)
            if before is not None and before.is_final:
                found[name] = before
                continue
            if self._until_end and self._extents:
                continue  # a partition that came later is not of this run
            topic, number = split_name(name)
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=TIMEOUT_S
            )
            start = low if before is None else before.start
            stop = max(start, high, 0 if before is None else before.stop)
            identity = _identity(before, ids.get(topic, ""))
            found[name] = Extent(start, stop, identity, is_final=self._until_end)
        return found


def _identity(before: Extent | None, topic_id: str) -> str:
    """Within a run an id that could not be asked for is as before; one that differs is refused."""
    return topic_id if before is None or (topic_id and before.identity) else before.identity


def _check_place(name: str, extent: Extent, position: object) -> None:
    if position is None or (isinstance(position, int) and position < extent.stop):
        return
    raise SourceError(
        f"{name}: the job was done through {position!r}, but the partition ends at {extent.stop}.",
        remedy="Was the topic deleted and created again? Choose another name for the job, or clear"
        " its checkpoint.",
    )
