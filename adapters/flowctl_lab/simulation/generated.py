"""Jobs as users start them, drawn at random: ``flowctl simulate --random N --seed S``.

Settings as shipped.  ``random:S:I`` names the I-th scenario of seed S and suffices to run it again.
"""

from __future__ import annotations

from collections import Counter
from math import exp, log
from random import Random
from typing import Any

import msgspec

from flowctl.errors import ConfigError
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.scenario import Death, Loss, Pauses, Scenario

PREFIX = "random:"
# Bounds of one run's cost in real time: bolts times virtual seconds (heartbeats), and records.
_BOLT_SECONDS = 5_000.0
_RECORDS = 200_000
_RECORDS_LEAST = 24
_TUPLES = 5_000  # slow records, longer than a tuple should take, are single tuples
_LISTED = 6  # different values of a list that are shown one by one
_POLL_S = 0.5  # a source reports its end when it is polled again


def scenario_of(name: str) -> Scenario:
    """Return the scenario of ``random:SEED:INDEX``, or the one of this name in the catalogue."""
    if not name.startswith(PREFIX):
        return CATALOGUE[name]
    return generate(*_numbers_of(name))


def seed_of(name: str) -> int:
    """Return the seed in ``random:SEED:INDEX``, from which the data is drawn too."""
    return _numbers_of(name)[0]


def _numbers_of(name: str) -> tuple[int, int]:
    try:
        seed, index = (int(part) for part in name.removeprefix(PREFIX).split(":"))
    except ValueError:
        raise ConfigError(
            "scenario", f"there is no {name!r}.", remedy="Name it random:SEED:INDEX, as random:1:7."
        ) from None
    return seed, index


def names(count: int, seed: int) -> list[str]:
    """Return the names of ``count`` scenarios."""
    return [f"{PREFIX}{seed}:{index}" for index in range(count)]


def declaration(scenario: Scenario) -> str:
    """Return the scenario in one line: its name and its differences from the base, abbreviated."""
    base = msgspec.to_builtins(Scenario(name="", what=""))
    told = msgspec.to_builtins(scenario)
    return " ".join(
        f"{key}={_in_short(value)}"
        for key, value in told.items()
        if base[key] != value and key != "what"
    )


def _in_short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "(" + " ".join(f"{key}={_in_short(part)}" for key, part in value.items()) + ")"
    if not isinstance(value, tuple | list):
        return str(value)
    counts = Counter(map(_in_short, value))
    if len(counts) > _LISTED:
        least, most = min(value, key=str), max(value, key=str)
        return f"{len(value)} from {_in_short(least)} to {_in_short(most)}"
    return "[" + ", ".join(f"{n} x {one}" if n > 1 else one for one, n in counts.items()) + "]"


def generate(seed: int, index: int) -> Scenario:
    """Return the ``index``-th scenario of ``seed``; the same arguments give the same scenario."""
    rng = Random(f"scenario {seed} {index}")
    bolts = round(_log_uniform(rng, 1, 200))
    slots = rng.choice((1, 1, 1, 2, 4))
    spouts = rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 3))
    values: dict[str, Any] = {
        "bolts": bolts,
        "slots": slots,
        "speeds": _speeds(rng, bolts),
        "tuple_s": rng.choice((0.0, _log_uniform(rng, 1e-4, 1.0), _log_uniform(rng, 1e-2, 1.0))),
        "record_s": rng.choice((_log_uniform(rng, 1e-5, 1e-2), _log_uniform(rng, 1e-3, 300.0))),
        "service_cv": rng.choice((0.0, 0.1, 0.1)),
        "one_way_s": rng.choice((0.0005, 0.001, 0.001, 0.01, _log_uniform(rng, 1e-3, 0.2))),
        "joins_s": tuple(sorted(rng.uniform(0, 2) for _ in range(spouts)))
        if spouts > 1
        else (0.0,),
        "end_late_s": rng.choice((0.0, _POLL_S)),
    }
    if rng.random() < 0.3:
        values["jitter_s"] = values["one_way_s"] * rng.uniform(0.2, 2.8)
    values.update(_skew(rng))
    if rng.random() < 0.3:
        values["connects_s"] = tuple(rng.uniform(0, 2) for _ in range(bolts))
    speed = slots * sum(values["speeds"] or (1.0,) * bolts)
    values["records"] = _records(rng, bolts, speed, values["record_s"]) // spouts
    values["records"] = max(_RECORDS_LEAST, values["records"])
    makespan_s = spouts * values["records"] * values["record_s"] / speed
    values.update(_faults(rng, bolts, makespan_s))
    return Scenario(name=f"{PREFIX}{seed}:{index}", what="drawn at random", **values)


def _log_uniform(rng: Random, low: float, high: float) -> float:
    return exp(rng.uniform(log(low), log(high)))


def _speeds(rng: Random, bolts: int) -> tuple[float, ...]:
    kind = rng.choice(("equal", "equal", "two", "four", "straggler"))
    if kind == "equal":
        return ()
    if kind == "straggler":
        return (*[1.0] * (bolts - 1), rng.choice((0.5, 0.25, 0.1)) if bolts > 1 else 1.0)
    known = (1.0, 0.25) if kind == "two" else (2.0, 1.0, 0.5, 0.25)
    return tuple(rng.choice(known) for _ in range(bolts))


def _skew(rng: Random) -> dict[str, Any]:
    kind = rng.choice(("even", "lognormal", "pareto"))
    if kind == "lognormal":
        return {"data_cv": rng.choice((0.3, 1.0, 3.0))}
    return {"pareto": rng.choice((1.1, 1.5, 2.5))} if kind == "pareto" else {}


def _records(rng: Random, bolts: int, speed: float, record_s: float) -> int:
    """Return a number of records, from two dozen to as many as a run can simulate."""
    most_s = _BOLT_SECONDS / bolts
    most = min(_RECORDS, most_s * speed / record_s)
    if record_s > 0.01:
        most = min(most, _TUPLES)
    return round(_log_uniform(rng, _RECORDS_LEAST, max(_RECORDS_LEAST + 1, most)))


def _faults(rng: Random, bolts: int, makespan_s: float) -> dict[str, Any]:
    """Return faults of one kind at most, so that a bad figure has one cause."""
    kind = rng.choice(("none", "none", "none", "loss", "crash", "pauses"))
    some = tuple(sorted(rng.sample(range(bolts), max(1, bolts // 6))))
    if kind == "loss":
        return {"loss": Loss(bolts=some, share=rng.choice((0.005, 0.05)))}
    if kind == "crash" and bolts > 1:
        back_s = rng.choice((None, 8.0))
        deaths = []
        for bolt in some:
            at_s = rng.uniform(0.0, max(0.1, makespan_s))
            seen_s = rng.choice((0.02, None))
            deaths.append(
                Death(bolt=bolt, at_s=at_s, back_at_s=back_s and at_s + back_s, seen_after_s=seen_s)
            )
        return {"deaths": tuple(deaths)}
    if kind == "pauses":
        return {"pauses": Pauses(for_s=rng.choice((0.2, 1.0)), gap_s=rng.choice((5.0, 20.0)))}
    return {}
