"""KafkaTopics over clients that do what is hard to bring about: errors, ends, gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException
from fault_parts import until
from kafka_runs import numbers, run, source

from flowctl.core.records import Checkpoint
from flowctl.errors import SourceError
from flowctl.testing.stores import MemoryCheckpointStore
from tests.kafka_parts import MockKafka

_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


class Gathering:
    """A client that hands out records and the ends of their partitions in one piece."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def consume(self, _: int, timeout: float) -> list[Any]:
        found: list[Any] = []
        until(lambda: (found.extend(self._client.consume(1_000, timeout)), at_ends(found))[1])
        return found


def at_ends(messages: list[Any]) -> bool:
    return len([m for m in messages if m.error() is not None]) == MockKafka.PARTITIONS


def test_an_end_that_comes_with_the_last_records_does_not_hide_them(
    kafka: MockKafka, topic: str
) -> None:
    kafka.fill(topic, 400)
    producer = source(kafka, topic)
    producer.open(Checkpoint())
    producer._consumer = Gathering(producer._consumer)  # type: ignore[assignment]
    seen: list[int] = []
    while (chunk := producer.poll(1_000)) is not None:
        seen += [int(record.value) for record in chunk.records]
    producer.close()
    assert sorted(seen) == list(range(400))


class Broken:
    """A client whose poll raises or gives ``errors``, one at a time, before it works."""

    def __init__(self, client: Any, *errors: KafkaError) -> None:
        self._client = client
        self._errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def consume(self, most: int, timeout: float) -> list[Any]:
        if self._errors:
            raise KafkaException(self._errors.pop(0))
        return list(self._client.consume(most, timeout))


@pytest.mark.req("S98")
def test_errors_that_pass_are_logged_once_an_episode_and_the_loop_goes_on(
    kafka: MockKafka, topic: str
) -> None:
    kafka.fill(topic, 40)
    producer = source(kafka, topic)
    producer.open(Checkpoint())
    troubles: list[str] = []
    producer._logger = Warned(troubles)
    passing = [KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError._ALL_BROKERS_DOWN)]
    producer._consumer = Broken(producer._consumer, *passing)  # type: ignore[assignment]
    seen = 0
    while (chunk := producer.poll(1_000)) is not None:
        seen += len(chunk.records)
    producer.close()
    assert seen == 40
    assert troubles == ["kafka_trouble"]


class Warned:
    """A logger that keeps the names of its events."""

    def __init__(self, events: list[str]) -> None:
        self.warning = lambda event, **_: events.append(event)


@pytest.mark.req("S98")
def test_errors_that_do_not_pass_end_the_run_after_what_was_read(
    kafka: MockKafka, topic: str
) -> None:
    kafka.fill(topic, 40)
    producer = source(kafka, topic)
    producer.open(Checkpoint())
    fatal = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    producer._consumer = Broken(producer._consumer, fatal)  # type: ignore[assignment]
    with pytest.raises(SourceError, match=f"Kafka at {kafka.servers}"):
        producer.poll(10)
    producer.close()


@pytest.mark.req("S95", "S98")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the client's own")])
def test_what_was_paused_is_resumed_though_the_poll_raises(
    kafka: MockKafka, topic: str, error: BaseException
) -> None:
    kafka.fill(topic, 40)
    producer = source(kafka, topic, uncommitted_max=1)
    producer.open(Checkpoint())
    changes: list[tuple[str, int]] = []

    class Raising:
        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

        def pause(self, partitions: list[Any]) -> None:
            changes.append(("pause", len(partitions)))
            self._client.pause(partitions)

        def resume(self, partitions: list[Any]) -> None:
            changes.append(("resume", len(partitions)))
            self._client.resume(partitions)

        def consume(self, most: int, timeout: float) -> list[Any]:
            raise error

    client = producer._consumer
    producer.assignment._consumer = producer._consumer = Raising(client)  # type: ignore[assignment]
    producer._uncommitted = lambda name: int(name == f"{topic}-0")  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        producer.poll(10)
    producer.close()
    assert changes == [("pause", 1), ("resume", 1)]


@pytest.mark.req("S93")
def test_one_poll_hands_out_what_waits_before_it_asks_again(kafka: MockKafka, topic: str) -> None:
    kafka.fill(topic, 400)
    producer = source(kafka, topic)
    producer.open(Checkpoint())
    asked = []
    inner = producer._fetch
    producer._fetch = lambda most: (asked.append(most), inner(most))[1]  # type: ignore[method-assign]
    until(lambda: producer.poll(3).records and producer.waiting, "chunks that wait")  # type: ignore[union-attr]
    before = len(asked)
    while producer.waiting:
        chunk = producer.poll(3)
        assert chunk is not None and 0 < len(chunk.records) <= 3
        assert len({record.position for record in chunk.records}) == len(chunk.records)
    assert len(asked) == before
    producer.close()


class Trimmed:
    """A client to which the records from ``first`` on exist no more, up to the end."""

    def __init__(self, client: Any, first: int) -> None:
        self._client = client
        self._first = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def consume(self, most: int, timeout: float) -> list[Any]:
        found = self._client.consume(most, timeout)
        return [m for m in found if m.error() is not None or m.offset() < self._first]


@pytest.mark.req("S97", "S99")
def test_a_gap_in_the_middle_and_one_at_the_end_are_jumped(kafka: MockKafka, topic: str) -> None:
    kafka.fill(topic, 400)
    producer = source(kafka, topic)
    inner = producer._make_consumer
    producer._make_consumer = lambda: Trimmed(inner(), 90)  # type: ignore[assignment,method-assign]
    store = MemoryCheckpointStore()
    assert numbers(run(producer, store)) == list(range(360))
    assert store.load("job").partitions[f"{topic}-0"].position == 89
