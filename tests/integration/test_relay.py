"""Connections through Redis: exact whatever Redis does, bounded, private, and gone at the end."""

from __future__ import annotations

import pickle
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_parts import Valkey, until
from redis import Redis

from flowctl.errors import CheckpointUnavailableError, ConfigError
from flowctl_redis import RedisCheckpointStore, relay, relay_pump
from flowctl_redis.relay import RedisRelay

pytestmark = pytest.mark.timeout(120)
MEGABYTE = 1 << 20


@pytest.fixture
def valkey(tmp_path: Path, free_port: int) -> Iterator[Valkey]:
    server = Valkey(tmp_path, free_port)
    server.start()
    yield server
    for pump in list(relay.PUMPS):  # bolts in this process: they would wait a minute for Redis
        pump.close()
    server.kill()


class Spout:
    """Listens, and has a relay before it."""

    def __init__(self, url: str) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(60)
        self.relay = RedisRelay(url, prefix="flowctl", spout=self.listener.getsockname())

    def meet(self) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a new connection: the bolt's, the spout's."""
        door = pickle.loads(pickle.dumps(self.relay.door))
        bolt = door.connect(timeout_s=60)
        spout, _ = self.listener.accept()
        spout.settimeout(60)
        return bolt, spout


@pytest.fixture
def spout(valkey: Valkey) -> Iterator[Spout]:
    spout = Spout(valkey.url)
    yield spout
    spout.relay.close()
    spout.listener.close()


def received(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (more := sock.recv(min(size - len(found), 65_536))):
        found += more
    return bytes(found)


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def streams(client: Redis, end: bytes) -> dict[bytes, int]:
    """The length of each stream in one direction."""
    return {key: client.xlen(key) for key in client.keys("flowctl:relay:*") if key.endswith(end)}


def test_bytes_arrive_exactly_both_ways_while_redis_is_killed_and_comes_back(
    valkey: Valkey, spout: Spout
) -> None:
    bolt, ours = spout.meet()
    down, up = random.Random(1).randbytes(3 * MEGABYTE), random.Random(2).randbytes(3 * MEGABYTE)
    senders = [in_background(lambda: ours.sendall(down)), in_background(lambda: bolt.sendall(up))]
    halves = [received(bolt, MEGABYTE), received(ours, MEGABYTE)]
    valkey.kill()
    until(lambda: spout.relay.is_away)
    valkey.start()
    until(lambda: not spout.relay.is_away)
    assert halves[0] + received(bolt, 2 * MEGABYTE) == down
    assert halves[1] + received(ours, 2 * MEGABYTE) == up
    for sender in senders:
        sender.join(60)
    bolt.close()
    assert ours.recv(1) == b"", "the end comes through, and so does the other side's"
    ours.close()


def test_what_nobody_reads_is_bounded_and_goes_on_when_somebody_does(
    valkey: Valkey, spout: Spout
) -> None:
    bolt, ours = spout.meet()
    sent = random.Random(3).randbytes(8 * MEGABYTE)
    sender = in_background(lambda: bolt.sendall(sent))
    most = relay_pump.ENTRIES_MAX
    with valkey.client() as client:
        until(lambda: max(streams(client, b":up").values(), default=0) >= most)
        held = sum(client.memory_usage(key) for key in streams(client, b":up"))
        assert held < 2 * most * relay_pump.CHUNK_BYTES
        assert received(ours, len(sent)) == sent
        sender.join(60)
        until(lambda: set(streams(client, b":up").values()) == {0}, "all that was read to be gone")
        assert max(streams(client, b":up").values()) == 0


def test_bytes_that_redis_has_lost_end_the_connection(valkey: Valkey, spout: Spout) -> None:
    """They are not left out: what follows would be taken for something else."""
    bolt, ours = spout.meet()
    with valkey.client() as client:
        bolt.sendall(b"first")
        assert received(ours, 5) == b"first"
        [key] = streams(client, b":up")
        client.xadd(key, {b"d": b"third"}, id="0-3")  # as if 0-2 had been lost
        assert ours.recv(10) == b""
    ours.close()
    assert bolt.recv(1) == b"", "the bolt sees it as a link that was cut"
    again, theirs = spout.meet()
    again.sendall(b"here")
    assert received(theirs, 4) == b"here"


def test_an_entry_that_is_written_twice_counts_once(valkey: Valkey) -> None:
    """It was unknown whether the first arrived: the answer was lost with the connection."""
    ours, theirs = socket.socketpair()
    writer = relay_pump.Duct(theirs, inbound=b"flowctl:in", outbound=b"flowctl:out")
    ours.sendall(b"x")
    writer.collect()
    replies = []
    with valkey.client() as client:
        for _ in range(2):
            with client.pipeline(transaction=False) as pipe:
                writer.write(pipe)
                replies += pipe.execute(raise_on_error=False)[::3]
        assert client.xlen("flowctl:out") == 1
    assert replies[0] == b"0-1"
    assert "equal or smaller" in str(replies[1])
    ours.close()
    theirs.close()


def test_nothing_stays_in_redis(valkey: Valkey, spout: Spout) -> None:
    bolt, ours = spout.meet()
    ours.sendall(b"last words")
    with valkey.client() as client:
        assert received(bolt, 5) == b"last "
        assert all(client.ttl(key) > 0 for key in client.keys("flowctl:relay:*"))
        ours.close()
        spout.relay.close()
        left = client.keys("flowctl:relay:*")
        assert not [key for key in left if key.endswith((b":alive", b":door"))]
        assert all(0 < client.ttl(key) <= relay_pump.KEY_TTL_S for key in left)
    assert bolt.recv(10) == b"words", "what was sent before the end still arrives"
    assert bolt.recv(10) == b""
    with pytest.raises(ConnectionRefusedError, match="the driver of this run is gone"):
        spout.relay.door.connect(timeout_s=60)


def test_a_bolt_sees_that_its_driver_is_gone(
    valkey: Valkey, spout: Spout, monkeypatch: pytest.MonkeyPatch
) -> None:
    bolt, _ = spout.meet()
    monkeypatch.setattr(relay, "_MISSING_MAX_S", 0.1)
    monkeypatch.setattr(relay, "_ALIVE_EVERY_S", 1e9)  # it says nothing any more
    with valkey.client() as client:
        for key in client.keys("*:alive"):
            client.delete(key)
        assert bolt.recv(1) == b""


def test_redis_away_is_said_at_once_and_who_can_not_be_given_it_is_refused(
    valkey: Valkey, tmp_path: Path
) -> None:
    with valkey.client() as client, pytest.raises(ConfigError, match=r"listen\.via: .* a client"):
        RedisCheckpointStore(client=client).open_relay(("127.0.0.1", 1))
    valkey.kill()
    with pytest.raises(CheckpointUnavailableError, match="can't be reached") as caught:
        RedisCheckpointStore(valkey.url).open_relay(("127.0.0.1", 1))
    assert caught.value.__context__ is None, "its frames would hold the URL"
