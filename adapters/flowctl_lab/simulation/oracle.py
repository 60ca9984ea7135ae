"""The clairvoyant lower bound of the makespan: no driver can be faster, whatever it knows.

It is the smallest T by which the bolts' available capacity, from each arrival on, reaches the work
that comes from then on, and the sink's likewise; plus one round trip.  If a scenario asks for "the
best fixed …", that best is found here, with the same data and the whole future known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from flowctl_lab.simulation import scenario as declared
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.profile import Profile
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.sink import sink_profile
from flowctl_lab.simulation.workload import RecordWorkload, Workload

_BISECTIONS = 60  # enough for the last bit of a time in seconds


def arrivals_s(scenario: Scenario) -> list[float] | None:
    """Return when each tuple arrives; None if all arrive at 0."""
    bursts = scenario.bursts
    if bursts is None:
        return None
    per_burst = int(bursts.rate * bursts.for_s)
    times = []
    for index in range(scenario.tuples):
        burst, place = divmod(index, per_burst)
        times.append(burst * (bursts.for_s + bursts.gap_s) + place / bursts.rate)
    return times


class Oracle:
    """``bound_s`` is the shortest possible makespan, ``records`` the number of records."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        machines: Sequence[Machine],
        workloads: Sequence[Workload],
    ) -> None:
        del seed  # machines and workloads have everything that is drawn from the seed
        self._scenario, self._machines, self._workloads = scenario, machines, workloads
        self.records: int = sum(workload.records or 0 for workload in workloads)
        if scenario.until_s is not None:
            self.bound_s: float = scenario.until_s
        elif scenario.free_size:
            self.bound_s = _best_size_s(scenario, workloads[0])
        elif scenario.sink is not None and scenario.sink.knee is not None:
            self.bound_s = best_cap(scenario, workloads[0])[1]
        else:
            self.bound_s = self.fluid_s(1.0)

    def fluid_s(self, luck: float) -> float:
        """Return the bound; for a job as shipped, with all work ``luck`` times as long by noise."""
        scenario = self._scenario
        if scenario.is_as_shipped:
            bolts_s = _as_shipped_s(scenario, self._machines, self._workloads, luck)
        else:
            bolts_s = _fluid_s(scenario, self._machines, self._workloads[0])
        sink_s = _sink_s(scenario.sink, self.records) if scenario.sink else 0.0
        return max(bolts_s, sink_s) + scenario.round_trip_s

    def lucky_s(self, luck: float) -> float:
        """Return ``bound_s`` with a run's luck (work done by work asked for), if it is as shipped.

        The catalogue's tuples are nearly always the scenario's, whose noise the bound includes.
        """
        return self.fluid_s(luck) if self._scenario.is_as_shipped else self.bound_s


def _as_shipped_s(
    scenario: Scenario,
    machines: Sequence[Machine],
    workloads: Sequence[Workload],
    luck: float,
) -> float:
    """Return when all bolts would have done all records, if just one call had a fixed cost."""
    work = sum(w.plain_s(0, scenario.records) - scenario.tuple_s for w in workloads)

    def done(at_s: float) -> float:
        return scenario.slots * sum(machine.profile.done(at_s) for machine in machines)

    fastest = max(scenario.speed_of(bolt) for bolt in range(scenario.bolts))
    dearest_s = max(w.dearest_s for w in workloads if isinstance(w, RecordWorkload)) / fastest
    return max(_when(done, luck * work, scenario.limit_s), dearest_s) + scenario.tuple_s / fastest


def _fluid_s(scenario: Scenario, machines: Sequence[Machine], workload: Workload) -> float:
    """Return when all bolts, always busy, have finished; a slot is taken during the sink too."""
    in_sink_s = scenario.sink.record_s if scenario.sink else 0.0
    blocks = [workload.block(b) for b in range(workload.blocks)]
    costs = [workload.cost_s(*block, 1) + in_sink_s * block[1] for block in blocks]

    def done(at_s: float) -> float:
        return scenario.slots * sum(machine.profile.done(at_s) for machine in machines)

    arrivals = arrivals_s(scenario)
    if arrivals is None:
        return _when(done, sum(costs), scenario.limit_s)
    left = sum(costs)
    latest_s = 0.0
    for begin_s, work in _bursts(arrivals, costs):
        latest_s = max(latest_s, _when(done, done(begin_s) + left, scenario.limit_s))
        left -= work
    return max(latest_s, arrivals[-1])


def _bursts(arrivals: Sequence[float], costs: Sequence[float]) -> list[tuple[float, float]]:
    """Return the beginnings of bursts of closely following tuples, and their work."""
    runs: list[tuple[float, float]] = []
    before_s = float("-inf")
    for at_s, cost in zip(arrivals, costs, strict=True):
        if at_s - before_s > 0.1:  # far more than between two tuples of a burst
            runs.append((at_s, 0.0))
        runs[-1] = (runs[-1][0], runs[-1][1] + cost)
        before_s = at_s
    return runs


def _when(done: Callable[[float], float], work: float, limit_s: float) -> float:
    low_s, high_s = 0.0, limit_s
    for _ in range(_BISECTIONS):
        middle_s = (low_s + high_s) / 2
        if done(middle_s) < work:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _sink_s(sink: declared.Sink, records: int) -> float:
    return sink_profile(sink).finish(0.0, records * sink.record_s / sink.slots)


def best_cap(scenario: Scenario, workload: Workload) -> tuple[int, float]:
    """Return the best fixed number of all tuples in flight, and its makespan."""
    caps = range(1, scenario.bolts * scenario.slots + 1)
    return min(((cap, _capped_s(scenario, workload, cap)) for cap in caps), key=lambda c: c[1])


def _capped_s(scenario: Scenario, workload: Workload, cap: int) -> float:
    """Return the makespan with ``cap`` tuples in flight, each at another bolt."""
    sink = scenario.sink
    assert sink is not None
    assert sink.knee is not None
    profile: Profile = sink_profile(sink)
    enters: list[tuple[float, int]] = []  # on the way into the sink
    leaves: list[float] = []  # inside
    block, end_s = 0, 0.0
    while block < min(cap, workload.blocks):
        first, count = workload.block(block)
        heappush(enters, (scenario.one_way_s + workload.cost_s(first, count, 1), count))
        block += 1
    while enters or leaves:
        if not leaves or (enters and enters[0][0] < leaves[0]):
            at_s, count = heappop(enters)
            factor = 1 + sink.slope * max(0, len(leaves) + 1 - sink.knee)
            heappush(leaves, profile.finish(at_s, count * sink.record_s * factor))
            continue
        end_s = heappop(leaves)
        if block < workload.blocks:
            first, count = workload.block(block)
            block += 1
            at_s = end_s + scenario.round_trip_s + workload.cost_s(first, count, 1)
            heappush(enters, (at_s, count))
    return end_s + scenario.one_way_s


def _best_size_s(scenario: Scenario, workload: Workload) -> float:
    """Return the makespan with the best fixed number of records per tuple."""
    assert workload.records is not None
    most = workload.records // scenario.bolts
    sizes = (int(most / parts) + 1 for parts in range(1, 400))
    return min(_sized_s(scenario, workload, size) for size in sizes) + scenario.round_trip_s


def _sized_s(scenario: Scenario, workload: Workload, size: int) -> float:
    """Return the makespan with ``size`` records per tuple, each to the first free bolt."""
    assert workload.records is not None
    free = [0.0] * (scenario.bolts * scenario.slots)
    heapify(free)
    for first in range(0, workload.records, size):
        count = min(size, workload.records - first)
        heapreplace(free, free[0] + workload.cost_s(first, count, 1))
    return max(free)
