"""KafkaSink against librdkafka's mock cluster: what is there, and what becomes of which row."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record, Span
from flowctl.errors import ConfigError, JobError, RetryLater, UnrunnableError
from flowctl_kafka import KafkaSink
from flowctl_kafka import sink as module
from tests.chaos.kafka_sink import chaos
from tests.kafka_parts import MockKafka

MSG_TIMED_OUT, UNKNOWN_TOPIC = -192, -188  # of librdkafka's own


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


def batch_of(values: list[Any]) -> Batch:
    records = [Record(number, value) for number, value in enumerate(values)]
    return Batch(records, Span("job", "p", 0, len(values) - 1, 1), bolt="b", attempt=1)


def write(sink: KafkaSink, values: list[Any]) -> Batch:
    batch = batch_of(values)
    sink.write(values, batch=batch)
    return batch


def number_of(row: dict[str, Any]) -> dict[str, str]:
    return {"n": str(row["n"])}


def test_each_row_is_a_record_and_a_key_has_one_partition(kafka: MockKafka) -> None:
    sink = KafkaSink("plain", servers=kafka.servers, key="k", headers=number_of)
    rows = [{"k": f"key {n % 7}", "n": n} for n in range(3_000)]
    write(pickle.loads(pickle.dumps(sink)), rows)
    found = kafka.read("plain", 3_000)
    assert sorted((json.loads(one.value()) for one in found), key=lambda row: row["n"]) == rows
    partitions = {one.key(): one.partition() for one in found}
    assert all(partitions[one.key()] == one.partition() for one in found)
    assert {one.headers()[0][0] for one in found} == {"n"}


def test_where_java_s_clients_put_a_key_it_goes_too(kafka: MockKafka) -> None:
    """murmur2 of "21" is -973932308 in Kafka's own test (UtilsTest)."""
    write(
        KafkaSink("murmur", servers=kafka.servers, key=lambda row: b"21", value="v"), [{"v": "x"}]
    )
    [one] = kafka.read("murmur", 1)
    assert one.partition() == (-973932308 & 0x7FFFFFFF) % kafka.PARTITIONS
    assert one.value() == b"x"


def test_a_record_s_own_error_rejects_its_row_and_no_other(kafka: MockKafka) -> None:
    sink = KafkaSink(
        "own", servers=kafka.servers, value="v", key="k", config={"message.max.bytes": 5_000}
    )
    rows: list[Any] = [
        {"v": "a", "k": None}, {"v": "x" * 9_000, "k": 1}, {"v": float("nan"), "k": 2},
        {"v": None, "k": "gone"}, None,
    ]  # fmt: skip
    batch = write(sink, rows)
    assert sorted(batch.rejected) == [1, 2]
    assert "MSG_SIZE_TOO_LARGE" in batch.rejected[1]
    assert "JSON does not have" in batch.rejected[2]
    assert Counter((one.key(), one.value()) for one in kafka.read("own", 2)) == {
        (None, b"a"): 1,
        (b"gone", None): 1,
    }


class Broker:
    """A producer whose brokers answer as told: librdkafka's mock takes no errors from Python."""

    def __init__(self, *codes: int | None) -> None:
        self.codes = list(codes)
        self.sent: list[bytes] = []
        self.waiting: list[Any] = []

    def produce(self, topic: str, *, value: bytes, on_delivery: Any, **_: Any) -> None:
        if len(self.waiting) == 2:
            raise BufferError
        self.sent.append(value)
        code = self.codes.pop(0) if self.codes else None
        self.waiting.append(lambda: on_delivery(None if code is None else KafkaError(code), None))

    def poll(self, timeout_s: float) -> None:
        if timeout_s:
            for told in self.waiting:
                told()
            self.waiting.clear()


def test_only_records_without_an_acknowledgement_come_again(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = KafkaSink("again", servers=kafka.servers, value="v")
    broker = Broker(None, MSG_TIMED_OUT, None, KafkaError.NOT_ENOUGH_REPLICAS,
                    KafkaError.INVALID_RECORD)  # fmt: skip
    monkeypatch.setattr(module, "_made", lambda config: broker)
    with pytest.raises(RetryLater, match=r"2 of 5 items refused .*_MSG_TIMED_OUT") as caught:
        batch = batch_of([{"v": str(n)} for n in range(5)])
        sink.write(batch.values, batch=batch)
    assert list(caught.value.again or ()) == [1, 3]
    assert list(batch.rejected) == [4]
    assert broker.sent == [b"0", b"1", b"2", b"3", b"4"]


def test_no_topic_or_no_right_ends_the_run(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in (UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED):
        sink = KafkaSink("right", servers=kafka.servers)
        monkeypatch.setattr(module, "_made", lambda config, code=code: Broker(None, code))
        with pytest.raises(UnrunnableError, match="Create the topic"):
            write(sink, [{"v": 1}, {"v": 2}])
        monkeypatch.undo()


def test_a_broker_that_is_away_is_a_refusal_and_then_all_is_there() -> None:
    sink = KafkaSink("t", servers="127.0.0.1:1", timeout_s=0.2)
    with pytest.raises(RetryLater, match="1 of 1 items refused"):
        write(sink, [{"v": 1}])


def test_settings_and_columns_are_checked(kafka: MockKafka) -> None:
    with pytest.raises(ConfigError, match="is set by flowctl"):
        KafkaSink("t", servers="x:1", config={"bootstrap.servers": "y:1"})
    with pytest.raises(ConfigError, match="nonsense"):
        KafkaSink("t", servers="x:1", config={"nonsense": 1})
    with pytest.raises(JobError, match="row 0 has no column 'k'"):
        write(KafkaSink("t", servers=kafka.servers, key="k"), [{"v": 1}])


@pytest.mark.slow
@pytest.mark.on_change("kafka", "delivery")
def test_driver_and_worker_are_killed_and_no_record_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``python -m tests.chaos.kafka_sink`` in small; what is there twice is counted."""
    assert chaos(tmp_path, records=40_000, kills=2, seconds=5.0) == 0
    assert "0 are missing" in capsys.readouterr().out
