"""RedisCheckpointStore: what it sends, and what it makes of what it finds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
import redis

from flowctl.core.records import AckedRange, Checkpoint, PartitionCheckpoint
from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    ConfigError,
    FencedError,
    JobError,
)
from flowctl_redis import RedisCheckpointStore, schema
from flowctl_redis.held import LOOSE_MAX

_KEY = "flowctl:{job}"


def set_server_time(monkeypatch: pytest.MonkeyPatch, unix_s: float) -> None:
    clock = SimpleNamespace(time=lambda: unix_s)
    monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", clock)


@pytest.fixture(autouse=True)
def _epochs_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs begin at the server's time of day; here at 1, so that they can be compared."""
    set_server_time(monkeypatch, 0)


class Client:
    """fakeredis that writes down the partitions of each save, and fails on demand."""

    def __init__(self, server: fakeredis.FakeServer) -> None:
        self.real = fakeredis.FakeRedis(server=server)
        self.saves: list[list[bytes]] = []
        self.fail_before: Exception | None = None
        self.fail_after: Exception | None = None
        self.before: Callable[[], Any] | None = None  # called once

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def eval(self, text: str, keys: int, key: bytes, *arguments: bytes) -> Any:
        if self.before is not None:
            before, self.before = self.before, None
            before()
        if self.fail_before is not None:
            error, self.fail_before = self.fail_before, None
            raise error
        if len(arguments) >= 6:  # see save.lua
            self.saves.append(list(arguments[6 + int(arguments[5]) :: 2]))
        reply = self.real.eval(text, keys, key, *arguments)
        if self.fail_after is not None:
            error, self.fail_after = self.fail_after, None
            raise error
        return reply


@pytest.fixture
def client() -> Client:
    return Client(fakeredis.FakeServer())


@pytest.fixture
def store(client: Client) -> RedisCheckpointStore:
    return RedisCheckpointStore(client=client)


def _checkpoint(**positions: int) -> Checkpoint:
    return Checkpoint({name: PartitionCheckpoint(at, at) for name, at in positions.items()})


def test_only_what_changed_is_sent(store: RedisCheckpointStore, client: Client) -> None:
    epoch = store.acquire("job")
    for checkpoint in (_checkpoint(a=1, b=1), _checkpoint(a=1, b=1), _checkpoint(a=1, b=2)):
        store.save("job", checkpoint, epoch=epoch)
    assert client.saves == [[b"p:a", b"p:b"], [], [b"p:b"]]
    assert store.load("job") == _checkpoint(a=1, b=2)


@pytest.mark.parametrize("when", ["fail_before", "fail_after"])
def test_a_save_whose_answer_was_lost_is_repeated(
    store: RedisCheckpointStore, client: Client, when: str
) -> None:
    epoch = store.acquire("job")
    store.save("job", _checkpoint(a=1, b=1), epoch=epoch)
    setattr(client, when, redis.TimeoutError("gone"))
    with pytest.raises(CheckpointUnavailableError):
        store.save("job", _checkpoint(a=2, b=1), epoch=epoch)
    client.saves.clear()
    store.save("job", _checkpoint(a=2, c=1), epoch=epoch)
    # It had arrived: then only what is new is missing.
    asked = {"fail_before": [[b"p:a", b"p:c"]], "fail_after": [[b"p:a", b"p:c"], [b"p:c"]]}
    assert client.saves == asked[when]
    assert store.load("job") == _checkpoint(a=2, b=1, c=1)


def test_what_the_server_lost_is_sent_again(store: RedisCheckpointStore, client: Client) -> None:
    epoch = store.acquire("job")
    store.save("job", _checkpoint(a=1, b=1), epoch=epoch)
    before = client.real.dump(_KEY)
    store.save("job", _checkpoint(a=1, b=2), epoch=epoch)
    client.real.restore(_KEY, 0, before, replace=True)  # a fail-over to a replica that lags
    store.save("job", _checkpoint(a=2), epoch=epoch)  # what moved since
    assert client.saves[-2:] == [[b"p:a"], [b"p:a", b"p:b"]]
    assert store.load("job") == _checkpoint(a=2, b=2)


def test_a_server_that_lost_all_gets_it_back(store: RedisCheckpointStore, client: Client) -> None:
    epoch = store.acquire("job")
    store.save("job", _checkpoint(a=1, b=1), epoch=epoch)
    client.real.flushall()
    client.fail_before = redis.TimeoutError("gone")
    with pytest.raises(CheckpointUnavailableError):
        store.save("job", _checkpoint(b=2), epoch=epoch)
    store.save("job", _checkpoint(b=2), epoch=epoch)
    assert store.load("job") == _checkpoint(a=1, b=2)
    assert store.acquire("job") == epoch + 1


def test_a_new_epoch_sends_what_is_different(store: RedisCheckpointStore, client: Client) -> None:
    store.save("job", _checkpoint(a=1, b=1), epoch=store.acquire("job"))
    other = RedisCheckpointStore(client=client)
    other.save("job", _checkpoint(a=2), epoch=other.acquire("job"))
    store.save("job", _checkpoint(a=3, b=1), epoch=store.acquire("job"))
    assert client.saves == [[b"p:a", b"p:b"], [b"p:a"], [b"p:a"]]
    assert store.load("job") == _checkpoint(a=3, b=1)


@pytest.mark.req("S120")
def test_the_same_checkpoint_gives_the_same_bytes(
    store: RedisCheckpointStore, client: Client
) -> None:
    ranges = (AckedRange((20, 3), (40, 5), 3),)
    partition = PartitionCheckpoint((10, 1), 3, ranges)
    found = []
    for job in ("job", "job2"):
        store.save(job, Checkpoint({"a": partition}), epoch=store.acquire(job))
        fields = client.real.hgetall(f"flowctl:{{{job}}}")
        del fields[b"saved_at_unix_ms"]
        found.append(fields)
    assert found[0] == found[1]
    # The stored form, byte for byte: what older versions would not read raises the schema version.
    # They ignore parts behind those that they know.
    assert found[0] == {
        b"schema": b"1",
        b"epoch": b"1",
        b"epoch_copy": b"1",
        b"revision": b"1",
        b"p:a": b"0502800000000000000a02800000000000000100"
        b"|\x96\x92\x0a\x01\x03\x91\x93\x92\x14\x03\x92\x28\x05\x03\xc0\xc0"
        b"\xce\xde\x18\xe2\xd1",
    }


def test_the_windows_that_older_versions_saved_are_ignored(
    store: RedisCheckpointStore, client: Client
) -> None:
    saved = _checkpoint(a=1)
    store.save("job", saved, epoch=store.acquire("job"))
    for windows in (b"\x81\xa2b1\xcb?\xf8\0\0\0\0\0\0", b"\xff"):
        client.real.hset(_KEY, "windows", windows)
        assert store.load("job") == saved
    store.save("job", _checkpoint(a=2), epoch=store.acquire("job"))
    assert store.load("job") == _checkpoint(a=2)


def test_partition_names_that_are_no_utf8(store: RedisCheckpointStore) -> None:
    name = b"log-\xff".decode("utf-8", "surrogateescape")  # as os.listdir gives it
    store.save("job", Checkpoint({name: PartitionCheckpoint(1, 1)}), epoch=store.acquire("job"))
    assert list(store.load("job").partitions) == [name]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("schema", "3", "schema version 3; this flowctl reads 1 and 2"),
        ("schema", "", "no schema version"),
        ("p:a", b"rubbish", "field p:a"),
        ("p:a", b"028000000000000001|\xc1", "field p:a"),
        ("p:a", b"028000000000000001|\x93\x02\x01\x90", "field p:a"),
    ],
)
def test_what_can_not_be_read_is_named(
    store: RedisCheckpointStore, client: Client, field: str, value: bytes, says: str
) -> None:
    store.save("job", _checkpoint(a=1), epoch=store.acquire("job"))
    client.real.hset(_KEY, field, value)
    with pytest.raises(CheckpointCorruptError, match=says) as caught:
        store.load("job")
    assert _KEY in str(caught.value)
    assert "flowctl checkpoint clear job" in caught.value.remedy
    epoch_before = int(client.real.hget(_KEY, "epoch"))
    assert store.clear("job")  # the remedy works
    assert store.load("job") == Checkpoint()
    assert store.acquire("job") > epoch_before


@pytest.mark.req("S120")
def test_another_version_is_neither_overwritten_nor_fenced(
    store: RedisCheckpointStore, client: Client
) -> None:
    epoch = store.acquire("job")
    store.save("job", _checkpoint(a=1), epoch=epoch)
    client.real.hset(_KEY, "schema", "3")
    before = client.real.hgetall(_KEY)
    calls = (
        lambda: store.acquire("job"),
        lambda: store.save("job", _checkpoint(a=2), epoch=epoch),
        lambda: store.rewind("job", "a", None),
        lambda: store.inspect("job"),
    )
    for call in calls:
        with pytest.raises(CheckpointCorruptError, match="version 3"):
            call()
    assert client.real.hgetall(_KEY) == before


def test_damage_is_seen_when_saving(store: RedisCheckpointStore, client: Client) -> None:
    epoch = store.acquire("job")
    client.real.hset(_KEY, "p:a", "rubbish")
    with pytest.raises(CheckpointCorruptError, match="field p:a"):
        store.save("job", _checkpoint(a=2), epoch=epoch)
    client.real.hset(_KEY, "epoch", "seven")
    for call in (lambda: store.acquire("job"), lambda: store.inspect("job")):
        with pytest.raises(CheckpointCorruptError, match="field epoch"):
            call()


def test_a_key_of_another_type(store: RedisCheckpointStore, client: Client) -> None:
    client.real.set(_KEY, "x")
    for call in (
        lambda: store.acquire("job"),
        lambda: store.load("job"),
        lambda: store.save("job", _checkpoint(a=1), epoch=1),
    ):
        with pytest.raises(CheckpointCorruptError, match="is not a hash"):
            call()
    assert store.jobs() == []
    assert store.clear("job")
    store.save("job", _checkpoint(a=1), epoch=store.acquire("job"))


def test_a_position_of_another_kind_is_no_place_to_go_back_to(
    store: RedisCheckpointStore,
) -> None:
    epoch = store.acquire("job")
    store.save("job", Checkpoint({"a": PartitionCheckpoint((5, 1), 1)}), epoch=epoch)
    for position in (1, "x", 1.0, (1,)):
        with pytest.raises(ConfigError, match="another form"):
            store.rewind("job", "a", position)
    store.save("job", Checkpoint({"a": PartitionCheckpoint((6, 1), 1)}), epoch=epoch)


def test_positions_that_can_not_be_stored_are_the_jobs_fault(store: RedisCheckpointStore) -> None:
    epoch = store.acquire("job")
    too_large = 1 << 70
    for partition in (
        PartitionCheckpoint(too_large, 1),
        PartitionCheckpoint(1, 1, (AckedRange(3, too_large, 1),)),
    ):
        with pytest.raises(JobError):
            store.save("job", Checkpoint({"a": partition}), epoch=epoch)
    store.save("job", _checkpoint(a=1), epoch=epoch)


def test_two_prefixes_are_two_worlds(client: Client) -> None:
    one, other = (RedisCheckpointStore(client=client, prefix=prefix) for prefix in ("a*", "ab"))
    one.save("job", _checkpoint(a=1), epoch=one.acquire("job"))
    other.save("job2", _checkpoint(a=2), epoch=other.acquire("job2"))
    assert one.jobs() == ["job"] and other.jobs() == ["job2"]


def test_a_save_names_both_epochs_when_fenced(store: RedisCheckpointStore) -> None:
    old, new = store.acquire("job"), store.acquire("job")
    with pytest.raises(FencedError, match=rf"epoch {new}, ours {old}"):
        store.save("job", _checkpoint(a=1), epoch=old)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), "loading"),
        (redis.ResponseError("MISCONF Errors writing to the AOF file"), "its disk"),
        (redis.OutOfMemoryError("command not allowed"), "out of memory"),
        (redis.exceptions.MovedError("1234 10.0.0.1:6379"), "cluster"),
        (redis.ConnectionError("max number of clients reached"), "no connection left"),
        (redis.ResponseError("something new"), "something new"),
    ],
)
def test_what_servers_say(
    store: RedisCheckpointStore, client: Client, error: Exception, says: str
) -> None:
    client.fail_before = error
    with pytest.raises(CheckpointUnavailableError, match=says) as caught:
        store.acquire("job")
    assert caught.value.remedy and caught.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://secret@host",
        "redis://:secret/x@host",
        "redis://:12/secret@host",
        "redis://:secret#x@host",
        "redis://:secret?x@host",
        "redis://u:1?secret@host",
        "redis://host:secret",
        "redis://host/secret",
        "unix://",
        "",
    ],
)
def test_a_wrong_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="redis: not a Redis URL") as caught:
        RedisCheckpointStore(url)
    assert "secret" not in str(caught.value) and caught.value.__context__ is None


def test_where_it_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOWCTL_REDIS_URL", raising=False)
    with pytest.raises(ConfigError, match="FLOWCTL_REDIS_URL is not set") as caught:
        RedisCheckpointStore()
    assert "leave checkpoint= out" in caught.value.remedy
    monkeypatch.setenv("FLOWCTL_REDIS_URL", "rediss://u:secret@host/1?ssl_cert_reqs=none")
    assert repr(RedisCheckpointStore()) == "RedisCheckpointStore(host:6379/1, prefix='flowctl')"
    assert RedisCheckpointStore("unix:///run/redis.sock?db=1").address == "/run/redis.sock"


def test_names_go_to_keys_and_back() -> None:
    for job in ("job", "a{b}c", "日本", "x:y"):
        assert schema.job_of("flowctl", schema.job_key("flowctl", job)) == job
    with pytest.raises(ConfigError, match="job"):
        RedisCheckpointStore("redis://localhost").load("")


def test_epochs_rise_though_the_data_was_lost(
    store: RedisCheckpointStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_server_time(monkeypatch, 1_000)
    before = store.acquire("job")
    client.real.flushall()
    set_server_time(monkeypatch, 1_001)
    assert store.acquire("job") > before == 1_000


def test_a_driver_whose_clock_is_a_day_ahead_takes_no_epoch_of_tomorrow(
    store: RedisCheckpointStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_server_time(monkeypatch, 1_000)
    with monkeypatch.context() as patch:
        patch.setattr("flowctl_redis.store.time", SimpleNamespace(time=lambda: 87_400.0))
        ahead = store.acquire("job")
    client.real.flushall()
    set_server_time(monkeypatch, 1_005)
    assert ahead == 1_000 < store.acquire("job") == 1_005  # a sink takes the next driver


@pytest.mark.parametrize("field", ["epoch", "revision"])
@pytest.mark.parametrize(
    "value", ["nan", "-nan", "inf", "0x7", " 7", "7.5", "1e3", "-1", "007", "", "9" * 16]
)
def test_a_number_of_the_fence_that_is_none_is_refused_by_name(
    store: RedisCheckpointStore,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: str,
) -> None:
    set_server_time(monkeypatch, 1_000)
    epoch = store.acquire("job")
    store.save("job", _checkpoint(a=1), epoch=epoch)
    client.real.hset(_KEY, field, value)
    before = client.real.hgetall(_KEY)
    other = RedisCheckpointStore(client=client)
    calls = (
        lambda: store.acquire("job"),
        lambda: store.load("job"),
        lambda: store.inspect("job"),
        lambda: store.save("job", _checkpoint(a=2), epoch=epoch),
        lambda: other.save("job", _checkpoint(a=2), epoch=epoch),
        lambda: store.rewind("job", "a", None),
    )
    for call in calls:
        with pytest.raises(CheckpointCorruptError, match=f"field {field}") as caught:
            call()
        assert _KEY in caught.value.problem
    assert client.real.hgetall(_KEY) == before
    assert store.clear("job")  # the remedy works, and fences who was there
    with pytest.raises(FencedError):
        store.save("job", _checkpoint(a=2), epoch=epoch)
    assert store.acquire("job") > epoch


def test_only_fakeredis_ends_with_the_process(client: Client) -> None:
    assert not RedisCheckpointStore(client=client.real).survives
    assert RedisCheckpointStore("redis://localhost").survives
    assert RedisCheckpointStore(client=redis.Redis()).survives


def test_a_rewind_never_leads_ahead_of_what_is_saved_by_then(
    store: RedisCheckpointStore, client: Client
) -> None:
    """Two operators at once: who read 9 goes back to 6 after the other has gone back to 3.  The
    kind: what is decided from a value that was read is decided again where it is changed."""
    store.save("job", _checkpoint(a=9), epoch=store.acquire("job"))
    client.before = lambda: store.rewind("job", "a", 3)
    with pytest.raises(ConfigError, match="lies ahead of what is saved"):
        store.rewind("job", "a", 6)
    assert store.load("job").partitions["a"].position == 3


def test_a_rewind_does_not_bring_back_a_partition_that_was_forgotten_meanwhile(
    store: RedisCheckpointStore, client: Client
) -> None:
    store.save("job", _checkpoint(a=9, b=1), epoch=store.acquire("job"))
    client.before = lambda: client.real.hdel(_KEY, schema.partition_field("a"))
    with pytest.raises(ConfigError):
        store.rewind("job", "a", 6)
    assert set(store.load("job").partitions) == {"b"}


def test_a_rewind_of_a_packed_partition_is_decided_by_what_is_packed_by_then(
    store: RedisCheckpointStore, client: Client
) -> None:
    names = [f"p{n}" for n in range(LOOSE_MAX + 1)]
    epoch = store.acquire("job")
    store.save("job", _checkpoint(**dict.fromkeys(names, 9)), epoch=epoch)
    assert client.real.hget(_KEY, schema.partition_field("p0")) is None, "it is not packed"

    def meanwhile() -> None:
        other = RedisCheckpointStore(client=client)
        other.rewind("job", "p0", 3)
        newer = other.acquire("job")
        # All others move, so p0 is packed again.
        moved = _checkpoint(p0=3, **dict.fromkeys(names[1:], 10))
        other.save("job", moved, epoch=newer)
        assert client.real.hget(_KEY, schema.partition_field("p0")) is None, "it is not packed"

    client.before = meanwhile
    with pytest.raises(ConfigError, match="lies ahead of what is saved"):
        store.rewind("job", "p0", 6)
    assert store.load("job").partitions["p0"].position == 3


def test_a_rewind_leaves_alone_what_a_newer_version_has_written_meanwhile(
    store: RedisCheckpointStore, client: Client
) -> None:
    store.save("job", _checkpoint(a=9), epoch=store.acquire("job"))
    client.before = lambda: client.real.hset(_KEY, "schema", "99")
    with pytest.raises(CheckpointCorruptError, match="99"):
        store.rewind("job", "a", 6)
    client.real.hset(_KEY, "schema", schema.SCHEMA)
    assert store.load("job").partitions["a"].position == 9
