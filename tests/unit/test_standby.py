"""A driver in waiting: who holds the lease of a job, and when another one takes it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import fakeredis
import pytest

from flowctl.cli.main import main
from flowctl.errors import CheckpointUnavailableError, ConfigError, FencedError
from flowctl.runtime.standby import LEASE_S, LeasingStore, Standby
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_redis import RedisCheckpointStore


@pytest.fixture
def server() -> fakeredis.FakeServer:
    return fakeredis.FakeServer()


def store_on(server: fakeredis.FakeServer) -> RedisCheckpointStore:
    return RedisCheckpointStore(client=fakeredis.FakeRedis(server=server))


class World:
    """Two drivers, and a store in which time passes only while one of them waits."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.holder, self.until_s = "", 0.0
        self.is_away = False
        self.said: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.store = LeasedStore(self)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()
        assert self.now_s < 100, f"it waits for ever: {self.said}"

    def driver(self) -> Standby:
        return Standby(self.store, "job", say=self.said.append, pause=self.pause)


class LeasedStore(MemoryCheckpointStore):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def lease(self, job: str, owner: str, for_s: float) -> str:
        world = self._world
        if world.is_away:
            raise CheckpointUnavailableError("Redis can't be reached.")
        if world.now_s >= world.until_s:
            world.holder = ""
        if world.holder in ("", owner):
            world.holder = owner if for_s else ""
            world.until_s = world.now_s + for_s
        return world.holder


# -- in Redis --------------------------------------------------------------------------------


def test_one_holds_a_lease_until_it_is_given_up(server: fakeredis.FakeServer) -> None:
    a, b = store_on(server), store_on(server)
    assert isinstance(a, LeasingStore)
    assert a.lease("job", "a", 60) == "a"
    assert a.lease("job", "a", 60) == "a", "renewed"
    assert b.lease("job", "b", 60) == "a"
    assert b.lease("other", "b", 60) == "b"
    b.lease("job", "b", 0)
    assert b.lease("job", "", 0) == "a", "only its owner gives it up"
    a.lease("job", "a", 0)
    assert b.lease("job", "", 0) == ""
    assert b.lease("job", "b", 60) == "b"


def test_a_lease_ends_by_itself(server: fakeredis.FakeServer) -> None:
    client = fakeredis.FakeRedis(server=server)
    RedisCheckpointStore(client=client).lease("job", "a", LEASE_S)
    [key] = client.keys("*")
    assert 0 < client.pttl(key) <= LEASE_S * 1000


def test_a_lease_is_no_checkpoint(server: fakeredis.FakeServer) -> None:
    store = store_on(server)
    store.lease("job", "a", 60)
    assert list(store.jobs()) == []
    assert not store.clear("job")


# -- waiting ---------------------------------------------------------------------------------


def test_the_first_driver_begins_at_once_and_says_nothing() -> None:
    world = World()
    world.driver().wait()
    assert (world.now_s, world.said) == (0.0, [])


def test_the_second_takes_over_when_the_lease_of_the_first_has_ended() -> None:
    world = World()
    world.driver().wait()
    world.driver().wait()
    assert LEASE_S <= world.now_s <= LEASE_S + 0.5
    assert "standby: waiting while" in world.said[0] and world.said[1:] == [
        "standby: taking over job"
    ]


def test_it_waits_while_the_first_renews_its_lease() -> None:
    world = World()
    first = world.driver()
    first.wait()

    def renew() -> None:
        if world.now_s < 20:
            first.take()

    world.meanwhile = renew
    world.driver().wait()
    assert world.now_s >= 20
    assert len(world.said) == 2, "one line while it waits"


def test_a_lease_that_is_given_up_is_taken_at_once() -> None:
    world = World()
    first = world.driver()
    first.wait()
    world.meanwhile = first.release
    world.driver().wait()
    assert world.now_s < 1.0


def test_after_an_outage_of_the_store_the_driver_that_worked_on_keeps_the_job() -> None:
    """Its lease has ended meanwhile: it gets the time of one to renew it."""
    world = World()
    first = world.driver()
    first.wait()

    def outage() -> None:
        world.is_away = 1 <= world.now_s < 10
        if 11 <= world.now_s < 30:  # the first notices a second later than the second driver
            first.take()

    world.meanwhile = outage
    world.driver().wait()
    assert world.now_s >= 30
    assert any("can't be reached" in line for line in world.said)


def test_a_driver_that_lost_its_lease_is_fenced_by_its_epoch() -> None:
    world = World()
    store = world.store
    world.driver().wait()
    old = store.acquire("job")
    world.driver().wait()
    store.acquire("job")
    with pytest.raises(FencedError):
        store.save("job", store.load("job"), epoch=old)


def test_keeping_ends_when_it_is_told_to_and_survives_outages() -> None:
    world = World()
    world.is_away = True
    closing = threading.Event()
    keeper = threading.Thread(target=world.driver().keep, args=(closing,))
    keeper.start()
    closing.set()
    keeper.join(60)
    assert not keeper.is_alive()


# -- the command -----------------------------------------------------------------------------


def test_without_a_common_store_there_is_no_standby(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path_factory.mktemp("job") / "job.py"
    job.write_text(
        "from flowctl import FlowControlSpout, LocalBolts\n"
        "spout = FlowControlSpout(name='x', producer=[1], bolts=LocalBolts(print, count=1))\n"
    )
    assert main(["run", str(job), "--standby", "--quiet"]) == 2
    assert "--redis URL" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--standby"):
        Standby(MemoryCheckpointStore(), "x", say=print)
