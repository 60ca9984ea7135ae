"""What the leader of a target decides on what its workers have said."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from flowctl.core.pacing.law import Bounds
from flowctl.core.pacing.leader import Leader
from flowctl.core.pacing.leases import RATE_MOST, Claim, Decision, Reply, Sums, Table

TICK_S = 0.25


class Place:
    """What is stored of a target whose workers make as many calls as they are let, of .05 s."""

    def __init__(self, *wants: int, leave: float = 0.0, **bounds: int) -> None:
        self.leader = Leader(Bounds(**bounds), leave=leave, tick_s=TICK_S)
        self.wants = wants
        self.now_s = 1_000.0
        self.limit = 4
        self.budget = self.rate = 0.0
        self.rate_held: set[int] = set()
        self.total = Sums()
        self.goals: dict[str, tuple[int, float]] = {str(n): (0, 0.0) for n in range(len(wants))}
        self.operator: dict[str, Any] = {}

    def claims(self) -> tuple[Claim, ...]:
        return tuple(
            Claim(
                name, "", 1.0, want, RATE_MOST if n in self.rate_held else 20.0 * holds, holds,
                in_flight=min(holds, want), is_held=want > holds,
            )
            for n, (want, (name, (holds, _))) in enumerate(
                zip(self.wants, self.goals.items(), strict=True)
            )
        )  # fmt: skip

    def turn(self, seconds: float = TICK_S) -> Decision | None:
        used = sum(claim.in_flight for claim in self.claims())
        calls = int(used * seconds / 0.05)
        self.total = self.total.plus(Sums(calls, calls, calls * 0.05))
        self.now_s += seconds
        table = Table(
            self.claims(),
            self.goals,
            self.total,
            budget=self.budget,
            rate=self.rate,
            **self.operator,
        )
        reply = Reply(self.now_s, self.limit, 0, 0.0, len(self.wants), self.budget, table)
        decision = self.leader.decide(reply)
        if decision is not None:
            self.limit, self.rate = decision.limit, decision.rate
            self.goals = {**self.goals, **decision.goals}
        return decision

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.turn()


def test_permits_go_to_those_who_want_them_and_nothing_new_is_nothing_said() -> None:
    place = Place(1, 1)
    decision = place.turn()
    assert decision == Decision(4, "start", {"0": (2, 0.0), "1": (2, 0.0)})
    assert [place.turn(), place.turn()] == [None, None], "callers are the limit"


def test_a_limit_grows_while_more_brings_more_and_is_told_with_its_reason() -> None:
    place = Place(20, 20)
    place.run(20.0)
    assert place.limit >= 32
    assert sum(permits for permits, _ in place.goals.values()) == place.limit


def test_one_worker_that_waits_for_budget_shows_that_the_budget_is_the_limit() -> None:
    """The target may take more: its limit is not learned from what the budget lets through."""
    place = Place(30, 1)
    place.budget = 10.0
    place.rate_held = {0}
    place.run(5.0)
    assert place.limit >= 31
    rates = [rate for _, rate in place.goals.values()]
    assert sum(rates) == pytest.approx(10.0)


def test_a_part_of_the_budget_moves_if_it_changes_by_more_than_one_call_does() -> None:
    place = Place(1, 1)
    place.budget = 100.0
    place.run(1.0)
    before = dict(place.goals)
    for budget, moves in ((101.0, False), (105.0, True)):
        place.budget = budget
        place.turn()
        assert (place.goals != before) is moves


def test_of_a_budget_a_part_is_left_too() -> None:
    place = Place(1, leave=0.2)
    place.budget = 100.0
    place.run(1.0)
    assert place.goals["0"][1] == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("operator", "limit"),
    [({"most": 2}, 2), ({"least": 50}, 50), ({"least": 9, "most": 3}, 3)],
)
def test_bounds_that_an_operator_sets_count_from_the_next_turn_on(
    operator: dict[str, int], limit: int
) -> None:
    place = Place(10)
    place.run(1.0)
    place.operator = operator
    place.turn()
    place.turn()
    assert place.limit == limit


def test_who_takes_over_goes_on_from_what_is_stored_and_a_reset_begins_again() -> None:
    place = Place(100)
    place.total, place.limit = Sums(calls=1_000), 40
    decision = place.turn()
    assert decision is not None
    assert (decision.limit, decision.reason) == (40, "learned before")
    place.operator = {"resets": 1}
    decision = place.turn()
    assert decision is not None
    assert (decision.limit, decision.reason) == (4, "start")
    assert place.turn() is None, "once"
    place.leader.abdicate()
    place.limit = 30
    decision = place.turn()
    assert decision is not None
    assert (decision.limit, decision.reason) == (30, "learned before"), "another led meanwhile"


def test_two_exchanges_in_quick_succession_are_one_sample() -> None:
    """A leader that hurries to tell a decision sees the same calls."""
    slowly, quickly = Place(20), Place(20)
    slowly.run(10.0)
    for _ in range(40):
        quickly.turn(TICK_S - 0.05)
        quickly.turn(0.05)
    assert abs(quickly.limit - slowly.limit) <= 2


class Learned:
    """A law that has learned ``rate``, whatever it sees."""

    rates: list[float]

    def __init__(self, bounds: Bounds, *, leave: float, tick_s: float, **known: Any) -> None:
        self.bounds, self.limit, self.reason, self.known = bounds, 4, "told", known
        self.rate: float = inf

    def on_sample(self, now_s: float, sample: Any) -> None:
        self.rate = self.rates.pop(0)


def test_a_rate_that_was_learned_is_told_even_if_no_part_of_it_moves() -> None:
    place = Place(1, 1)
    Learned.rates = [10.0, 10.1, 10.1, inf]
    place.leader = Leader(Bounds(), leave=0.0, tick_s=TICK_S, law=Learned)
    place.turn()
    assert place.turn() == Decision(4, "told", {"0": (2, 5.0), "1": (2, 5.0)}, 10.0)
    assert place.turn() == Decision(4, "told", {}, 10.1)
    assert place.turn() is None
    assert place.turn() == Decision(4, "told", {"0": (2, 0.0), "1": (2, 0.0)}, 0.0)


def test_of_what_was_learned_and_what_users_allow_the_least_is_shared() -> None:
    place = Place(1, 1, leave=0.5)
    place.budget, Learned.rates = 12.0, [10.0, 4.0]
    place.leader = Leader(Bounds(), leave=0.5, tick_s=TICK_S, law=Learned)
    place.turn()
    place.turn()
    assert sum(rate for _, rate in place.goals.values()) == 6.0, "half of the budget"
    place.turn()
    assert sum(rate for _, rate in place.goals.values()) == 4.0


def test_who_takes_over_a_target_gets_the_rate_that_is_stored() -> None:
    made: list[Learned] = []

    def law(*args: Any, **more: Any) -> Learned:
        made.append(Learned(*args, **more))
        return made[-1]

    place = Place(1)
    place.rate, place.total = 7.5, Sums(9, 9.0, 1.0)
    place.leader = Leader(Bounds(), leave=0.0, tick_s=TICK_S, law=law)
    place.turn()
    assert made[0].known == {"known": 4, "rate": 7.5}
