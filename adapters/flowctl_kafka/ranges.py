"""Topics of Kafka as a source by reference: the bolts read them with consumers of their own."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from flowctl.arguments import check_arguments
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import NOTHING, Checkpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.logs import ModuleLogger
from flowctl.range_ports import verified
from flowctl_kafka._assignment import cut_off
from flowctl_kafka._client import (
    TIMEOUT_S,
    is_passing,
    list_partitions,
    make_consumer,
    split_name,
    unreachable,
)
from flowctl_kafka._topic_ids import TopicIds
from flowctl_kafka.translate import Translate, translated, value_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


# -- Offsets of one partition, read on a worker ------------------------------------------------


Config: TypeAlias = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

# Messages per block: some 500 KB at 1 KB each, for one wake-up.
_MESSAGES: Final = 500
# Seconds without an answer after which a range fails and goes to another bolt.
_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.2  # bounds how late a reader notices that its range was given away
# Bytes read between two checks of a topic's id, as each check takes two requests.
_CHECKED_BYTES: Final = 4 << 20
# Bound of the client's read-ahead: less than its default of 64 MB, as there are many bolts.
_AHEAD_KB: Final = 8 << 10
_SECRET: Final = re.compile(r"password|secret|token|oauthbearer\.config|\.pem$|jaas", re.I)


class MessagesBlock:
    """Messages as records: a :class:`flowctl.range_ports.Block`."""

    __slots__ = ("_records", "size_bytes", "stop")

    def __init__(self, records: list[Record], stop: int, size_bytes: int) -> None:
        self._records = records
        self.stop = stop
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return len(self._records)

    def position(self, i: int) -> int:
        """See :class:`flowctl.range_ports.Block`."""
        if i >= len(self._records):
            return self.stop
        offset = self._records[i].position
        assert isinstance(offset, int)
        return offset

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        """See :class:`flowctl.range_ports.Block`."""
        return self._records[i:j]


class KafkaReader:
    """Reads offsets on a worker: a :class:`flowctl.range_ports.RangeReader`.

    Later ranges use the same consumers, since connecting takes longer than reading a range.
    """

    def __init__(self, servers: str, config: Config, translate: Translate) -> None:
        self._servers = servers
        self._config = config
        self._translate = translate
        self._topic_ids = TopicIds(servers, config)
        self.idle: list[Consumer] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> tuple[str, Config, Translate]:
        return self._servers, self._config, self._translate

    def __setstate__(self, state: tuple[str, Config, Translate]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[MessagesBlock]:
        """See :class:`flowctl.range_ports.RangeReader`; ``identity`` is the topic's id."""
        from confluent_kafka import TopicPartition

        topic, number = _named(partition)
        self._topic_ids.check(partition, topic, identity)
        consumer = self._take()
        is_well = False
        try:
            consumer.assign([TopicPartition(topic, number, start)])
            yield from verified(
                self.blocks(consumer, partition, start, stop),
                partial(self._topic_ids.check, partition, topic, identity),
                every_bytes=_CHECKED_BYTES,
            )
            is_well = True
        except GeneratorExit:
            is_well = True
            raise
        finally:
            if is_well:
                consumer.unassign()
                with self._lock:
                    self.idle.append(consumer)
            else:
                consumer.close()

    def _take(self) -> Consumer:
        with self._lock:
            if self.idle:
                return self.idle.pop()
        return new_consumer(self._servers, self._config)

    def blocks(
        self, consumer: Consumer, partition: str, at: int, stop: int
    ) -> Iterator[MessagesBlock]:
        heard_at_s = time.monotonic()
        while at < stop:
            messages = consumer.consume(_MESSAGES, _POLL_S)
            if messages:
                heard_at_s = time.monotonic()
            elif time.monotonic() - heard_at_s > _PATIENCE_S:
                raise TimeoutError(f"{partition}: no answer from Kafka at {self._servers}")
            records: list[Record] = []
            size_bytes = 0
            for message in messages:
                found = self._offset(message, consumer, partition, (at, stop))
                if found is None or found < at:  # a message from before the range
                    continue
                at = max(at, min(found, stop))  # the offsets between no longer exist
                if message.error() is not None or found >= stop:
                    break  # at the end, or beyond it
                try:
                    value = translated(self._translate, message)
                except Exception as error:
                    yield MessagesBlock(records, found, size_bytes)
                    raise _untranslatable(partition, found, error) from error
                if value is not NOTHING:
                    records.append(Record(found, value))
                size_bytes += len(message)
                at = found + 1
            # Even an empty block is yielded, so that a reader that is no longer needed can be
            # closed.
            yield MessagesBlock(records, at, size_bytes)

    def _offset(
        self, message: Message, consumer: Consumer, partition: str, left: tuple[int, int]
    ) -> int | None:
        """Return the offset that ``message`` leads to; None if it leads to none.

        It is the message's own offset, the end of the partition if the message reports it, or where
        reading goes on if the first offset of ``left`` no longer exists.
        """
        from confluent_kafka import KafkaError as Codes

        error = message.error()
        if error is None or error.code() == Codes._PARTITION_EOF:
            return message.offset()
        if error.code() == Codes._AUTO_OFFSET_RESET:
            return self._found_again(consumer, partition, *left)
        if is_passing(error) and not error.fatal():
            return None
        raise unreachable(self._servers, error)

    def _found_again(self, consumer: Consumer, partition: str, at: int, stop: int) -> int:
        """Return the first existing offset, to go on there as ``at`` is gone, if it lies ahead."""
        from confluent_kafka import TopicPartition

        place = TopicPartition(*_named(partition))
        low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
        if at > high:
            raise cut_off(partition, at, high)
        tell_vanished(partition, at - 1, min(low, stop))
        consumer.assign([TopicPartition(place.topic, place.partition, max(at, low))])
        return max(at, low)


def tell_vanished(partition: str, done: object, low: int) -> None:
    """Log which offsets between ``done`` and ``low`` retention has removed, if it has."""
    if isinstance(done, int) and done + 1 < low:
        vanished = {"partition": partition, "first": done + 1, "last": low - 1}
        ModuleLogger("flowctl.kafka").warning("kafka_offsets_vanished", **vanished)


def new_consumer(servers: str, config: Config) -> Consumer:
    """Return a consumer without a group, with this machine's own secrets."""
    given = config() if callable(config) else config
    # A missing offset is an error: either retention removed it, or the topic was created again and
    # the client would return messages from below the range.
    settings = {"queued.max.messages.kbytes": _AHEAD_KB, "auto.offset.reset": "error", **given}
    return make_consumer(servers, None, settings, refresh_s=60, on_commit=lambda *_: None)


def check_travels(config: Config) -> Config:
    """Return ``config``; raise :class:`ConfigError` if it contains secrets, as it travels."""
    if callable(config):
        return config
    for name in config:
        if _SECRET.search(name):
            raise ConfigError(
                f"config[{name!r}]",
                "would travel to the workers.",
                remedy="Give a function that returns config: it is called where it is needed.",
            )
    return dict(config)


def _named(partition: str) -> tuple[str, int]:
    try:
        return split_name(partition)
    except ValueError:
        raise SourceError(
            f"{partition!r} is not a partition's name.",
            remedy="Another source used this job's name: choose another name.",
        ) from None


def _untranslatable(partition: str, offset: int, error: Exception) -> SourceError:
    return SourceError(
        f"{partition}, offset {offset}: translate raised {type(error).__name__}: {error}.",
        remedy="Fix translate, or let it return NOTHING for such messages.",
    )


# -- Topics of Kafka as a source by reference --------------------------------------------------


class KafkaRanges:
    """Messages of topics, read by the bolts: a :class:`flowctl.range_ports.RangeProducer`.

    ``topics``, ``servers`` and ``translate`` are as for ``KafkaTopics``; ``translate`` runs on the
    workers.  A partition is named ``topic-number``, and a record's position is its offset.  Reading
    begins at the first existing offset, or after the checkpoint.  With ``until_end`` it ends at the
    offsets that were the last ones at the start; otherwise partitions grow, and the run never ends.
    Offsets that no longer exist (compaction, retention) are skipped.

    Each bolt has its own consumer, which belongs to no group and commits nothing.  ``config`` goes
    to the clients, on the driver and on the workers.  It travels, so it must not contain secrets:
    give a function that returns them instead, which is called where they are needed.

    A topic that was deleted and created again is recognised by its id and refused, if the brokers
    give topics ids (Kafka 2.8 and later); otherwise only if it ends below the offsets that were
    done.

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
        """Return the offsets that exist by now; a later call includes those added since."""
        from confluent_kafka import KafkaException

        if self._consumer is None:
            self._consumer = new_consumer(self._servers, self._config)
        try:
            found = self._look(self._consumer)
        except KafkaException as error:
            if not self._extents or not is_passing(error.args[0]):
                raise unreachable(self._servers, error.args[0]) from error
            ModuleLogger("flowctl.kafka").warning("kafka_trouble", reason=str(error))
            return self._extents  # nothing new is known
        if not self._extents:
            for name in found.keys() & checkpoint.partitions.keys():
                _check_place(name, found[name], checkpoint.partitions[name].position)
                tell_vanished(name, checkpoint.partitions[name].position, found[name].start)
        self._extents = found
        return found

    def reader(self) -> KafkaReader:
        """Return the reader for the bolts."""
        return self._reader

    def close(self) -> None:
        """Close the connection; harmless when repeated."""
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
                continue  # a partition that appeared later isn't part of this run
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
    """Return the topic's id; the earlier identity if that is empty or no id is known now."""
    return topic_id if before is None or (topic_id and before.identity) else before.identity


def _check_place(name: str, extent: Extent, position: object) -> None:
    if position is None or (isinstance(position, int) and position < extent.stop):
        return
    raise SourceError(
        f"{name}: the job was done through {position!r}, but the partition ends at {extent.stop}.",
        remedy="Was the topic deleted and created again? Choose another name for the job, or clear"
        " its checkpoint.",
    )
