"""A real server that refuses, freezes, dies and comes back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import CheckpointCorruptError, CheckpointUnavailableError, FlowctlError
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import find_binary

_SECRET = "s3kret-w0rd"


class Server:
    """valkey-server on a TCP port, with the durability that the embedded one has."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.url = f"redis://127.0.0.1:{port}/0"

    def start(self, *options: str) -> None:
        binary = find_binary()
        assert binary is not None
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self.process = subprocess.Popen(
            [binary, "--port", str(self.port), "--dir", self.directory, *durable, *options],
            stdout=subprocess.DEVNULL,
        )
        probe = redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0))
        for _ in range(1000):
            try:
                probe.ping()
            except redis.AuthenticationError:
                break
            except redis.RedisError:
                time.sleep(0.01)
            else:
                break
        probe.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path, free_port: int) -> Iterator[Server]:
    server = Server(tmp_path, free_port)
    server.start()
    yield server
    server.kill()


def _at(position: int) -> Checkpoint:
    return Checkpoint({"a": PartitionCheckpoint(position, position)})


def _refusal(store: RedisCheckpointStore) -> str:
    """What the store says when acquiring fails; no secret is in it, however it is shown."""
    with pytest.raises(CheckpointUnavailableError) as caught:
        store.acquire("job")
    error: BaseException | None = caught.value
    shown = "".join(traceback.format_exception(error)) + repr(store) + repr(error)
    assert _SECRET not in shown
    assert error is not None and error.__context__ is None and error.__cause__ is None
    assert isinstance(error, FlowctlError) and error.remedy
    return str(error)


@pytest.mark.req("S117")
def test_the_same_object_works_again_after_a_restart(server: Server) -> None:
    store = RedisCheckpointStore(server.url)
    epoch = store.acquire("job")
    store.save("job", _at(1), epoch=epoch)
    server.kill()
    assert "can't be reached" in _refusal(store)
    with pytest.raises(CheckpointUnavailableError):
        store.save("job", _at(2), epoch=epoch)
    server.start()
    store.save("job", _at(2), epoch=epoch)
    assert store.load("job") == _at(2)
    server.kill()
    server.start()
    assert store.load("job") == _at(2)  # also without a failed call in between


@pytest.mark.req("S117")
def test_kill_9_loses_nothing_that_was_confirmed(server: Server) -> None:
    store = RedisCheckpointStore(server.url)
    epoch = store.acquire("job")
    position = 0
    for _ in range(3):
        confirmed = position
        timer = threading.Timer(random.uniform(0.05, 0.2), server.process.kill)
        timer.start()
        try:
            while True:
                position += 1
                store.save("job", _at(position), epoch=epoch)
                confirmed = position
        except CheckpointUnavailableError:
            pass
        timer.join()
        server.process.wait()
        server.start()
        kept = store.load("job").partitions["a"].position
        assert kept in (confirmed, position)  # the one under way may have arrived or not
        assert confirmed > 0


@pytest.mark.req("S117")
def test_a_server_that_lost_its_data_gets_all_of_it_again(server: Server) -> None:
    store = RedisCheckpointStore(server.url)
    epoch = store.acquire("job")
    partitions = {name: PartitionCheckpoint(1, 1) for name in "abc"}
    store.save("job", Checkpoint(partitions), epoch=epoch)
    with redis.Redis(port=server.port) as client:
        client.flushall()
    partitions["a"] = PartitionCheckpoint(2, 2)
    store.save("job", Checkpoint(partitions), epoch=epoch)
    assert RedisCheckpointStore(server.url).load("job") == Checkpoint(partitions)


def test_flushed_scripts_are_not_missed(server: Server) -> None:
    store = RedisCheckpointStore(server.url)
    epoch = store.acquire("job")
    with redis.Redis(port=server.port) as client:
        client.script_flush()
    assert store.acquire("job") == epoch + 1


def test_a_frozen_server_is_a_time_out(server: Server) -> None:
    store = RedisCheckpointStore(server.url, timeout_s=0.2)
    store.acquire("job")
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        assert "did not answer within 0.2 s" in _refusal(store)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert store.acquire("job") >= 2


@pytest.mark.parametrize(
    ("user_info", "says"),
    [
        ("", "requires a password"),
        (":wrong-" + _SECRET + "@", "refuses"),
        ("someone:" + _SECRET + "@", "refuses"),
    ],
)
def test_passwords(tmp_path: Path, free_port: int, user_info: str, says: str) -> None:
    server = Server(tmp_path, free_port)
    server.start("--requirepass", _SECRET)
    try:
        assert says in _refusal(RedisCheckpointStore(f"redis://{user_info}127.0.0.1:{free_port}"))
        good = RedisCheckpointStore(f"redis://:{_SECRET}@127.0.0.1:{free_port}")
        assert good.acquire("job") > 0
        assert _SECRET not in repr(good) + good.address
    finally:
        server.kill()


def test_a_password_that_nobody_asked_for(server: Server) -> None:
    store = RedisCheckpointStore(f"redis://:{_SECRET}@127.0.0.1:{server.port}")
    assert "has no password" in _refusal(store)


def test_a_user_with_too_few_rights(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        client.acl_setuser("etl", enabled=True, passwords="+" + _SECRET, categories=["+@read"])
    store = RedisCheckpointStore(f"redis://etl:{_SECRET}@127.0.0.1:{server.port}")
    assert "the permissions that a checkpoint needs" in _refusal(store)


def test_a_user_who_may_run_scripts_but_not_write_and_the_rule_that_is_proposed(
    server: Server,
) -> None:
    store = RedisCheckpointStore(f"redis://etl:{_SECRET}@127.0.0.1:{server.port}")
    with redis.Redis(port=server.port) as client:
        rules = ["on", f">{_SECRET}", "~*", "+@read", "+@scripting", "+@connection"]
        client.execute_command("ACL", "SETUSER", "etl", *rules)
        with pytest.raises(
            CheckpointUnavailableError, match="the permissions that a checkpoint"
        ) as caught:
            store.acquire("job")
        proposed = caught.value.remedy.partition("SETUSER name ")[2].rstrip(".").split()
        client.execute_command("ACL", "SETUSER", "etl", "reset", "on", f">{_SECRET}", *proposed)
    epoch = store.acquire("job")
    store.save("job", Checkpoint(), epoch=epoch)
    assert store.load("job") == Checkpoint()
    assert store.jobs() == ["job"]
    store.close()


def test_a_read_only_replica(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        client.replicaof("127.0.0.1", "1")
    assert "read-only replica" in _refusal(RedisCheckpointStore(server.url))


def test_nobody_listens(free_port: int) -> None:
    store = RedisCheckpointStore(f"redis://:{_SECRET}@127.0.0.1:{free_port}/3")
    assert f"127.0.0.1:{free_port}/3 can't be reached" in _refusal(store)


def test_no_such_host() -> None:
    assert "can't be reached" in _refusal(RedisCheckpointStore("redis://no-such-host.invalid"))


def test_epochs_are_of_the_servers_clock_and_no_driver_of_tomorrow_shuts_out_the_next(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisCheckpointStore(server.url)
    tomorrow = time.time() + 86_400
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: tomorrow)
        ahead = store.acquire("job")
    assert abs(ahead - time.time()) < 3_600
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        time.sleep(1.1)  # an epoch is a second
        assert store.acquire("job") > ahead
    store.close()


@pytest.mark.parametrize("field", ["epoch", "revision"])
@pytest.mark.parametrize("value", ["nan", "inf", "7.5", "-1", "9" * 16])
def test_a_number_of_the_fence_that_is_none_is_refused_by_name(
    server: Server, field: str, value: str
) -> None:
    store = RedisCheckpointStore(server.url)
    epoch = store.acquire("job")
    store.save("job", _at(1), epoch=epoch)
    with redis.Redis.from_url(server.url) as client:
        client.hset("flowctl:{job}", field, value)
        before = client.hgetall("flowctl:{job}")
        calls = (
            lambda: store.acquire("job"),
            lambda: store.load("job"),
            lambda: store.save("job", _at(2), epoch=epoch),
            lambda: store.rewind("job", "a", None),
        )
        for call in calls:
            with pytest.raises(CheckpointCorruptError, match=f"field {field}"):
                call()
        assert client.hgetall("flowctl:{job}") == before
    assert store.clear("job")
    assert store.acquire("job") > epoch
    store.close()
