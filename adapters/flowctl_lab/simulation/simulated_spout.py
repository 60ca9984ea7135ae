"""The driver of a real :class:`SpoutCore` in virtual time, in place of the sender thread."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import flowctl_lab.baselines  # noqa: F401  # the policies that scenarios name
from flowctl.core.driver import pump
from flowctl.core.events import FlowEvent, WindowChanged
from flowctl.core.messages import Ack, Heartbeat, Revoke, Revoked
from flowctl.core.records import AckOutcome
from flowctl.core.spout import SpoutCore
from flowctl.errors import InternalError
from flowctl_lab.simulation.bolt import SimBolt
from flowctl_lab.simulation.loop import Alarm, Handler
from flowctl_lab.simulation.network import Channel, Outlet, Sending
from flowctl_lab.simulation.workload import Workload

if TYPE_CHECKING:
    from flowctl_lab.simulation.engine import Simulation

_PARTITION = "p"


class SimSpout:
    """One spout, which joins at ``joins_s`` with all bolts alive then."""

    def __init__(self, world: Simulation, index: int, workload: Workload) -> None:
        self.index = index
        self.core: SpoutCore = SpoutCore(world.settings)
        self.workload = workload
        self.is_done: bool = False
        self.joined_at_s: float = world.scenario.joins_s[index]
        self._world = world
        self._loop = world.loop
        self._out: dict[str, tuple[SimBolt, Channel]] = {}
        self._outlet = Outlet(world.scenario.outlet_record_s)
        self._left: list[Any] = []  # read but not taken so far
        self._arrived: int | None = None  # records that have arrived; None: all
        self._arrivals = iter(world.arrivals) if world.arrivals else None
        self._end_is_due = False  # all is read; the end is reported a little later
        self._input_ended = False
        self._alarm = Alarm(world.loop, self._pump)
        self.had_backlog_at_s: float = 0.0
        self.acked_high: int = 0  # the end of the highest record that was acked
        self.acked_at_s: float = 0.0  # when a tuple was last acked for the first time
        self.lag_max: int = 0
        self.growth_idle: int = 0  # tuples by which unused windows grew
        self.ratios: list[float] = []  # RTT over the same tuple's without load
        # Bound once, see SimBolt.
        self.on_ack: Handler = self._take_ack
        self.on_beat: Handler = self._take_beat
        self.on_revoked: Handler = self._take_revoked
        self.on_joined: Handler = self._take_joined
        self.on_lost: Handler = self._take_lost
        self._loop.at(self.joined_at_s, self._join)

    # -- what comes in -------------------------------------------------------------------

    def _join(self, at_s: float, _: Any, __: Any) -> None:
        world, scenario = self._world, self._world.scenario
        if scenario.is_as_shipped:
            self.core.expect_bolts(scenario.bolts)
        for bolt in self._in_order():
            rng = Random(f"net {world.seed} {self.index} {bolt.index}")
            there = Channel(self._loop, scenario.one_way_s, scenario.jitter_s, rng)
            back = Channel(self._loop, scenario.one_way_s, scenario.jitter_s, rng)
            self._out[bolt.name] = (bolt, there)
            connects_s = scenario.connects_at_s(bolt.index)
            if connects_s > at_s:
                self._loop.at(connects_s, self._connect, bolt, back)
                continue
            bolt.connect(self, back)
            if not bolt.is_dead:
                self._add(bolt, bolt.epoch, at_s)
        if self._arrivals is not None:
            self._arrived = 0
            self._loop.at(next(self._arrivals), self._arrive, 0)
        self._pump(at_s)

    def _in_order(self) -> Sequence[SimBolt]:
        """Return the bolts in the order in which they connect.

        For a job as shipped it differs by spout, or all spouts would send their first tuples to the
        same bolts.
        """
        bolts, scenario = self._world.bolts, self._world.scenario
        first = self.index * len(bolts) // len(scenario.joins_s) if scenario.is_as_shipped else 0
        return [*bolts[first:], *bolts[:first]]

    def _connect(self, at_s: float, bolt: SimBolt, back: Channel) -> None:
        """Connect a bolt that comes later than the spout."""
        bolt.connect(self, back)
        if not bolt.is_dead:
            self._add(bolt, bolt.epoch, at_s)
            self._pump(at_s)

    def _add(self, bolt: SimBolt, epoch: int, at_s: float) -> None:
        slots = self._world.scenario.slots
        self.core.add_bolt(bolt.name, slots=slots, epoch=epoch, now_s=at_s, in_order=True)

    def _arrive(self, at_s: float, block: int, _: Any) -> None:
        first, count = self.workload.block(block)
        self._arrived = first + count
        assert self._arrivals is not None
        following = next(self._arrivals, None)
        if following is not None:
            self._loop.at(following, self._arrive, block + 1)
        self._pump(at_s)

    def _take_ack(self, at_s: float, ack: Ack, sending: Sending) -> None:
        outcome = self.core.on_ack(sending.bolt, sending.epoch, ack, now_s=at_s)
        if self._world.log is not None:
            said = (sending.bolt, ack, outcome.value, sending.epoch)
            self._world.log.append((at_s, self.index, "ack", *said))
        if outcome is AckOutcome.ACKED or outcome is AckOutcome.LATE:
            no_load_s = self._world.no_load_net_s + sending.alone_s
            self.ratios.append((at_s - sending.sent_at_s) / no_load_s)
            self.acked_at_s = at_s
            self._note_lag(sending.first + sending.count)
        if not self._loop.is_next(self.on_ack):  # records that arrive together are taken together
            self._pump(at_s)

    def _note_lag(self, acked_stop: int) -> None:
        self.acked_high = max(self.acked_high, acked_stop)
        ledger = self.core.intake.ledgers[_PARTITION]
        lag = self.acked_high - ledger.cumulative_seq
        self.lag_max = max(self.lag_max, lag)

    def _take_beat(self, at_s: float, bolt: SimBolt, said: tuple[int, Heartbeat]) -> None:
        epoch, beat = said
        self.core.on_heartbeat(bolt.name, epoch, beat, now_s=at_s)
        self._pump(at_s)

    def _take_revoked(self, at_s: float, bolt: SimBolt, said: tuple[int, Revoked]) -> None:
        epoch, given = said
        self.core.on_revoked(bolt.name, epoch, given, now_s=at_s)
        if self._world.log is not None:
            self._world.log.append((at_s, self.index, "revoked", bolt.name, given.tuple_ids))
        self._pump(at_s)

    def _take_joined(self, at_s: float, bolt: SimBolt, epoch: int) -> None:
        self._add(bolt, epoch, at_s)
        self._pump(at_s)

    def _take_lost(self, at_s: float, bolt: SimBolt, epoch: int) -> None:
        consumer = self.core.bolts.get(bolt.name)
        if consumer is not None and consumer.epoch == epoch:
            self.core.remove_bolt(bolt.name, now_s=at_s, reason="connection lost")
            self._pump(at_s)

    # -- one turn of the sender's loop ---------------------------------------------------

    def _pump(self, at_s: float) -> None:
        core = self.core
        turn = pump(core, at_s, refill=self._feed)
        for emission in turn.emissions:
            self._send(emission, at_s)
        if core.intake.buffer or self._input_ended:
            self.had_backlog_at_s = at_s
        for order in turn.orders:
            self._obey(order, at_s)
        for event in turn.events:
            self._note(event, at_s)
        self._alarm.set(turn.next_s, at_s)
        if self._input_ended and core.is_drained and not self.is_done:
            self.is_done = True
            self._world.on_spout_done(at_s)

    def _feed(self, at_s: float) -> None:
        """Feed records as the reader does: go on once half of the buffer is free."""
        if self._input_ended or not self.core.intake.has_room:
            return
        while True:
            if not self._left:
                self._left = self.workload.read(self._arrived)
            if not self._left:
                break
            taken = self.core.offer(_PARTITION, self._left, now_s=at_s)
            if taken < len(self._left):
                self._left = self._left[taken:]
                return
            self._left = []
        if self.workload.is_read and not self._end_is_due:
            self._end_is_due = True
            late_s = self._world.scenario.end_late_s
            if late_s:
                self._loop.at(at_s + late_s, self._take_end)
            else:
                self._end(at_s)

    def _end(self, at_s: float) -> None:
        self.core.end_of_input(now_s=at_s)
        self._input_ended = True

    def _take_end(self, at_s: float, _: Any, __: Any) -> None:
        self._end(at_s)
        self._pump(at_s)

    def _send(self, emission: Any, at_s: float) -> None:
        bolt, channel = self._out[emission.bolt]
        records = emission.records
        sending = Sending(
            self.index, emission.tuple_id, emission.attempt, records[0].position, len(records)
        )
        sending.bolt, sending.epoch = emission.bolt, self.core.bolts[emission.bolt].epoch
        sending.sent_at_s = at_s
        if self._world.log is not None:
            self._world.log.append(
                (at_s, self.index, "emit", emission.bolt, emission.tuple_id, emission.attempt)
            )
        passed_s = self._outlet.passed_at_s(at_s, len(records))
        channel.send(passed_s, bolt.on_tuple, sending)

    def _obey(self, order: object, at_s: float) -> None:
        if not isinstance(order, Revoke):
            raise InternalError(f"no rule for a {type(order).__name__}.")
        bolt, channel = self._out[order.bolt]
        consumer = self.core.bolts.get(order.bolt)
        if consumer is not None:
            said = (self.index, consumer.epoch, order.tuple_ids)
            channel.send(self._outlet.passed_at_s(at_s, 0), bolt.on_revoke, said)

    def _note(self, event: FlowEvent, at_s: float) -> None:
        if self._world.log is not None:
            self._world.log.append((at_s, self.index, "event", event))
        if isinstance(event, WindowChanged):
            grown = event.after - event.before
            if grown > 0 and at_s - self.had_backlog_at_s > self._world.idle_after_s:
                self.growth_idle += grown
