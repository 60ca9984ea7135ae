"""Who is called slow, and when nobody may be: the figures behind the views."""

from __future__ import annotations

import pytest

from flowctl.core.events import BoltState
from flowctl.instrumentation.slow_bolts import claim, condition, shares, slow_bolts
from flowctl.instrumentation.snapshot import Snapshot
from flowctl.runtime.meter import RATE_OVER_S, BoltRates
from tests.unit.test_view_live import bolt, snapshot


def run(*rates: float, **changes: object) -> Snapshot:
    """Bolts at these rates, in a run whose bolts set the pace."""
    bolts = tuple(bolt(n, records_per_s=each) for n, each in enumerate(rates, start=1))
    given = {"bolts": bolts, "held_up_by": "backpressure", "held_up_share": 0.9, **changes}
    return snapshot(**given)


def test_a_bolt_at_a_tenth_of_the_rate_is_slow_and_is_told_with_its_share() -> None:
    slow = slow_bolts(run(100.0, 100.0, 10.0, 100.0))
    assert list(slow) == ["b3"]
    assert (slow["b3"].factor, slow["b3"].text) == (10.0, "10x slower")
    assert claim(slow) == "b3 is 10x slower and gets 3.2 % (an equal share: 25.0 %)"


def test_one_that_acks_nothing_comes_first_and_many_are_counted() -> None:
    slow = slow_bolts(run(*[100.0] * 6, 10.0, 20.0, 0.0, 25.0))
    assert list(slow) == ["b9", "b7", "b8", "b10"]
    assert claim(slow).startswith("b9 has acked nothing lately and gets nothing more, b7 is")
    assert "1 more are slow" not in claim(slow) and ", 1 more is slow" in claim(slow)


@pytest.mark.parametrize(
    "changes",
    [
        {"held_up_by": "no_input"},  # bolts wait for work
        {"held_up_share": 0.2},
        {"phase": "draining", "records_buffered": 0},  # the end of the input
        {"target_down_s": 3.0},
        {"sink_cap": 20},  # the target holds back: fewer tuples than bolts could have
    ],
)
def test_a_low_rate_says_nothing_where_bolts_do_not_set_the_pace(changes: dict) -> None:
    assert not slow_bolts(run(100.0, 100.0, 10.0, **changes))


def test_rates_that_differ_as_those_of_equal_bolts_do_are_normal() -> None:
    assert not slow_bolts(run(100.0, 120.0, 80.0, 60.0))
    assert claim({}) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"acked": 3},  # one has acked its first, another its second
        {"acked": 100, "slots": 64},
        {"service_p50_s": 20.0},  # three in the longest time that a rate is of
    ],
)
def test_by_a_few_tuples_nobody_is_called_slow(changes: dict) -> None:
    bolts = tuple(bolt(n, records_per_s=each, **changes) for n, each in enumerate([9.0, 9.0, 0.0]))
    assert not slow_bolts(run(bolts=bolts))


def test_bolts_are_compared_within_their_stage() -> None:
    bolts = tuple(
        bolt(n, name=f"{stage}.{n}", records_per_s=each)
        for stage, each in (("parse", 1000.0), ("store", 100.0))
        for n in (1, 2, 3)
    )
    assert not slow_bolts(run(bolts=bolts))


def test_an_idle_bolt_is_not_slow() -> None:
    bolts = (
        bolt(1, records_per_s=50.0),
        bolt(2, records_per_s=50.0),
        bolt(3, in_flight=0, records_per_s=1.0),
    )
    assert not slow_bolts(run(bolts=bolts))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, "normal"),
        ({"state": BoltState.SLOW}, "normal"),  # a single late round trip
        ({"state": BoltState.BUSY}, "busy"),
        ({"refused": True}, "refused"),
        ({"up": False, "refused": True}, "down"),
    ],
)
def test_the_condition_of_a_bolt(changes: dict, wanted: str) -> None:
    assert condition(bolt(1, **changes), {}) == wanted


def test_shares_are_of_what_was_acked_lately() -> None:
    assert shares(run(30.0, 10.0).bolts) == {"b1": 0.75, "b2": 0.25}
    assert shares(run(0.0, 0.0).bolts) == {"b1": None, "b2": None}


def test_a_bolts_rate_is_that_of_the_last_seconds_and_none_at_first() -> None:
    rates = BoltRates()

    def rate(now_s: float, records: int) -> float:
        return rates.take({"b1": records}, now_s)["b1"]

    assert [rate(0.0, 0), rate(0.5, 400)] == [0.0, 0.0]  # one tuple is no rate
    assert rate(2.0, 400) == 200.0
    rate(RATE_OVER_S, 400)
    assert rate(2 * RATE_OVER_S + 0.5, 400) == 0.0


def test_where_tuples_take_long_a_bolts_rate_is_that_of_a_dozen() -> None:
    rates = BoltRates()
    of_each_s = [rates.take({"b1": 100 * (s // 2)}, float(s), 2.0)["b1"] for s in range(60)]
    assert min(of_each_s[4:]) >= 25.0 and max(of_each_s[4:]) <= 62.5  # 50/s: 100 records in 2 s
    assert max(of_each_s[24:]) - min(of_each_s[24:]) <= 5.0


def test_a_bolt_that_comes_later_is_measured_from_then() -> None:
    rates = BoltRates()
    rates.take({"a": 0}, 0.0)
    rates.take({"a": 100, "b": 50}, 1.0)
    assert rates.take({"a": 150, "b": 60}, 1.5) == {"a": 100.0, "b": 0.0}
    assert rates.take({"a": 200, "b": 90}, 2.0) == {"a": 100.0, "b": 40.0}
