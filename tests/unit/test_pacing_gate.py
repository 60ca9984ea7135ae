"""A gate, by a clock of the test's: who gets a permit when, what rests, and who is woken."""

from __future__ import annotations

import threading
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from flowctl.core.pacing.law import Bounds, TargetLaw
from flowctl.core.retry import ASKED_MOST_S
from flowctl.pacing.gate import Gate, Known, Waiter
from flowctl.pacing.in_process import TICK_S, LocalSource


class Gated:
    """A gate with so many permits; ``wanted`` and ``left``: what its source heard."""

    def __init__(self, permits: int, rate: float = inf) -> None:
        self.now_s = 50.0
        middle: Any = SimpleNamespace(uniform=lambda low, high: (low + high) / 2)
        self.gate = Gate(clock=lambda: self.now_s, chance=middle)
        self.wanted: list[float] = []
        self.left: list[float] = []
        self.gate.source = SimpleNamespace(
            on_wanted=self.wanted.append, on_left=self.left.append, known=lambda: Known(1, "", True)
        )
        self.gate.rate.set_rate(rate, self.now_s)
        with self.gate.lock:
            self.gate.set_permits(permits)

    def wait(self) -> tuple[Waiter, list[float]]:
        woken: list[float] = []
        return self.gate.queue(lambda: woken.append(self.now_s)), woken

    def turn(self, waiter: Waiter, since_s: float = 50.0) -> float | None:
        return self.gate.next_turn(waiter, 1.0, since_s)


def test_permits_go_in_line_and_the_next_is_woken() -> None:
    gated = Gated(1)
    gate = gated.gate
    assert gate.try_enter(1.0)
    assert not gate.try_enter(1.0)
    first, first_woken = gated.wait()
    second, second_woken = gated.wait()
    assert (gate.waiting, gate.is_idle) == (2, False)
    assert gated.turn(first) == gated.turn(second) == 1.0, "nothing is known of when"
    gated.now_s += 2.0
    gate.leave_done(50.0, 3.0)
    assert (first_woken, second_woken) == ([52.0], [])
    assert not gate.try_enter(1.0), "others wait for it"
    assert gated.turn(second) == 1.0
    assert gated.turn(first) is None
    assert gate.counters.waited_s == 2.0
    assert second_woken == [52.0], "there may be more"
    gate.give_up(second)
    gate.give_up(second)  # it has left already
    gate.leave_failed()
    counters = gate.counters
    assert (counters.calls, counters.failed, counters.cost, counters.call_s) == (1, 1, 3.0, 2.0)
    assert (gate.in_flight, gate.is_idle) == (0, True)
    assert gated.left == [52.0, 52.0]
    assert gated.wanted, "the source heard that somebody waits"


def test_who_gives_up_lets_the_next_one_look() -> None:
    gated = Gated(0)
    first, _ = gated.wait()
    _, woken = gated.wait()
    gated.gate.give_up(first)
    assert woken == [50.0]
    gated.gate.set_permits(1)
    assert woken == [50.0, 50.0]


@pytest.mark.parametrize(("after_s", "rests_s"), [(2.0, 2.0), (60.0, ASKED_MOST_S)])
def test_a_permit_that_was_refused_rests_as_long_as_the_target_asks_up_to_a_bound(
    after_s: float, rests_s: float
) -> None:
    gated = Gated(1)
    gate = gated.gate
    assert gate.try_enter(1.0)
    assert gate.leave_refused(after_s) == after_s, "its caller waits all of it"
    waiter, _ = gated.wait()
    assert gated.turn(waiter) == 1.0, "looks at least once a second"
    gated.now_s += rests_s - 0.5
    assert gated.turn(waiter) == pytest.approx(0.5)
    assert (gate.counters.refused, gate.counters.resting) == (1, 1)
    gated.now_s += 0.5
    assert gated.turn(waiter) is None


def test_refusals_in_a_row_are_waited_for_longer_by_rounds_of_all_permits() -> None:
    gated = Gated(2)
    gate = gated.gate

    def refused(after_s: float | None) -> float:
        gated.now_s += 10.0
        assert gate.try_enter(1.0)
        return gate.leave_refused(after_s)

    assert [refused(None) for _ in range(8)] == [0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    gated.now_s += 10.0
    assert gate.try_enter(1.0)
    gate.leave_done(gated.now_s, 1.0)
    assert [refused(0.01) for _ in range(4)] == [0.01, 0.01, 0.5, 0.5], "believed once"
    assert refused(30.0) == 30.0, "what is asked for counts if it is longer"


def test_a_call_that_fails_but_is_not_refused_ends_the_row_of_refusals() -> None:
    """`flow_sink` took a minute for sixty bad rows beside a target that refuses one call in seven:
    half of it were waits of one and two seconds, as if nothing but refusals had come between."""
    gated = Gated(1)
    for _ in range(4):
        gated.now_s += 10.0
        assert gated.gate.try_enter(1.0)
        assert gated.gate.leave_refused(None) == 0.5
        gated.now_s += 10.0
        assert gated.gate.try_enter(1.0)
        gated.gate.leave_failed()


def test_those_that_were_refused_together_do_not_come_back_together() -> None:
    gate = Gate(clock=lambda: 0.0, chance=Random(1))
    gate.set_permits(100)
    waits = set()
    for _ in range(50):
        assert gate.try_enter(1.0)
        waits.add(gate.leave_refused(None))
    assert len(waits) == 50
    assert 0.375 <= min(waits) < 0.42 and 0.58 < max(waits) <= 0.625


def test_a_budget_is_waited_for_with_a_permit_in_hand() -> None:
    gated = Gated(5, rate=10.0)
    gate = gated.gate
    assert gate.try_enter(2.0)
    waiter, _ = gated.wait()
    wait_s = gated.turn(waiter)
    assert wait_s == pytest.approx(0.2, rel=0.06)
    assert (gate.counters.is_rate_held, gate.counters.is_held) == (True, False)
    gated.now_s += 0.21
    assert gated.turn(waiter) is None


def test_a_lease_that_has_ended_is_no_permit() -> None:
    gated = Gated(5)
    gate = gated.gate
    with gate.lock:
        gate.set_permits(5, gated.now_s + 2.0)
    assert gate.try_enter(1.0)
    gated.now_s += 2.0
    assert not gate.try_enter(1.0)
    assert gate.counters.is_held


def test_who_calls_without_waiting_wants_as_many_permits() -> None:
    gated = Gated(5)
    gate = gated.gate
    assert gate.try_enter(1.0) and gate.try_enter(1.0)
    gate.leave_failed()
    gate.leave_failed()
    with gate.lock:
        sums = [gate.take_sums(), gate.take_sums()]
    assert [(each.want, each.in_flight) for each in sums] == [(2, 2), (0, 0)]


def test_sums_go_on_and_peaks_begin_again_with_what_is_now() -> None:
    gated = Gated(3)
    gate = gated.gate
    for _ in range(3):
        assert gate.try_enter(1.0)
    _, _ = gated.wait()
    gate.leave_done(49.0, 2.0)
    gate.leave_refused(1.0)
    with gate.lock:
        first = gate.take_sums()
        second = gate.take_sums()
    assert (first.in_flight, first.want, first.resting) == (3, 4, 1)
    assert (second.in_flight, second.want, second.resting) == (2, 2, 1)
    assert (first.calls, second.calls, first.cost, second.cost) == (1, 1, 2.0, 2.0)
    gated.now_s += 1.0
    with gate.lock:
        third = gate.take_sums()
        fourth = gate.take_sums()
    assert (third.resting, fourth.resting, fourth.in_flight) == (1, 0, 1)


@pytest.mark.parametrize(
    ("permits", "rate", "held"),
    [
        (1, inf, (True, False)),
        (2, inf, (False, False)),
        (2, 5.0, (False, True)),
        (1, 5.0, (True, False)),
    ],
)
def test_who_waits_through_an_interval_waits_in_the_next_too(
    permits: int, rate: float, held: tuple[bool, bool]
) -> None:
    gated = Gated(permits, rate)
    gate = gated.gate
    assert gate.try_enter(1.0)
    waiter, _ = gated.wait()
    with gate.lock:
        gate.take_sums()
        counters = gate.counters
        assert (counters.is_held, counters.is_rate_held) == held
    gate.give_up(waiter)
    with gate.lock:
        gate.take_sums()
    assert (gate.counters.is_held, gate.counters.is_rate_held) == (False, False)


def test_a_process_alone_looks_every_so_often_and_takes_what_was_learned() -> None:
    """Ten samples a second, each of all that ended since the one before."""
    gated = Gated(0)
    gate = gated.gate
    seen: list[Any] = []
    law = TargetLaw(Bounds(start=3), tick_s=TICK_S)
    learn = SimpleNamespace(
        limit=3,
        rate=float("inf"),
        reason="start",
        on_sample=lambda now_s, sample: seen.append((now_s, sample)),
    )
    gate.source = source = LocalSource(gate, law, rate=inf)
    assert (gate.permits, source.known()) == (3, Known(3, "start", is_shared=False))
    source.law = learn
    for _ in range(25):
        assert gate.try_enter(1.0)
        gated.now_s += TICK_S / 2.5
        gate.leave_done(gated.now_s - 0.01, 2.0)
    assert [sample.calls for _, sample in seen] == [3] * 8
    assert [sample.cost for _, sample in seen] == [6.0] * 8
    assert [sample.span_s for _, sample in seen] == pytest.approx([3 * TICK_S / 2.5] * 8)
    learn.limit = 7
    for _ in range(3):
        assert gate.try_enter(1.0)
        gated.now_s += TICK_S / 2.5
        gate.leave_done(gated.now_s, 1.0)
    assert (gate.permits, source.known().limit) == (7, 7)


def test_a_thread_waits_in_line_for_its_permit() -> None:
    gate = Gate()
    gate.set_permits(1)
    gate.enter(1.0)
    thread = threading.Thread(target=gate.enter, args=(1.0,))
    thread.start()
    while not gate.waiting:
        assert thread.is_alive(), "it went in without one"
        thread.join(0.001)
    gate.leave_failed()
    thread.join(60)
    assert (gate.in_flight, gate.waiting) == (1, 0)


def test_a_thread_that_is_interrupted_in_line_leaves_it() -> None:
    class Interrupted:
        def __init__(self) -> None:
            self.set = lambda: None

        def wait(self, timeout: float) -> None:
            raise KeyboardInterrupt

    gate = Gate()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("flowctl.pacing.gate.threading.Event", Interrupted)
        gate.enter(1.0)
    assert gate.waiting == 0
