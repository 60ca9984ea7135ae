"""Two drivers share a topic: partitions are taken away and given."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from fault_parts import until
from guarantee_parts import Effects

from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.core.events import PartitionGiven, PartitionTakenAway
from flowctl.core.records import Batch
from flowctl.runtime.spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_kafka import KafkaTopics
from flowctl_redis.embedded import EmbeddedServer
from tests.kafka_parts import MockKafka
from tests.runtime_parts import Witness

RECORDS = 12_000
RECORD_S = 0.002
NAMES = ("first", "second")


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    yield MockKafka()


class Member:
    """A driver of the group, in a thread."""

    def __init__(
        self, kafka: MockKafka, topic: str, name: str, mode: str, **settings: object
    ) -> None:
        self.seen: list[int] = []
        self.view = Witness()
        self.store = MemoryCheckpointStore()
        self.error: BaseException | None = None
        self.record_s = RECORD_S
        self._spout = FlowControlSpout(
            name=name,
            producer=KafkaTopics(
                topic,
                servers=kafka.servers,
                group=topic,
                until_end=True,
                commit_s=0.2,
                # The mock lets a rebalance take as long as this, less a second.
                config={"session.timeout.ms": 5_000},
            ),
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
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _process(self, batch: Batch) -> None:
        for record in batch:
            time.sleep(self.record_s)
            self.seen.append(int(record.value))

    def _run(self) -> None:
        try:
            self._spout.run(view=self.view)
        except BaseException as error:
            self.error = error

    def events(self, kind: type[Any]) -> set[str]:
        return {event.partition for event in self.view.events if isinstance(event, kind)}


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
    settings = {"buffer.records_max": room}
    kafka.fill(topic, RECORDS)
    first = Member(kafka, topic, NAMES[0], mode, **settings)
    until(lambda: len(first.seen) > 200, "the first driver")
    until(lambda: any(p.offset > 0 for p in kafka.committed(topic, topic)), "its commit")
    # While the group is shared out anew the mock takes no commits, so these are what counts.
    committed = {p.partition: max(0, p.offset) for p in kafka.committed(topic, topic)}
    second = Member(kafka, topic, NAMES[1], mode, **settings)
    until(lambda: len(second.seen) > 200 or not second.thread.is_alive(), "the second driver")
    first.record_s = second.record_s = 0.0
    both = (first, second)
    for member in both:
        member.thread.join(90)
        assert not member.thread.is_alive() and member.error is None, member.error
    taken = first.events(PartitionTakenAway)
    assert taken == {f"{topic}-{n}" for n in range(MockKafka.PARTITIONS)}, "an eager rebalance"
    assert second.events(PartitionGiven) & taken
    seen = Counter(first.seen + second.seen)
    doubled = [n for n, times in seen.items() if times > 1]
    missing = set(range(RECORDS)) - seen.keys()
    print(f"{mode}: {len(first.seen)} + {len(second.seen)}, {len(missing)} missing,"
          f" {len(doubled)} doubled")  # fmt: skip
    if mode == "at_least_once":
        assert not missing
        below = [n for n in second.seen if n // 4 < committed[n % 4]]
        assert not below, "what the group knew to be done ran again"
    else:
        assert not doubled
    stored = [member.store.load(name).partitions for member, name in zip(both, NAMES, strict=True)]
    for n in range(MockKafka.PARTITIONS):
        ends = [part[f"{topic}-{n}"].position for part in stored if f"{topic}-{n}" in part]
        assert max(end or 0 for end in ends) == RECORDS / 4 - 1  # type: ignore[type-var]


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "redis")
    yield server.start()
    server.stop()


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
