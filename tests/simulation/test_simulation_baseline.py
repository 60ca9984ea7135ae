"""The system to beat: twelve bolts, tuples dealt out blindly, no acks, a crash repeats the day."""

from __future__ import annotations

import pytest

from flowctl.core.records import Checkpoint
from flowctl_lab.simulation.policies import STATIC, known
from flowctl_lab.simulation.scenario import Slow
from tests.core_driver import Driver
from tests.simulation.simulation_runs import run, said

pytestmark = [pytest.mark.req("S27"), pytest.mark.on_change()]
FEW = 3_000
DAY = 1_000
ONE_SLOW = (Slow((0,), 0.1, 0.0, 1e9),)


def share_of_b1(policy: str) -> tuple[float, float]:
    """The slow bolt's part of the tuples, and how much of what was possible was done."""
    simulation, outcome = run("homog", policy, tuples=FEW, slow=ONE_SLOW)
    first_to: dict[int, str] = {}
    for _, _, _, bolt, tuple_id, *_ in said(simulation, "emit"):
        first_to.setdefault(tuple_id, bolt)
    return list(first_to.values()).count("b1") / len(first_to), outcome.efficiency


def test_it_is_an_arm_of_the_benchmark() -> None:
    assert STATIC in known()


def test_it_deals_out_without_looking_and_waits_for_the_slow_one() -> None:
    share, efficiency = share_of_b1(STATIC)
    assert share == pytest.approx(1 / 12, rel=0.01)
    # A tenth of the speed for a twelfth of the work, of what eleven and a tenth bolts could do.
    assert efficiency == pytest.approx(0.1 * 12 / 11.1, rel=0.1)


def test_it_is_beaten() -> None:
    share, efficiency = share_of_b1("just_full")
    assert share == pytest.approx(0.1 / 11.1, rel=0.3)
    assert efficiency > 0.98


def processed_again(done: set[int], checkpoint: Checkpoint) -> int:
    """How many records of ``done`` a restart from ``checkpoint`` sends once more."""
    driver = Driver("a", "b", checkpoint=checkpoint, window_policy="fixed", window_initial=8)
    driver.offer(DAY)
    again = set()
    while emissions := driver.emit():
        for emission in emissions:
            again.add(emission.records[0].position)
            driver.ack(emission)
    assert again | done == set(range(1, DAY + 1))
    return len(again & done)


def test_a_crash_costs_it_the_day_so_far_and_us_what_was_under_way() -> None:
    """Without acks there is nothing to save, so it begins at the day's first record again."""
    driver = Driver("a", "b", window_policy="fixed", window_initial=8)
    driver.offer(DAY)
    flying, done = driver.emit(), set()
    while len(done) < DAY // 2:
        emission = flying.pop(len(flying) // 2)  # acks come in any order
        done.add(emission.records[0].position)
        driver.ack(emission)
        flying += driver.emit()
    under_way = {emission.records[0].position for emission in flying}
    saved = driver.core.checkpoint()
    assert processed_again(done | under_way, Checkpoint()) == len(done) + len(under_way)
    assert processed_again(done | under_way, saved) == len(under_way) == 16
