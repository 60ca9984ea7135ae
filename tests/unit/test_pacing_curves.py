"""What the law of a paced target decides, sample by sample, compared with what is committed.

The other tests of the law say what it must reach; this one shows each step on the way there, so
nothing of it changes unnoticed.  After a change of the law look at the difference, then renew it:
``FLOWCTL_SNAPSHOTS=write pytest tests/unit/test_pacing_curves.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from flowctl.core.pacing.law import TargetLaw
from flowctl.core.pacing.leases import Reply, WorkerReport
from flowctl.core.pacing.sample import Sample
from flowctl_lab.simulation.targets import Target as SharedTarget
from flowctl_lab.simulation.targets import World
from tests.pacing_parts import TICK_S, Target, law, serial

CURVES = Path(__file__).with_name("pacing_curves.txt")
SHARED = Path(__file__).with_name("pacing_exchanges.txt")
Steps = Callable[[Target], None]


def halved(target: Target) -> None:
    for target.takes in (10, 5, 10, 1, 10):
        target.run(8.0)


def fewer_callers(target: Target) -> None:
    for target.callers in (64, 3, 64, 1, 64):
        target.run(4.0)


def slower(target: Target) -> None:
    for call_s in (0.05, 0.2, 0.05, 1.0, 0.05):
        target.call_s = lambda inside, call_s=call_s: call_s * max(1.0, inside / 10)  # type: ignore[misc]
        target.run(10.0)


def other_bounds(target: Target) -> None:
    for least, most in ((1, 1000), (5, 6), (2, 3), (30, 40)):
        target.law.bounds = target.law.bounds._replace(least=least, most=most)
        target.run(4.0)


def an_hour(target: Target) -> None:
    target.run(3_000.0)


def a_budget(target: Target) -> None:
    """Whoever has a permit waits for budget; later the target is the limit."""
    for tick in range(60):
        limit = target.law.limit
        is_held = limit < 32
        is_rate_held = tick % 20 < 12
        sample = Sample(TICK_S, 25, 25.0, 0.5 + limit / 10, 0, limit, is_held, is_rate_held)
        target.see(sample)


def all_refused_at_times(target: Target) -> None:
    """A service that is restarted takes nothing for two seconds."""
    for takes in (20, 0, 20, 0, 12):
        target.takes = takes
        target.run(2.0 if not takes else 6.0)


def in_minutes(target: Target) -> None:
    target.run(400.0)


SCENARIOS: list[tuple[str, Callable[[], TargetLaw], dict[str, object], Steps]] = [
    ("takes all", law, {}, lambda target: target.run(20.0)),
    ("ten at once", law, {"call_s": serial(10)}, lambda target: target.run(60.0)),
    ("refuses above ten", law, {"takes": 10}, lambda target: target.run(80.0)),
    ("takes less, and more again", law, {}, halved),
    ("few call at times", law, {"call_s": serial(10)}, fewer_callers),
    ("slower at times", law, {}, slower),
    ("other bounds", lambda: law(start=9), {"call_s": serial(20)}, other_bounds),
    ("known", lambda: law(known=12), {"call_s": serial(16)}, lambda target: target.run(40.0)),
    ("a fifth is left", lambda: law(0.2), {"takes": 13}, an_hour),
    ("half is left", lambda: law(0.5), {"call_s": serial(10)}, an_hour),
    ("a fifth is left, slower", lambda: law(0.2), {}, slower),
    ("a fifth is left, takes less", lambda: law(0.2), {}, halved),
    ("a fifth is left, few call at times", lambda: law(0.2), {"takes": 10}, fewer_callers),
    ("a budget", law, {}, a_budget),
    ("restarted", law, {}, all_refused_at_times),
    ("calls of 3 s", law, {"call_s": lambda inside: 3.0 * max(1.0, inside / 8)}, in_minutes),
    ("calls of 40 s", law, {"call_s": lambda _: 40.0, "takes": 6}, in_minutes),
]


def curve(name: str, made: Callable[[], TargetLaw], parts: dict[str, object], steps: Steps) -> str:
    """Each change of the limit with its time and reason."""
    target = Target(made(), **parts)  # type: ignore[arg-type]
    steps(target)
    lines = [f"# {name}: {target.done} calls, {target.refused} refused"]
    before: tuple[int, str] | None = None
    for tick, said in enumerate(target.said, 1):
        if said != before:
            lines.append(f"{tick * TICK_S:7.2f} {said[0]:4d} {said[1]}")
        before = said
    return "\n".join(lines)


def test_each_step_of_the_law_is_the_committed_one() -> None:
    """A change of the law that no figure shows is noticed too."""
    check(CURVES, "\n".join(curve(*scenario) for scenario in SCENARIOS))


def check(path: Path, curves: str) -> None:
    if os.environ.get("FLOWCTL_SNAPSHOTS") == "write":
        path.write_text(f"{curves}\n", encoding="utf-8")
    assert f"{curves}\n" == path.read_text(encoding="utf-8")


# -- workers that share a target ------------------------------------------------------------------


def a_limit(world: World) -> None:
    """Three programs of two jobs call a target that takes ten calls; later six."""
    world.add(2, callers=5, job="a", weight=3.0)
    world.clock.run(4.0)
    world.add(1, callers=6, job="b")
    world.clock.run(14.0)
    world.target.takes = 6
    world.clock.run(22.0)


def one_is_frozen(world: World) -> None:
    """A worker stands still for longer than its lease, another has nothing more to do."""
    first, second, _ = world.add(3, callers=4)
    world.clock.run(6.0)
    first.frozen = (6.0, 10.0)
    second.frozen = (7.0, 60.0)
    world.clock.run(16.0)


def nobody_can_be_asked(world: World) -> None:
    """The place where they meet is away for six seconds, and again before anything is asked."""
    place = world.place
    world.add(2, callers=6)
    world.clock.run(5.0)
    place.is_away = True
    world.clock.run(8.0)
    world.add(1, callers=3)
    world.clock.run(11.0)
    place.is_away = False
    world.clock.run(16.0)


def a_shared_budget(world: World) -> None:
    """One job has few calls, the others want all of the budget."""
    shared = {"budget": 120.0, "leave": 0.1}
    world.add(2, callers=8, cost=3.0, job="a", weight=2.0, **shared)
    world.add(1, callers=1, cost=2.0, job="b", **shared)
    world.add(1, callers=8, cost=1.0, job="c", **shared)
    world.clock.run(12.0)


def a_part_is_left(world: World) -> None:
    """A fifth is left of a target that becomes slower."""
    world.add(3, callers=8, leave=0.2)
    world.clock.run(20.0)
    world.target.call_s *= 3
    world.clock.run(30.0)


WORLDS: list[tuple[Callable[[World], None], SharedTarget]] = [
    (a_limit, SharedTarget(takes=10)),
    (one_is_frozen, SharedTarget(takes=9, slope=0.01)),
    (nobody_can_be_asked, SharedTarget(knee=6)),
    (a_shared_budget, SharedTarget(call_s=0.05)),
    (a_part_is_left, SharedTarget(knee=9, call_s=0.08)),
]


def shared_curve(run: Callable[[World], None], target: SharedTarget) -> str:
    """What each worker reported and got, as far as it changed."""
    world = World(target)
    exchange, lines = world.place.exchange, [f"# {run.__name__}"]
    names: dict[str, str] = {}
    before: dict[str, str] = {}

    def watched(report: WorkerReport) -> Reply:
        reply = exchange(report)
        claim = report.claim
        name = names.setdefault(claim.worker, f"w{len(names) + 1}")
        said = (
            f"{name}{'*' if reply.table else ''} wants {claim.want} at {claim.want_rate:.4g},"
            f" holds {claim.holds}, {claim.in_flight} in flight, {claim.resting} rest,"
            f" {'held' if claim.is_held else ''}{' leaves' if report.is_leaving else ''}:"
            f" {reply.permits} of {reply.limit} at {reply.rate:.4g}, {reply.reason}"
        )
        if before.get(name) != said:
            lines.append(f"{world.clock.now_s:7.2f} {said}")
        before[name] = said
        return reply

    world.place.exchange = watched  # type: ignore[method-assign]
    run(world)
    for worker in world.workers:
        lines.append(f"{worker._gate.counters} {worker._source.known()}")
    lines.append(f"{len(target.done)} calls, {len(target.refused)} refused, {target.most} at once")
    return "\n".join(lines)


def test_what_workers_say_and_get_is_the_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports, leases, the leader and the gates, exchange by exchange, in virtual time."""
    ids = (f"{number:02x}" for number in count())
    monkeypatch.setattr("flowctl.pacing.client.secrets.token_hex", lambda _: next(ids))
    check(SHARED, "\n".join(shared_curve(run, replace(target)) for run, target in WORLDS))
