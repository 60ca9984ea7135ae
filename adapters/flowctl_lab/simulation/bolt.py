"""A simulated bolt: a queue, slots, heartbeats, revokes, and faults.

It sends the messages of :mod:`flowctl.bolts`: acks with wait, service and idle time, heartbeats
with busy slots and queue length, answers to revokes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from flowctl.core.messages import Ack, Heartbeat, Revoked
from flowctl_lab.simulation.bolt_queue import BoltQueue
from flowctl_lab.simulation.loop import Handler
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.network import Channel, Sending
from flowctl_lab.simulation.scenario import HEARTBEAT_S

if TYPE_CHECKING:
    from flowctl_lab.simulation.engine import Simulation
    from flowctl_lab.simulation.simulated_spout import SimSpout


class SimBolt:
    """One bolt; several spouts may be connected to it."""

    def __init__(self, world: Simulation, index: int, machine: Machine) -> None:
        scenario = world.scenario
        self.name: str = f"b{index + 1}"
        self.index = index
        self.epoch: int = 1
        self.is_dead: bool = False
        self._world = world
        self._loop = world.loop
        self._work_done = world.work_done
        self._machine = machine
        self._profile = machine.profile
        self._frozen = machine.frozen
        self._flush_s = scenario.ack_flush_s
        self._telemetry = scenario.telemetry
        self._late_s = scenario.heartbeat_late_s
        self._rng = machine.chance()
        self._slots = scenario.slots
        self._links: list[tuple[SimSpout, Channel]] = []
        spouts = len(scenario.joins_s) if scenario.takes_turns else 1
        self._queues = [BoltQueue(self._slots) for _ in range(spouts)]
        self._busy = 0  # slots
        self._inbox: deque[tuple[Handler, Any]] = deque()  # came while frozen
        self._outbox: list[tuple[Sending, Ack]] = []  # acks that wait to leave together
        self._arrived: Counter[int] = Counter()  # tuples on this connection, by spout
        # Bound once: handlers are compared by identity, and each access makes a new bound method.
        self.on_tuple: Handler = self._receive_tuple
        self.on_revoke: Handler = self._receive_revoke
        self._on_serviced: Handler = self._serviced
        self._on_done: Handler = self._done
        for death in machine.deaths:
            self._loop.at(death.at_s, self._die, death.seen_after_s)
            if death.back_at_s is not None:
                self._loop.at(death.back_at_s, self._come_back)
        self._loop.at(self._rng.random() * HEARTBEAT_S, self._beat, self.epoch)

    def connect(self, spout: SimSpout, back: Channel) -> None:
        """Connect to ``spout``, which gets this bolt's messages through ``back``."""
        self._links.append((spout, back))

    # -- messages from spouts ------------------------------------------------------------

    def _is_kept(self, at_s: float, handler: Handler, message: Any) -> bool:
        """Keep a message to a frozen bolt in the network until it thaws; return whether kept."""
        thaws_s = self._frozen.over_at(at_s)
        if thaws_s <= at_s and not self._inbox:
            return False
        if not self._inbox:
            self._loop.at(thaws_s, self._thaw)
        self._inbox.append((handler, message))
        return True

    def _thaw(self, at_s: float, _: Any, __: Any) -> None:
        inbox, self._inbox = self._inbox, deque()
        for handler, message in inbox:
            handler(at_s, message, None)

    def _receive_tuple(self, at_s: float, sending: Sending, _: Any) -> None:
        if self.is_dead or sending.epoch != self.epoch:
            return  # sent to a connection that is gone
        if self._frozen and self._is_kept(at_s, self.on_tuple, sending):
            return
        if self._machine.loss and self._rng.random() < self._machine.loss:
            return
        self._arrived[sending.spout] += 1
        self._queue_of(sending.spout).add(at_s, sending, self._queues)
        self._begin_next(at_s)

    def _receive_revoke(self, at_s: float, order: tuple[int, int, list[int]], _: Any) -> None:
        spout, epoch, tuple_ids = order
        if self.is_dead or epoch != self.epoch:
            return
        if self._frozen and self._is_kept(at_s, self.on_revoke, order):
            return
        given = self._queue_of(spout).give_back(at_s, spout, tuple_ids)
        for sending in given:
            self._work_done.waited_s += at_s - sending.received_at_s
        said = (self.epoch, Revoked([sending.tuple_id for sending in given]))
        for peer, back in self._links:
            if peer.index == spout:
                back.send(at_s, peer.on_revoked, self, said)

    # -- work ----------------------------------------------------------------------------

    def _queue_of(self, spout: int) -> BoltQueue:
        return self._queues[spout if len(self._queues) > 1 else 0]

    def _begin_next(self, at_s: float) -> None:
        """Begin the next tuple in a free slot."""
        waiting = [queue for queue in self._queues if queue.waiting]
        if not waiting or self._busy == self._slots:
            return
        self._busy += 1
        sending = min(waiting, key=lambda queue: queue.claim).begin(at_s)
        self._work_done.waited_s += at_s - sending.received_at_s
        work_s = self._world.cost_s(sending)
        self._loop.at(self._profile.finish(at_s, work_s), self._on_serviced, sending)

    def _serviced(self, at_s: float, sending: Sending, _: Any) -> None:
        sink = self._world.sink
        if sink is None:
            self._done(at_s, sending, None)
        elif sending.epoch == self.epoch:
            sink.enter(at_s, sending, self._on_done)

    def _done(self, at_s: float, sending: Sending, _: Any) -> None:
        if sending.epoch != self.epoch or self.is_dead:
            return  # the tuple died with its bolt
        turn_at_s = sending.turn_at_s
        assert turn_at_s is not None  # as it was begun
        sending.ended_at_s = at_s
        self._queue_of(sending.spout).end(at_s, sending)
        self._busy -= 1
        self._work_done.completed(self.index, sending, at_s)
        ack = Ack(
            sending.tuple_id,
            sending.attempt,
            wait_s=turn_at_s - sending.received_at_s,
            service_s=at_s - turn_at_s,
            idle_total_s=sending.idle_total_s,
            sink_s=at_s - sending.entered_sink_at_s if self._world.sink else None,
        )
        if not self._telemetry:
            ack = Ack(sending.tuple_id, sending.attempt)
        if self._flush_s:
            self._hold(at_s, sending, ack)
        else:
            self._send_ack(at_s, sending, ack)
        self._begin_next(at_s)

    # -- messages to spouts --------------------------------------------------------------

    def _send_ack(self, at_s: float, sending: Sending, ack: Ack) -> None:
        spout, back = self._links[sending.spout]
        back.send(at_s, spout.on_ack, ack, sending)

    def _hold(self, at_s: float, sending: Sending, ack: Ack) -> None:
        if not self._outbox:
            leaves_s = math.ceil(at_s / self._flush_s) * self._flush_s
            self._loop.at(max(at_s, leaves_s), self._flush, self.epoch)
        self._outbox.append((sending, ack))

    def _flush(self, at_s: float, epoch: int, _: Any) -> None:
        thaws_s = self._frozen.over_at(at_s)
        if epoch != self.epoch or self.is_dead:
            return
        if thaws_s > at_s:
            self._loop.at(thaws_s, self._flush, epoch)
            return
        outbox, self._outbox = self._outbox, []
        for sending, ack in outbox:
            self._send_ack(at_s, sending, ack)

    def _beat(self, at_s: float, epoch: int, _: Any) -> None:
        if epoch != self.epoch or self.is_dead or not self._telemetry:
            return
        thaws_s = self._frozen.over_at(at_s)
        if thaws_s > at_s:
            self._loop.at(thaws_s, self._beat, epoch)
            return
        late_s = self._rng.random() * self._late_s if self._late_s else 0.0
        self._loop.at(at_s + late_s, self._send_beat, epoch)
        self._loop.at(at_s + late_s + HEARTBEAT_S, self._beat, epoch)

    def _send_beat(self, at_s: float, epoch: int, _: Any) -> None:
        if epoch != self.epoch or self.is_dead:
            return
        for spout, back in self._links:
            # A connection knows only its own tuples.
            queue = self._queue_of(spout.index)
            begun = [s.tuple_id for s in queue.running if s.spout == spout.index]
            queued = sum(1 for sending in queue.waiting if sending.spout == spout.index)
            told = begun if self._slots > 1 else ()
            # A bolt can't count tuples that the link loses.  A real connection loses none.
            arrived = None if self._machine.loss else self._arrived[spout.index]
            beat = Heartbeat(len(begun), queued, told, arrived)
            back.send(at_s, spout.on_beat, self, (epoch, beat))

    # -- life and death ------------------------------------------------------------------

    def _die(self, at_s: float, seen_after_s: float | None, _: Any) -> None:
        self.end(at_s)
        self.is_dead = True
        if seen_after_s is not None:
            for spout, _link in self._links:
                self._loop.at(at_s + seen_after_s, spout.on_lost, self, self.epoch)

    def end(self, at_s: float) -> None:
        """Drop all held tuples; work on begun ones was in vain."""
        for queue in self._queues:
            for sending in queue.waiting:
                self._work_done.waited_s += at_s - sending.received_at_s
            for sending in queue.running:
                self._work_done.aborted(self.index, sending, at_s)
            queue.clear(at_s)
        self._busy = 0
        self._inbox.clear()
        self._outbox.clear()

    def _come_back(self, at_s: float, _: Any, __: Any) -> None:
        self.is_dead = False
        self.epoch += 1
        self._arrived.clear()
        for queue in self._queues:
            queue.clear(at_s)
        for spout, back in self._links:
            back.send(at_s, spout.on_joined, self, self.epoch)
        self._loop.at(at_s + HEARTBEAT_S, self._beat, self.epoch)
