"""One run of ranges in virtual time, for a scenario, a length of ranges and a seed."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from flowctl.config import Settings
from flowctl.core.driver import pump
from flowctl.core.messages import Heartbeat, Progress, RangeEmission, Revoked, SplitAnswer
from flowctl.core.ranges.core import RANGE_S, RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl_lab.simulation.loop import Alarm, EventLoop
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.network import Channel
from flowctl_lab.simulation.oracle import Oracle
from flowctl_lab.simulation.ranges.bolt import RangeSimBolt
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.workload import Workload

_PARTITION = "p"


class RangeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run; ``duplicates`` is the share of records processed more than once."""

    finished: bool
    makespan_s: float
    bound_s: float
    duplicates: float
    lost: int
    grants: int
    splits: int

    @property
    def efficiency(self) -> float:
        """The oracle's makespan over this run's."""
        return self.bound_s / self.makespan_s


class RangeRun:
    """The parts of one run; :meth:`run` once."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        workload: Workload,
        *,
        range_s: float = RANGE_S,
        knows_end: bool = True,
    ) -> None:
        """Prepare the run; without ``knows_end`` the end shows only when all is given out.

        That is as with a source that grows: then the last ranges are no smaller than others.
        """
        assert workload.records is not None
        self.scenario: Scenario = scenario
        self.seed: int = seed
        self.loop: EventLoop = EventLoop()
        self.core: RangeCore = RangeCore(Settings(), range_s=range_s)
        self._knows_end = knows_end
        self._workload = workload
        self._seen = bytearray(workload.records)
        self._repeated = 0
        self._machines = [Machine(scenario, seed, bolt) for bolt in range(scenario.bolts)]
        self._out: dict[str, tuple[RangeSimBolt, Channel]] = {}
        self._alarm = Alarm(self.loop, self._pump)
        for index, machine in enumerate(self._machines):
            rng = Random(f"range net {seed} {index}")
            there, back = (
                Channel(self.loop, scenario.one_way_s, scenario.jitter_s, rng) for _ in range(2)
            )
            bolt = RangeSimBolt(self, index, machine, back)
            self._out[bolt.name] = (bolt, there)
        self.loop.at(0.0, self._begin)

    def run(self) -> RangeOutcome:
        """Run through virtual time to the end."""
        oracle = Oracle(self.scenario, self.seed, self._machines, [self._workload])
        self.loop.run(self.scenario.limit_s)
        records = len(self._seen)
        return RangeOutcome(
            finished=self.core.is_drained,
            makespan_s=self.loop.now_s,
            bound_s=oracle.bound_s,
            duplicates=self._repeated / records,
            lost=self._seen.count(0),
            grants=self.core.counters.tuples_emitted,
            splits=self.core.counters.ranges_split,
        )

    # -- what bolts ask ------------------------------------------------------------------

    def cost_s(self, first: int, stop: int, attempt: int) -> float:
        """Return the service time of these records at speed 1."""
        return self._workload.cost_s(first, stop - first, attempt)

    def note_processed(self, first: int, stop: int) -> None:
        """Note that a bolt has processed these records."""
        self._repeated += self._seen.count(1, first, stop)
        self._seen[first:stop] = b"\1" * (stop - first)

    # -- what comes in -------------------------------------------------------------------

    def _begin(self, at_s: float, _: Any, __: Any) -> None:
        self.core.offer_extents({_PARTITION: Extent(0, len(self._seen))})
        if self._knows_end:
            self.core.end_of_input(now_s=at_s)
        for bolt, _channel in self._out.values():
            self._add(bolt, bolt.epoch, at_s)
        self._pump(at_s)

    def _add(self, bolt: RangeSimBolt, epoch: int, at_s: float) -> None:
        self.core.add_bolt(bolt.name, slots=1, epoch=epoch, now_s=at_s, in_order=True)

    def on_progress(self, at_s: float, bolt: RangeSimBolt, said: tuple[int, Progress]) -> None:
        """A report arrived."""
        self.core.on_progress(bolt.name, *said, now_s=at_s)
        self._pump(at_s)

    def on_split(self, at_s: float, bolt: RangeSimBolt, said: tuple[int, SplitAnswer]) -> None:
        """An answer arrived."""
        self.core.on_split(bolt.name, *said, now_s=at_s)
        self._pump(at_s)

    def on_revoked(self, at_s: float, bolt: RangeSimBolt, said: tuple[int, Revoked]) -> None:
        """Ranges were given back."""
        self.core.on_revoked(bolt.name, *said, now_s=at_s)
        self._pump(at_s)

    def on_beat(self, at_s: float, bolt: RangeSimBolt, said: tuple[int, Heartbeat]) -> None:
        """A sign of life."""
        self.core.on_heartbeat(bolt.name, *said, now_s=at_s)
        self._pump(at_s)

    def on_joined(self, at_s: float, bolt: RangeSimBolt, epoch: int) -> None:
        """A bolt came back."""
        self._add(bolt, epoch, at_s)
        self._pump(at_s)

    def on_lost(self, at_s: float, bolt: RangeSimBolt, epoch: int) -> None:
        """Handle the end of a bolt's connection."""
        consumer = self.core.bolts.get(bolt.name)
        if consumer is not None and consumer.epoch == epoch:
            self.core.remove_bolt(bolt.name, now_s=at_s, reason="connection lost")
            self._pump(at_s)

    # -- one turn ------------------------------------------------------------------------

    def _pump(self, at_s: float) -> None:
        if not (self._knows_end or self.core.buffer.records):
            self._knows_end = True
            self.core.end_of_input(now_s=at_s)
        turn = pump(self.core, at_s)
        for emission in turn.emissions:
            assert isinstance(emission, RangeEmission)
            bolt, channel = self._out[emission.bolt]
            epoch = self.core.bolts[bolt.name].epoch
            channel.send(at_s, bolt.on_range, emission, epoch)
        for order in turn.orders:
            bolt, channel = self._out[order.bolt]
            consumer = self.core.bolts.get(order.bolt)
            if consumer is not None:
                channel.send(at_s, bolt.on_order, order, consumer.epoch)
        self._alarm.set(turn.next_s, at_s)
        if self.core.is_drained:
            self.loop.is_stopped = True
