"""The order of the spout's loop, turn by turn, in no time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import pytest

from flowctl.config import WaitSettings
from flowctl.instrumentation.snapshot import WaitReason
from flowctl.runtime.sender import SpoutLoop
from flowctl.testing.clock import ManualClock
from flowctl.waiting.strategies import WaitInterrupted, make_wait_strategy
from tests.loop_parts import Log, Parked

NOTHING, *REASONS = WaitReason
BACK_PRESSURE, MAX_PENDING, NO_INPUT, LAST_TUPLES = REASONS
LITERAL = {
    "spout_strategy": "progressive",
    "bolt_strategy": "progressive",
    "backpressure_strategy": "progressive",
}


class House:
    """A loop, its waits, and a spout that does what the test plans."""

    def __init__(self, **settings: object) -> None:
        self.clock = ManualClock()
        self.park = Parked(self.clock)
        self.log = Log()
        self.calls: list[str] = []
        self.is_active = True
        self.received = 0
        self.emits: Callable[[], int] = lambda: 0
        self.why: WaitReason = NO_INPUT
        wait = WaitSettings(**{**LITERAL, **settings})  # type: ignore[arg-type]
        self.loop = SpoutLoop(
            self,
            strategy=partial(make_wait_strategy, wait, park=self.park),
            park=self.park,
            clock=self.clock,
            logger=self.log,
        )

    def receive(self) -> int:
        self.calls.append("receive")
        return self.received

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def next_tuple(self) -> int:
        self.calls.append("next_tuple")
        return self.emits()

    def waits_for(self) -> WaitReason:
        return self.why

    def steps(self, count: int, *, emits: int = 0, why: WaitReason = NO_INPUT) -> None:
        self.emits, self.why = lambda: emits, why
        for _ in range(count):
            self.loop.step()


# -- order -------------------------------------------------------------------------------------


@pytest.mark.req("S36")
def test_a_turn_takes_acks_first_activates_once_and_then_asks_for_tuples():
    house = House()
    house.steps(2)
    assert house.calls == ["receive", "activate", "next_tuple", "receive", "next_tuple"]


@pytest.mark.req("S55", "S123")
def test_inactive_it_takes_acks_looks_every_100_ms_and_asks_for_nothing():
    house = House()
    house.is_active = False
    house.steps(3)
    assert house.calls == ["receive"] * 3
    assert house.park.times_s == [0.1] * 3
    house.is_active = True
    house.steps(1)
    assert house.calls[3:] == ["receive", "activate", "next_tuple"]


@pytest.mark.req("S36", "S55")
def test_activate_and_deactivate_come_once_a_transition():
    house = House()
    for is_active in (True, False, True):
        house.is_active = is_active
        house.steps(3)
    house.loop.close()
    house.loop.close()
    told = [call for call in house.calls if call.endswith("activate")]
    assert told == ["activate", "deactivate", "activate", "deactivate"]


@pytest.mark.req("S36", "S43", "S53")
@pytest.mark.parametrize("why", [BACK_PRESSURE, MAX_PENDING])
def test_acks_are_taken_at_every_turn_whatever_holds_it_up(why: WaitReason):
    house = House()
    house.steps(5, why=why)
    assert house.calls.count("receive") == 5


# -- waits -------------------------------------------------------------------------------------


@pytest.mark.req("S38")
@pytest.mark.parametrize(("received", "waits"), [(0, 1), (1, 1), (2, 0), (5, 0)])
def test_it_does_not_idle_when_more_than_one_message_came(received: int, waits: int):
    house = House()
    house.received = received
    house.steps(1)
    assert len(house.park.times_s) == house.loop.empty_emit_streak == waits


@pytest.mark.req("S39", "S33")
def test_full_windows_are_a_backpressure_wait_with_a_counter_of_its_own():
    house = House(
        backpressure_level1_count=2, backpressure_level2_count=1, spout_level3_sleep_ms=500
    )
    house.steps(5, why=BACK_PRESSURE)
    assert house.park.times_s == [0, 0, 1e-9, 0.001, 0.001]
    assert house.loop.waited_s(BACK_PRESSURE) == pytest.approx(0.002)
    assert house.loop.waited_s(MAX_PENDING) == house.loop.waited_s(NO_INPUT) == 0
    assert house.loop.empty_emit_streak == 0, "it had something to emit"
    house.steps(1, emits=1, why=NOTHING)
    assert len(house.park.times_s) == 5, "more may be emitted: no wait"
    house.steps(1, why=BACK_PRESSURE)
    assert house.park.times_s[5:] == [0], "emitted between: the counter began anew"


@pytest.mark.req("S40", "S60")
def test_nothing_to_emit_is_a_spout_wait_with_a_growing_streak():
    house = House(spout_level1_count=1, spout_level2_count=1)
    streaks = []
    for emits in (0, 0, 0, 1, 0):
        house.steps(1, emits=emits, why=NOTHING if emits else NO_INPUT)
        streaks.append(house.loop.empty_emit_streak)
    assert streaks == [1, 2, 3, 0, 1], "the emission reset it"
    assert house.park.times_s == [0, 1e-9, 0.001, 0], "and the counter of the wait"
    assert house.loop.waited_s(NO_INPUT) == pytest.approx(0.001)
    assert (house.loop.waited_s(MAX_PENDING), house.loop.waited_s(BACK_PRESSURE)) == (0, 0)


@pytest.mark.req("S40", "S60")
def test_the_old_default_is_a_sleep_of_1_ms():
    house = House()
    house.steps(3)
    assert house.park.times_s == [0.001] * 3


@pytest.mark.req("S40", "S60")
def test_the_wait_at_max_pending_is_a_spout_wait_and_its_time_is_counted():
    house = House()
    house.steps(4, why=MAX_PENDING)
    assert house.park.times_s == [0.001] * 4
    assert house.loop.waited_s(MAX_PENDING) == pytest.approx(0.004)
    assert (house.loop.empty_emit_streak, house.loop.waited_s(BACK_PRESSURE)) == (4, 0)


@pytest.mark.req("S60")
def test_it_waits_only_where_it_can_not_emit_more():
    house = House()
    house.steps(100, emits=1, why=NOTHING)
    assert house.park.times_s == []
    house.steps(1, emits=7, why=BACK_PRESSURE)
    assert len(house.park.times_s) == 1, "seven, and then no window had room"


@pytest.mark.req("S31")
def test_the_default_waits_until_it_is_woken():
    house = House(spout_strategy="blocking", backpressure_strategy="blocking")
    house.steps(2, why=BACK_PRESSURE)
    house.steps(2)
    assert house.park.times_s == [0.5] * 4


@pytest.mark.req("S45")
@pytest.mark.parametrize("why", REASONS)
@pytest.mark.parametrize("is_active", [True, False])
def test_an_interruption_leaves_every_wait(is_active: bool, why: WaitReason):
    house = House()
    house.is_active = is_active
    house.park.is_interrupted = True
    with pytest.raises(WaitInterrupted):
        house.steps(1, why=why)
    house.loop.close()


# -- what is told ------------------------------------------------------------------------------


@pytest.mark.req("S44", "S124")
@pytest.mark.parametrize(
    ("why", "name"),
    [(BACK_PRESSURE, "backpressure"), (MAX_PENDING, "max_pending"), (NO_INPUT, "no_input")],
)
def test_throttling_is_told_at_both_ends_of_an_episode(why: WaitReason, name: str):
    house = House(backpressure_level2_count=0)
    house.steps(50, why=why)
    assert house.log.events == [], "not in every turn"
    house.steps(10, emits=1, why=NOTHING)
    assert house.log.events == [f"{name}_began", f"{name}_ended"]
    assert house.log.told[1][2]["waits"] == 50
    house.steps(8000, why=why)
    assert house.log.told[2][:2] == (logging.INFO, f"{name}_began"), "while it lasts"
    house.steps(1, emits=1, why=NOTHING)
    level, event, fields = house.log.told[3]
    assert (level, event) == (logging.INFO, f"{name}_ended")
    assert fields["length_s"] == pytest.approx(8.0, rel=0.01)
    assert len(house.log.told) == 4


@pytest.mark.req("S44")
def test_another_reason_is_another_episode():
    house = House()
    house.steps(3, why=NO_INPUT)
    house.steps(3, why=MAX_PENDING)
    house.steps(1, why=NO_INPUT)
    assert house.log.events == [
        "no_input_began",
        "no_input_ended",
        "max_pending_began",
        "max_pending_ended",
    ]


@pytest.mark.req("S44", "S55")
@pytest.mark.parametrize("is_closed", [False, True])
def test_an_episode_ends_with_the_loops_activity(is_closed: bool):
    house = House()
    house.steps(5, why=MAX_PENDING)
    if is_closed:
        house.loop.close()
    else:
        house.is_active = False
        house.steps(5)
    assert house.log.events == ["max_pending_began", "max_pending_ended"]
    assert house.log.told[-1][2]["length_s"] == pytest.approx(0.005)


@pytest.mark.req("S54")
def test_a_spout_that_blocks_is_told_of():
    def sleepy() -> int:
        house.clock.advance(3.0)
        return 1

    house = House()
    house.emits, house.why = sleepy, NOTHING
    for _ in range(3):
        house.loop.step()
    warnings = [fields for _, event, fields in house.log.told if event == "call_blocks_loop"]
    assert warnings == [{"call": "next_tuple", "took_s": 3.0}]
