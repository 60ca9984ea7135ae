"""Rows into Kafka, one record for each: a record counts once a broker has acknowledged it."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from flowctl.arguments import check_arguments, check_numbers
from flowctl.bolts.batch import Batch
from flowctl.delivery.item_sink import WRITTEN, BadItemError, Fate, ItemSink, encoded, part_of
from flowctl.errors import ConfigError, MissingExtraError
from flowctl.failure.callables import check_plain
from flowctl.failure.classify import meaning_of_kafka
from flowctl.failure.kinds import Kind

Part: TypeAlias = str | Callable[[Any], Any]
"""A column of the rows, or a function of a row."""
_Item: TypeAlias = tuple[str, Any, Any, Any]

_OURS: Final = ("bootstrap.servers", "delivery.timeout.ms", "message.timeout.ms")
# How long after its time-out the client may take to say that a record was not delivered [s].
_LATE_S: Final = 10.0
_POLL_S: Final = 0.1
_TIMEOUT_MAX_S: Final = 86_400.0
# By these every record would fail in the same way.
_WRONG_TOPIC: Final = frozenset(
    {"TOPIC_EXCEPTION", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
)


class KafkaSink(ItemSink):
    """Writes one Kafka record for each row; sends again only those that no broker acknowledged.

    ``topic`` is a name, or a function of the row.  ``value`` and ``key`` name a column, or are
    functions of the row: bytes, text, or None (a tombstone; no key); anything else goes as JSON.
    By default the value is the whole row as JSON, and there is no key.  ``headers(row)`` returns a
    mapping, or pairs.  Records with one key go to one partition, the one that Java's clients and
    Spark choose (murmur2).  ``config`` is for librdkafka: ``security.protocol``,
    ``compression.type``, … By default the producer is idempotent and waits for all replicas in
    sync.

    ``write`` returns once each record is acknowledged, or has failed for itself: one that is too
    large, or that the broker finds invalid, is rejected with the reason.  A record without an
    answer after ``timeout_s`` is sent again, and may be there twice; so may those that were under
    way when a worker was killed.  A missing topic, or a missing right, ends the run.  Records are
    in no order over calls.

    Raises :class:`ConfigError` for invalid arguments, and
    :class:`flowctl.errors.MissingExtraError` without confluent-kafka (extra ``kafka``).  Can be
    pickled; thread-safe: threads share a producer.
    """

    remedy = "Create the topic, or give the user the right to write."
    #: Rows per call: acknowledgements of many are awaited at once.
    rows_per_write = 10_000

    @check_arguments("topic", "value", "key", "headers", "config")
    def __init__(
        self,
        topic: str | Callable[[Any], str],
        *,
        servers: str,
        value: Part | None = None,
        key: Part | None = None,
        headers: Callable[[Any], Any] | None = None,
        timeout_s: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check_numbers(timeout_s=timeout_s)
        if timeout_s > _TIMEOUT_MAX_S:
            raise ConfigError(
                "timeout_s", f"is {timeout_s!r}: more than a day.", remedy="Give fewer seconds."
            )
        for name, text in (("topic", topic), ("servers", servers)):
            is_function = name == "topic" and callable(text)
            if not text or not (is_function or isinstance(text, str)):
                what = "a topic or a function" if name == "topic" else "host:port of the brokers"
                raise ConfigError(name, f"{text!r} is not a str.", remedy=f"Give {what}.")
        for name, given in (("topic", topic), ("value", value), ("key", key), ("headers", headers)):
            if callable(given):
                check_plain(given, name)
        for name in _OURS:
            if name in (config or {}):
                raise ConfigError(
                    f"config[{name!r}]", "is set by flowctl.", remedy="Give servers or timeout_s."
                )
        self._topic = topic
        self._value = value
        self._key = key
        self._headers = headers
        self._timeout_s = float(timeout_s)
        self._config = {
            "enable.idempotence": True,  # brings acks=all, and keeps librdkafka's own retries once
            "partitioner": "murmur2_random",
            **(config or {}),
            "bootstrap.servers": servers,
            "delivery.timeout.ms": max(1, int(1_000 * timeout_s)),
        }
        self._of_process = _OfProcess()
        _made(self._config).flush(0)  # a wrong setting is refused here, not on the workers

    def __repr__(self) -> str:
        return f"KafkaSink({self._topic if isinstance(self._topic, str) else '…'})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_process": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _of_process=_OfProcess())

    def item(self, row: Any, batch: Batch, index: int) -> _Item:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        topic = self._topic(row) if callable(self._topic) else self._topic
        key = None if self._key is None else part_of(self._key, row, batch, index)
        headers = None if self._headers is None else self._headers(row)
        if self._value is None:
            value = encoded(row)
        else:
            value = _bytes(part_of(self._value, row, batch, index))
        return topic, value, _bytes(key), headers

    def send(self, items: Sequence[_Item]) -> list[Fate]:
        """See :class:`flowctl.delivery.item_sink.ItemSink`."""
        producer = self._of_process.get(self._config)
        fates: dict[int, Fate] = {}
        for number, (topic, value, key, headers) in enumerate(items):
            self._produce(producer, number, fates, (topic, value, key, headers))
        deadline_s = time.monotonic() + self._timeout_s + _LATE_S
        while len(fates) < len(items) and time.monotonic() < deadline_s:
            producer.poll(_POLL_S)
        silent = Fate(Kind.FULL, "the client did not say what became of it")
        return [fates.get(number, silent) for number in range(len(items))]

    def _produce(self, producer: Any, number: int, fates: dict[int, Fate], item: _Item) -> None:
        topic, value, key, headers = item

        def told(error: Any, message: Any) -> None:
            del message
            fates[number] = WRITTEN if error is None else self._fate_of(error, producer)

        while True:
            try:
                producer.produce(topic, value=value, key=key, headers=headers, on_delivery=told)
            except BufferError:  # the client's queue is full: it empties as brokers answer
                producer.poll(_POLL_S)
                continue
            except Exception as error:
                said = error.args[0] if error.args else None
                if meaning_of_kafka(said) is None:
                    raise
                fates[number] = self._fate_of(said, producer)
            producer.poll(0)
            return

    def _fate_of(self, error: Any, producer: Any) -> Fate:
        if error.fatal():  # this producer can send nothing more: the next call makes another
            self._of_process.drop(producer)
            return Fate(Kind.FULL, error.str())
        reason = f"{error.name()}: {error.str()}"
        if error.name() in _WRONG_TOPIC:
            return Fate(Kind.NOT_ALLOWED, reason)
        meaning = meaning_of_kafka(error)
        return Fate(meaning.kind if meaning is not None else Kind.FAULT, reason)

    def close(self) -> None:
        """Close the producer of this process, once what is under way is delivered; the next write
        makes another.
        """
        producer = self._of_process.drop()
        if producer is not None:
            producer.flush(self._timeout_s)


class _OfProcess:
    """The producer of a process.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producer: Any = None

    def get(self, config: Mapping[str, Any]) -> Any:
        with self._lock:
            if self._producer is None:
                self._producer = _made(config)
            return self._producer

    def drop(self, producer: Any = None) -> Any:
        """Forget the producer, if it is ``producer`` (None: any); return it."""
        with self._lock:
            found = self._producer
            if found is not None and producer in (None, found):
                self._producer = None
            return found


def _made(config: Mapping[str, Any]) -> Any:
    try:
        kafka = importlib.import_module("confluent_kafka")
    except ImportError:
        raise MissingExtraError("KafkaSink", "confluent-kafka", "kafka") from None
    try:
        return kafka.Producer(dict(config), logger=logging.getLogger("flowctl.kafka"))
    except kafka.KafkaException as error:  # its text names the field, and contains no secret
        raise ConfigError(
            "config", str(error.args[0].str()), remedy="See librdkafka's settings."
        ) from None


def _bytes(value: Any) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise BadItemError(f"a text that can't be sent: {error}") from None
    return encoded(value)
