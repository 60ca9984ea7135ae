"""A fail-over of Redis to a replica that lags: what still holds at most once, and what does not."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import fakeredis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.errors import FencedError, InternalError
from flowctl_redis import RedisCheckpointStore

_KEY = "flowctl:{job}"


class Sink:
    """A sink that takes all, and remembers the newest epoch, as one that fences does."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.newest = 0

    def take(self, first: int, last: int, epoch: int) -> None:
        self.times.update(range(first, last + 1))
        self.newest = max(self.newest, epoch)


class Driver:
    """At most once: the position is saved, then the records before it have their effect."""

    def __init__(self, server: fakeredis.FakeServer) -> None:
        self.store = RedisCheckpointStore(client=fakeredis.FakeRedis(server=server))
        self.epoch = self.store.acquire("job")
        done = self.store.load("job").partitions.get("p")
        self.position = done.position if done and isinstance(done.position, int) else 0
        self.is_over = False

    def step(self, records: int, sink: Sink) -> bool:
        """Return whether the store took it; a driver that was refused is over."""
        last = self.position + records
        try:
            saved = Checkpoint({"p": PartitionCheckpoint(last, last)})
            self.store.save("job", saved, epoch=self.epoch)
        except (FencedError, InternalError):  # replaced, or another has gone further
            self.is_over = True
            return False
        sink.take(self.position + 1, last, self.epoch)
        self.position = last
        return True


class World:
    """Drivers, of which older ones live on as zombies, a server, and a replica that lags."""

    def __init__(self, draw: random.Random, clock: SimpleNamespace) -> None:
        self.draw, self.clock = draw, clock
        self.server = fakeredis.FakeServer()
        self.client = fakeredis.FakeRedis(server=self.server)
        self.sink = Sink()
        self.drivers: list[Driver] = []
        self.forgotten: set[int] = set()  # positions whose save the server forgot
        self.by_older: set[int] = set()  # what others than the newest driver sent
        self.begin()
        self.replicate()

    def begin(self) -> None:
        self.clock.now_s += 1  # a driver takes longer than a second to start
        older = [each.epoch for each in self.drivers]
        self.drivers.append(Driver(self.server))
        assert self.drivers[-1].epoch > max([*older, self.sink.newest], default=0)

    def replicate(self) -> None:
        self.replica = self.client.dump(_KEY)
        self.replicated = max(each.position for each in self.drivers)

    def fail_over(self) -> None:
        self.clock.now_s += 1  # it takes longer than a second
        ahead = max(each.position for each in self.drivers)
        self.forgotten |= set(range(self.replicated + 1, ahead + 1))
        self.client.restore(_KEY, 0, self.replica, replace=True)

    def step(self) -> None:
        alive = [each for each in self.drivers if not each.is_over]
        if not alive:
            self.begin()
            return
        driver = self.draw.choice(alive)
        before = driver.position
        driver.step(self.draw.randint(1, 5), self.sink)
        if driver is not self.drivers[-1]:
            self.by_older |= set(range(before + 1, driver.position + 1))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_s=1000)
    clock.time = lambda: clock.now_s
    monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", clock)
    return clock


_MOVES = st.lists(st.sampled_from("wwwwnrf"), max_size=25)
# The clock only has to rise: each example may begin where the last one ended.
_SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _play(world: World, moves: list[str]) -> None:
    for move in moves:
        {"w": world.step, "n": world.begin, "r": world.replicate, "f": world.fail_over}[move]()


@given(seed=st.integers(0, 2**32), moves=_MOVES)
@_SETTINGS
def test_without_a_rollback_no_effect_is_doubled_whoever_wakes_up(
    clock: SimpleNamespace, seed: int, moves: list[str]
) -> None:
    world = World(random.Random(seed), clock)
    _play(world, [move for move in moves if move != "f"])
    assert max(world.sink.times.values(), default=1) == 1


@given(seed=st.integers(0, 2**32), moves=_MOVES)
@_SETTINGS
def test_with_one_only_what_was_forgotten_or_sent_by_an_older_driver_is_doubled(
    clock: SimpleNamespace, seed: int, moves: list[str]
) -> None:
    """Epochs go on rising, so a sink that remembers them accepts each new driver."""
    world = World(random.Random(seed), clock)
    _play(world, moves)
    doubled = {position for position, times in world.sink.times.items() if times > 1}
    assert doubled <= world.forgotten | world.by_older


@given(seed=st.integers(0, 2**32), moves=_MOVES, records=st.integers(1, 50))
@_SETTINGS
def test_the_next_save_of_the_newest_shuts_out_all_older_ones_again(
    clock: SimpleNamespace, seed: int, moves: list[str], records: int
) -> None:
    world = World(random.Random(seed), clock)
    _play(world, [*moves, "n", "f"])
    newest = world.drivers[-1]
    if newest.step(records, world.sink):
        before = world.sink.times.copy()
        assert not any(each.step(1, world.sink) for each in world.drivers[:-1])
        assert world.sink.times == before
