"""A slot waits for saves, so that a kill of the driver repeats at most two batches, however slow
saves are; but not for long.

In virtual time: a slot works through blocks, as :class:`flowctl.bolts.range_turns.RangeTurn` does,
and each of its reports is saved after a while.  Nothing sleeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from random import Random

import pytest

from flowctl.bolts.range_claims import RangeClaims
from flowctl.bolts.range_desk import PATIENCE_S, SHARE, SlotSaves
from flowctl.bolts.range_pace import TARGET_S, BatchPace
from flowctl.core.messages import Processed

RUN_S = 60.0
BATCHES_MAX = 2


class Slot:
    """Works for ``RUN_S``; ``save_s`` says how long after a report it is known to be saved."""

    def __init__(
        self, record_s: float, save_s: Callable[[], float], *, files: bool = False
    ) -> None:
        self._record_s, self._save_s, self._files = record_s, save_s, files
        self._rng = Random(3)
        self._pace, self._saves = BatchPace(), SlotSaves()
        self._claims = RangeClaims(0, 1 << 40)
        self._told_s: list[float] = []  # when each report is known to be saved
        self._through = [0]  # how many batches that report and those before it hold
        self.now_s = self.waited_s = 0.0
        self.batches = 0
        self.most_unsaved = 0

    def work(self) -> Slot:
        fit = max(2, int(TARGET_S / self._record_s))
        while self.now_s < RUN_S:
            whole = left = (
                self._rng.randint(1, 3) if self._files else self._rng.randint(fit, 8 * fit)
            )
            while left:
                left -= self._batch(whole, left)
        return self

    def _batch(self, whole: int, left: int) -> int:
        pace = self._pace
        records = pace.next_of(left)
        self._await()
        self.batches += 1
        saved = self._through[bisect_right(self._told_s, self.now_s)]
        self.most_unsaved = max(self.most_unsaved, self.batches - saved)
        took_s = records * self._record_s * self._rng.uniform(0.9, 1.1)
        self.now_s += took_s
        pace.took(records, took_s)
        self._saves.done(took_s)
        self._claims.claim(self._claims.claimed + records)
        self._claims.done(Processed(records=records, is_awaited=pace.is_long_in(whole)))
        at_once = self._saves.must_tell and pace.is_long_in(whole)
        told = self._claims.progress(self.now_s, at_once=at_once)
        if told is not None:
            last_s = self._told_s[-1] if self._told_s else 0.0
            self._told_s.append(max(last_s, self.now_s + self._save_s()))
            self._through.append(self.batches)
            self._saves.reported(len(self._told_s), is_awaited=told[2].is_awaited)
        return records

    def _await(self) -> None:
        while True:
            saved = bisect_right(self._told_s, self.now_s)
            pause_s = self._saves.wait_s(saved, self.now_s)
            if pause_s == 0:
                return
            next_s = self._told_s[saved] if saved < len(self._told_s) else self.now_s + pause_s
            pause_s = max(min(pause_s, next_s - self.now_s), 1e-6)
            self.now_s += pause_s
            self.waited_s += pause_s


@pytest.mark.parametrize("save_s", [0.003, 0.02, 0.05])
@pytest.mark.parametrize("record_s", [0.00024, 0.001, 0.02, 0.05, 0.09, 0.3])
def test_a_kill_of_the_driver_repeats_at_most_two_batches(record_s: float, save_s: float) -> None:
    assert Slot(record_s, lambda: save_s).work().most_unsaved <= BATCHES_MAX


@pytest.mark.parametrize("seed", range(10))
def test_also_if_a_save_takes_longer_now_and_then(seed: int) -> None:
    """As on a busy machine: one in fifty takes as long as two batches."""
    rng = Random(seed)
    slot = Slot(0.001, lambda: 0.3 if rng.random() < 0.02 else rng.uniform(0.005, 0.06)).work()
    assert slot.most_unsaved <= BATCHES_MAX


def test_quick_saves_cost_next_to_nothing() -> None:
    assert Slot(0.001, lambda: 0.003).work().waited_s < 0.001 * RUN_S


@pytest.mark.parametrize("save_s", [0.2, 0.5, 1e9])
def test_a_store_that_is_slow_or_away_does_not_stop_the_work(save_s: float) -> None:
    slot = Slot(0.001, lambda: save_s).work()
    assert slot.waited_s <= PATIENCE_S + SHARE * RUN_S
    if save_s == 1e9:
        assert slot.waited_s == pytest.approx(PATIENCE_S)


def test_files_of_little_work_wait_for_no_save() -> None:
    """Each of them would be as slow as a save."""
    slot = Slot(0.001, lambda: 0.05, files=True).work()
    assert slot.waited_s <= 0.1
