"""One run of a scenario on real bolts, and what it showed."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import msgspec

from flowctl.config import Settings
from flowctl.core.events import BoltAdded, BoltRemoved, FlowEvent, TupleMoved, WindowChanged
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.ports import Bolts
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.oracle import Oracle
from flowctl_lab.simulation.policies import settings_for
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.workload import workload_of
from flowctl_lab.simulation.yardsticks import greedy_s
from tests.benchmarks.control_child import Child
from tests.benchmarks.control_faults import Faults
from tests.benchmarks.control_net import BehindNetwork, is_needed
from tests.benchmarks.control_sink import SinkSpec
from tests.benchmarks.control_trace import TraceProducer, TraceWorker
from tests.benchmarks.parts import Stopwatch

# Makes the bolts for a process: (process, count, slots).
MakeBolts = Callable[[TraceWorker, int, int], Bolts]

_BACKLOG_GONE_S = 0.4  # after a burst of 1.2 times the capacity: its rest, 0.2 s, and as much again


class RealOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run on real bolts showed.  ``bound_s``: the oracle's makespan, or greedy's for a job
    as shipped, which the scheduler can't beat by much; ``efficiency`` compares with that.

    ``r50``: median over samples of a bolt's median RTT over its time without load; ``held``: mean
    tuples in flight per bolt; ``moved``: share of the tuples that were sent again.
    """

    efficiency: float
    makespan_s: float
    bound_s: float
    r50: float
    held: float
    moved: float
    recovered_s: float
    growth_idle: int


class _BrokenOffError(Exception):
    """The run takes far longer than any policy that works needs."""


class _Watch(Stopwatch):
    """Looks at a run; calls ``on_all_acked`` as soon as all ``records`` are acked.

    Raises :class:`_BrokenOffError` into the run when it takes longer than ``limit_s``, which
    the start of Spark's workers is a part of.
    """

    def __init__(self, scenario: Scenario, on_all_acked: Callable[[], None]) -> None:
        super().__init__()
        self.records = 0
        self._until_s = time.monotonic() + scenario.limit_s
        self.ended_s: float | None = None
        self.snapshots: list[Snapshot] = []
        self.events: list[FlowEvent] = []
        self._bolts = scenario.bolts
        self._on_all_acked = on_all_acked
        self._joined: set[str] = set()

    def is_ready(self) -> bool:
        """All bolts are there, and the first tuple is through."""
        is_through = bool(self.samples) and self.samples[-1][1] > 0
        return is_through and len(self._joined) == self._bolts

    def update(self, snapshot: Snapshot) -> None:
        super().update(snapshot)
        if self.ended_s is not None:
            return
        if snapshot.records_acked == self.records:
            self.ended_s = time.monotonic()
            self._on_all_acked()
        elif time.monotonic() > self._until_s:
            raise _BrokenOffError
        else:
            self.snapshots.append(snapshot)

    def event(self, event: FlowEvent) -> None:
        super().event(event)
        self.events.append(event)
        if isinstance(event, BoltAdded):
            self._joined.add(event.bolt)


def run_real(scenario: Scenario, seed: int, make_bolts: MakeBolts) -> RealOutcome:
    """Run ``scenario`` in wall time; needs a free slot of ``make_bolts`` per bolt."""
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as folder:
        place = Path(folder)
        sink = None
        if scenario.sink is not None:
            sink = Child("tests.benchmarks.control_sink", SinkSpec(scenario.sink, folder))
        try:
            return _run(scenario, seed, make_bolts, place, sink.port if sink else None)
        finally:
            if sink is not None:
                sink.close()


def _run(
    scenario: Scenario, seed: int, make_bolts: MakeBolts, place: Path, sink_port: int | None
) -> RealOutcome:
    machines = [Machine(scenario, seed, bolt) for bolt in range(scenario.bolts)]
    faults = Faults(machines, place)

    def all_acked() -> None:
        (place / "over").touch()
        faults.end()

    watch = _Watch(scenario, all_acked)
    producer = TraceProducer(scenario, seed, place, watch.is_ready)
    watch.records = producer.records
    worker = TraceWorker(scenario, seed, str(place), sink_port)
    bolts = make_bolts(worker, scenario.bolts, scenario.slots)
    if is_needed(scenario):
        bolts = BehindNetwork(bolts, scenario, seed)
    spout = FlowControlSpout(
        name=f"control-{scenario.name}",
        producer=producer,
        bolts=bolts,
        checkpoint=MemoryCheckpointStore(),
        settings=settings_for(scenario, Settings()),
    )
    faults.start()
    try:
        spout.run(view=watch)
    except _BrokenOffError:
        if producer.start_s is None:
            raise
    finally:
        all_acked()  # also after an error: nobody stays frozen
    workloads = [workload_of(scenario, seed, 0)]
    if scenario.is_as_shipped:
        bound_s = greedy_s(scenario, seed, machines, workloads)
    else:
        bound_s = Oracle(scenario, seed, machines, workloads).bound_s
    return _outcome(scenario, producer.start_s, watch, bound_s)


def _outcome(
    scenario: Scenario, began_s: float | None, watch: _Watch, bound_s: float
) -> RealOutcome:
    assert began_s is not None
    ended_s = watch.ended_s if watch.ended_s is not None else watch.samples[-1][0]
    # Broken off: as if the rest went on as slowly, as in the simulator.
    makespan_s = (ended_s - began_s) * watch.records / max(1, watch.samples[-1][2])
    bolts = [
        bolt
        for (at_s, _, _), snapshot in zip(watch.samples, watch.snapshots, strict=False)
        if at_s > began_s
        for bolt in snapshot.bolts
        if bolt.up
    ]
    ratios = [
        bolt.ack_rtt_p50_s / (_alone_s(scenario, bolt.service_p50_s) + scenario.no_load_net_s)
        for bolt in bolts
        if bolt.ack_rtt_p50_s is not None and bolt.service_p50_s is not None
    ]
    moved = sum(isinstance(event, TupleMoved) for event in watch.events)
    return RealOutcome(
        efficiency=bound_s / makespan_s,
        makespan_s=makespan_s,
        bound_s=bound_s,
        r50=median(ratios) if ratios else math.nan,
        held=fmean(bolt.in_flight for bolt in bolts) if bolts else math.nan,
        moved=moved / watch.samples[-1][1],
        recovered_s=_recovered_s(scenario, began_s, watch.events),
        growth_idle=_growth_idle(scenario, began_s, watch.events),
    )


def _alone_s(scenario: Scenario, service_s: float) -> float:
    """The time at the bolt, had nobody been before it: a shared sink's queue is in the service."""
    if scenario.sink is None:
        return service_s
    return scenario.tuple_mean_s + scenario.records_mean * scenario.sink.record_s


def _recovered_s(scenario: Scenario, began_s: float, events: list[FlowEvent]) -> float:
    """From a death until the last tuple that the bolt held is sent again; the longest; 0: none.

    As many as its end moved: what is taken back from it later, alive again, is another thing.
    """
    longest_s = 0.0
    for death in scenario.deaths:
        died_s, bolt = began_s + death.at_s, f"b{death.bolt + 1}"
        later = [event for event in events if event.at_s >= died_s]
        held = next((e.moved for e in later if isinstance(e, BoltRemoved) and e.bolt == bolt), 0)
        moves = [e for e in later if isinstance(e, TupleMoved) and e.moved_from == bolt]
        longest_s = max([longest_s, *(e.at_s - died_s for e in moves[:held])])
    return longest_s


def _growth_idle(scenario: Scenario, began_s: float, events: list[FlowEvent]) -> int:
    """Tuples by which windows grew between two bursts, when nobody used them."""
    bursts = scenario.bursts
    if bursts is None:
        return 0
    grown = 0
    for event in events:
        if isinstance(event, WindowChanged) and event.after > event.before:
            in_cycle_s = (event.at_s - began_s) % (bursts.for_s + bursts.gap_s)
            if event.at_s > began_s and in_cycle_s > bursts.for_s + _BACKLOG_GONE_S:
                grown += event.after - event.before
    return grown
