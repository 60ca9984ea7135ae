"""The fate of each bolt in a run: speeds, pauses, deaths.  Known to the oracle."""

from __future__ import annotations

import math
from random import Random

from flowctl_lab.simulation.profile import INFINITE_S, Interval, Profile, Spells
from flowctl_lab.simulation.scenario import Death, Scenario

_DRIFT_STEPS = 1_000  # steps of a drift, so that none changes a service time by 1 %


class Machine:
    """One bolt's fate, drawn before the run begins; the same for every policy."""

    def __init__(self, scenario: Scenario, seed: int, bolt: int) -> None:
        self.frozen: Spells = Spells(_frozen(scenario, seed, bolt))
        self.deaths: list[Death] = [d for d in scenario.deaths if d.bolt == bolt]
        self.loss: float = (
            scenario.loss.share if scenario.loss and bolt in scenario.loss.bolts else 0.0
        )
        self.profile: Profile = self._profile(scenario, bolt)
        self._chance = f"bolt {seed} {bolt}"

    def chance(self) -> Random:
        """Return the bolt's random numbers, the same ones at each call.

        They give the start of its heartbeats, then decide for each tuple whether it is lost.
        """
        return Random(self._chance)

    def _profile(self, scenario: Scenario, bolt: int) -> Profile:
        dead = [(d.at_s, INFINITE_S if d.back_at_s is None else d.back_at_s) for d in self.deaths]
        still = [*self.frozen, *dead]
        slow = [s for s in scenario.slow if bolt in s.bolts]
        times = [t for spell in still for t in spell]
        times += [t for s in slow for t in (s.from_s, s.until_s)]
        if scenario.drift:
            step_s = scenario.drift.over_s / _DRIFT_STEPS
            times += [step * step_s for step in range(_DRIFT_STEPS + 1)]
        stopped = Spells(still)

        def speed(at_s: float) -> float:
            if stopped and stopped.over_at(at_s) > at_s:
                return 0.0
            factor = math.prod(s.speed for s in slow if s.from_s <= at_s < s.until_s)
            if scenario.drift:
                over = min(1.0, at_s / scenario.drift.over_s)
                factor /= 1 + (scenario.drift.cost - 1) * over
            return scenario.speed_of(bolt) * factor

        return Profile(times, speed)


def _frozen(scenario: Scenario, seed: int, bolt: int) -> list[Interval]:
    spells: list[Interval] = []
    for freeze in scenario.freezes:
        begin = freeze.from_s
        while freeze.bolt == bolt and begin < scenario.limit_s:
            spells.append((begin, begin + freeze.for_s))
            begin += freeze.every_s
    if scenario.pauses:
        rng = Random(f"pauses {seed} {bolt}")
        begin = rng.expovariate(1 / scenario.pauses.gap_s)
        while begin < scenario.limit_s:
            spells.append((begin, begin + scenario.pauses.for_s))
            begin += scenario.pauses.for_s + rng.expovariate(1 / scenario.pauses.gap_s)
    return spells
