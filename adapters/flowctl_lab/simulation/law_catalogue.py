"""Realistic targets, by name, and how well a law of pacing uses each.

``flowctl_lab.simulation.law_report`` prints the table: flowctl's law beside laws of others, on the
same targets, gates and leases.  Goodput is a share of the best possible at each moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from flowctl.core.pacing.law import TargetLaw
from flowctl.core.pacing.leader import Law
from flowctl_lab.simulation.limited_targets import Bucket, LimitedTarget, Over, Window
from flowctl_lab.simulation.other_laws import Aimd, Bbr, Gradient2, Vegas
from flowctl_lab.simulation.targets import World

LAWS: Final[Mapping[str, Callable[..., Law]]] = {
    "flowctl": TargetLaw,
    "Gradient2": Gradient2,
    "BBR": Bbr,
    "AIMD": Aimd,
    "Vegas": Vegas,
}
SEEDS: Final = (1, 2, 3)
_SETTLED_S = 20.0  # refusals at the start count separately
_STEP_S = 0.25  # step of the integral of the best goodput

Draw = Callable[[random.Random, float], float]


class Figures(NamedTuple):
    """The figures of a run.

    ``goodput`` is each span's, as a share of the best.  ``refused`` is the share of all calls,
    ``later`` of the calls after 20 s.  ``slower`` is the mean latency after 20 s over the latency
    without load.
    """

    goodput: tuple[float, ...]
    refused: float
    later: float
    slower: float


@dataclass(frozen=True)
class Setting:
    """One target and its callers.

    ``best`` is the best possible goodput at a moment [cost/s]; goodput is measured over ``spans``.
    ``workers`` has the times and numbers of arriving workers, ``cost`` the cost of a call.
    ``gates`` are the minimum of each span's goodput, and the maxima of ``later`` and ``slower``.
    """

    what: str
    target: Callable[[int], LimitedTarget]
    best: Over
    spans: tuple[tuple[float, float], ...]
    workers: tuple[tuple[float, int], ...] = ((0.0, 32),)
    callers: int = 1
    cost: Callable[[random.Random], float] = lambda chance: 1.0
    gates: tuple[tuple[float, ...], float, float] = field(default=((), inf, inf))


def measured(setting: Setting, law: Callable[..., Law], seed: int) -> Figures:
    """Run the setting with a law and a seed; return the figures."""
    target = setting.target(seed)
    world = World(target, seed=seed, law=law)
    chance = random.Random(seed)
    for at_s, workers in setting.workers:
        world.clock.run(at_s)
        world.add(workers, callers=setting.callers, cost=lambda: setting.cost(chance))
    until_s = setting.spans[-1][1]
    world.clock.run(until_s)
    later = [slower for at_s, slower in target.slowness if at_s >= _SETTLED_S]
    return Figures(
        tuple(world.goodput(*span) / _mean(setting.best, *span) for span in setting.spans),
        world.refused(0.0, until_s),
        world.refused(_SETTLED_S, until_s),
        sum(later) / max(1, len(later)),
    )


def _mean(best: Over, from_s: float, until_s: float) -> float:
    steps = int((until_s - from_s) / _STEP_S)
    return sum(best(from_s + (step + 0.5) * _STEP_S) for step in range(steps)) / steps


def _spread(mean_s: float) -> Draw:
    """Return a distribution of calls that differ a little, as with a real service."""
    return lambda chance, now_s: mean_s * chance.uniform(0.7, 1.3)


def _lognormal(mean_s: float) -> Draw:
    return lambda chance, now_s: mean_s * chance.lognormvariate(-0.5, 1.0)


def _two_kinds(chance: random.Random, now_s: float) -> float:
    return 0.5 if chance.random() < 0.1 else 0.05


def _until(before: float, at_s: float, after: float, back_s: float = inf) -> Over:
    return lambda now_s: after if at_s <= now_s < back_s else before


def _drift(before: float, from_s: float, until_s: float, after: float) -> Over:
    def at(now_s: float) -> float:
        share = min(1.0, max(0.0, (now_s - from_s) / (until_s - from_s)))
        return before + share * (after - before)

    return at


def _bursts(now_s: float) -> float:
    return 7.0 if now_s % 10 >= 5 else 1.0


def _at(draw: Draw, takes: Over) -> Callable[[int], LimitedTarget]:
    return lambda seed: LimitedTarget(draw=draw, takes_at=takes, seed=seed)


def _rate(per_s: Over, burst: float, draw: Draw) -> Callable[[int], LimitedTarget]:
    return lambda seed: LimitedTarget(draw=draw, quotas=(Bucket(per_s, burst),), seed=seed)


def _llm(seed: int, *, tells: float) -> LimitedTarget:
    quotas = Window(600, 60.0), Window(90_000, 60.0, by_cost=True)
    return LimitedTarget(draw=_spread(0.5), quotas=quotas, tells=tells, seed=seed)


def _knee(knee: Over, *, collapses: bool = False) -> Callable[[int], LimitedTarget]:
    return lambda seed: LimitedTarget(
        draw=_spread(0.1), knee_at=knee, collapses=collapses, seed=seed
    )


def _constant(value: float) -> Over:
    return lambda now_s: value


_GOOD = 0.95
_FEW = 0.02
SETTINGS: Final[dict[str, Setting]] = {
    "rate with short calls": Setting(
        "60 a second, calls of 50 ms",
        _rate(_constant(60.0), 60.0, _spread(0.05)),
        _constant(60.0),
        ((20, 120),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "rate with long calls": Setting(
        "10 a second, calls of 1 s",
        _rate(_constant(10.0), 10.0, _spread(1.0)),
        _constant(10.0),
        ((20, 180),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "bucket": Setting(
        "100 tokens, 10 a second flow in, calls of .2 s",
        _rate(_constant(10.0), 100.0, _spread(0.2)),
        _constant(10.0),
        ((20, 180),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "window": Setting(
        "60 a minute, all at once if they come so, calls of .2 s",
        lambda seed: LimitedTarget(
            draw=_spread(0.2), quotas=(Window(60, 60.0, since_s=7.0 * seed),), seed=seed
        ),
        _constant(1.0),
        ((53, 593),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "window of a second": Setting(
        "50 in each second, calls of .1 s",
        lambda seed: LimitedTarget(draw=_spread(0.1), quotas=(Window(50, 1.0),), seed=seed),
        _constant(50.0),
        ((20, 120),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "tokens and requests": Setting(
        "600 calls and 90,000 tokens a minute, some 200 tokens a call, calls of .5 s",
        lambda seed: _llm(seed, tells=0.0),
        _constant(1500.0),
        ((60, 360),),
        cost=lambda chance: chance.uniform(100, 300),
        gates=((_GOOD,), _FEW, inf),
    ),
    "a header tells": Setting(
        "600 calls and 90,000 tokens a minute, as above; answers tell what is left until when",
        lambda seed: _llm(seed, tells=1.0),
        _constant(1500.0),
        ((0, 360),),
        cost=lambda chance: chance.uniform(100, 300),
        gates=((_GOOD,), _FEW, inf),
    ),
    "a header lies": Setting(
        "the same; answers tell three times what is left",
        lambda seed: _llm(seed, tells=3.0),
        _constant(1500.0),
        ((60, 360),),
        cost=lambda chance: chance.uniform(100, 300),
        gates=((_GOOD,), _FEW, inf),
    ),
    "by the hour": Setting(
        "60 a second, 20 from 200 to 400 s, then 60: an hour is 18 times as long",
        _rate(_until(60.0, 200.0, 20.0, 400.0), 20.0, _spread(0.1)),
        _until(60.0, 200.0, 20.0, 400.0),
        ((20, 200), (200, 400), (400, 600)),
        gates=((_GOOD, _GOOD, _GOOD), _FEW, inf),
    ),
    "knee drifts": Setting(
        "slower above 20, which becomes 6 from 30 to 90 s; nothing is refused",
        _knee(_drift(20, 30, 90, 6)),
        lambda now_s: _drift(20, 30, 90, 6)(now_s) / 0.1,
        ((20, 150),),
        gates=((0.9,), inf, 2.0),
    ),
    "collapse drifts": Setting(
        "less is done above 20, which becomes 6 from 30 to 90 s",
        _knee(_drift(20, 30, 90, 6), collapses=True),
        lambda now_s: _drift(20, 30, 90, 6)(now_s) / 0.1,
        ((20, 90), (90, 150)),
        gates=((0.9, 0.9), inf, 2.0),
    ),
    "collapse at once": Setting(
        "less is done above 20, from 30 s on above 6",
        _knee(_until(20, 30, 6), collapses=True),
        lambda now_s: _until(20, 30, 6)(now_s) / 0.1,
        ((30, 40), (40, 70)),
        gates=((0.5, 0.9), inf, inf),
    ),
    "bursts of others": Setting(
        "refused above 12, of which a live client has 1 and 7 by turns of 5 s",
        lambda seed: LimitedTarget(
            draw=_spread(0.1), takes_at=_constant(12), others=_bursts, seed=seed
        ),
        lambda now_s: (12 - _bursts(now_s)) / 0.1,
        ((20, 120),),
        gates=((0.9,), 0.05, inf),
    ),
    "calls of 20 s": Setting(
        "refused above 100",
        _at(_spread(20.0), _constant(100)),
        _constant(5.0),
        ((0, 120), (120, 300)),
        callers=8,
        gates=((0.5, 0.9), inf, inf),
    ),
    "a thousand join": Setting(
        "refused above 20; one worker, from 10 s on 1,000 more",
        _at(_spread(0.1), _constant(20)),
        _constant(200.0),
        ((10, 30), (30, 50)),
        workers=((0.0, 1), (10.0, 999)),
        gates=((0.85, 0.85), inf, inf),
    ),
    "more room": Setting(
        "refused above 8, from 30 s on above 24",
        _at(_spread(0.1), _until(8, 30, 24)),
        lambda now_s: _until(8, 30, 24)(now_s) / 0.1,
        ((30, 60),),
    ),
    "less then more": Setting(
        "refused above 20, from 30 to 60 s above 5",
        _at(_spread(0.1), _until(20, 30, 5, 60)),
        lambda now_s: _until(20, 30, 5, 60)(now_s) / 0.1,
        ((30, 60), (60, 90)),
    ),
    "three times slower": Setting(
        "refused above 16; from 30 s on a call takes .3 s",
        _at(
            lambda chance, now_s: (0.1 if now_s < 30 else 0.3) * chance.uniform(0.7, 1.3),
            _constant(16),
        ),
        lambda now_s: 160.0 if now_s < 30 else 160 / 3,
        ((30, 60),),
    ),
    "collapse": Setting(
        "less is done above 10",
        _knee(_constant(10), collapses=True),
        _constant(100.0),
        ((10, 60),),
    ),
    "lognormal": Setting(
        "refused above 12; calls are lognormal, with a sigma of 1",
        _at(_lognormal(0.1), _constant(12)),
        _constant(120.0),
        ((10, 60),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "two kinds": Setting(
        "refused above 12; one call of ten takes ten times as long",
        _at(_two_kinds, _constant(12)),
        _constant(12 / 0.095),
        ((10, 60),),
        gates=((_GOOD,), _FEW, inf),
    ),
    "calls of 5 ms": Setting(
        "refused above 4",
        _at(_spread(0.005), _constant(4)),
        _constant(800.0),
        ((10, 40),),
    ),
}
