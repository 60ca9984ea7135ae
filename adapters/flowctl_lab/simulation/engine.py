"""One run: a scenario, settings and a seed in, an :class:`Outcome` out."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import msgspec

from flowctl.config import Settings
from flowctl_lab.simulation import measure
from flowctl_lab.simulation.bolt import SimBolt
from flowctl_lab.simulation.loop import EventLoop
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.oracle import Oracle, arrivals_s
from flowctl_lab.simulation.policies import settings_for
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.simulated_spout import SimSpout
from flowctl_lab.simulation.sink import SharedSink
from flowctl_lab.simulation.workload import Workload, workload_of
from flowctl_lab.simulation.yardsticks import chunks_s, greedy_s

_CURVE_POINTS = 100  # samples of the windows over the shortest possible run
# Round trips after the last backlog until its acks are in, when a period without backlog begins.
_IDLE_AFTER_RTTS = 5
# Most steps of a run of a drawn scenario: they take some ten seconds.
_STEPS_MAX = 3_000_000


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run.  Shares are of 1; ``None`` means not applicable to this scenario.

    ``efficiency`` is the oracle's makespan over this one's (with ``until_s``: the share of the
    capacity in use).  ``queued`` is the mean number of tuples that wait at a bolt.  ``r50`` and
    ``r99`` compare each ack's round trip with the same tuple's without load.  ``duplicates`` counts
    processings beyond the first per tuple, ``wasted`` the work that went into those and into tuples
    that died.  ``lag_records`` is the most records acked above the cumulative ack.  ``curve`` holds
    the first spout's window of each bolt over time, ``acked`` the tuples that each bolt had acked
    to it by then.
    """

    scenario: str
    policy: str
    seed: int
    finished: bool
    makespan_s: float
    bound_s: float
    efficiency: float
    queued: float
    r50: float
    r99: float
    duplicates: float
    wasted: float
    lag_records: int
    lag_s: float
    tuples: int
    lost: int
    converged: float | None
    jain: float | None
    growth_idle: int
    curve: list[tuple[float, tuple[float, ...]]]
    acked: list[tuple[int, ...]]
    in_use: list[float]
    greedy_s: float | None  # makespans of other schedulers, for jobs as shipped
    chunks_s: float | None
    cost_us: float  # real time per tuple; not reproducible, in no report


class Simulation:
    """The parts of one run.  :meth:`run` once; then ``spouts`` and ``log`` may be looked at."""

    def __init__(
        self,
        scenario: Scenario,
        settings: Settings,
        seed: int,
        *,
        keep_log: bool = False,
        workload: Workload | None = None,
    ) -> None:
        """``workload``: the records of the only spout, in place of those drawn from the seed."""
        self.scenario = scenario
        self.seed = seed
        self.settings: Settings = settings_for(scenario, settings)
        self.loop: EventLoop = EventLoop()
        self.work_done: measure.WorkDone = measure.WorkDone()
        self.log: list[tuple[Any, ...]] | None = [] if keep_log else None
        self.arrivals: list[float] | None = (
            arrivals_s(scenario) if workload is None else workload.arrivals_s
        )
        self.machines: list[Machine] = [
            Machine(scenario, seed, bolt) for bolt in range(scenario.bolts)
        ]
        self.sink: SharedSink | None = (
            SharedSink(self.loop, scenario.sink) if scenario.sink else None
        )
        self.bolts: list[SimBolt] = [
            SimBolt(self, i, machine) for i, machine in enumerate(self.machines)
        ]
        self.workloads: list[Workload] = (
            [workload_of(scenario, seed, i) for i in range(len(scenario.joins_s))]
            if workload is None
            else [workload]
        )
        # Service times as drawn, and without noise.
        self.drawn_s: float = 0.0
        self.asked_s: float = 0.0
        self.spouts: list[SimSpout] = [
            SimSpout(self, i, workload) for i, workload in enumerate(self.workloads)
        ]
        self.no_load_net_s: float = scenario.no_load_net_s
        round_trip_s = self.no_load_net_s + scenario.tuple_mean_s
        self.idle_after_s: float = _IDLE_AFTER_RTTS * round_trip_s
        self.curve: list[tuple[float, tuple[float, ...]]] = []
        self.acked: list[tuple[int, ...]] = []
        self._acked_before: list[int] | None = None

    def cost_s(self, sending: Sending) -> float:
        """The service time of a sending at speed 1."""
        workload = self.workloads[sending.spout]
        cost_s = workload.cost_s(sending.first, sending.count, sending.attempt)
        self.drawn_s += cost_s
        self.asked_s += workload.plain_s(sending.first, sending.count)
        return cost_s

    def on_spout_done(self, at_s: float) -> None:
        """Note that all tuples of a spout are acked."""
        if all(spout.is_done for spout in self.spouts):
            self.loop.is_stopped = True

    def run(self, policy: str = "") -> Outcome:
        """Run through virtual time; ``policy`` is the name of the settings in the outcome."""
        scenario = self.scenario
        oracle = Oracle(scenario, self.seed, self.machines, self.workloads)
        end_s = oracle.bound_s if scenario.until_s is None else scenario.until_s
        self.loop.at(0.0, self._sample, end_s / _CURVE_POINTS)
        if scenario.until_s is not None:
            self.loop.at(scenario.measured_from_s, self._begin_to_measure)
        began_s = time.perf_counter()
        self.loop.run(scenario.limit_s, _STEPS_MAX if scenario.is_as_shipped else inf)
        spent_s = time.perf_counter() - began_s
        for bolt in self.bolts:
            bolt.end(self.loop.now_s)
        return self._outcome(policy, oracle, spent_s)

    def _sample(self, at_s: float, step_s: float, _: Any) -> None:
        known = self.spouts[0].core.bolts
        windows = tuple(
            float(known[bolt.name].window) if bolt.name in known else 0.0 for bolt in self.bolts
        )
        self.curve.append((at_s, windows))
        self.acked.append(
            tuple(known[bolt.name].acked if bolt.name in known else 0 for bolt in self.bolts)
        )
        self.loop.at(at_s + step_s, self._sample, step_s)

    def _begin_to_measure(self, at_s: float, _: Any, __: Any) -> None:
        self._acked_before = [spout.core.counters.records_acked for spout in self.spouts]

    @property
    def _ended_at_s(self) -> float:
        """Return when all tuples were acked; the end of the input may be reported later."""
        if self.scenario.end_late_s and all(spout.is_done for spout in self.spouts):
            return max(spout.acked_at_s for spout in self.spouts)
        return self.loop.now_s

    def _outcome(self, policy: str, oracle: Oracle, spent_s: float) -> Outcome:
        scenario, done, now_s = self.scenario, self.work_done, self._ended_at_s
        ratios = sorted(ratio for spout in self.spouts for ratio in spout.ratios)
        use = measure.Use(self.machines, done.work, slots=scenario.slots)
        lag = max(spout.lag_max for spout in self.spouts)
        speed = scenario.speed_total / scenario.tuple_mean_s  # tuples a second
        tuples = sum(spout.core.counters.tuples_acked for spout in self.spouts)
        return Outcome(
            scenario=scenario.name,
            policy=policy,
            seed=self.seed,
            finished=scenario.until_s is not None or all(s.is_done for s in self.spouts),
            makespan_s=now_s,
            bound_s=oracle.bound_s,
            efficiency=self._efficiency(oracle, use),
            queued=done.waited_s / now_s / scenario.bolts,
            r50=measure.quantile(ratios, 0.50),
            r99=measure.quantile(ratios, 0.99),
            duplicates=done.repeated / max(1, done.first),
            wasted=use.total(done.wasted) / max(1e-9, use.total(done.work)),
            lag_records=lag,
            lag_s=lag / scenario.records_mean / speed,
            tuples=tuples,
            lost=self._lost(),
            converged=measure.converged(scenario.converge, use) if scenario.converge else None,
            jain=self._jain(),
            growth_idle=sum(spout.growth_idle for spout in self.spouts),
            curve=self.curve,
            acked=self.acked,
            in_use=use.shares(0.0, now_s, _CURVE_POINTS),
            greedy_s=greedy_s(scenario, self.seed, self.machines, self.workloads)
            if scenario.is_as_shipped
            else None,
            chunks_s=chunks_s(scenario, self.machines, self.workloads)
            if scenario.is_as_shipped
            else None,
            cost_us=1e6 * spent_s / max(1, tuples),
        )

    def _efficiency(self, oracle: Oracle, use: measure.Use) -> float:
        scenario, now_s = self.scenario, self._ended_at_s
        if scenario.until_s is not None:
            return use.share(scenario.measured_from_s, now_s)
        bound_s = oracle.lucky_s(self.drawn_s / self.asked_s if self.asked_s else 1.0)
        if all(spout.is_done for spout in self.spouts):
            return bound_s / now_s
        # The run was stopped: extrapolate as if the rest were as slow.
        done = sum(spout.core.counters.records_acked for spout in self.spouts)
        return bound_s / now_s * done / oracle.records

    def _lost(self) -> int:
        """Return the records done by the checkpoint but by no bolt, or that never came."""
        lost = 0
        for spout in self.spouts:
            done = self.work_done.records.get(spout.index, 0)
            lost += max(0, spout.core.checkpoint().records - done)
            if spout.is_done and spout.workload.records is not None:
                lost += spout.workload.records - spout.core.checkpoint().records
        return lost

    def _jain(self) -> float | None:
        if self._acked_before is None or len(self.spouts) == 1:
            return None
        now = [spout.core.counters.records_acked for spout in self.spouts]
        return measure.jain([b - a for a, b in zip(self._acked_before, now, strict=True)])


def simulate(scenario: Scenario, settings: Settings, seed: int, *, policy: str = "") -> Outcome:
    """Run ``scenario`` once.  The same arguments give the same outcome, bit for bit."""
    return Simulation(scenario, settings, seed).run(policy)


def windows_of(outcome: Outcome, bolt: int) -> list[float]:
    """Return the samples of a bolt's window over time."""
    return [windows[bolt] for _, windows in outcome.curve]
