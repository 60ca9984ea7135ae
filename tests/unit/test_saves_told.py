"""A bolt that waits for a save of its ranges is told when it is done; others are told nothing."""

from __future__ import annotations

import pytest

from flowctl.core.messages import Processed, Progress
from flowctl.core.ranges.core import RangeCore
from flowctl.core.ranges.extent import Extent
from flowctl.errors import CheckpointUnavailableError
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.control import RunControl, SavesTold
from flowctl.testing.clock import ManualClock
from flowctl.wire.frames import Saved
from tests.runtime_parts import FailingStore


def core_with(**epochs: int) -> RangeCore:
    core = RangeCore()
    for bolt, epoch in epochs.items():
        core.add_bolt(bolt, slots=1, epoch=epoch, now_s=0.0)
    return core


def test_a_bolt_is_told_how_many_of_its_reports_a_save_holds():
    told, bolts = SavesTold(), core_with(a=1, b=1).bolts
    told.reported("a", 1, 7, is_awaited=False)
    told.reported("a", 1, 7, is_awaited=True)
    told.reported("b", 1, 8, is_awaited=False)
    covered = told.covered()
    told.reported("a", 1, 7, is_awaited=True)  # while that save is under way
    assert told.take(bolts) == []
    told.saved(covered)
    assert told.take(bolts) == [("a", Saved(2))]
    assert told.take(bolts) == []
    told.saved(told.covered())
    assert told.take(bolts) == [("a", Saved(3))]
    assert told.covered() == {}, "nobody waits"


def test_a_bolt_that_connected_again_is_not_told_of_its_earlier_reports():
    """It would take them for its own, and begin a third batch."""
    told = SavesTold()
    for _ in range(3):
        told.reported("a", 1, 7, is_awaited=True)
    told.saved(told.covered())
    assert told.take(core_with(a=2).bolts) == []
    told.reported("a", 2, 9, is_awaited=True)
    told.saved(told.covered())
    assert told.take(core_with(a=2).bolts) == [("a", Saved(1))]


def test_a_second_report_on_a_range_before_a_save_holds_its_slot_up():
    told = SavesTold()
    assert not told.reported("a", 1, 7, is_awaited=True)
    assert not told.reported("a", 1, 8, is_awaited=True), "another slot"
    assert told.reported("a", 1, 7, is_awaited=True)
    told.covered()
    assert not told.reported("a", 1, 7, is_awaited=True)
    assert not told.reported("a", 1, 7, is_awaited=False)


class Work:
    """A run of ranges whose store may be away."""

    def __init__(self, interval_s: float = 0.5) -> None:
        self.store = FailingStore()
        self.control = RunControl(core_with(a=1), clock=ManualClock())
        epoch = self.store.acquire("job")
        self.checkpointer = Checkpointer(
            self.control, self.store, job="job", epoch=epoch, interval_s=interval_s
        )

    def progress(self) -> None:
        core = self.control.core
        core.offer_extents({"p": Extent(0, 100)})
        emission = core.poll_emit(now_s=0.0)
        told = Progress(emission.tuple_id, 1, 0, 1, 0.0, Processed(records=1, service_s=0.1))
        core.on_progress("a", 1, told, now_s=0.1)

    def news(self) -> list[tuple[str, Saved]]:
        return self.control.saves_told.take(self.control.core.bolts)


def test_a_save_that_failed_is_not_told():
    work = Work()
    work.control.saves_told.reported("a", 1, 7, is_awaited=True)
    work.progress()
    work.store.error = CheckpointUnavailableError("Redis can't be reached.")
    with pytest.raises(CheckpointUnavailableError):
        work.checkpointer.save()
    assert work.news() == []
    work.store.error = None
    work.checkpointer.save()
    assert work.news() == [("a", Saved(1))]


@pytest.mark.parametrize(
    ("is_awaited", "took_s", "pause_s"),
    [
        (True, 0.001, 0.05),
        (True, 0.04, 0.05),  # not .2 s: more than a batch would end meanwhile
        (True, 0.08, 0.08),
        (True, 0.2, 0.5),  # no batch is so long that this would help
        (False, 0.04, 0.2),
    ],
)
def test_saves_that_bolts_wait_for_follow_sooner(
    is_awaited: bool, took_s: float, pause_s: float
) -> None:
    work = Work()
    work.control.saves_told.reported("a", 1, 7, is_awaited=is_awaited)
    assert work.checkpointer.pauses_s(took_s)[0] == pytest.approx(pause_s)


@pytest.mark.parametrize(("interval_s", "is_told"), [(0.5, True), (60.0, False)])
def test_a_range_says_whether_saves_are_told_which_they_are_where_they_follow_soon(
    interval_s, is_told
):
    work = Work(interval_s)
    work.checkpointer.start()
    core = work.control.core
    core.offer_extents({"p": Extent(0, 100)})
    with work.control.lock:
        assert core.poll_emit(now_s=0.0).tells_saved is is_told
    work.checkpointer.save_finally(timeout_s=1.0)
