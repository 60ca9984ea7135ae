"""A drawn job whose spout knows from the start what a call and a record cost and how fast each bolt
is, but not what single records cost nor what will happen.

How far the law as it is falls behind itself here is the price of learning; how far it falls behind
greedy here is not.  And one that begins with what its last run learned (ADR 32), or with that made
wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from flowctl.core.first_guess import Learned
from flowctl.core.spout import SpoutCore
from flowctl_lab.simulation.engine import Outcome, Simulation
from flowctl_lab.simulation.policies import DEFAULT, settings_of
from flowctl_lab.simulation.scenario import Scenario

_ACKS = 4  # from so many on a bolt's own times count alone
_PARTS = 4  # a quarter of an equal share is as large as a tuple known so far may be
_CALLS = 9  # or nine calls' time, which is what an expensive call is worth


def run_known(scenario: Scenario, seed: int) -> Outcome:
    """Run it with the default policy."""
    simulation = Simulation(scenario, settings_of(DEFAULT, scenario), seed)
    for spout in simulation.spouts:
        _teach(spout.core, scenario)
    return simulation.run(DEFAULT)


def _teach(core: SpoutCore, scenario: Scenario) -> None:
    slots = scenario.bolts * scenario.slots
    worth_s = max(core.settings.tuple.service_max_s - scenario.tuple_s, _CALLS * scenario.tuple_s)
    share = scenario.records / (_PARTS * slots)
    records = max(1, int(min(share, worth_s / scenario.record_s)))
    plain_s = scenario.tuple_s + scenario.record_s * records
    pool, add = core.book.pool, core.add_bolt
    pool.take_calls_as_free()  # acks change nothing of what is set here
    fixed = scenario.tuple_s / scenario.record_s
    pool.fixed_records = pool.fixed_least = pool.fixed_most = fixed
    pool.mean_s, pool.mean_records = plain_s * slots / scenario.speed_total, float(records)
    pool.gain = 0.0

    def add_known(bolt: str, *, now_s: float, **values: Any) -> None:
        add(bolt, now_s=now_s, **values)
        consumer = core.bolts[bolt]
        service_s = plain_s / scenario.speed_of(int(bolt.removeprefix("b")) - 1)
        path_s = scenario.round_trip_s + scenario.jitter_s
        for _ in range(_ACKS):
            consumer.service.on_sample(now_s, service_s, path_s, records)
        consumer.service.is_told = scenario.telemetry
        core.book.changed(consumer)

    core.add_bolt = add_known  # type: ignore[method-assign,assignment]


# -- What the job's last run learned -----------------------------------------------------------


def run_again(
    scenario: Scenario, seed: int, learned: Sequence[Learned | None] = ()
) -> tuple[Outcome, Sequence[Learned | None]]:
    """Run it with what its spouts ``learned`` the last time; return also what they learned now."""
    simulation = Simulation(scenario, settings_of(DEFAULT, scenario), seed)
    for spout, of_it in zip(simulation.spouts, learned, strict=False):
        if of_it is not None:
            spout.core.recall(of_it)
    outcome = simulation.run(DEFAULT)
    return outcome, [spout.core.learn() for spout in simulation.spouts]


def wrong(
    learned: Sequence[Learned | None], *, calls: float, records: float
) -> Sequence[Learned | None]:
    """Return it as if calls and records had cost so many times as much."""
    return [
        each and replace(each, call_s=calls * each.call_s, record_s=records * each.record_s)
        for each in learned
    ]
