"""The gates of a scenario, and whether they were met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final

import msgspec

from flowctl_lab.simulation.engine import Outcome
from flowctl_lab.simulation.scenario import Gate, Metric, Scenario


def _or_worst(value: float | None, worst: float) -> float:
    return worst if value is None else value


_VALUES: Final = MappingProxyType[Metric, Callable[[Outcome], float]](
    {
        "E": lambda o: o.efficiency,
        "min_E": lambda o: o.efficiency,
        "q": lambda o: o.queued,
        "R50": lambda o: o.r50,
        "R99": lambda o: o.r99,
        "dup": lambda o: o.duplicates,
        "wasted": lambda o: o.wasted,
        "lag_s": lambda o: o.lag_s,
        "lost": lambda o: float(o.lost),
        "converged": lambda o: _or_worst(o.converged, float("inf")),
        "jain": lambda o: _or_worst(o.jain, 0.0),
        "growth": lambda o: float(o.growth_idle),
    }
)


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a gate: ``value`` is of the worst seed, or the mean; ``seed`` is the worst."""

    gate: Gate
    value: float
    is_met: bool
    seed: int

    def __str__(self) -> str:
        sign, bound = _bound(self.gate)
        text = f"{self.gate.metric} {self.value:.3g} {sign} {bound:g}"
        return text if self.is_met else f"{text} MISSED"


def _bound(gate: Gate) -> tuple[str, float]:
    if gate.at_least is not None:
        return "≥", gate.at_least
    assert gate.at_most is not None
    return "≤", gate.at_most


def judge(scenario: Scenario, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Compare the outcomes of one policy, one per seed, with the scenario's gates."""
    return [_judge(gate, outcomes) for gate in scenario.gates]


def _judge(gate: Gate, outcomes: Sequence[Outcome]) -> Verdict:
    value_of = _VALUES[gate.metric]
    worst = (max if gate.at_least is None else min)(outcomes, key=value_of)
    value = fmean(map(value_of, outcomes)) if gate.of_mean else value_of(worst)
    finished = all(outcome.finished for outcome in outcomes)
    sign, bound = _bound(gate)
    is_met = finished and (value >= bound if sign == "≥" else value <= bound)
    return Verdict(gate, value, is_met, worst.seed)
