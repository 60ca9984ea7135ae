"""Shared targets in virtual time: the gates of each scenario, and the model of the script."""

from __future__ import annotations

import random
from types import SimpleNamespace

import fakeredis
import pytest

from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Sums, WorkerReport
from flowctl_lab.simulation.target_catalogue import ROWS
from flowctl_lab.simulation.target_place import Place
from flowctl_redis.targets import RedisExchange

pytestmark = pytest.mark.on_change()

SLOW = {"headroom", "thousand"}  # four minutes of virtual time; a thousand workers
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ROWS]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_meets_its_gates(name: str) -> None:
    row = ROWS[name]
    figures = row.run()
    missed = {
        figure: (figures[figure], gate)
        for figure, gate in row.gates.items()
        if not gate[0] <= figures[figure] <= gate[1]
    }
    assert not missed, figures


@pytest.mark.parametrize("seed", range(20))
def test_the_place_does_what_the_script_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    clock = SimpleNamespace(now_s=1_800_000_000.0)
    fake = SimpleNamespace(time=lambda: clock.now_s)
    monkeypatch.setattr("fakeredis.commands_mixins.server_mixin.time", fake)
    script = RedisExchange("redis://here", "t", client=fakeredis.FakeRedis())
    place = Place(lambda: clock.now_s)
    for _ in range(60):
        clock.now_s += chance.choice([0.0, 0.25, 0.25, 1.5])
        report = some_report(chance)
        one, other = script.exchange(report), place.exchange(report)
        # How many workers there are is told as the leader last counted them.
        assert one._replace(table=None, workers=0) == other._replace(table=None, workers=0)
        assert (one.table is None) == (other.table is None)
        if one.table is not None and other.table is not None:
            assert sorted(c._replace(holds=0) for c in one.table.claims) == sorted(
                c._replace(holds=0) for c in other.table.claims
            )
            assert (one.table.goals, one.table.total) == (other.table.goals, other.table.total)
            assert (one.table.budget, one.table.rate) == (other.table.budget, other.table.rate)


def some_report(chance: random.Random) -> WorkerReport:
    worker = chance.choice("abcd")
    goals = {chance.choice("abcd"): (chance.randint(0, 4), float(chance.randint(0, 60)))}
    rate = chance.choice([0.0, 40.0, 200.0])
    decision = Decision(chance.randint(1, 8), "why", goals, rate) if chance.random() < 0.3 else None
    holds = chance.randint(0, 4)
    claim = Claim(worker, chance.choice("xy"), 1.0, 2, RATE_MOST, holds, 1, chance.random() < 0.5)
    claim = claim._replace(told_rate=chance.choice([0.0, 12.5]))
    done = Sums(1, 2.0, 0.5, 1, 0, 0.25) if chance.random() < 0.5 else Sums()
    rate, leaves = float(chance.randint(0, 60)), chance.random() < 0.1
    return WorkerReport(claim, rate, done, 2.0, 4, 100.0, leaves, decision)
