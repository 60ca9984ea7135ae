"""The counts of a run, and figures derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.network import Sending
from flowctl_lab.simulation.scenario import Converge

_CONVERGED_SHARE = 0.95  # share of the full speed: the rest is noise
Interval: TypeAlias = tuple[int, float, float]  # bolt; its slot was taken from, until
_STEPS = 10  # a trailing window moves by a tenth of itself


class WorkDone:
    """Counts over all bolts."""

    def __init__(self) -> None:
        self.waited_s: float = 0.0  # in queues, all tuples together
        self.first: int = 0  # tuples processed at least once
        self.repeated: int = 0  # processings beyond that
        self.records: dict[int, int] = {}  # spout → records processed at least once
        self.work: list[Interval] = []  # all, including the wasted work:
        self.wasted: list[Interval] = []
        self._seen: set[tuple[int, int]] = set()

    def completed(self, bolt: int, sending: Sending, at_s: float) -> None:
        """Note that a bolt has finished a tuple."""
        interval = (bolt, sending.began_at_s, at_s)
        self.work.append(interval)
        spout, key = sending.spout, (sending.spout, sending.tuple_id)
        if key in self._seen:
            self.repeated += 1
            self.wasted.append(interval)
        else:
            self._seen.add(key)
            self.first += 1
            self.records[spout] = self.records.get(spout, 0) + sending.count

    def aborted(self, bolt: int, sending: Sending, at_s: float) -> None:
        """Note that a begun tuple will never be finished."""
        interval = (bolt, sending.began_at_s, at_s)
        self.work.append(interval)
        self.wasted.append(interval)


class Use:
    """The use of the capacity over time."""

    def __init__(
        self, machines: Sequence[Machine], work: Sequence[Interval], *, slots: int
    ) -> None:
        self._machines = machines
        self._work = work
        self._slots = slots

    def total(self, intervals: Sequence[Interval]) -> float:
        """Return the work in these intervals [s at speed 1]; pauses of bolts count as none."""
        total = 0.0
        for bolt, began_s, ended_s in intervals:
            profile = self._machines[bolt].profile
            total += profile.done(ended_s) - profile.done(began_s)
        return total

    def share(self, from_s: float, until_s: float) -> float:
        """Return the share of the capacity in this time that went into tuples."""
        return self.shares(from_s, until_s, 1)[0]

    def shares(self, from_s: float, until_s: float, steps: int) -> list[float]:
        """Return the :meth:`share` of each of ``steps`` equal pieces of the time."""
        used, there = self._sums(from_s, until_s, steps)
        return [u / t if t else 0.0 for u, t in zip(used, there, strict=True)]

    def _sums(self, from_s: float, until_s: float, steps: int) -> tuple[list[float], list[float]]:
        """Return the work done and the work possible in each step."""
        step_s = (until_s - from_s) / steps
        edges = [from_s + step * step_s for step in range(steps)] + [until_s]
        done = [[m.profile.done(edge) for edge in edges] for m in self._machines]
        used = [0.0] * steps
        for bolt, began_s, ended_s in self._work:
            if ended_s <= from_s or began_s >= until_s:
                continue
            profile, at_edges = self._machines[bolt].profile, done[bolt]
            begin, end = profile.done(max(began_s, from_s)), profile.done(min(ended_s, until_s))
            step = min(steps - 1, max(0, int((began_s - from_s) / step_s)))
            last = min(steps - 1, max(0, int((ended_s - from_s) / step_s)))
            for index in range(max(0, step - 1), min(steps, last + 2)):
                both = min(end, at_edges[index + 1]) - max(begin, at_edges[index])
                used[index] += max(0.0, both)
        there = [
            self._slots * sum(at[index + 1] - at[index] for at in done) for index in range(steps)
        ]
        return used, there

    def first_full_s(self, from_s: float, window_s: float, until_s: float) -> float | None:
        """Return when, after ``from_s``, a trailing window first has .95 of the capacity in use."""
        step_s = window_s / _STEPS
        steps = int((until_s - from_s) / step_s)
        if steps < _STEPS:
            return None
        used, there = self._sums(from_s, from_s + steps * step_s, steps)
        for stop in range(_STEPS, steps + 1):
            begin = stop - _STEPS
            if sum(used[begin:stop]) >= _CONVERGED_SHARE * sum(there[begin:stop]):
                return from_s + stop * step_s
        return None


_LOOKED_AT_S = 8.0  # from one change of the step scenario to the next


def converged(asked: Converge, use: Use) -> float:
    """Return the longest time from a change until the capacity is in use [scenario's unit]."""
    worst_s = 0.0
    for change_s in asked.changes_s:
        until_s = change_s + _LOOKED_AT_S
        full_s = use.first_full_s(change_s, asked.window_s, until_s)
        worst_s = max(worst_s, (full_s or until_s) - change_s)
    return worst_s / asked.unit_s


def quantile(rising: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the sorted values lie; 0 without values."""
    return rising[min(len(rising) - 1, int(share * len(rising)))] if rising else 0.0


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 all equal, 1/n one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
