"""The order of the bolt's loop, and how a loop's thread ends."""

from __future__ import annotations

from typing import Any

import pytest

from flowctl.config import WaitSettings
from flowctl.runtime.loops import BoltLoop, run_until_interrupted
from flowctl.runtime.tasks import ByTask
from tests.loop_parts import Bolt, House, Message, Spout, spout_loop, steps

# -- the bolt ----------------------------------------------------------------------------------


def bolt_loop(house: House, bolt: Bolt) -> BoltLoop[Any]:
    return BoltLoop([bolt], house.ports(bolt.execute))


@pytest.mark.req("S55", "S123")
def test_a_bolt_is_prepared_at_the_first_activation_and_goes_on_when_inactive():
    house = House()
    house.is_active = False
    house.inbox.offer("m1")
    bolt = Bolt(house)
    loop = bolt_loop(house, bolt)
    steps(loop, 2)
    assert (bolt.calls, house.park.times_s) == ([], [0.1, 0.1])
    house.is_active = True
    loop.step()
    house.is_active = False
    house.inbox.offer("m2")
    loop.step()
    loop.close()
    assert bolt.calls == ["open", "m1", "m2", "close"]


@pytest.mark.req("S42", "S52")
def test_a_bolt_stops_taking_at_the_first_refused_emit():
    house = House(accepts=lambda item: len(house.sent) < 3)
    for number in range(10):
        house.inbox.offer(number)
    bolt = Bolt(house, fan_out=2)
    loop = bolt_loop(house, bolt)
    steps(loop, 20)
    assert bolt.calls == ["open", 0, 1], "the second one's second copy was refused"
    assert (len(house.inbox), len(house.emits)) == (8, 1)
    house.accepts = lambda item: True
    loop.step()
    assert bolt.calls == ["open", *range(10)]
    assert house.sent == [(number, copy) for number in range(10) for copy in range(2)]


@pytest.mark.req("S42", "S43")
def test_a_bolt_waits_for_messages_and_for_room_with_two_counters():
    house = House(
        settings=WaitSettings(
            bolt_level1_count=0,
            bolt_level2_count=1,
            bolt_level3_sleep_ms=7,
            backpressure_level1_count=0,
            backpressure_level2_count=1,
            backpressure_level3_sleep_ms=9,
        )
    )
    bolt = Bolt(house)
    loop = bolt_loop(house, bolt)
    steps(loop, 3)
    assert house.park.times_s == [1e-9, 0.007, 0.007]
    house.inbox.offer("m")
    house.accepts = lambda item: False
    loop.step()
    assert len(house.park.times_s) == 3, "consumed: no wait in this step"
    steps(loop, 3)
    assert house.park.times_s[3:] == [1e-9, 0.009, 0.009]
    assert loop.skipped_backpressure_s == pytest.approx(0.018)
    house.accepts = lambda item: True
    loop.step()
    assert house.park.times_s[6:] == [1e-9], "flushed, nothing to take: the counter began anew"
    assert house.log.events == [
        "consume_wait_began",
        "consume_wait_ended",
        "backpressure_began",
        "backpressure_ended",
        "consume_wait_began",
    ]


@pytest.mark.req("S43")
def test_a_spout_takes_acks_while_an_emit_waits_and_a_bolt_takes_nothing():
    house = House(accepts=lambda item: False)
    loop = spout_loop(house, Spout(house))
    loop.step()
    house.inbox.offer("ack")
    loop.step()
    assert house.handled == ["ack"]

    house = House(accepts=lambda item: False)
    bolt = Bolt(house)
    loop = bolt_loop(house, bolt)
    for message in ("m1", "m2"):
        house.inbox.offer(message)
    steps(loop, 3)
    assert bolt.calls == ["open", "m1"]


@pytest.mark.req("S69")
def test_one_loop_runs_several_tasks():
    house = House()
    bolts = [Bolt(house, task_id=number) for number in (1, 2)]
    by_task: ByTask[Message] = ByTask({bolt.task_id: bolt.execute for bolt in bolts})
    loop = BoltLoop(bolts, house.ports(by_task))
    messages = [Message(2), Message(1), Message(2)]
    for message in messages:
        house.inbox.offer(message)
    loop.step()
    assert bolts[0].calls == ["open", messages[1]]
    assert bolts[1].calls == ["open", messages[0], messages[2]]


# -- the thread's function ---------------------------------------------------------------------


@pytest.mark.req("S45")
@pytest.mark.parametrize("is_active", [True, False])
def test_interruption_is_a_clean_end(is_active: bool):
    house = House()
    house.is_active = is_active
    bolt = Bolt(house)
    house.park.is_interrupted = True
    errors: list[BaseException] = []
    run_until_interrupted(bolt_loop(house, bolt), park=house.park, report_error=errors.append)
    assert errors == []


@pytest.mark.req("S45")
def test_a_loop_that_never_waits_is_interrupted_too():
    class Stopping(Spout):
        def next_tuple(self) -> None:
            super().next_tuple()
            house.park.is_interrupted = self.asked == 5

    house = House()
    spout = Stopping(house)
    loop = spout_loop(house, spout)
    run_until_interrupted(loop, park=house.park, report_error=pytest.fail)
    assert (spout.asked, spout.calls[-2:]) == (5, ["deactivate", "close"])


@pytest.mark.req("S68")
def test_an_error_is_reported_once_and_ends_the_loop_which_closes():
    class Broken(Bolt):
        def execute(self, message: Any) -> None:
            raise ValueError(message)

    house = House()
    house.inbox.offer("bad")
    bolt = Broken(house)
    errors: list[BaseException] = []
    with pytest.raises(ValueError) as caught:
        run_until_interrupted(bolt_loop(house, bolt), park=house.park, report_error=errors.append)
    assert errors == [caught.value]
    assert bolt.calls == ["open", "close"]


def test_all_tasks_are_closed_even_if_one_raises():
    class Sticky(Bolt):
        def close(self) -> None:
            super().close()
            raise OSError("stuck")

    house = House()
    bolts = [Bolt(house), Sticky(house), Bolt(house)]
    loop = BoltLoop(bolts, house.ports())
    loop.step()
    with pytest.raises(OSError):
        loop.close()
    loop.close()
    assert [bolt.calls for bolt in bolts] == [["open", "close"]] * 3
