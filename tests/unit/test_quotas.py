"""Quotas of a target: how they are written, and that in no window more than them is begun."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import datetime, timezone
from math import inf
from typing import Any

import pytest

from flowctl import paced
from flowctl.core.pacing.leases import least_rate
from flowctl.core.pacing.quotas import DAY_S, Pots, Quota
from flowctl.delivery.pacers import TargetPacer
from flowctl.errors import ConfigError, QuotaUsedUpError, SpentError
from flowctl.pacing.budgets import bounds_of, costs_of, span_of, total_of
from flowctl.pacing.gates import gate_of

NAMES = (f"quota-{n}" for n in itertools.count())
DAY = datetime(2026, 11, 28, tzinfo=timezone.utc).timestamp()


# -- what people write ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("500/min", ["500 calls/min"]),
        ("90k tokens/min", ["90,000 tokens/min"]),
        ("500/min, 90k tokens/min", ["500 calls/min", "90,000 tokens/min"]),
        ("500 requests per minute,10,000 per day", ["500 calls/min", "10,000 calls/day"]),
        (["1_000/h", "1.5M tokens/month"], ["1,000 calls/hour", "1,500,000 tokens/month"]),
        ("$20/day", ["20 $/day"]),
        (".5 $/5min", ["0.5 $/5min"]),
        ("10 req/10s", ["10 calls/10s"]),
        ("100/day America/Los_Angeles", ["100 calls/day America/Los_Angeles"]),
        (8.0, []),
        ("8", []),
    ],
)
def test_a_budget_is_written_as_services_write_theirs(written: Any, means: list[str]) -> None:
    found = bounds_of(written)
    assert [quota.text for quota in found.quotas] == means
    assert (found.rate is not None) == (not means)


@pytest.mark.parametrize(
    "written",
    [
        "x", "500/fortnight", "0/min", "-3/min", "500 min", "$20", "$ 5 $/day", "3/2day",
        ["5/min", "6/min"], [3, 4], {"min": 3}, True, 0, inf,
        "5/min Europe/Berlin", "5/day Mars/X", "5/day ../etc",
    ],
)  # fmt: skip
def test_another_budget_is_refused_and_named(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"^budget: ") as caught:
        paced("never", budget=written)
    assert caught.value.remedy


@pytest.mark.parametrize("written", ["20", "20 tokens", "$20/day", "$0", ["$20"], "€3 $"])
def test_another_spend_max_is_refused(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"^spend_max: "):
        paced("never", spend_max=written)


def test_what_a_call_takes_is_said_by_unit_or_by_a_number_of_the_only_one() -> None:
    both = bounds_of(["5/min", "90 tokens/min", "1k tokens/day"]).quotas
    assert costs_of(both, 30) == costs_of(both, {"tokens": 30, "rows": 2}) == (1, 30, 30)
    assert costs_of(both, {"tokens": 0, "calls": 3}) == (3, 0, 0)
    assert [total_of(c) for c in (None, 3, {"$": 1, "tokens": 7}, {"$": 1})] == [1, 3, 7, 1]
    for cost, problem in (
        (None, "cost does not say how many"),
        ({"token": 3}, "has no 'tokens', only 'token'"),
        (91, "takes 91 tokens, but the quota is 90 tokens/min"),
    ):
        with pytest.raises(ConfigError, match=problem):
            costs_of(both, cost)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"in \$ and tokens"):
        costs_of(bounds_of("9 tokens/s, $3/day").quotas, 2)


# -- what is begun -------------------------------------------------------------------------------


def begun(pots: Pots, costs: Any, until_s: float, *, idle: Any = lambda: 0.0) -> list[Any]:
    """Call as soon as possible; return times and costs of calls."""
    made, now_s = [], 0.0
    while now_s < until_s:
        each = costs()
        lack = pots.lack(now_s, DAY + now_s, each)
        if lack is None:
            pots.take(now_s, DAY + now_s, each)
            made.append((now_s, each))
            now_s += idle()
        else:
            now_s += max(lack.wait_s, 1e-6)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_in_no_window_more_than_any_quota_is_begun_and_nearly_all_of_one(seed: int) -> None:
    chance = random.Random(seed)
    quotas = bounds_of(["60/min", "20k tokens/min", "7/10s", "1k/day"]).quotas
    made = begun(
        Pots(quotas, span_of),
        lambda: (1, chance.choice((10, 300, 900)), 1, 1),
        900.0,
        idle=lambda: chance.choice((0, 0, 0, 0, 30)),
    )
    for i, quota in enumerate(quotas):
        for at_s, _ in made:
            used = sum(c[i] for t, c in made if at_s <= t < at_s + quota.window_s)
            assert used <= quota.amount, quota.text
    busy = begun(Pots(quotas[:1], span_of), lambda: (1,), 1800.0)
    assert 0.97 <= len([t for t, _ in busy if t >= 600]) / (60 * 20) <= 1


def test_dollars_and_other_parts_of_a_unit_do_not_pile_up_while_nothing_is_called() -> None:
    """Kind: what costs less than 1 is taken for something that is given back."""
    pots = Pots(bounds_of("3 $/min").quotas, span_of)
    pots.take(0, DAY, (0.25,))
    taken = 0.0
    while taken < 10 and pots.lack(3_600.0, DAY + 3_600.0, (0.25,)) is None:
        pots.take(3_600.0, DAY + 3_600.0, (0.25,))
        taken += 0.25
    assert 0 < taken <= 3


@pytest.mark.parametrize("hold_s", [0.0, 20.0, 60.0])
@pytest.mark.parametrize("budget", ["600 tokens/min", "600/min"])
def test_a_window_holds_its_amount_though_calls_begin_late(budget: str, hold_s: float) -> None:
    [quota] = bounds_of(budget).quotas
    at_once, rate = quota.pace(hold_s)
    first = 1 if quota.unit == "calls" else 0  # needs no room
    assert at_once - first + rate * (quota.window_s + hold_s) <= quota.amount * (1 + 1e-9)


@pytest.mark.parametrize(
    ("budget", "learned", "least"),
    [(5.0, 0.5, 0.5), (0.5, 5.0, 0.5), (0.0, 3.0, 3.0), (3.0, 0.0, 3.0), (0.0, 0.0, 0.0)],
)
def test_0_is_no_rate(budget: float, learned: float, least: float) -> None:
    assert least_rate(budget, learned) == least


def test_a_call_takes_from_all_quotas_or_from_none() -> None:
    pots = Pots(bounds_of(["100/day", "10 tokens/day"]).quotas, span_of)
    pots.take(0, DAY, (1, 8))
    for _ in range(20):
        lack = pots.lack(0, DAY, (1, 3))
        assert lack is not None
        assert lack.quota.unit == "tokens"
    assert pots.lack(0, DAY, (1, 2)) is None
    assert pots.taken == [1, 8]


def test_a_day_is_counted_by_the_calendar_of_its_zone() -> None:
    utc, tokyo = Quota(2, "calls", "day", DAY_S), Quota(9, "calls", "day", DAY_S, "Asia/Tokyo")
    pots = Pots([utc, tokyo], span_of)
    for _ in range(2):
        pots.take(0, DAY + 3600, (1, 1))
    lack = pots.lack(0, DAY + 3600, (1, 1))
    assert lack == (pots.quotas[0], DAY_S - 3600, True)
    assert pots.lack(0, DAY + DAY_S, (1, 1)) is None
    assert span_of(tokyo, DAY + 3600) == (DAY - 9 * 3600, DAY + 15 * 3600)
    berlin = Quota(9, "calls", "day", DAY_S, "Europe/Berlin")
    begin_s, end_s = span_of(berlin, datetime(2026, 10, 25, 12, tzinfo=timezone.utc).timestamp())
    assert end_s - begin_s == 25 * 3600, "summer time ends"
    month = Quota(9, "calls", "month", 31 * DAY_S)
    assert span_of(month, DAY) == (
        datetime(2026, 11, 1, tzinfo=timezone.utc).timestamp(),
        datetime(2026, 12, 1, tzinfo=timezone.utc).timestamp(),
    )


# -- paced ---------------------------------------------------------------------------------------


class Service:
    """A target with quotas, of this process alone, whose calendar a test moves."""

    def __init__(self, **options: Any) -> None:
        self.pace = paced(next(NAMES), **options)
        self.gate = gate_of(self.pace.settings)
        self.wall_s = DAY + 8 * 3600
        self.gate.wall = lambda: self.wall_s
        self.calls = 0

    def call(self, cost: Any = None) -> None:
        with self.pace as call:
            self.calls += 1
            if cost is not None:
                call.cost = cost


def test_a_days_quota_that_is_used_up_raises_with_the_moment() -> None:
    service = Service(budget="3/day")
    for _ in range(3):
        service.call()
    with pytest.raises(
        QuotaUsedUpError, match=r"3 calls/day is used up until 2026-11-29"
    ) as caught:
        service.call()
    assert caught.value.until_s == DAY + DAY_S
    assert caught.value.exit_code == 75
    assert (service.gate.in_flight, service.gate.waiting, service.calls) == (0, 0, 3)
    service.wall_s = DAY + DAY_S
    service.call()
    assert service.calls == 4


def test_coroutines_and_decorated_functions_raise_it_as_well() -> None:
    service = Service(budget="1/day")

    @service.pace
    async def ask() -> int:
        return 7

    async def both() -> list[Any]:
        return await asyncio.gather(ask(), ask(), ask(), return_exceptions=True)

    made = asyncio.run(both())
    assert made.count(7) == 1
    assert sum(isinstance(each, QuotaUsedUpError) for each in made) == 2
    assert service.gate.waiting == 0


def test_what_a_call_took_in_truth_corrects_what_was_reserved() -> None:
    service = Service(budget="1k tokens/day", cost={"tokens": 400}, spend_max="$1", name="j")
    with pytest.raises(ConfigError, match=r"has no '\$'"):
        service.call()
    service = Service(budget="1k tokens/day", cost={"tokens": 400, "$": 0.1}, spend_max="$1")
    service.call({"tokens": 900})
    with pytest.raises(QuotaUsedUpError, match="tokens/day"):
        service.call()
    service.wall_s += DAY_S
    service.call({"tokens": 10, "$": 0.85})
    with pytest.raises(SpentError, match="spent") as caught:
        service.call()
    assert (caught.value.until_s, caught.value.exit_code) == (inf, 4)


def test_what_was_refused_is_not_spent() -> None:
    service = Service(budget="9/day", spend_max="$1", cost={"$": 0.9})
    for _ in range(3):
        with service.pace as call:
            call.throttled(0)
    service.call()
    with pytest.raises(SpentError):
        service.call()


def test_what_flow_sink_calls_is_paced_by_the_same_quotas() -> None:
    pacer = TargetPacer(next(NAMES), budget=["100/day", "50 rows/day"])
    for _ in range(5):
        assert pacer.run(lambda: 3, {"rows": 10}) == 3
    with pytest.raises(QuotaUsedUpError, match="50 rows/day"):
        pacer.run(lambda: 3, {"rows": 10})


def test_leave_is_of_each_quota() -> None:
    assert [q.text for q in paced("left", budget="10/min", leave=0.2).settings.quotas] == [
        "8 calls/min"
    ]
