"""A ring for the tests of loops: spout → bolt → bolt → acker → spout, over bounded queues."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from flowctl.config import WaitSettings
from flowctl.runtime.loops import BoltLoop, SpoutLoop
from flowctl.runtime.queues import BoundedQueue, PendingEmits
from flowctl.runtime.tasks import Ports
from flowctl.runtime.wait import Parking, make_wait_strategy
from tests.loop_parts import Log

PLACES = ("spout", "first", "second", "acker")


class Place:
    """One loop of the ring: its queue, its overflow buffer."""

    def __init__(self, ring: Ring, name: str, size: int, fan_out: int, park: Parking) -> None:
        self.task_id = PLACES.index(name)
        self.ring = ring
        self.name = name
        self.size = size
        self.fan_out = fan_out
        self.park = park
        self.inbox: BoundedQueue[Any] = BoundedQueue(size, wake=getattr(park, "wake", None))
        self.emits: PendingEmits[tuple[str, Any]] = PendingEmits(
            lambda item: ring.places[item[0]].inbox.offer(item[1])
        )

    @property
    def is_stuck(self) -> bool:
        return len(self.inbox) == self.size and self.emits.has_pending()

    def ports(self, clock: Callable[[], float], handle: Callable[[Any], None]) -> Ports[Any]:
        return Ports(
            inbox=self.inbox,
            handle=handle,
            emits=self.emits,
            is_active=lambda: True,
            strategy=partial(make_wait_strategy, WaitSettings(), park=self.park),
            park=self.park,
            clock=clock,
            logger=Log(),
        )

    def open(self) -> None: ...
    def close(self) -> None: ...


class RingBolt(Place):
    def execute(self, message: tuple[int, int]) -> None:
        root, edge = message
        ids = [self.ring.chance.getrandbits(64) for _ in range(self.fan_out)]
        copies = [("second", (root, new)) for new in ids]
        for new in ids:
            edge ^= new
        self.emits.emit([*copies, ("acker", (root, edge))])


class RingAcker(Place):
    """The ledger in a line: a root whose values cancel out is done."""

    def execute(self, message: tuple[int, int]) -> None:
        root, value = message
        ledger = self.ring.ledger
        ledger[root] = ledger.get(root, 0) ^ value
        if ledger[root] == 0:
            del ledger[root]
            self.emits.emit([("spout", root)])


class RingSpout(Place):
    emitted = 0

    def activate(self) -> None: ...
    def deactivate(self) -> None: ...

    def next_tuple(self) -> None:
        if self.emitted == self.ring.roots:
            return
        self.emitted += 1
        edge = self.ring.chance.getrandbits(64)
        self.ring.pending.add(self.emitted)
        self.emits.emit([("first", (self.emitted, edge)), ("acker", (self.emitted, edge))])

    def ack(self, message_id: int) -> None:
        self.ring.pending.remove(message_id)
        self.ring.acked.append(message_id)

    def fail(self, message_id: int) -> None:
        raise AssertionError("nothing fails here")


class Ring:
    """``roots`` roots, each a tree of 1 + ``fan_out`` tuples."""

    def __init__(
        self,
        *,
        roots: int,
        sizes: tuple[int, ...],
        fan_out: int,
        clock: Callable[[], float],
        make_park: Callable[[], Parking],
        max_pending: int | None = None,
        drain_every: int = 1,
    ) -> None:
        self.roots = roots
        self.chance = random.Random(7)
        self.ledger: dict[int, int] = {}
        self.pending: set[int] = set()
        self.acked: list[int] = []
        spout = RingSpout(self, "spout", sizes[0], 1, make_park())
        bolts = [
            RingBolt(self, "first", sizes[1], fan_out, make_park()),
            RingBolt(self, "second", sizes[2], 0, make_park()),
            RingAcker(self, "acker", sizes[3], 0, make_park()),
        ]
        self.places: dict[str, Place] = {place.name: place for place in (spout, *bolts)}
        self.loops: dict[str, SpoutLoop[Any] | BoltLoop[Any]] = {
            "spout": SpoutLoop(
                [spout],
                spout.ports(clock, spout.ack),
                pending=self.pending,
                max_pending=max_pending,
                drain_every=drain_every,
            ),
            **{bolt.name: BoltLoop([bolt], bolt.ports(clock, bolt.execute)) for bolt in bolts},
        }
        # The most that one call of each may emit: tuple and init; copies and ack; ack; done.
        self.kept_max = {"spout": 2, "first": fan_out + 1, "second": 1, "acker": 1}

    @property
    def is_done(self) -> bool:
        return len(self.acked) == self.roots

    def check(self) -> None:
        """No queue holds more than it may, no overflow more than one call's output."""
        for name, place in self.places.items():
            assert len(place.inbox) <= place.size
            assert place.emits.kept_max <= self.kept_max[name], name
