"""The checkpointer, driven by a clock in the test's hand: no thread is started."""

from __future__ import annotations

import threading

import pytest
from structlog.testing import capture_logs

from flowctl.core.messages import Ack
from flowctl.core.ranges.core import RangeCore
from flowctl.core.records import Record
from flowctl.core.spout import SpoutCore
from flowctl.errors import CheckpointUnavailableError, FencedError, InternalError
from flowctl.runtime.checkpointer import Checkpointer
from flowctl.runtime.control import RunControl
from flowctl.testing.clock import ManualClock
from tests.runtime_parts import FailingStore

AWAY = CheckpointUnavailableError("Redis can't be reached.")


class Work:
    """A core with one bolt whose tuples are acked one by one."""

    def __init__(self, *, interval_s: float = 0.5) -> None:
        self.clock = ManualClock()
        self.store = FailingStore()
        self.control = RunControl(SpoutCore(), clock=self.clock)
        self.checkpointer = Checkpointer(
            self.control, self.store, job="job", epoch=self.store.acquire("job"),
            interval_s=interval_s,
        )  # fmt: skip
        self.control.core.add_bolt("a", slots=1, epoch=1, now_s=0.0)
        self._read = 0

    def ack_one(self) -> None:
        core = self.control.core
        self._read += 1
        core.offer("p", [Record(self._read, "value")], now_s=self.clock())
        emission = core.poll_emit(now_s=self.clock())
        assert emission is not None
        core.on_ack("a", 1, Ack(emission.tuple_id, 1), now_s=self.clock())


def test_it_saves_what_is_acked_and_only_if_that_changed():
    work = Work()
    work.checkpointer.save()
    assert work.store.saves == 0
    work.ack_one()
    work.checkpointer.save()
    work.checkpointer.save()
    assert (work.store.saves, work.checkpointer.saves) == (1, 1)
    assert work.store.load("job").records == work.control.records_saved == 1
    assert work.control.saved.partitions == work.store.load("job").partitions


def test_what_was_not_saved_is_not_called_saved():
    work = Work()
    work.ack_one()
    work.store.error = AWAY
    with pytest.raises(CheckpointUnavailableError):
        work.checkpointer.save()
    assert (work.control.records_saved, work.checkpointer.saves) == (0, 0)


@pytest.mark.req("S44")
def test_an_episode_is_logged_once_at_its_start_and_once_at_its_end():
    work = Work()
    work.ack_one()
    work.store.error = AWAY
    ticks = iter(range(5))

    def wait(wait_s: float) -> bool:
        """In place of the time between saves: the store is away for five tries."""
        work.clock.advance(wait_s)
        if next(ticks, None) is None:
            if work.store.error is None:
                return True
            work.store.error = None
        return False

    work.checkpointer.closing.wait = wait
    with capture_logs() as logs:
        work.checkpointer.run()
    assert [(log["event"], log["log_level"]) for log in logs] == [
        ("checkpoint_store_away", "warning"),
        ("checkpoint_store_back", "warning"),
    ]
    assert logs[0]["reason"] == "Redis can't be reached."
    # Away at the first try; 0.5, 1, 2, 4, 5 s later it is tried again, never more rarely.
    assert logs[1]["away_s"] == pytest.approx(0.5 + 1 + 2 + 4 + 5)
    assert work.control.store_away_since_s is None
    assert work.store.load("job").records == 1


def test_after_a_save_that_succeeded_the_pauses_begin_anew():
    work, waited_s = Work(), []
    errors = iter([AWAY, AWAY, AWAY, None, AWAY, AWAY])

    def wait(wait_s: float) -> bool:
        waited_s.append(wait_s)
        work.ack_one()
        work.store.error = next(errors, None)
        return len(waited_s) == 7

    work.checkpointer.closing.wait = wait
    work.checkpointer.run()
    assert waited_s == [0.5, 0.5, 1.0, 2.0, 0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    "error",
    [
        FencedError("a newer driver"),
        InternalError("the position would go back"),
        RuntimeError("a defect of the store's"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_other_error_ends_the_run(error: Exception):
    work = Work()
    work.ack_one()
    work.store.error = error
    work.checkpointer.closing.wait = lambda wait_s: False
    work.checkpointer.run()
    assert work.control.error is error
    assert work.control.stopping.is_set()


def test_the_last_save_waits_for_a_store_that_comes_back():
    work = Work()
    work.checkpointer.start()
    work.ack_one()
    work.store.error = AWAY
    clock = ReturningClock(work, comes_back_after=30)
    work.control.clock = clock
    work.checkpointer.save_finally(timeout_s=60.0)
    assert work.store.tries >= 2
    assert work.store.load("job").records == 1
    assert not work.checkpointer.is_alive()


def test_the_last_save_is_tried_again_soon_though_saves_are_minutes_apart():
    """Kind: how long to wait for a store that is away is no matter of how often it is saved to."""
    work = Work(interval_s=300.0)
    work.ack_one()
    work.store.error = AWAY
    work.control.clock = ReturningClock(work, comes_back_after=5)
    work.checkpointer.save_finally(timeout_s=60.0)
    assert work.store.load("job").records == 1


def test_the_last_save_does_not_wait_for_ever():
    work = Work()
    work.checkpointer.start()
    work.ack_one()
    work.store.error = AWAY
    work.control.clock = ReturningClock(work, comes_back_after=1 << 30)
    with pytest.raises(CheckpointUnavailableError):
        work.checkpointer.save_finally(timeout_s=60.0)
    assert work.control.clock() >= 55.0
    assert not work.checkpointer.is_alive()


def test_a_hurried_last_save_is_tried_once():
    work = Work()
    work.checkpointer.start()
    work.ack_one()
    work.store.error = AWAY
    with pytest.raises(CheckpointUnavailableError):
        work.checkpointer.save_finally(timeout_s=60.0, is_hurried=lambda: True)
    assert work.store.tries == 1
    work.store.error = None
    work.checkpointer.save_finally(timeout_s=60.0, is_hurried=lambda: True)
    assert work.store.load("job").records == 1


class ReturningClock(ManualClock):
    """Goes on by 2 s a look; the store is back after so many looks."""

    def __init__(self, work: Work, *, comes_back_after: int) -> None:
        super().__init__()
        self._work = work
        self._left = comes_back_after
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            self._left -= 1
            if not self._left:
                self._work.store.error = None
            return self.advance(2.0)


def pauses_of_three(
    work: Work, took_s: float, monkeypatch: pytest.MonkeyPatch, *, hurried: int = -1
) -> list[float]:
    """How long it waits before three saves that take ``took_s`` each.

    It is hurried while the save ``hurried`` is under way.
    """
    pauses_s: list[float] = []

    def save() -> None:
        work.clock.advance(took_s)
        if len(pauses_s) == hurried:
            work.control.save_soon()

    def wait_closing(wait_s: float) -> bool:
        pauses_s.append(wait_s)
        return False

    woken = work.checkpointer.woken

    def wait_woken(wait_s: float) -> bool:
        if not woken.is_set():
            pauses_s[-1] += wait_s
        return woken.is_set()

    monkeypatch.setattr(work.checkpointer, "save", save)
    monkeypatch.setattr(work.checkpointer.closing, "wait", wait_closing)
    monkeypatch.setattr(work.checkpointer.closing, "is_set", lambda: len(pauses_s) == 3)
    monkeypatch.setattr(woken, "wait", wait_woken)
    work.checkpointer.run()
    return pauses_s


@pytest.mark.parametrize(
    ("core", "log", "took_s", "first_s", "then_s"),
    [
        (SpoutCore, None, 0.001, 0.5, 0.5),
        (RangeCore, None, 0.001, 0.05, 0.05),  # its bolts report each 0.15 s, at first sooner
        (RangeCore, None, 0.04, 0.05, 0.2),
        (RangeCore, None, 1.0, 0.05, 0.5),
        (RangeCore, object(), 0.001, 0.5, 0.5),  # each save adds to a log of receipts
    ],
)
def test_ranges_are_saved_soon_unless_that_takes_long(
    core: type,
    log: object,
    took_s: float,
    first_s: float,
    then_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work()
    monkeypatch.setattr(work.control, "core", core())
    monkeypatch.setattr(work.control, "receipt_log", log)
    pauses_s = pauses_of_three(work, took_s, monkeypatch)
    assert pauses_s == pytest.approx([first_s, then_s, then_s])


@pytest.mark.parametrize(
    ("core", "took_s", "hurried_s", "then_s"),
    [
        (SpoutCore, 0.001, 0.5, 0.5),
        (RangeCore, 0.001, 0.001, 0.05),
        (RangeCore, 0.02, 0.02, 0.1),  # half of the time at most
        (RangeCore, 0.04, 0.2, 0.2),  # several batches end meanwhile, hurried or not
    ],
)
def test_a_save_before_a_short_batch_ends_is_hurried(
    core: type,
    took_s: float,
    hurried_s: float,
    then_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work()
    monkeypatch.setattr(work.control, "core", core())
    _, *pauses_s = pauses_of_three(work, took_s, monkeypatch, hurried=1)
    assert pauses_s == pytest.approx([hurried_s, then_s])
