"""docs/security.md: the rule to copy gives flowctl what it needs, and no more."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import FencedError
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.embedded import EmbeddedServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def rule() -> list[str]:
    """The words of the command on the page."""
    [line] = re.findall(r"^ACL SETUSER (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    return line.split()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = EmbeddedServer(tmp_path / "redis")
    admin_url = server.start()
    with redis.Redis.from_url(admin_url) as admin:
        admin.execute_command("ACL", "SETUSER", *rule())
        admin.set("others", "secret")
    scheme, _, place = admin_url.partition("://")
    user, password = rule()[0], next(word[1:] for word in rule() if word.startswith(">"))
    yield f"{scheme}://{user}:{password}@{place.rpartition('@')[2]}"
    server.stop()


def test_the_rule_of_the_page_is_enough_and_no_more(url: str) -> None:
    store = RedisCheckpointStore(url)
    epoch = store.acquire("job")
    store.save("job", Checkpoint({"p": PartitionCheckpoint(7, 7)}), epoch=epoch)
    assert store.load("job").records == 7
    assert store.lease("job", "a driver", 5.0) == "a driver"
    assert store.lease("job", "a driver", 0.0) == ""
    assert list(store.jobs()) == ["job"]
    store.rewind("job", "p", 3)
    with pytest.raises(FencedError):
        store.save("job", Checkpoint(), epoch=epoch)
    assert store.clear("job")
    store.close()
    with redis.Redis.from_url(url) as client:
        for command in (
            ("GET", "others"),
            ("SET", "others", "x"),
            ("EVAL", "return redis.call('GET', 'others')", "0"),
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("KEYS", "*"),
            ("CONFIG", "GET", "*"),
            ("ACL", "LIST"),
            ("SHUTDOWN", "NOSAVE"),
            ("REPLICAOF", "127.0.0.1", "1"),
        ):
            with pytest.raises(redis.exceptions.ResponseError, match=r"permission|NOPERM|ACL"):
                client.execute_command(*command)


def test_the_rule_is_enough_for_a_relay(url: str) -> None:
    store = RedisCheckpointStore(url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        relay = store.open_relay(listener.getsockname())
        bolt = relay.door.connect(timeout_s=60)
        spout, _ = listener.accept()
        with bolt, spout:
            for one, other in ((bolt, spout), (spout, bolt)):
                one.sendall(b"here")
                assert other.recv(4) == b"here"
        relay.close()
    store.close()


def test_the_error_for_a_user_without_rights_proposes_the_same_rule() -> None:
    from flowctl_redis.translated import _GRANT

    assert " ".join(rule()[4:]) in _GRANT
