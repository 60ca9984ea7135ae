"""Each guarantee under kill -9 of the driver, on files and on Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from guarantee_parts import SOURCES, Effects

from flowctl_redis.embedded import EmbeddedServer

KILLS = 4
MANY_KILLS = 50
RECORDS_A_KILL = 400  # twice as many as have their effect before a kill, at most
MAX_PENDING, POLLED = 100, 20  # of jobs/effects.py: of the topology; records saved at once


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "redis")
    yield server.start()
    server.stop()


each_source = pytest.mark.parametrize("source", SOURCES)
few_or_many = pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(MANY_KILLS, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)


def survive(
    place: Path, redis_url: str, source: str, mode: str, kills: int, *, stages: int = 1
) -> int:
    """Return how many are missing."""
    where, wanted = SOURCES[source](place, (kills + 1) * RECORDS_A_KILL)
    effects = Effects(place, redis_url, source=where, mode=mode, stages=stages)
    killed = effects.survive(kills, seed=kills)
    # Where what was read is saved, all of it may be before the last kill.
    assert killed == kills or mode == "no_guarantee", effects.said()[-500:]
    seen = effects.seen()
    doubled = [value for value, times in seen.items() if times > 1]
    missing = wanted - seen.keys()
    assert seen.keys() <= wanted
    if mode == "at_least_once":
        assert not missing, f"{len(missing)} missing: {sorted(missing)[:5]}"
    if mode == "at_most_once":
        assert not doubled, f"{len(doubled)} doubled: {sorted(doubled)[:5]}"
    print(
        f"{source} {mode}, {stages} stages: {killed} kills, {len(wanted)} records,"
        f" {len(missing)} missing, {len(doubled)} doubled"
    )
    return len(missing)


@pytest.mark.req("S70", "S86", "S87")
@each_source
@few_or_many
def test_at_least_once_none_is_missing(
    tmp_path: Path, redis_url: str, source: str, kills: int
) -> None:
    survive(tmp_path, redis_url, source, "at_least_once", kills)


@pytest.mark.on_change("core", "kafka", "redis")
@pytest.mark.req("S86", "S88")
@each_source
@few_or_many
def test_at_most_once_no_effect_is_doubled(
    tmp_path: Path, redis_url: str, source: str, kills: int
) -> None:
    survive(tmp_path, redis_url, source, "at_most_once", kills)


@pytest.mark.req("S86", "S89")
@each_source
def test_no_guarantee_runs_on_after_kills(tmp_path: Path, redis_url: str, source: str) -> None:
    survive(tmp_path, redis_url, source, "no_guarantee", KILLS)


@pytest.mark.on_change("core", "kafka", "redis")
@pytest.mark.req("S86", "S87", "S88")
@each_source
@few_or_many
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_the_same_in_a_topology(
    tmp_path: Path, redis_url: str, source: str, mode: str, kills: int
) -> None:
    """Effects are those of the last of three stages; ``max_pending`` bounds what a kill loses."""
    missing = survive(tmp_path, redis_url, source, mode, kills, stages=3)
    assert missing <= kills * (MAX_PENDING + 2 * POLLED)  # planted, in the buffer, just saved
