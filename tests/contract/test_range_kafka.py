"""KafkaRanges on the client's mock cluster, and offsets that no longer exist."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import TopicPartition

from flowctl.core.ranges.intake import RangeIntake
from flowctl.core.records import NOTHING, Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.range_ports import RangeProducer
from flowctl.testing.range_conformance import RangeConformance
from flowctl_kafka import KafkaRanges, value_of
from flowctl_kafka.ranges import KafkaReader
from tests.kafka_parts import MockKafka

_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


@pytest.fixture
def topic(kafka: MockKafka) -> str:
    name = f"ranges-{next(_numbers)}"
    kafka.write(name, [b"a", b"", None, b"d"], partition=0)
    kafka.write(name, [b"only"], partition=2)
    return name


@pytest.mark.req("S22")
class TestKafkaRanges(RangeConformance):
    has_identity = False

    @pytest.fixture(autouse=True)
    def source(self, kafka: MockKafka, topic: str) -> Iterator[None]:
        self.kafka, self.topic = kafka, topic
        self.readers: list[KafkaReader] = []
        yield
        for reader in self.readers:
            for consumer in reader.idle:
                consumer.close()

    def producer(self) -> RangeProducer:
        quick = {"fetch.wait.max.ms": 10}
        return KafkaRanges(self.topic, servers=self.kafka.servers, until_end=True, config=quick)

    def _reader(self) -> KafkaReader:
        # One for all tests of this class that read: to connect takes longer than to read.
        if not self.readers:
            self.readers.append(copy.deepcopy(self.producer().reader()))
        return self.readers[0]


def test_a_partition_that_grows_is_read_on(kafka, topic):
    source = KafkaRanges(topic, servers=kafka.servers)
    first = source.extents(Checkpoint())
    assert (first[f"{topic}-0"].stop, first[f"{topic}-0"].is_final) == (4, False)
    kafka.write(topic, [b"e", b"f"], partition=0)
    assert source.extents(Checkpoint())[f"{topic}-0"].stop == 6
    fixed = KafkaRanges(topic, servers=kafka.servers, until_end=True)
    assert fixed.extents(Checkpoint())[f"{topic}-0"].stop == 6
    kafka.write(topic, [b"g"], partition=0)
    again = fixed.extents(Checkpoint())[f"{topic}-0"]
    assert (again.stop, again.is_final) == (6, True)
    with pytest.raises(SourceError, match=f"{topic}-0: the job was done through 9"):
        KafkaRanges(topic, servers=kafka.servers).extents(
            Checkpoint({f"{topic}-0": PartitionCheckpoint(9)})
        )
    source.close()
    fixed.close()


@pytest.fixture(scope="module")
def trimmed(kafka: MockKafka) -> tuple[str, int]:
    """A topic, and the first offset of partition 0 that the mock has kept of 4,000: some 5 MB."""
    kafka.write("trimmed", [b"%06d" % n + bytes(2_000) for n in range(4_000)], partition=0)
    client = kafka.client("any")
    low, _ = client.get_watermark_offsets(TopicPartition("trimmed", 0), timeout=10)
    client.close()
    assert 5 < low < 3_990
    return "trimmed", low


def test_offsets_that_retention_removed_between_two_runs_are_told(kafka, trimmed, caplog):
    topic, low = trimmed
    source = KafkaRanges(topic, servers=kafka.servers, until_end=True)
    source.extents(Checkpoint({f"{topic}-0": PartitionCheckpoint(4)}))
    source.close()
    assert f"kafka_offsets_vanished partition='{topic}-0' first=5 last={low - 1}" in caplog.text


def test_offsets_that_retention_removes_before_they_are_read_are_told(kafka, trimmed, caplog):
    topic, low = trimmed
    reader = KafkaRanges(topic, servers=kafka.servers).reader()
    blocks = list(reader.open(f"{topic}-0", 5, low + 3, ""))
    found = [r.position for block in blocks for r in block.batch_records(0, len(block))]
    assert found == [low, low + 1, low + 2]
    assert f"kafka_offsets_vanished partition='{topic}-0' first=5 last={low - 1}" in caplog.text
    caplog.clear()
    assert not sum(len(block) for block in reader.open(f"{topic}-0", 3, 5, ""))
    assert f"kafka_offsets_vanished partition='{topic}-0' first=3 last=4" in caplog.text


def test_a_topic_that_is_cut_off_gives_no_offsets_below_the_range(kafka, trimmed):
    topic, _ = trimmed
    reader = KafkaRanges(topic, servers=kafka.servers).reader()
    with pytest.raises(SourceError, match=f"{topic}-0: the checkpoint stands at offset 4499, but"):
        list(reader.open(f"{topic}-0", 4_500, 4_600, ""))


class Message:
    def __init__(self, offset: int, *, is_end: bool = False) -> None:
        self._offset = offset
        self._is_end = is_end

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return Error() if self._is_end else None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def __len__(self) -> int:
        return 10


class Error:
    def code(self) -> int:
        from confluent_kafka import KafkaError

        return KafkaError._PARTITION_EOF


class Consumer:
    """Gives messages with these offsets, two at a time, and then the end at ``high``."""

    def __init__(self, *offsets: int, high: int) -> None:
        self.left = [Message(each) for each in offsets] + [Message(high, is_end=True)]

    def consume(self, count: int, timeout: float) -> list[Message]:
        given, self.left = self.left[:2], self.left[2:]
        return given


def read(consumer: Any, start: int, stop: int, translate: Any = value_of) -> list[Record]:
    reader = KafkaReader("s", {}, translate)
    blocks = list(reader.blocks(consumer, "t-0", start, stop))
    assert blocks[-1].stop == stop
    return [record for block in blocks for record in block.batch_records(0, len(block))]


def test_offsets_that_no_longer_exist_are_passed_over():
    # Compaction left 3 and 8 of [0, 10); what follows belongs to the next range.
    assert [r.position for r in read(Consumer(3, 8, 12, 13, high=20), 0, 10)] == [3, 8]
    assert [r.position for r in read(Consumer(3, 8, 12, 13, high=20), 0, 3)] == []
    # Nothing at all is left up to the end of the partition.
    assert read(Consumer(high=20), 5, 20) == []
    assert [r.position for r in read(Consumer(9, high=20), 0, 10)] == [9]


def test_nothing_is_left_out_and_a_message_that_cannot_be_translated_is_named():
    def translate(message: Any) -> Any:
        if message.offset() == 5:
            raise ValueError("no JSON")
        return NOTHING if message.offset() % 2 else message.value()

    assert [r.position for r in read(Consumer(1, 2, 3, 4, high=5), 0, 5, translate)] == [2, 4]
    blocks = KafkaReader("s", {}, translate).blocks(Consumer(4, 5, high=9), "t-0", 0, 9)
    assert next(blocks).stop == 5
    with pytest.raises(SourceError, match="t-0, offset 5: translate raised ValueError"):
        next(blocks)


def test_secrets_of_the_clients_do_not_travel():
    with pytest.raises(ConfigError, match=r"config\['sasl.password'\]: would travel"):
        KafkaRanges("t", servers="s", config={"sasl.password": "x"})
    source = KafkaRanges("t", servers="s", config=_config)
    assert b"hidden" not in pickle.dumps(source.reader())


def _config() -> dict[str, Any]:
    return {"sasl.password": "hidden"}


class Uuid:
    """An id as brokers give it; 0 from those that have none."""

    def __init__(self, number: int) -> None:
        self.number = number

    def get_most_significant_bits(self) -> int:
        return 0

    def get_least_significant_bits(self) -> int:
        return self.number

    def __str__(self) -> str:
        return f"id-{self.number}"


class Brokers:
    """In the place of ``AdminClient``, as the mock cluster gives topics no ids."""

    def __init__(self) -> None:
        self.number = 1
        self.controller_id = 0
        self.brokers = {0: "a"}
        self.asked = 0
        self.is_remade_after = 1 << 30  # so many questions

    def connect(self, settings: dict[str, Any], logger: Any) -> Brokers:
        return self

    def list_topics(self, topic: str, timeout: float) -> Brokers:
        return self

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        self.asked += 1
        answer: Future[SimpleNamespace] = Future()
        number = 2 if self.asked > self.is_remade_after else self.number
        answer.set_result(SimpleNamespace(topic_id=Uuid(number)))
        return dict.fromkeys(topics.topic_names, answer)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", brokers.connect)
    return brokers


def test_a_topic_that_was_made_again_is_refused_by_the_next_run(kafka, topic, brokers):
    extents = KafkaRanges(topic, servers=kafka.servers).extents(Checkpoint())
    assert {extent.identity for extent in extents.values()} == {"id-1"}
    done = Checkpoint({f"{topic}-0": PartitionCheckpoint(1, 2, mark="id-1")})
    RangeIntake(done).offer(extents)
    brokers.number = 2
    with pytest.raises(SourceError, match=f"{topic}-0: a part .* it was id-1, and is now id-2"):
        RangeIntake(done).offer(KafkaRanges(topic, servers=kafka.servers).extents(done))


def test_a_topic_that_is_made_again_within_a_run_is_refused(kafka, topic, brokers):
    source = KafkaRanges(topic, servers=kafka.servers)
    intake = RangeIntake(Checkpoint())
    intake.offer(source.extents(Checkpoint()))
    brokers.number = 0  # they don't say: nothing is known against it
    intake.offer(source.extents(Checkpoint()))
    brokers.number = 2
    with pytest.raises(SourceError, match="has changed since the run began"):
        intake.offer(source.extents(Checkpoint()))
    with pytest.raises(SourceError, match=f"{topic}-0: the topic was deleted and created again"):
        next(iter(source.reader().open(f"{topic}-0", 0, 4, "id-1")))


def test_a_topic_that_is_made_again_while_it_is_read_gives_no_message(kafka, topic, brokers):
    """The kind: in a range that a split made shorter, no block is the range's last."""
    reader = KafkaRanges(topic, servers=kafka.servers).reader()
    blocks = reader.open(f"{topic}-0", 0, 4, "id-1")
    brokers.is_remade_after = 1  # when the range is opened it is still the old one
    with pytest.raises(SourceError, match=f"{topic}-0: the topic was deleted and created again"):
        next(block for block in blocks if len(block))


@pytest.mark.parametrize("lack", ["no ids", "no controller"])
def test_brokers_without_ids_are_asked_once(kafka, topic, brokers, lack):
    brokers.number = 0 if lack == "no ids" else 1
    brokers.controller_id = 0 if lack == "no ids" else 5
    source = KafkaRanges(topic, servers=kafka.servers)
    for _ in range(3):
        extents = source.extents(Checkpoint())
    assert {extent.identity for extent in extents.values()} == {""}
    assert brokers.asked == (lack == "no ids")
