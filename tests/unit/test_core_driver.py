"""One turn of a core: what ``pump`` polls, in which order, and where it stops."""

from __future__ import annotations

import pytest

from flowctl.core.driver import pump
from flowctl.core.events import BoltAdded, TupleExpired, TupleGaveUp
from flowctl.core.messages import Fail
from flowctl.core.records import Record
from flowctl.core.spout import SpoutCore
from tests.core_driver import core_settings


def core_of(
    records: int, *bolts: str, has_dead_letter: bool = False, **values: object
) -> SpoutCore:
    fixed = {"tuple_records_max": 1, "window_policy": "fixed", "window_initial": 2}
    core = SpoutCore(core_settings(**{**fixed, **values}), has_dead_letter=has_dead_letter)
    for bolt in bolts:
        core.add_bolt(bolt, slots=1, epoch=1, now_s=0.0)
    if records:
        assert core.offer("p", [Record(n, "x" * 10) for n in range(records)], now_s=0.0) == records
    return core


def test_a_turn_gives_all_that_windows_allow() -> None:
    core = core_of(9, "a", "b")
    turn = pump(core, 0.0)
    assert len(turn.emissions) == 4 and not turn.is_more
    assert [type(event) for event in turn.events] == [BoltAdded, BoltAdded]
    assert turn.next_s == core.next_deadline_s() is not None
    again = pump(core, 0.0)
    assert not (again.emissions or again.orders or again.events or again.dead)


@pytest.mark.parametrize("bounds", [{"emits_max": 3}, {"bytes_max": 21}])
def test_at_a_bound_there_is_more_at_once(bounds: dict[str, int]) -> None:
    core = core_of(9, "a", "b")
    turn = pump(core, 0.5, **bounds)
    assert len(turn.emissions) == 3 and turn.is_more and turn.next_s == 0.5
    assert len(pump(core, 0.5, **bounds).emissions) == 1


def test_a_turn_without_emissions_lets_time_pass_all_the_same() -> None:
    core = core_of(1, "a", timeout_rto_first_s=1.0)
    [emission] = pump(core, 0.0).emissions
    turn = pump(core, 2.0, emits_max=0)
    assert not turn.emissions and not turn.is_more
    [expired] = [event for event in turn.events if isinstance(event, TupleExpired)]
    assert expired.tuple_id == emission.tuple_id


def test_what_was_given_up_comes_with_its_event() -> None:
    core = core_of(1, "a", "b", has_dead_letter=True, retry_attempts_max=1)
    [emission] = pump(core, 0.0).emissions
    core.on_fail("a", 1, Fail(emission.tuple_id, 1, "boom", is_data_error=True), now_s=0.1)
    turn = pump(core, 0.1)
    assert [dead.gave_up for dead in turn.dead] == [
        event for event in turn.events if isinstance(event, TupleGaveUp)
    ]
    assert len(turn.dead) == 1 and not core.is_drained
    core.on_dead_lettered(turn.dead[0].gave_up.tuple_id, now_s=0.2)
    assert core.is_drained


def test_a_source_that_is_read_at_once_is_read_whenever_the_buffer_is_empty() -> None:
    core = core_of(0, "a", "b")
    asked: list[int] = []

    def refill(now_s: float) -> None:
        asked.append(core.buffer.records)
        if len(asked) <= 3:
            core.offer("p", [Record(len(asked), "x")], now_s=now_s)

    assert len(pump(core, 0.0, refill=refill).emissions) == 3
    assert asked == [0, 0, 0, 0]
