"""A bolt that works on ranges in virtual time, batch by batch, each claimed before it begins."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Any

from flowctl.bolts.range_pace import BatchPace
from flowctl.core.messages import (
    Heartbeat,
    Order,
    Processed,
    Progress,
    RangeEmission,
    Revoke,
    Revoked,
    Split,
    SplitAnswer,
)
from flowctl_lab.simulation.loop import Handler
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.network import Channel
from flowctl_lab.simulation.scenario import HEARTBEAT_S

if TYPE_CHECKING:
    from flowctl_lab.simulation.ranges.run import RangeRun

_REPORT_S = 0.1  # as a real bolt's
# Shares of answers to splits that are lost, repeated, or up to a second late: far more than in any
# network, so that every scenario meets all three.
_LOST, _DOUBLED, _LATE = 0.05, 0.05, 0.05


class Working:
    """A range at its bolt: settled below ``at``, begun below ``claimed``."""

    __slots__ = (
        "answers", "at", "began_at_s", "claimed", "emission", "idle_s", "received_at_s",
        "reported", "reported_at_s", "service_s", "stop", "wait_s",
    )  # fmt: skip

    def __init__(self, emission: RangeEmission, at_s: float) -> None:
        self.emission: RangeEmission = emission
        self.at: int = emission.start
        self.claimed: int = emission.start
        self.reported: int = emission.start
        self.stop: int = emission.stop
        self.answers: dict[int, int] = {}
        self.received_at_s: float = at_s
        self.began_at_s: float = 0.0
        self.reported_at_s: float = 0.0
        self.wait_s: float = 0.0
        self.service_s: float = 0.0
        self.idle_s: float = 0.0


class RangeSimBolt:
    """One bolt of one slot."""

    def __init__(self, world: RangeRun, index: int, machine: Machine, back: Channel) -> None:
        self.name: str = f"b{index + 1}"
        self.epoch: int = 1
        self.is_dead: bool = False
        self._world = world
        self._loop = world.loop
        self._machine = machine
        self._back = back
        self._rng = Random(f"range bolt {world.seed} {index}")
        self._queue: deque[Working] = deque()
        self._pace = BatchPace()
        self._idle_s = 0.0
        self._idle_since_s: float | None = 0.0
        self.on_range: Handler = self._take_range
        self.on_order: Handler = self._take_order
        for death in machine.deaths:
            self._loop.at(death.at_s, self._die, death.seen_after_s)
            if death.back_at_s is not None:
                self._loop.at(death.back_at_s, self._come_back)
        self._loop.at(self._rng.random() * HEARTBEAT_S, self._beat, self.epoch)

    # -- messages from the spout ---------------------------------------------------------

    def _is_kept(self, at_s: float, handler: Handler, message: Any, epoch: int) -> bool:
        """Keep messages to a frozen bolt in the network; drop those to a dead one."""
        if self.is_dead or epoch != self.epoch:
            return True
        thaws_s = self._machine.frozen.over_at(at_s)
        if thaws_s > at_s:
            self._loop.at(thaws_s, handler, message, epoch)
            return True
        return False

    def _take_range(self, at_s: float, emission: RangeEmission, epoch: int) -> None:
        if self._is_kept(at_s, self.on_range, emission, epoch):
            return
        if self._machine.loss and self._rng.random() < self._machine.loss:
            return
        if any(w.emission.tuple_id == emission.tuple_id for w in self._queue):
            return
        self._queue.append(Working(emission, at_s))
        if len(self._queue) == 1:
            self._begin_range(at_s)

    def _take_order(self, at_s: float, order: Order, epoch: int) -> None:
        if self._is_kept(at_s, self.on_order, order, epoch):
            return
        if isinstance(order, Split):
            self._answer(at_s, order)
            return
        assert isinstance(order, Revoke)  # nobody retires it
        given = [w for w in list(self._queue)[1:] if w.emission.tuple_id in order.tuple_ids]
        for working in given:
            self._queue.remove(working)
        ids = [working.emission.tuple_id for working in given]
        self._back.send(at_s, self._world.on_revoked, self, (self.epoch, Revoked(ids)))

    def _answer(self, at_s: float, order: Split) -> None:
        stop = 0
        for working in self._queue:
            if working.emission.tuple_id == order.tuple_id:
                if order.request not in working.answers:
                    left = working.stop - working.claimed
                    working.stop = working.claimed + math.ceil(order.keep * left)
                    working.answers[order.request] = working.stop
                stop = working.answers[order.request]
        said = (self.epoch, SplitAnswer(order.tuple_id, order.request, stop))
        chance = self._rng.random()
        if chance < _LOST:
            return
        if chance < _LOST + _LATE:
            self._loop.at(at_s + self._rng.random(), self._world.on_split, self, said)
            return
        self._back.send(at_s, self._world.on_split, self, said)
        if chance > 1 - _DOUBLED:
            self._back.send(at_s, self._world.on_split, self, said)

    # -- work ----------------------------------------------------------------------------

    def _begin_range(self, at_s: float) -> None:
        working = self._queue[0]
        if self._idle_since_s is not None:
            self._idle_s += at_s - self._idle_since_s
            self._idle_since_s = None
        working.idle_s = self._idle_s
        working.wait_s = at_s - working.received_at_s
        self._begin_batch(at_s, working)

    def _begin_batch(self, at_s: float, working: Working) -> None:
        working.claimed = min(working.stop, working.at + self._pace.next_records)
        working.began_at_s = at_s
        cost_s = self._world.cost_s(working.at, working.claimed, working.emission.attempt)
        done_s = self._machine.profile.finish(at_s, cost_s)
        self._loop.at(done_s, self._end_batch, working, self.epoch)

    def _end_batch(self, at_s: float, working: Working, epoch: int) -> None:
        if epoch != self.epoch or self.is_dead:
            return
        self._world.note_processed(working.at, working.claimed)
        self._pace.took(working.claimed - working.at, at_s - working.began_at_s)
        working.service_s += at_s - working.began_at_s
        working.at = working.claimed
        is_over = working.at >= working.stop
        if is_over or at_s >= working.reported_at_s + _REPORT_S:
            self._report(at_s, working)
        if not is_over:
            self._begin_batch(at_s, working)
            return
        self._queue.popleft()
        if self._queue:
            self._begin_range(at_s)
        else:
            self._idle_since_s = at_s

    def _report(self, at_s: float, working: Working) -> None:
        did = Processed(
            records=working.at - working.reported,
            wait_s=working.wait_s,
            service_s=working.service_s,
            call_s=self._pace.dear_s,
        )
        told = Progress(
            tuple_id=working.emission.tuple_id,
            attempt=working.emission.attempt,
            start=working.reported,
            done_through=working.at,
            idle_total_s=working.idle_s,
            did=did,
        )
        working.reported, working.reported_at_s = working.at, at_s
        working.wait_s = working.service_s = 0.0
        self._back.send(at_s, self._world.on_progress, self, (self.epoch, told))

    # -- signs of life, and death --------------------------------------------------------

    def _beat(self, at_s: float, epoch: int, _: Any) -> None:
        if epoch != self.epoch or self.is_dead:
            return
        thaws_s = self._machine.frozen.over_at(at_s)
        if thaws_s > at_s:
            self._loop.at(thaws_s, self._beat, epoch)
            return
        beat = Heartbeat(int(bool(self._queue)), max(0, len(self._queue) - 1))
        self._back.send(at_s, self._world.on_beat, self, (epoch, beat))
        self._loop.at(at_s + HEARTBEAT_S, self._beat, epoch)

    def _die(self, at_s: float, seen_after_s: float | None, _: Any) -> None:
        self.is_dead = True
        self._queue.clear()
        if seen_after_s is not None:
            self._loop.at(at_s + seen_after_s, self._world.on_lost, self, self.epoch)

    def _come_back(self, at_s: float, _: Any, __: Any) -> None:
        self.is_dead = False
        self.epoch += 1
        self._pace = BatchPace()
        self._idle_s, self._idle_since_s = 0.0, at_s
        self._back.send(at_s, self._world.on_joined, self, self.epoch)
        self._loop.at(at_s + HEARTBEAT_S, self._beat, self.epoch)
