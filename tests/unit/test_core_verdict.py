"""One judgement for the alarm and for what it means: neither may miss what the other sees."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.core.buffer import Cut
from flowctl.core.consumer import AdaptiveFlowConsumer, NewBolt
from flowctl.core.messages import Heartbeat
from flowctl.core.records import Record
from flowctl.core.state import Liveness
from flowctl.core.tuples import FlowTuple
from flowctl.core.verdict import Verdict, patience_s, verdict
from tests.core_driver import core_settings

TIMES = st.floats(0, 20).map(lambda s: round(s, 1))
SETTINGS = core_settings(
    timeout_rto_first_s=3.0, timeout_silence_s=1.0, timeout_silence_max_s=5.0,
    timeout_heartbeat_s=2.0, timeout_rto_max_s=10.0,
)  # fmt: skip


def consumer_of(*sent_s: float, slots: int = 1, beats: bool = True) -> AdaptiveFlowConsumer:
    consumer = AdaptiveFlowConsumer(NewBolt("a", slots, epoch=1, now_s=0.0), SETTINGS, deque())
    if beats:
        consumer.on_heartbeat(Heartbeat(1, 0), 0.0)
    for number, at_s in enumerate(sent_s):
        consumer.on_sent(FlowTuple(number, Cut("p", number, (Record(number, "x"),), 1)), at_s, True)
    return consumer


def judge(consumer: AdaptiveFlowConsumer, now_s: float) -> Verdict:
    return verdict(consumer, SETTINGS.timeout, now_s)


def holds(judged: Verdict) -> bool:
    signs = (judged.is_rested, judged.is_silent, judged.is_down, judged.is_overdue)
    return any(signs) or bool(judged.hopeless)


@given(
    sent_s=st.lists(TIMES, min_size=1, max_size=4).map(sorted),
    heard_s=TIMES,
    armed_s=TIMES,
    beats=st.booleans(),
    liveness=st.sampled_from([each for each in Liveness if each is not Liveness.GONE]),
)
def test_something_holds_from_the_alarm_on_and_nothing_before(
    sent_s: list[float], heard_s: float, armed_s: float, beats: bool, liveness: Liveness
) -> None:
    consumer = consumer_of(*sent_s, beats=beats)
    consumer.heard_at_s, consumer.armed_at_s, consumer.liveness = heard_s, armed_s, liveness
    consumer.rests_until_s = consumer.suspect_since_s = heard_s
    at_s = verdict(consumer, SETTINGS.timeout).next_s
    assert judge(consumer, at_s).next_s == at_s
    assert holds(judge(consumer, at_s))
    before = judge(consumer, at_s - 0.05)
    assert not holds(before) and not before.lost


@pytest.mark.parametrize(
    ("now_s", "expected"),
    [
        (2.9, Verdict(3.0)),  # the oldest one's time-out
        (3.0, Verdict(3.0, is_overdue=True, hopeless=[], lost=[])),
    ],
)
def test_heard_of_lately_its_oldest_tuple_is_overdue(now_s: float, expected: Verdict) -> None:
    consumer = consumer_of(0.0, 1.0)
    consumer.on_heard(2.5)
    assert judge(consumer, now_s) == expected


def test_silence_means_something_sooner_with_work_overdue() -> None:
    consumer = consumer_of(0.0)
    assert judge(consumer, 3.0).is_silent, "overdue, and a second without a sign"
    consumer.armed_at_s = 4.0  # it acked
    consumer.heard_at_s = 0.0
    assert judge(consumer, 4.9) == Verdict(5.0)
    assert judge(consumer, 5.0).is_silent, "silence_max_s is enough by itself"


def test_where_many_are_in_their_first_call_each_may_be_silent_longer() -> None:
    """They import at once, and wait for each other: up to four are no reason, eight twice."""
    consumer = consumer_of(0.0)
    pool = consumer.service.pool
    assert pool.first_calls == 1
    for first_calls, silent_s in ((4, 1.0), (8, 2.0), (400, 5.0)):
        pool.first_calls_most = first_calls
        consumer.heard_at_s = 10.0
        assert not judge(consumer, 10.0 + silent_s - 0.1).is_silent
        assert judge(consumer, 10.0 + silent_s).is_silent, first_calls


def test_after_its_first_ack_no_others_calls_excuse_its_silence() -> None:
    consumer = consumer_of(0.0, 0.1)
    pool = consumer.service.pool
    pool.first_calls = pool.first_calls_most = 400
    consumer.service.on_sample(0.2, 0.1, 0.0, 1)
    assert (pool.first_calls, pool.first_calls_most) == (399, 400)
    assert judge(consumer, 3.1).is_silent


def test_a_first_call_is_over_with_a_late_ack_too_or_when_the_bolt_goes() -> None:
    late, gone, silent = consumer_of(0.0), consumer_of(0.0), consumer_of()
    expired = late.let_stray(0, 1.0)
    assert expired is not None
    late.on_late_ack(expired, 2.0)
    gone.leave()
    pools = [each.service.pool for each in (late, gone, silent)]
    assert [(pool.first_calls, pool.first_calls_most) for pool in pools] == [(0, 0)] * 3


def test_a_stalled_bolt_is_silent_sooner() -> None:
    consumer = consumer_of(0.0)
    consumer.armed_at_s = 4.0
    consumer.heard_at_s = 4.0
    consumer.liveness = Liveness.STALLED
    assert judge(consumer, 4.9) == Verdict(5.0)
    assert judge(consumer, 5.0).is_silent


def test_what_was_waited_for_long_enough_is_hopeless_and_not_lost_too() -> None:
    consumer = consumer_of(0.0, 8.0)
    consumer.service.on_sample(0.0, 0.1, 0.0, 1)
    consumer.on_heartbeat(Heartbeat(0, 0), 9.9)  # it has nothing to do
    consumer.on_heard(9.9)
    consumer.armed_at_s = 9.0
    judged = judge(consumer, 10.0)
    assert [t.tuple_id for t in judged.hopeless] == [0]
    assert [t.tuple_id for t in judged.lost] == [1]
    assert not judged.is_overdue


@pytest.mark.parametrize(
    ("tuple_s", "expected_s"),
    [(None, 80.0), (0.1, 10.0), (20.0, 1200.0)],  # nobody has acked; quick tuples; slow ones
)
def test_a_bolt_that_beats_and_is_busy_has_as_long_as_what_it_holds_may_take(
    tuple_s: float | None, expected_s: float
) -> None:
    consumer = consumer_of(0.0, 8.0)
    if tuple_s is not None:
        consumer.service.on_sample(0.0, tuple_s, 0.0, 1)
    assert patience_s(consumer, SETTINGS.timeout) == pytest.approx(expected_s)


def test_an_idle_bolt_has_no_alarm() -> None:
    assert judge(consumer_of(), 100.0) == Verdict(float("inf"))
