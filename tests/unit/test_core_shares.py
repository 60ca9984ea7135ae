"""How much of what is left belongs to one bolt now, before the end of the input is told too."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import pytest

from flowctl.core.first_guess import FirstTuples
from flowctl.core.messages import Emission
from tests.core_driver import Driver


def just_full(*bolts: str, **values: object) -> Driver:
    return Driver(*bolts, window_policy="just_full", tuple_records_max=1_000, **values)


def ack(driver: Driver, emission: Emission, call_s: float, record_s: float) -> None:
    service_s = call_s + record_s * len(emission.records)
    driver.ack(emission, wait_s=0.0, service_s=service_s, idle_total_s=0.0)


def sizes(emissions: list[Emission]) -> list[int]:
    return [len(emission.records) for emission in emissions]


@pytest.mark.req("S1")
def test_a_short_job_uses_all_bolts_though_its_end_is_not_told() -> None:
    """24 records in tuples of 25 would all go to one bolt."""
    driver = just_full(*"abcdefghijkl")
    driver.offer(24)
    emissions = driver.emit()
    assert len({emission.bolt for emission in emissions}) == 12
    assert sizes(emissions) == [1] * 12, "one each until the first ack"


def test_first_tuples_differ_so_that_they_tell_a_calls_cost() -> None:
    driver = just_full("a", "b", "c", "d")
    driver.offer(1_280)  # 320 each: 1/32 and 1/8 of that
    assert sizes(driver.emit()) == [10, 40, 10, 40]


def test_first_tuples_differ_at_a_single_bolt_too() -> None:
    driver = just_full("a", slots=4)
    driver.offer(512)  # 128 a slot
    assert sizes(driver.emit()) == [4, 16, 4, 16]


@pytest.mark.parametrize("policy", ["just_full", "fixed"])
def test_tuples_of_single_records_are_single_from_the_first_one(policy: str) -> None:
    driver = Driver("a", "b", slots=4, window_policy=policy, window_initial=4)
    driver.offer(100)
    driver.core.end_of_input(now_s=driver.clock())
    assert sizes(driver.emit()) == [1] * 8


def calls_of_a_round(driver: Driver) -> int:
    """How many functions it takes to ack all that is in flight and to send as much."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    emissions = driver.log_emitted[-len(driver.core.book.pending) :]
    driver.clock.advance(0.01)
    sys.setprofile(count)
    for emission in emissions:
        ack(driver, emission, 0.0, 0.001)
    again = driver.emit()
    sys.setprofile(None)
    assert len(again) == len(emissions)
    return calls


def test_the_end_of_single_records_costs_a_crowd_no_more_than_their_middle() -> None:
    """Shares decide nothing there, and to work them out took as long as the tuples."""
    driver = Driver(*(f"b{n}" for n in range(300)), window_policy="fixed", window_initial=2)
    driver.checks = False
    driver.offer(6_600)
    driver.core.end_of_input(now_s=driver.clock())
    assert len(driver.emit()) == 600
    calls_of_a_round(driver)  # now all are known
    in_the_middle = calls_of_a_round(driver)  # 4,800 are left, and from then on there is no plenty
    calls_of_a_round(driver)
    assert calls_of_a_round(driver) <= 1.1 * in_the_middle


def test_with_plenty_to_do_first_tuples_are_as_large_as_may_be() -> None:
    driver = just_full("a", "b")
    driver.offer(10_000)
    assert sizes(driver.emit(2)) == [25, 100]


def test_several_bolts_answer_before_they_get_a_second_tuple() -> None:
    """Their first ones tell what a call costs; a second would be sent without that."""
    driver = just_full(*"abcd")
    driver.offer(100_000)
    assert sizes(driver.emit()) == [25, 100, 25, 100]


def test_while_more_is_to_be_read_each_bolt_tells_a_calls_cost_by_itself() -> None:
    """It gets two tuples at once, which must differ: a later line through them is its own."""
    driver = just_full(*"abcd", buffer_records_max=10_000)
    assert driver.offer(100_000) < 100_000
    firsts: dict[str, list[int]] = {}
    for emission in driver.emit():
        firsts.setdefault(emission.bolt, []).append(len(emission.records))
    assert firsts == {bolt: [25, 100] for bolt in "abcd"}


def test_where_all_tuples_are_single_records_no_bolt_waits_for_its_first_answer() -> None:
    driver = Driver(*"abcd", window_policy="just_full", window_initial=4)
    driver.offer(100)
    driver.core.end_of_input(now_s=driver.clock())
    assert sizes(driver.emit()) == [1] * 16


def test_a_bolt_far_away_that_answers_first_gets_no_more_than_its_own() -> None:
    """What was just sent there is not at work while it is on its way."""
    driver = just_full(*"abcd")
    driver.offer(1_000)
    first, *_ = driver.emit()
    driver.clock.advance(0.5)
    ack(driver, first, 0.0, 0.001)
    assert driver.emit() == []
    driver.clock.advance(0.1)
    given = driver.emit()
    assert {emission.bolt for emission in given} == {"a"}
    assert sum(sizes(given)) <= 1_000 / 4


def test_where_first_tuples_were_alike_the_next_differ() -> None:
    """Twelve records each: a call may be what costs, and single records would never tell."""
    driver = just_full(*"abcd")
    driver.offer(20)
    first = driver.emit()
    assert sizes(first) == [1] * 4
    driver.clock.advance(0.3)
    for emission in first:
        ack(driver, emission, 0.3, 0.01)
    assert len(set(sizes(driver.emit()))) > 1


def test_while_most_bolts_are_to_come_the_first_ones_do_not_take_whole_shares() -> None:
    """Sizes that differ tell a call's cost, but here few would hold what the others wait for."""
    driver = just_full(*"abcd")
    driver.core.expect_bolts(40)
    driver.offer(48)
    for _ in range(2):
        emissions = driver.emit()
        assert sizes(emissions) == [1] * 4
        driver.clock.advance(0.03)
        for emission in emissions:
            ack(driver, emission, 0.0, 0.03)
    assert max(sizes(driver.emit())) == 1


def test_after_one_tuple_that_took_long_a_bolt_alone_is_not_sent_many_small_ones() -> None:
    driver = just_full("a")
    driver.offer(400)
    (first,) = driver.emit(1)
    driver.clock.advance(0.5)
    ack(driver, first, 0.5, 0.0)
    assert len(driver.emit()) <= 1


def test_a_bolt_that_is_quick_gets_the_rest_though_new_ones_come_first() -> None:
    """Four new bolts were asked, all of which would be late.  Records waited for one that was known
    to be quick and had nothing to do, as it seemed to be done later than they."""
    driver = Driver("quick", "slow", window_policy="just_full", window_initial=1)
    driver.offer(3)
    quick, slow = sorted(driver.emit(), key=lambda emission: emission.bolt)
    driver.clock.advance(1.0)
    driver.ack(slow, wait_s=0.0, service_s=1.0, idle_total_s=0.0)
    assert [emission.bolt for emission in driver.emit()] == ["slow"]
    driver.clock.advance(0.1)
    driver.ack(quick, wait_s=0.99, service_s=0.01, idle_total_s=0.0)  # 0.1 s away
    for number in range(6):
        driver.add(f"new{number}")
    driver.offer(2)
    driver.end()
    assert driver.core.bolts["new0"].completion_s < driver.core.bolts["quick"].completion_s
    assert [emission.bolt for emission in driver.emit(1)] == ["quick"]


def test_bolts_that_are_to_come_have_a_share() -> None:
    driver = just_full("a")
    driver.core.expect_bolts(10)
    driver.offer(1_280)
    (first,) = driver.emit()
    assert len(first.records) == 4  # 1/32 of 128
    ack(driver, first, 0.0, 0.001)
    (second,) = driver.emit(1)
    assert len(second.records) <= 64, "half of a tenth"


def test_bolts_that_come_slowly_hold_up_nothing() -> None:
    """One came in the first second, 50 more are to come: the rest is done before most of them."""
    driver = just_full("a")
    driver.core.expect_bolts(51)
    driver.offer(1_000)
    sent = driver.emit()
    driver.clock.advance(1.0)
    driver.add("b")
    for emission in sent:
        ack(driver, emission, 0.0, 1e-4)
    assert max(sizes(driver.emit())) >= 100, "ten times an equal share of 51"


def test_each_slot_gets_a_first_tuple() -> None:
    driver = just_full("a", "b", slots=4)
    driver.offer(1_280)
    assert Counter(emission.bolt for emission in driver.emit()) == {"a": 4, "b": 4}


def test_a_large_tuple_leaves_the_other_slots_of_its_bolt_room() -> None:
    """Counted in work alone, the window is full until the large tuple is done."""
    driver = just_full("a", slots=4)
    driver.offer(512)
    small, *others = driver.emit()
    assert sizes([small, *others]) == [4, 16, 4, 16]
    ack(driver, small, 0.0, 0.001)
    assert len(driver.emit()) == 1, "40 ms of work are more than four tuples of 4 ms"


@pytest.mark.req("S10")
def test_a_window_smaller_than_the_slots_leaves_slots_free() -> None:
    driver = just_full("a", slots=4, window_max=2)
    driver.offer(512)
    first, _ = driver.emit()
    ack(driver, first, 0.0, 0.001)
    assert len(driver.emit()) == 1, "though three slots are free"


def test_a_bolt_that_has_its_own_gets_no_single_records_on_top() -> None:
    driver = just_full("a", "b", "c", "d")
    driver.offer(2_000)
    waiting = driver.emit()
    while waiting:
        emission = waiting.pop(0)
        driver.clock.advance(0.02)
        driver.ack(emission, wait_s=0.0, service_s=1e-4 * len(emission.records), idle_total_s=0.0)
        waiting += driver.emit()
    assert driver.core.counters.tuples_emitted < 100


def test_a_bolt_alone_has_nobody_to_share_with() -> None:
    driver = just_full("a")
    driver.offer(100)
    assert sizes(driver.emit(1)) == [25]


def test_a_faster_bolt_has_a_larger_share() -> None:
    driver = just_full("fast", "slow")
    driver.offer(640)
    record_s = {"fast": 0.001, "slow": 0.004}
    got: Counter[str] = Counter()
    ends_s: dict[str, float] = {}
    held: dict[str, list[Emission]] = {"fast": [], "slow": []}
    while not driver.core.is_drained:
        for emission in driver.emit():
            assert len(emission.records) <= 0.5 * 0.9 * 640
            got[emission.bolt] += len(emission.records)
            held[emission.bolt].append(emission)
        for bolt, emissions in held.items():
            if emissions and bolt not in ends_s:
                ends_s[bolt] = driver.clock() + record_s[bolt] * len(emissions[0].records)
        bolt = min(ends_s, key=lambda name: ends_s[name])
        driver.clock.advance(ends_s.pop(bolt) - driver.clock())
        ack(driver, held[bolt].pop(0), 0.0, record_s[bolt])
    assert 3.5 * got["slow"] <= got["fast"] <= 4.5 * got["slow"]


def test_where_the_call_is_what_costs_a_bolt_gets_all_that_is_its_own() -> None:
    """Another call of .3 s would cost more than it could even out."""
    driver = just_full("a", "b", "c", "d")
    driver.offer(1_280)
    for emission in driver.emit():
        ack(driver, emission, 0.3, 0.001)
    last = driver.emit()
    assert sum(sizes(last)) >= 0.6 * 1_180
    assert max(sizes(last)) <= 0.4 * 1_180


def all_rounds(driver: Driver, call_s: float, record_s: float) -> list[list[int]]:
    """The sizes of what goes out together, until all is acked."""
    rounds: list[list[int]] = []
    while emissions := driver.emit():
        rounds.append(sizes(emissions))
        for emission in emissions:
            ack(driver, emission, call_s, record_s)
    return rounds


def test_a_rest_that_is_not_worth_a_call_goes_with_the_last_tuple() -> None:
    """A record was left, and cost one more call."""
    driver = just_full("a")
    driver.offer(222)
    assert all_rounds(driver, 0.13, 0.0087) == [[25, 100], [97]]


def test_slots_share_what_is_left_as_bolts_do() -> None:
    """Each took a quarter of what those before it had left, down to calls with single records."""
    driver = just_full("a", slots=4)
    driver.offer(600)
    first, rest = all_rounds(driver, 0.3, 1e-5)
    assert first == [4, 18, 4, 18]
    assert rest == pytest.approx([139] * 4, abs=1)


def test_a_source_that_gives_records_as_they_come_is_not_cut() -> None:
    driver = just_full("a", "b", "c", "d")
    driver.offer(400)
    first, *_ = driver.emit()
    ack(driver, first, 0.0, 1e-5)
    assert driver.core.intake.holds_rest
    driver.clock.advance(0.1)
    driver.offer(400)
    assert not driver.core.intake.holds_rest


def test_nor_one_that_gives_a_few_and_then_more() -> None:
    driver = just_full("a", "b")
    driver.offer(100)
    driver.offer(100)
    assert driver.core.intake.holds_rest, "at the same time: it is read at once"
    driver.clock.advance(0.1)
    driver.offer(100)
    assert not driver.core.intake.holds_rest


def test_nor_one_that_has_more_than_there_is_room_for() -> None:
    driver = just_full("a", "b", buffer_records_max=100)
    driver.offer(100)
    assert driver.core.intake.holds_rest
    driver.offer(1)
    assert not driver.core.intake.holds_rest


def first_tuples(call_s: float, record_s: float, speeds: tuple[float, ...]) -> FirstTuples:
    firsts = FirstTuples()
    for index, speed in enumerate(speeds):
        records = (25, 100)[index % 2]
        firsts.add((call_s + record_s * records) / speed, records)
    return firsts


@pytest.mark.parametrize("speeds", [(1.0,) * 4, (1.0, 1.1, 0.9, 1.0)])
def test_first_tuples_tell_a_dear_call(speeds: tuple[float, ...]) -> None:
    fixed = first_tuples(0.3, 0.001, speeds).fixed_records()
    assert fixed is not None
    assert 100 < fixed < 10_000


def test_a_call_costs_no_more_records_than_sizes_could_have_shown() -> None:
    """The quickest of many bolts answer alike, whatever their tuples hold."""
    firsts = FirstTuples()
    for service_s, records in ((1.0, 1), (0.95, 2), (1.05, 1)):
        firsts.add(service_s, records)
    fixed = firsts.fixed_records()
    assert fixed is None or fixed < 10


def test_first_tuples_tell_nothing_where_records_cost_or_bolts_are_few() -> None:
    assert first_tuples(0.0, 0.001, (1.0,) * 4).fixed_records() is None
    assert first_tuples(0.3, 0.001, (2.0, 1.0, 0.25, 1.0)).fixed_records() is None
    assert first_tuples(0.3, 0.001, (1.0, 1.0)).fixed_records() is None
