"""The order of the spout's loop, step by step, in no time."""

from __future__ import annotations

import pytest

from flowctl.config import WaitSettings
from flowctl.runtime.loops import max_pending_of
from tests.loop_parts import House, Spout, spout_loop, steps

# -- the spout: life cycle ---------------------------------------------------------------------


@pytest.mark.req("S55", "S123")
def test_nothing_is_opened_or_taken_before_the_first_activation():
    house = House()
    house.is_active = False
    house.inbox.offer("ack")
    spout = Spout(house)
    loop = spout_loop(house, spout)
    steps(loop, 3)
    assert (spout.calls, house.handled, loop.open_was_called) == ([], [], False)
    assert house.park.times_s == [0.1, 0.1, 0.1], "it looks every 100 ms"
    house.is_active = True
    loop.step()
    assert spout.calls == ["open", "activate", "next_tuple"]
    assert (house.handled, loop.open_was_called) == (["ack"], True)


@pytest.mark.req("S123")
def test_a_spout_that_can_not_open_takes_nothing():
    class Broken(Spout):
        def open(self) -> None:
            super().open()
            raise OSError("no source")

    house = House()
    house.inbox.offer("ack")
    spout = Broken(house)
    loop = spout_loop(house, spout)
    with pytest.raises(OSError):
        loop.step()
    assert (loop.open_was_called, house.handled) == (False, [])
    loop.close()
    assert spout.calls == ["open", "close"], "it may have taken something before it raised"


@pytest.mark.req("S36", "S55")
def test_activate_and_deactivate_come_once_a_transition():
    house = House()
    spout = Spout(house)
    loop = spout_loop(house, spout)
    for is_active in (True, False, True):
        house.is_active = is_active
        steps(loop, 3)
    loop.close()
    told = [call for call in spout.calls if call != "next_tuple"]
    assert told == ["open", "activate", "deactivate", "activate", "deactivate", "close"]
    assert spout.asked == 6
    assert house.park.times_s == [0.1] * 3


@pytest.mark.req("S36", "S53")
def test_inactive_it_still_takes_acks_and_does_nothing_else():
    house = House()
    spout = Spout(house)
    loop = spout_loop(house, spout)
    loop.step()
    house.accepts = lambda item: False
    house.emits.emit(["waits"])
    house.is_active = False
    house.accepts = lambda item: True
    house.inbox.offer("ack")
    sent = list(house.sent)
    loop.step()
    assert house.handled == ["ack"]
    assert house.sent == sent and len(house.emits) == 1, "not even flushed"


# -- the spout: order --------------------------------------------------------------------------


@pytest.mark.req("S36")
@pytest.mark.parametrize("drain_every", [1, 2, 3])
def test_the_inbox_is_drained_at_every_nth_step(drain_every: int):
    house = House()
    loop = spout_loop(house, Spout(house), drain_every=drain_every)
    drained = []
    for step in range(1, 7):
        house.inbox.offer(step)
        before = len(house.handled)
        loop.step()
        if len(house.handled) > before:
            drained.append(step)
    assert drained == list(range(drain_every, 7, drain_every))


@pytest.mark.req("S36")
def test_first_acks_then_flush_then_next_tuple():
    house = House()
    order: list[str] = []

    class Noting(Spout):
        def next_tuple(self) -> None:
            order.append("next_tuple")

        def activate(self) -> None:
            order.append("activate")

    house.accepts = lambda item: False
    house.emits.emit(["kept"])
    house.accepts = lambda item: not order.append("flush")
    house.inbox.offer("ack")
    spout_loop(house, Noting(house), handle=order.append).step()
    assert order == ["ack", "activate", "flush", "next_tuple"]


@pytest.mark.req("S36", "S69")
def test_every_task_is_asked_once_a_step():
    house = House()
    spouts = [Spout(house, task_id=number) for number in range(3)]
    loop = spout_loop(house, *spouts)
    steps(loop, 2)
    assert [task for task, _, _ in house.sent] == [0, 1, 2, 0, 1, 2]


@pytest.mark.req("S36", "S52", "S59")
def test_next_tuple_is_not_called_while_an_emit_waits():
    house = House(accepts=lambda item: False)
    spout = Spout(house, 3)
    loop = spout_loop(house, spout)
    steps(loop, 10)
    assert (spout.asked, len(house.emits), house.emits.kept_max) == (1, 3, 3)
    house.accepts = lambda item: len(house.sent) < 2
    steps(loop, 5)
    assert (spout.asked, len(house.emits)) == (1, 1), "one left is as good as three"
    house.accepts = lambda item: True
    loop.step()
    assert (spout.asked, len(house.emits)) == (2, 0)


@pytest.mark.req("S52", "S69")
def test_the_overflow_holds_one_next_tuple_whatever_the_number_of_tasks_and_all_get_their_turn():
    house = House(accepts=lambda item: False)
    spouts = [Spout(house, 4, task_id=number) for number in range(3)]
    loop = spout_loop(house, *spouts)
    for _ in range(3):
        loop.step()
        room = len(house.sent) + 4
        house.accepts = lambda item, room=room: len(house.sent) < room
    loop.step()
    assert house.emits.kept_max == 4
    assert [spout.asked for spout in spouts] == [2, 1, 1]


# -- the spout: limits and waits ---------------------------------------------------------------


@pytest.mark.req("S37")
def test_max_pending_is_per_task_and_none_and_0_are_no_limit():
    assert [max_pending_of(*given) for given in ((5, 3), (None, 3), (0, 3))] == [15, 0, 0]


@pytest.mark.req("S37", "S59")
@pytest.mark.parametrize(("pending", "is_asked"), [(5, True), (6, False), (7, False)])
def test_at_max_pending_next_tuple_is_not_called(pending: int, is_asked: bool):
    house = House()
    spouts = [Spout(house), Spout(house)]
    loop = spout_loop(house, *spouts, pending=range(pending), max_pending=3)
    loop.step()
    assert bool(spouts[0].asked) is is_asked


@pytest.mark.req("S59")
def test_max_pending_is_never_passed_within_a_round():
    house = House()
    spouts = [Spout(house) for _ in range(3)]
    loop = spout_loop(house, *spouts, pending=house.sent, max_pending=1)
    steps(loop, 5)
    assert len(house.sent) == 3
    house.sent.pop()
    steps(loop, 3)
    assert len(house.sent) == 3
    assert [spout.asked for spout in spouts] == [2, 1, 1]


@pytest.mark.req("S37")
def test_without_a_limit_any_number_may_be_pending():
    house = House()
    spout = Spout(house)
    steps(spout_loop(house, spout, pending=range(10**6)), 3)
    assert spout.asked == 3


@pytest.mark.req("S38")
@pytest.mark.parametrize(("received", "waits"), [(0, 1), (1, 1), (2, 0), (5, 0)])
def test_it_does_not_idle_when_more_than_one_message_came(received: int, waits: int):
    house = House()
    for number in range(received):
        house.inbox.offer(number)
    loop = spout_loop(house, Spout(house, 0))
    loop.step()
    assert len(house.park.times_s) == waits
    assert loop.empty_emit_streak == waits


@pytest.mark.req("S39", "S33")
def test_an_emit_that_waits_is_a_backpressure_wait_with_a_counter_of_its_own():
    house = House(
        settings=WaitSettings(
            backpressure_level1_count=2, backpressure_level2_count=1, spout_level3_sleep_ms=500
        ),
        accepts=lambda item: False,
    )
    loop = spout_loop(house, Spout(house, [1, 1, 0]))
    steps(loop, 5)
    assert house.park.times_s == [0, 0, 1e-9, 0.001, 0.001]
    assert loop.skipped_backpressure_s == pytest.approx(0.002)
    assert (loop.skipped_max_pending_s, loop.empty_emit_streak) == (0, 0)
    house.accepts = lambda item: True
    loop.step()
    assert len(house.park.times_s) == 5, "flushed, and there was something to emit"
    house.accepts = lambda item: False
    house.emits.emit(["again"])
    loop.step()
    assert house.park.times_s[5:] == [0], "flushed once: the counter began anew"


@pytest.mark.req("S40", "S60")
def test_no_emission_is_a_spout_wait_with_a_growing_streak():
    house = House(settings=WaitSettings(spout_level1_count=1, spout_level2_count=1))
    streaks: list[int] = []
    loop = spout_loop(house, Spout(house, [0, 0, 0, 1, 0]), on_empty_emit=streaks.append)
    steps(loop, 5)
    assert streaks == [1, 2, 3, 1], "the emission reset it"
    assert house.park.times_s == [0, 1e-9, 0.001, 0], "and the counter of the wait"
    assert (loop.skipped_max_pending_s, loop.skipped_backpressure_s) == (0, 0)


@pytest.mark.req("S40", "S60")
def test_the_old_default_is_a_sleep_of_1_ms():
    house = House()
    steps(spout_loop(house, Spout(house, 0)), 3)
    assert house.park.times_s == [0.001] * 3


@pytest.mark.req("S40", "S60")
def test_the_wait_at_max_pending_is_a_spout_wait_and_its_time_is_counted():
    house = House()
    spout = Spout(house)
    loop = spout_loop(house, spout, pending=[1], max_pending=1)
    steps(loop, 4)
    assert house.park.times_s == [0.001] * 4
    assert loop.skipped_max_pending_s == pytest.approx(0.004)
    assert (loop.empty_emit_streak, spout.asked, loop.skipped_backpressure_s) == (4, 0, 0)


@pytest.mark.req("S60")
def test_it_waits_in_exactly_two_conditions():
    house = House()
    steps(spout_loop(house, Spout(house)), 100)
    assert house.park.times_s == []


@pytest.mark.req("S44", "S124")
def test_throttling_is_told_at_both_ends_of_a_stretch():
    house = House()
    pending = [1]
    loop = spout_loop(house, Spout(house), pending=pending, max_pending=1)
    steps(loop, 50)
    assert house.log.events == ["max_pending_reached", "spout_wait_began"]
    pending.clear()
    steps(loop, 10)
    ended = {event: fields for _, event, fields in house.log.told}
    assert len(house.log.told) == 4
    assert ended["max_pending_ended"]["length_s"] == pytest.approx(0.05)
    assert ended["spout_wait_ended"]["waits"] == 50
    house.accepts = lambda item: False
    steps(loop, 2000)
    house.accepts = lambda item: True
    steps(loop, 2)
    assert house.log.events[4:] == ["backpressure_began", "backpressure_ended"]


@pytest.mark.req("S44", "S55")
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_stretch_ends_with_the_loops_activity(is_closed: bool):
    house = House()
    loop = spout_loop(house, Spout(house), pending=[1], max_pending=1)
    steps(loop, 5)
    if is_closed:
        loop.close()
    else:
        house.is_active = False
        steps(loop, 5)
    assert house.log.events == [
        "max_pending_reached",
        "spout_wait_began",
        "spout_wait_ended",
        "max_pending_ended",
    ]
    assert house.log.told[-1][2]["length_s"] == pytest.approx(0.005)


@pytest.mark.req("S54")
def test_a_spout_that_blocks_is_told_of():
    class Sleepy(Spout):
        def next_tuple(self) -> None:
            house.clock.advance(3.0)

    house = House()
    steps(spout_loop(house, Sleepy(house)), 3)
    warnings = [fields for _, event, fields in house.log.told if event == "call_blocks_loop"]
    assert warnings == [{"call": "next_tuple", "took_s": 3.0}]
