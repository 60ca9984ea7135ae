"""No test reaches beyond this machine: a connect to anywhere else fails it (S122)."""

from __future__ import annotations

import socket

import fakeredis
import pytest

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl_redis import RedisCheckpointStore

pytestmark = pytest.mark.req("S122")
ELSEWHERE = "192.0.2.1"  # TEST-NET-1 (RFC 5737): nobody's


@pytest.mark.parametrize("connect", ["connect", "connect_ex"])
def test_a_connect_to_elsewhere_fails_the_test(connect: str) -> None:
    with socket.socket() as sock, pytest.raises(pytest.fail.Exception, match=ELSEWHERE):
        getattr(sock, connect)((ELSEWHERE, 9))


def test_so_does_one_through_a_library() -> None:
    store = RedisCheckpointStore(f"redis://{ELSEWHERE}:6379/0", timeout_s=0.1)
    with pytest.raises(pytest.fail.Exception, match=ELSEWHERE):
        store.acquire("job")


def test_this_machine_may_be_connected_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()):
            pass
        with socket.create_connection(("localhost", server.getsockname()[1])):
            pass


def test_fakeredis_is_all_that_the_redis_store_needs() -> None:
    store = RedisCheckpointStore(client=fakeredis.FakeRedis(server=fakeredis.FakeServer()))
    saved = Checkpoint({"p": PartitionCheckpoint(7, 7)})
    store.save("job", saved, epoch=store.acquire("job"))
    assert store.load("job") == saved
