"""KafkaTopics in whole runs on the mock cluster: restart, gaps, first poll, notes, pauses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import TopicPartition
from fault_parts import until
from kafka_runs import numbers, run, source

from flowctl.bolts.batch import Batch
from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import ProcessError, SourceError
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_kafka import NOTHING, KafkaTopics, Routed, by_topic
from tests.kafka_parts import MockKafka

_numbers = itertools.count()


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.mark.req("S13")
def test_a_restart_goes_on_after_what_was_done(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    kafka.fill(topic, 1_000)
    assert numbers(run(source(kafka, topic), store)) == list(range(1_000))
    assert run(source(kafka, topic), store) == []
    kafka.write(topic, [b"1000", b"1001"], partition=3)
    assert numbers(run(source(kafka, topic), store)) == [1_000, 1_001]
    assert store.load("job").records == 1_002


@pytest.mark.req("S12", "S87")
def test_acked_ranges_above_a_hole_are_not_run_again(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    kafka.write(topic, [b"%d" % n for n in range(100)], partition=0)

    def fail_at_40(batch: Batch) -> None:
        if any(record.value == b"40" for record in batch):
            raise ValueError("not this one")

    few = {"tuple.records_max": 5, "retry.attempts_max": 5, "retry.backoff_first_s": 0.05}
    with pytest.raises(ProcessError):
        run(source(kafka, topic), store, process=fail_at_40, **few)
    saved = store.load("job").partitions[f"{topic}-0"]
    assert saved.position == 39 and saved.acked
    left = numbers(run(source(kafka, topic), store))
    assert left[0] == 40 and len(left) == 100 - saved.records - sum(r.records for r in saved.acked)


@pytest.mark.req("S97", "S99", "S100")
def test_offsets_that_were_trimmed_away_are_jumped(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    values = [b"%06d" % n + bytes(2_000) for n in range(4_000)]  # 8 MB: the mock keeps some 5
    kafka.write(topic, values[:100], partition=0)
    first = run(source(kafka, topic), store)
    assert len(first) == 100
    kafka.write(topic, values[100:], partition=0)
    rest = numbers([value[:6] for value in run(source(kafka, topic), store)])
    assert rest == list(range(rest[0], 4_000))
    assert rest[0] > 100, "the cluster kept it all: nothing is shown"
    assert store.load("job").partitions[f"{topic}-0"].position == 3_999


def test_a_topic_that_was_made_anew_is_not_taken_for_done(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    epoch = store.acquire("job")
    done = Checkpoint({f"{topic}-0": PartitionCheckpoint(500, 501)})
    store.save("job", done, epoch=epoch)
    kafka.write(topic, [b"1"], partition=0)
    with pytest.raises(SourceError, match=f"{topic}-0: the checkpoint stands at offset 500"):
        run(source(kafka, topic), store)


@pytest.mark.req("S107", "S114")
def test_nothing_to_emit_is_done_at_once_also_at_the_end(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    kafka.write(topic, [b"%d" % n for n in range(20)], partition=1)

    def odd(message: Any) -> Any:
        return NOTHING if int(message.value()) % 2 or message.offset() > 15 else message.value()

    assert numbers(run(source(kafka, topic, translate=odd), store)) == list(range(0, 15, 2))
    saved = store.load("job").partitions[f"{topic}-1"]
    assert (saved.position, saved.acked) == (19, ())


@pytest.mark.req("S114")
def test_a_translator_for_each_topic_says_the_stream(kafka: MockKafka, topic: str) -> None:
    other = f"{topic}-other"
    kafka.write(topic, [b"1"], partition=0)
    kafka.write(other, [b"2", b"3"], partition=0)
    translate = by_topic(
        {
            topic: lambda message: Routed("ones", message.value()),
            other: lambda message: Routed(
                "twos", NOTHING if message.value() == b"3" else message.value()
            ),
        }
    )
    seen = run(source(kafka, [topic, other], translate=translate))
    assert sorted(seen) == [["ones", b"1"], ["twos", b"2"]]


@pytest.mark.req("S114")
def test_a_translator_that_raises_names_the_offset(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    kafka.write(topic, [b"1", b"2", b"x", b"4"], partition=2)
    with pytest.raises(SourceError, match=f"{topic}-2, offset 2: translate raised ValueError"):
        run(source(kafka, topic, translate=lambda message: int(message.value())), store)
    assert store.load("job").partitions[f"{topic}-2"].position == 1


@pytest.mark.on_change("kafka")
@pytest.mark.req("S114")
@pytest.mark.parametrize(
    ("first_poll", "others", "expected"),
    [
        ("uncommitted_latest", None, []),
        ("earliest", 2, [0, 1, 2, 3]),
        ("uncommitted_earliest", 2, [2, 3]),
        ("uncommitted_latest", 2, [2, 3]),
    ],
)
@pytest.mark.slow
def test_where_the_first_poll_begins(
    kafka: MockKafka, topic: str, first_poll: Any, others: int | None, expected: list[int]
) -> None:
    kafka.write(topic, [b"0", b"1", b"2", b"3"], partition=0)
    if others is not None:
        kafka.commit(topic, topic, 0, others)
    store = MemoryCheckpointStore()
    shared: dict[str, Any] = {"group": topic, "first_poll": first_poll}
    assert numbers(run(source(kafka, topic, **shared), store)) == expected
    shared["group"] += "-too"  # to join the same again takes the mock as long as a session
    kafka.write(topic, [b"4"], partition=0)
    assert numbers(run(source(kafka, topic, **shared), store)) == [4], "a restart is no first poll"


@pytest.mark.req("S103", "S113")
def test_the_group_is_told_whose_commit_it_is(kafka: MockKafka, topic: str) -> None:
    kafka.fill(topic, 40)
    run(source(kafka, topic, group=topic), job="orders")
    for partition in kafka.committed(topic, topic):
        assert partition.offset == 10
        assert msgspec.json.decode(partition.metadata) == {"flowctl": 1, "job": "orders"}


@pytest.mark.req("S103", "S113")
def test_a_spout_that_is_driven_by_hand_tells_the_group_too(kafka: MockKafka, topic: str) -> None:
    kafka.fill(topic, 40)
    spout = ManualSpout(
        name="orders",
        producer=source(kafka, topic, group=topic),
        checkpoint=MemoryCheckpointStore(),
    )
    spout.open({"one": 4})
    spout.activate()
    seen: list[int] = []

    def step() -> bool:
        emission = spout.next_tuple()
        if emission is not None:
            seen.extend(int(record.value) for record in emission.records)
            spout.ack(emission)
        return len(seen) >= 40

    until(step, "all records")
    spout.close()
    assert sorted(seen) == list(range(40))
    assert {p.offset for p in kafka.committed(topic, topic)} == {10}


@pytest.mark.req("S114")
def test_latest_is_where_the_end_was_at_the_first_start(kafka: MockKafka, topic: str) -> None:
    store = MemoryCheckpointStore()
    kafka.write(topic, [b"0", b"1"], partition=0)
    assert run(source(kafka, topic, first_poll="latest"), store) == []
    kafka.write(topic, [b"2"], partition=0)
    assert numbers(run(source(kafka, topic, first_poll="latest"), store)) == [2]


@pytest.mark.req("S94", "S95")
def test_a_partition_with_a_hole_is_paused_and_the_others_go_on(
    kafka: MockKafka, topic: str
) -> None:
    # In which order the client fetches partitions is its own affair: if the one with the hole comes
    # last, nothing is left to be paused for, so it gets another try.
    assert any(_is_paused_at_a_hole(kafka, f"{topic}-try{n}") for n in range(15))


def _is_paused_at_a_hole(kafka: MockKafka, topic: str) -> bool:
    kafka.fill(topic, 4_000)
    producer = source(kafka, topic, uncommitted_max=50, config={"queued.min.messages": 10})
    done = set()
    held: list[str] = []
    paused: list[str] = []
    inner = producer._pause

    def watched() -> Any:
        found = inner()
        paused.extend(f"{p.topic}-{p.partition}" for p in found)
        return found

    producer._pause = watched  # type: ignore[method-assign]

    def hold(batch: Batch) -> None:
        # Once: a bolt that a busy machine silences for 3 s loses this tuple to the other one, and
        # both would wait for what neither can do then.
        if batch.span.partition == f"{topic}-0" and batch[0].position == 0 and not held:
            held.append(topic)
            until(lambda: len(done) >= 3_000, "the other partitions")
        done.update(r.value for r in batch if batch.span.partition != f"{topic}-0")

    seen = run(producer, process=hold, **{"tuple.records_max": 10})
    assert numbers(list(set(seen))) == list(range(4_000))
    return f"{topic}-0" in paused


@pytest.mark.req("S90", "S91")
def test_a_partition_that_is_new_is_read_after_a_refresh(kafka: MockKafka, topic: str) -> None:
    now_s = [0.0]
    producer = KafkaTopics(topic, servers=kafka.servers, clock=lambda: now_s[0])
    kafka.write(topic, [b"1"], partition=0)
    producer.open(Checkpoint())
    try:
        producer.assignment.drop([f"{topic}-0"])  # as if it had not been there
        producer.assignment.assign()
        for _ in range(5):
            assert producer.poll(10) is not None
        assert f"{topic}-0" not in producer.assignment.reading
        now_s[0] = 2.5
        found = until(lambda: producer.poll(10).records, "the new partition")  # type: ignore[union-attr]
        assert [record.value for record in found] == [b"1"]
    finally:
        producer.close()


def test_nobody_there(kafka: MockKafka, topic: str, free_port: int) -> None:
    del kafka
    producer = KafkaTopics(topic, servers=f"127.0.0.1:{free_port}")
    producer_timeout = pytest.MonkeyPatch()
    producer_timeout.setattr("flowctl_kafka._client.TIMEOUT_S", 0.2)
    try:
        with pytest.raises(SourceError, match=f"Kafka at 127.0.0.1:{free_port}"):
            producer.open(Checkpoint())
    finally:
        producer_timeout.undo()
        producer.close()


@pytest.mark.req("S13")
def test_ranges_of_a_checkpoint_are_skipped(kafka: MockKafka, topic: str) -> None:
    kafka.write(topic, [b"%d" % n for n in range(10)], partition=0)
    store = MemoryCheckpointStore()
    state = PartitionCheckpoint(1, 2, (AckedRange(4, 6, 3),))
    store.save("job", Checkpoint({f"{topic}-0": state}), epoch=store.acquire("job"))
    assert numbers(run(source(kafka, topic), store)) == [2, 3, 7, 8, 9]


def _trimmed(kafka: MockKafka, topic: str) -> int:
    """Write 8 MB into partition 0, of which the mock keeps some 5; return the first offset kept."""
    kafka.write(topic, [b"%06d" % n + bytes(2_000) for n in range(4_000)], partition=0)
    client = kafka.client(topic)
    low, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    client.close()
    assert 0 < low < high == 4_000
    return low


def _begun(kafka: MockKafka, topic: str, at: int) -> KafkaTopics:
    """A producer that reads partition 0 from ``at`` on, whatever is there."""
    producer = source(kafka, topic)
    producer.open(Checkpoint())
    producer.assignment.drop([f"{topic}-{number}" for number in (1, 2, 3)])
    reading = producer.assignment.reading[f"{topic}-0"]
    reading.next, reading.end = at, max(at + 1, reading.end)
    producer.assignment.assign()
    return producer


@pytest.mark.req("S97", "S99", "S100")
def test_offsets_that_are_trimmed_away_while_it_reads_are_told(
    kafka: MockKafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    low = _trimmed(kafka, topic)
    producer = _begun(kafka, topic, at=5)
    found = until(lambda: producer.poll(10).records, "records")  # type: ignore[union-attr]
    producer.close()
    assert found[0].position == low
    assert f"kafka_offsets_vanished partition='{topic}-0' first=5 last={low - 1}" in caplog.text


def test_a_topic_that_is_cut_off_while_it_is_read_is_refused(kafka: MockKafka, topic: str) -> None:
    kafka.write(topic, [b"0", b"1"], partition=0)
    producer = _begun(kafka, topic, at=7)  # as if it had been longer, and was made again
    try:
        with pytest.raises(SourceError, match=f"{topic}-0: the checkpoint stands at offset 6, but"):
            until(lambda: producer.poll(10) is None, "the error")
    finally:
        producer.close()


@pytest.mark.req("S114")
@pytest.mark.parametrize("there", [0, 3], ids=["empty", "some records"])
def test_latest_holds_from_the_first_start_even_if_nothing_was_read_before_a_kill(
    kafka: MockKafka, topic: str, there: int
) -> None:
    store = MemoryCheckpointStore()
    kafka.write(topic, [b"old"], partition=1)  # so that the topic is there
    kafka.write(topic, [b"old"] * there, partition=0)
    spout = ManualSpout(
        name="job", producer=source(kafka, topic, first_poll="latest"), checkpoint=store
    )
    spout.open({"one": 1})
    spout.activate()
    saved = dict(store.load("job").partitions)  # what is there if it is killed now
    spout.close()
    assert saved[f"{topic}-0"].position == there - 1
    again = MemoryCheckpointStore()
    again.save("job", Checkpoint(saved), epoch=again.acquire("job"))
    kafka.write(topic, [b"9"], partition=0)
    assert run(source(kafka, topic, first_poll="latest"), again) == [b"9"]


@pytest.mark.req("S90", "S91", "S114")
@pytest.mark.parametrize("when", ["while it runs", "between two runs"])
def test_a_partition_that_is_added_is_read_from_its_beginning_also_with_latest(
    kafka: MockKafka, topic: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.write(topic, [b"old"], partition=0)
    known = Checkpoint()
    if when == "between two runs":
        known = Checkpoint({f"{topic}-{number}": PartitionCheckpoint(0) for number in (0, 1, 2)})
        known.partitions.update({f"{topic}-{n}": PartitionCheckpoint(-1) for n in (1, 2)})
    now_s = [0.0]
    producer = KafkaTopics(
        topic, servers=kafka.servers, first_poll="latest", clock=lambda: now_s[0]
    )
    if when == "while it runs":
        names = [f"{topic}-{number}" for number in (0, 1, 2)]
        with monkeypatch.context() as patch:
            patch.setattr("flowctl_kafka.topics.list_partitions", lambda *_: names)
            producer.open(known)
    kafka.write(topic, [b"new"], partition=3)
    if when == "between two runs":
        producer.open(known)
    now_s[0] = 2.5
    try:
        found = until(lambda: producer.poll(10).records, "the new partition")  # type: ignore[union-attr]
    finally:
        producer.close()
    assert [record.value for record in found] == [b"new"]
