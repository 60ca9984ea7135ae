"""RangeCore, when a bolt falls silent in the middle of a range: what others get of it, and when."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from flowctl.core.messages import RangeEmission
from flowctl.core.records import AckOutcome
from flowctl.core.settings import TimeoutSettings
from tests.range_driver import MB, Ranges

BATCH = MB // 16


def silent_scene(**how: Any) -> tuple[Ranges, int, list[RangeEmission]]:
    """``a`` falls silent after a part of its range: return up to where it reported, and what ``b``
    gets, first the rest of that."""
    ranges = Ranges("a", "b", **how)
    sent = ranges.emit()
    ours = next(e for e in sent if e.bolt == "a")
    at = ours.start + 4 * BATCH
    for start in range(ours.start, at, BATCH):
        ranges.wait(0.1, "a", "b")
        ranges.did(ours, start, start + BATCH, service_s=0.1)
    theirs = [e for e in sent if e.bolt == "b"]
    while not (ranges.core.bolts["a"].is_suspect and not ranges.core.bolts["b"].flight):
        ranges.wait(0.1, "b")
        for e in theirs:
            ranges.did(e, e.start, e.stop, service_s=0.1)
        theirs = []
    sent = ranges.emit()
    assert sent[0].tuple_id == ours.tuple_id
    return ranges, at, sent


def test_what_a_silent_bolt_had_in_hand_is_not_given_to_another_at_once() -> None:
    ranges, at, (moved, *_) = silent_scene()
    assert moved.start == at + BATCH, "the batch in hand stays out"
    told = replace(moved, bolt="a", attempt=1)
    assert ranges.did(told, at, at + BATCH) is AckOutcome.LATE
    ranges.did(moved, moved.start, moved.stop)
    ranges.wait(5.0, "b")
    assert at not in [e.start for e in ranges.emit()], "it was done, and goes to nobody"
    assert ranges.state.position >= moved.stop - 1


def test_it_goes_again_when_the_bolt_stays_silent() -> None:
    ranges, at, sent = silent_scene()
    silence_s = TimeoutSettings().silence_s
    given: list[list[int]] = []
    for wait_s in (silence_s / 2, silence_s):
        ranges.wait(wait_s, "b")
        for e in sent:
            ranges.did(e, e.start, e.stop)
        sent = ranges.emit()
        given.append([e.start for e in sent])
    assert given[0] and at not in given[0], "not yet"
    assert given[1][0] == at


def test_with_nothing_else_to_do_nobody_waits_for_it() -> None:
    _, at, (moved, *_) = silent_scene(stop=2 * MB)
    assert moved.start == at


def test_with_receipts_what_comes_late_does_not_count_so_nothing_stays_out() -> None:
    _, at, (moved, *_) = silent_scene(keeps_receipts=True)
    assert moved.start == at


def test_the_driver_sleeps_while_an_answer_does_not_come() -> None:
    ranges = Ranges("a", "b", stop=2 * MB)
    ours, theirs = ranges.emit()
    ranges.end()
    ranges.wait(0.1, "a", "b")
    ranges.did(theirs, theirs.start, theirs.stop)
    ranges.did(ours, 0, 100_000, service_s=0.1)
    ranges.emit()
    assert ranges.questions()
    turns, until_s = 0, ranges.clock() + 0.7  # then the bolt is silent for too long
    while ranges.clock() < until_s:
        due_s = ranges.core.next_deadline_s()
        assert due_s is not None
        ranges.wait(max(0.0, due_s - ranges.clock()), "b")
        ranges.emit()
        turns += 1
        assert turns < 20, "it spins"


def test_the_driver_does_not_wake_up_for_alarms_that_reports_have_put_off() -> None:
    ranges = Ranges("a")
    (ours, *_) = ranges.emit()
    for start in range(0, 8 * BATCH, BATCH):
        ranges.wait(0.15, "a")
        ranges.did(ours, start, start + BATCH, service_s=0.15)
        ranges.emit()
        due_s, bolt = ranges.core.next_deadline_s(), ranges.core.bolts["a"]
        assert due_s == bolt.alarm_s == bolt.armed_at_s + bolt.rtt.rto_s, "from this report on"
        assert due_s > ranges.clock() + 0.15, "after the next one"


def test_a_range_that_takes_longer_than_any_time_out_stays_with_the_bolt_that_gets_on() -> None:
    ranges = Ranges("a", stop=MB)
    (ours,) = ranges.emit()
    step, timeout = MB // 1024, TimeoutSettings()
    for start in range(0, 1000 * step, step):
        ranges.wait(0.5, "a")
        assert ranges.did(ours, start, start + step, service_s=0.5) is AckOutcome.ACKED
    assert ranges.clock() > 8 * timeout.rto_max_s
    assert ranges.emit() == [], "nothing of it goes again"
