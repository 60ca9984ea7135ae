"""Two drivers share a topic: partitions are taken away and given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from fault_parts import until
from group_parts import Member, take_over, topic_of_group
from guarantee_parts import Effects

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.records import Checkpoint
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl_kafka import KafkaTopics
from flowctl_redis.embedded import EmbeddedServer
from tests.kafka_parts import MockKafka

RECORDS = 12_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


class SpoutMember(Member):
    """A job of one stage."""

    def __init__(
        self, kafka: MockKafka, topic: str, name: str, mode: str, **settings: object
    ) -> None:
        super().__init__(name)
        self._spout = FlowControlSpout(
            name=name,
            producer=topic_of_group(kafka, topic),
            bolts=LocalBolts(self._process, count=3),
            checkpoint=self.store,
            settings=Settings().with_overrides(
                {
                    "guarantee.mode": mode,
                    "tuple.records_max": 100,
                    "checkpoint.interval_s": 0.1,
                    **settings,
                }
            ),
        )

    def _process(self, batch: Batch) -> None:
        for record in batch:
            time.sleep(self.record_s)
            self.seen.append(int(record.value))

    def conduct(self) -> None:
        self._spout.run(view=self.view)


@pytest.mark.req("S99")
@pytest.mark.timeout(120)
def test_partitions_that_went_while_they_were_paused_are_read_when_they_come_back(
    kafka: MockKafka,
) -> None:
    """The client keeps a pause beyond a rebalance: such partitions were given, and never read."""
    topic = "paused-and-back"
    kafka.fill(topic, RECORDS)
    first, second = topic_of_group(kafka, topic), topic_of_group(kafka, topic)
    first.open(Checkpoint())
    until(lambda: bool(_polled(first)), "records")
    assert first.keep()  # there is no room: all partitions are paused
    second.open(Checkpoint())
    until(lambda: not _polled(second) and not first.keep(), "the partitions to go")
    given: set[str] = set()

    def has_come_back() -> bool:
        _polled(second)
        given.update(_polled(first))
        return len(given) >= 2

    until(has_come_back, "records of two partitions")
    second.close()
    first.close()


def _polled(source: KafkaTopics) -> list[str]:
    """The partition of which there are records, if there are any."""
    chunk = source.poll(10)
    return [chunk.partition] if chunk is not None and chunk.records else []


@pytest.mark.on_change("kafka")
@pytest.mark.req("S99", "S108", "S113")
@pytest.mark.parametrize(
    ("mode", "room"),
    [("at_least_once", 50_000), ("at_least_once", 200), ("at_most_once", 50_000)],
)
@pytest.mark.timeout(120)
def test_a_second_driver_takes_over_half_and_gives_it_back(
    kafka: MockKafka, mode: str, room: int
) -> None:
    """With room for 200 records the reader waits nearly all the time, and must not be put out."""
    topic = f"shared-{mode}-{room}"
    settings = {"lab.buffer.records_max": room}
    take_over(
        kafka,
        topic,
        lambda name: SpoutMember(kafka, topic, name, mode, **settings),
        mode=mode,
        records=RECORDS,
    )


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "redis")
    yield server.start()
    server.stop()


@pytest.mark.on_change("kafka")
@pytest.mark.req("S87", "S88", "S99", "S113")
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.slow
def test_a_killed_drivers_partitions_go_to_another(
    kafka: MockKafka, tmp_path: Path, redis_url: str, mode: str, stages: int
) -> None:
    topic = f"killed-{mode}-{stages}"
    wanted = set(kafka.fill(topic, 8_000))
    source = f"kafka:{kafka.servers}/{topic}/{topic}"
    effects = Effects(tmp_path, redis_url, source=source, mode=mode, stages=stages)
    assert effects.kill_after(3_000, effects.start("first"))
    before = effects.count()
    effects.finish("second")  # begins when the group has given up the first
    seen = effects.seen()
    doubled = [value for value, times in seen.items() if times > 1]
    missing = wanted - seen.keys()
    print(
        f"{mode}, {stages} stages: killed at {before}, {len(missing)} missing,"
        f" {len(doubled)} doubled"
    )
    if mode == "at_least_once":
        assert not missing
        assert len(doubled) < before / 2, "the group's commit was not used"
    else:
        assert not doubled
