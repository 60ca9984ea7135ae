"""The makespans of other schedulers for the same job: list scheduling, and 240 chunks.

Both have the run's data, bolts, pauses, deaths and losses: where a bolt loses the third tuple
that reaches it in the run, it loses their third chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import product
from math import inf
from typing import NamedTuple

from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.scenario import HEARTBEAT_S, Scenario
from flowctl_lab.simulation.workload import RecordWorkload, Workload, workload_of

# The ratio of successive sizes that greedy tries, and the most chunks that it makes of a job.
_SIZE_STEP = 1.4
_CHUNKS_MAX = 4_000
# Seconds until an unreported death is noticed: three heartbeats and one more.
_SEEN_S = 1.0
# Partitions of a Spark user who follows the advice of several times the number of cores.
CHUNKS = 240


class _Slot(NamedTuple):
    """A slot of a bolt, and when it is free; sorts by that time."""

    free_s: float
    order: int
    bolt: int
    is_new: bool = True  # it has not run anything so far


class _Piece(NamedTuple):
    """Records of one spout that were lost with a bolt at ``at_s``."""

    at_s: float
    spout: int
    first: int
    records: int


class _Team:
    """The slots of all bolts; slots of the same speed are equal."""

    def __init__(self, scenario: Scenario) -> None:
        self._slots: dict[float, list[_Slot]] = {}
        self._mean_speed = scenario.speed_total / (scenario.bolts * scenario.slots)
        # Like the core, give each bolt a chunk before any gets a second one.
        for order, (_, bolt) in enumerate(product(range(scenario.slots), range(scenario.bolts))):
            at_s = scenario.connects_at_s(bolt) + scenario.one_way_s + scenario.jitter_s / 2
            slot = _Slot(at_s, order, bolt)
            self._slots.setdefault(scenario.speed_of(bolt), []).append(slot)
        for slots in self._slots.values():
            heapify(slots)

    def take(self, ready_s: float, expected_s: float) -> _Slot | None:
        """Remove and return the slot that would first finish ``expected_s``; None without slots."""
        speeds = [speed for speed, slots in self._slots.items() if slots]
        if not speeds:
            return None
        best = min(speeds, key=lambda speed: self._done_s(speed, ready_s, expected_s))
        return heappop(self._slots[best])

    def _done_s(self, speed: float, ready_s: float, expected_s: float) -> tuple[float, int]:
        """Return when the first slot of ``speed`` would be done; ties go to the lowest number."""
        first = self._slots[speed][0]
        known = self._mean_speed if first.is_new else speed
        return max(ready_s, first.free_s) + expected_s / known, first.order

    def put(self, speed: float, slot: _Slot) -> None:
        """Put a slot back."""
        heappush(self._slots[speed], slot)


class _ListSchedule:
    """A run of list scheduling; ``expects``: it learns speeds and begins with one record."""

    def __init__(
        self,
        scenario: Scenario,
        machines: Sequence[Machine],
        workloads: Sequence[Workload],
        *,
        size: int,
        expects: bool,
    ) -> None:
        self._scenario, self._machines, self._workloads = scenario, machines, workloads
        self._size, self._expects = size, expects
        self._chances = [machine.chance() for machine in machines if scenario.loss]
        for chance in self._chances:
            chance.random()  # for its heartbeats
        self._mean_s = scenario.tuple_s + scenario.record_s * size if expects else 0.0
        self._trip_s = scenario.round_trip_s + scenario.jitter_s
        self._team = _Team(scenario)
        self._again: deque[_Piece] = deque()
        self._last_s = 0.0

    def run_s(self) -> float:
        """Return the makespan; infinity if all bolts die first."""
        scenario = self._scenario
        nexts = [0] * len(self._workloads)
        open_spouts = deque(range(len(nexts)))
        while open_spouts or self._again:
            if self._again and (not open_spouts or self._again[0].at_s <= self._last_s):
                lost = self._again.popleft()
                slot = self._team.take(lost.at_s, self._mean_s)
                is_run = slot is not None and self._run(slot, lost)
            else:
                spout = open_spouts.popleft()
                joined_s, first = scenario.joins_s[spout], nexts[spout]
                slot = self._team.take(joined_s, self._mean_s)
                most = 1 if slot is not None and slot.is_new and self._expects else self._size
                records = self._workloads[spout].records or 0
                count = min(most, records - first)
                nexts[spout] = first + count
                if nexts[spout] < records:
                    open_spouts.append(spout)
                is_run = slot is not None and self._run(slot, _Piece(joined_s, spout, first, count))
            if not is_run:
                return inf
        return self._last_s + scenario.one_way_s + scenario.jitter_s / 2

    def _run(self, slot: _Slot, piece: _Piece) -> bool:
        speed = self._scenario.speed_of(slot.bolt)
        machine = self._machines[slot.bolt]
        work_s = self._workloads[piece.spout].cost_s(piece.first, piece.records, 1)
        begin_s = max(slot.free_s, piece.at_s)
        if machine.loss and self._chances[slot.bolt].random() < machine.loss:
            # The next heartbeat reports that nothing is in progress there.
            seen_s = begin_s + HEARTBEAT_S + self._trip_s
            self._team.put(speed, slot._replace(free_s=seen_s))
            self._again.append(piece._replace(at_s=seen_s))
            return True
        done_s = machine.profile.finish(begin_s, work_s)
        for death in machine.deaths:
            back_s = inf if death.back_at_s is None else death.back_at_s
            if begin_s < back_s and death.at_s < done_s:
                if back_s < inf:
                    self._team.put(speed, slot._replace(free_s=back_s))
                seen_s = _SEEN_S if death.seen_after_s is None else death.seen_after_s
                self._again.append(piece._replace(at_s=max(begin_s, death.at_s + seen_s)))
                return True
        # The first chunk's lesson is known once it is acked; from then on the next chunk arrives in
        # time.
        trip_s = self._trip_s if slot.is_new or not self._expects else 0.0
        self._team.put(speed, slot._replace(free_s=done_s + trip_s, is_new=False))
        self._last_s = max(self._last_s, done_s)
        return done_s < inf


def chunks_s(
    scenario: Scenario,
    machines: Sequence[Machine],
    workloads: Sequence[Workload],
    chunks: int = CHUNKS,
) -> float:
    """Return the makespan with equal chunks of each spout's job, each to the first free slot."""
    size = -(-max(workload.records or 0 for workload in workloads) // chunks)
    return _ListSchedule(scenario, machines, workloads, size=size, expects=False).run_s()


def best_fixed_s(scenario: Scenario, seed: int) -> float:
    """Return the makespan with the best fixed number of records per call on the run's data."""
    machines = [Machine(scenario, seed, bolt) for bolt in range(scenario.bolts)]
    workloads = [workload_of(scenario, seed, spout) for spout in range(len(scenario.joins_s))]
    return min(
        _ListSchedule(scenario, machines, workloads, size=size, expects=False).run_s()
        for size in _sizes(scenario)
    )


def greedy_s(
    scenario: Scenario, seed: int, machines: Sequence[Machine], workloads: Sequence[Workload]
) -> float:
    """Return the makespan of list scheduling with the core's information.

    It knows nothing about a bolt at first, so each begins with one record.  From its ack on it
    knows the cost of a call and of a mean record, and each bolt's speed, but not the costs of
    single records or the future.  The records of a chunk are the best fixed number, found on other
    data, pauses and losses of the same kind.  Each chunk goes to the bolt that should be done with
    it first.
    """
    other = seed + 1_000_003
    others = [Machine(scenario, other, bolt) for bolt in range(scenario.bolts)]
    data = [RecordWorkload(scenario, other, spout) for spout in range(len(workloads))]
    size = min(
        _sizes(scenario),
        key=lambda size: _ListSchedule(scenario, others, data, size=size, expects=True).run_s(),
    )
    return _ListSchedule(scenario, machines, workloads, size=size, expects=True).run_s()


def _sizes(scenario: Scenario) -> list[int]:
    total = scenario.records * len(scenario.joins_s)
    least = max(1, total // _CHUNKS_MAX)
    most = max(least, -(-total // (scenario.bolts * scenario.slots)))
    sizes = [least]
    while sizes[-1] < most:
        sizes.append(min(most, max(sizes[-1] + 1, int(sizes[-1] * _SIZE_STEP))))
    return sizes
