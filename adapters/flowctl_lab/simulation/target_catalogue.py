"""The scenarios of shared targets, by name, with their gates.

Each function runs one scenario and returns its figures; ``ROWS`` has the gates: the minimum and the
maximum of a figure.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

from flowctl.pacing.target_settings import Limits
from flowctl_lab.simulation.targets import Target, World

_CALL_S = 0.1  # duration of a call without load, as of a web service
_TAKES = 10  # concurrent calls that the target takes, fewer than the 32 workers
_BEST = _TAKES / _CALL_S  # calls per second
_START_S = 10.0  # start of the measurement


class Row(NamedTuple):
    """``run`` returns figures by name; ``gates`` has their (minimum, maximum)."""

    what: str
    run: Callable[[], dict[str, float]]
    gates: dict[str, tuple[float, float]]


def crowd() -> dict[str, float]:
    world = World(Target(_CALL_S, takes=_TAKES))
    world.add(32)
    world.clock.run(60)
    return {
        "E": world.goodput(_START_S, 60) / _BEST,
        "refused": world.refused(0, 60),
        "exchanges": world.place.exchanges / 60 / 32,
    }


def knee() -> dict[str, float]:
    world = World(Target(_CALL_S, knee=_TAKES))
    world.add(32)
    world.clock.run(60)
    return {"E": world.goodput(_START_S, 60) / _BEST, "limit": float(world.place.limit or 0)}


def halves() -> dict[str, float]:
    world = World(Target(_CALL_S, takes=_TAKES))
    world.add(32)
    world.clock.run(20)
    world.target.takes = _TAKES / 2
    world.clock.run(40)
    world.target.takes = _TAKES
    world.clock.run(60)
    return {
        "E halved": world.goodput(25, 40) / (_BEST / 2),
        "E back": world.goodput(45, 60) / _BEST,
        "refused": world.refused(0, 60),
    }


def budget() -> dict[str, float]:
    world = World(Target(0.02))
    world.add(32, cost=10.0, budget=1000.0)
    world.clock.run(40)
    begun = [(at_s, cost) for at_s, _, cost in world.target.done if at_s >= _START_S]
    return {
        "used": world.goodput(_START_S, 40) / 1000,
        "most in a second": _most_in_a_second(begun) - 1000,
    }


def frozen() -> dict[str, float]:
    world = World(Target(_CALL_S, takes=10_000))
    workers = world.add(8, callers=4, limits=Limits(in_flight_max=_TAKES))
    world.clock.run(10)
    for worker in workers[:4]:
        worker.frozen = (10.0, 20.0)
    world.clock.run(13)
    back = world.goodput(13, 13 + 1e-9)
    world.target.most = 0
    world.clock.run(40)
    back = world.goodput(13.5, 20) / _BEST
    held = 4 * 4  # calls that frozen workers may have in flight when they wake up
    return {"E of the others": back, "most inside": world.target.most - _TAKES - held}


def redis_away() -> dict[str, float]:
    world = World(Target(_CALL_S, takes=_TAKES))
    world.add(32)
    world.clock.run(20)
    world.place.is_away = True
    world.clock.run(30)
    world.place.is_away = False
    world.place.clear()
    world.clock.run(60)
    return {
        "E away": world.goodput(22, 30) / _BEST,
        "E back": world.goodput(40, 60) / _BEST,
        "refused after": world.refused(40, 60),
    }


def jobs() -> dict[str, float]:
    world = World(Target(_CALL_S, takes=10_000))
    bound = Limits(in_flight_max=_TAKES)
    world.add(16, job="a", weight=3.0, limits=bound)
    world.add(24, job="b", limits=bound)
    world.clock.run(80)
    a, b = world.goodput(20, 80, "a"), world.goodput(20, 80, "b")
    world.add(16, job="c", limits=bound)
    world.clock.run(160)
    three = world.goodput(100, 160, "a") / world.goodput(100, 160, "c")
    return {"a : b": a / b, "a : c": three, "E": world.goodput(20, 80) / _BEST}


def headroom() -> dict[str, float]:
    alone, beside = _live(0.0), _live(0.2)
    return {
        "used": beside["used"],
        "p99 without": alone["p99"],
        "p99 with": beside["p99"],
    }


def headroom_refused() -> dict[str, float]:
    """Take the median second of goodput, so that relearning a limit doesn't pass for headroom."""
    world, live = _beside_refused(0.0)
    filled = median(world.goodput(at, at + 1) + live(at) for at in range(15, 60))
    world, _ = _beside_refused(0.2)
    return {"kept": median(world.goodput(at, at + 1) for at in range(15, 60)) / filled}


def _beside_refused(leave: float) -> tuple[World, Callable[[int], int]]:
    """A target of ten concurrent calls, slower together, and a live service that calls at times."""
    world = World(Target(_CALL_S, takes=_TAKES, slope=0.03))
    chance = random.Random(3)
    done_s: list[float] = []

    def call() -> None:
        call_s = world.target.enter(world.clock.now_s)
        if call_s is None:
            world.clock.at(world.clock.now_s + 0.05, call)
        else:
            world.clock.at(world.clock.now_s + call_s, leave_target)

    def leave_target() -> None:
        world.target.inside -= 1
        done_s.append(world.clock.now_s)
        world.clock.at(world.clock.now_s + chance.expovariate(4.0), call)

    world.clock.at(0.0, call)
    world.add(16, leave=leave)
    world.clock.run(60)
    return world, lambda second: sum(second <= at_s < second + 1 for at_s in done_s)


def _live(leave: float) -> dict[str, float]:
    """A live service calls twenty times a second: the time of its calls, and its share."""
    world = World(Target(_CALL_S, knee=2 * _TAKES))
    took_s: list[float] = []

    def call() -> None:
        call_s = world.target.enter(world.clock.now_s)
        assert call_s is not None
        took_s.append(call_s)
        world.clock.at(world.clock.now_s + call_s, leave_target)
        world.clock.at(world.clock.now_s + 0.05, call)

    def leave_target() -> None:
        world.target.inside -= 1

    world.clock.at(0.0, call)
    world.clock.run(1.0)
    world.add(12, callers=4, leave=leave)
    world.clock.run(60)
    took_s.clear()
    world.clock.run(240)
    took_s.sort()
    free = (2 * _TAKES - 2) / _CALL_S  # two calls of the live service are inside
    return {"used": world.goodput(60, 240) / free, "p99": took_s[int(0.99 * len(took_s))] / _CALL_S}


def thousand() -> dict[str, float]:
    world = World(Target(0.2, takes=200))
    world.add(1000)
    world.clock.run(22)
    return {
        "E": world.goodput(15, 22) / 1000,
        "exchanges a second": world.place.exchanges / 22,
    }


def _most_in_a_second(begun: list[tuple[float, float]]) -> float:
    most = cost = 0.0
    first = 0
    for at_s, each in begun:
        cost += each
        while begun[first][0] <= at_s - 1.0:
            cost -= begun[first][1]
            first += 1
        most = max(most, cost)
    return most


_ANY: Final = float("inf")
ROWS: Final[dict[str, Row]] = {
    "crowd": Row(
        "32 workers, 429 above ten calls",
        crowd,
        {"E": (0.95, 1.0), "refused": (0.0, 0.02), "exchanges": (0.0, 5.0)},
    ),
    "knee": Row(
        "32 workers, slower above ten calls",
        knee,
        {"E": (0.95, 1.0), "limit": (_TAKES, 1.5 * _TAKES)},
    ),
    "halves": Row(
        "capacity halves and comes back; measured 5 s later",
        halves,
        {"E halved": (0.9, 1.0), "E back": (0.93, 1.0), "refused": (0.0, 0.02)},
    ),
    "budget": Row(
        "a budget of 1,000 a second, 10 a call, 32 workers",
        budget,
        {"used": (0.97, 1.0), "most in a second": (-_ANY, 320.0)},
    ),
    "frozen": Row(
        "four of eight workers freeze for 10 s with all their permits",
        frozen,
        {"E of the others": (0.95, 1.01), "most inside": (-_ANY, 0.0)},
    ),
    "redis_away": Row(
        "Redis away for 10 s, and back empty",
        redis_away,
        {"E away": (0.8, 1.0), "E back": (0.95, 1.0), "refused after": (0.0, 0.02)},
    ),
    "jobs": Row(
        "two jobs 3:1, then a third",
        jobs,
        {"a : b": (2.7, 3.3), "a : c": (2.7, 3.3), "E": (0.95, 1.01)},
    ),
    "headroom": Row(
        "leave=0.2 beside a live service",
        headroom,
        {"used": (0.75, 0.85), "p99 with": (0.9, 1.25)},
    ),
    "headroom_refused": Row(
        "leave=0.2 beside a live service, 429 above ten calls",
        headroom_refused,
        {"kept": (0.75, 0.85)},
    ),
    "thousand": Row(
        "1,000 workers on 200 calls",
        thousand,
        {"E": (0.95, 1.0), "exchanges a second": (0.0, 5000.0)},
    ),
}
