"""Killed at random moments and resumed: nothing is lost, and little runs again."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowctl.core.driver import pump
from flowctl.core.messages import Ack, Emission
from flowctl.core.records import Checkpoint, Record
from flowctl.core.spout import SpoutCore
from tests.core_driver import core_settings

RECORDS = 600


class Run:
    """One driver's life, from a checkpoint to its kill or its end; saves now and then."""

    def __init__(self, saved: Checkpoint, rng: random.Random, processed: Counter[int]) -> None:
        self.core = SpoutCore(
            core_settings(tuple_records_max=rng.choice([1, 7, 30])), checkpoint=saved
        )
        for i in range(5):
            self.core.add_bolt(f"b{i}", slots=1, epoch=1, now_s=0.0)
        self.saved, self.rng, self.processed = saved, rng, processed
        self.acked_since_save = 0
        self.flying: list[Emission] = []
        done = saved.partitions.get("p")
        self.read = int(done.position or 0) if done else 0  # type: ignore[arg-type]
        self.now_s = 0.0

    def go(self, steps: int) -> bool:
        """Work for ``steps``; True if that was enough to finish."""
        for _ in range(steps):
            self.now_s += 0.01
            self._read()
            self.flying += pump(self.core, self.now_s).emissions
            self._ack_some()
            if self.rng.random() < 0.1:
                self.saved, self.acked_since_save = self.core.checkpoint(), 0
            if self.read == RECORDS and self.core.is_drained:
                self.saved = self.core.checkpoint()
                return True
        return False

    def _read(self) -> None:
        chunk = [Record(n, n) for n in range(self.read + 1, min(self.read + 50, RECORDS) + 1)]
        self.read += self.core.offer("p", chunk, now_s=self.now_s) if chunk else 0
        if self.read == RECORDS:
            self.core.end_of_input(now_s=self.now_s)

    def _ack_some(self) -> None:
        self.rng.shuffle(self.flying)
        for _ in range(self.rng.randint(0, len(self.flying))):
            e = self.flying.pop()
            self.processed.update(int(r.position) for r in e.records)  # type: ignore[arg-type]
            self.core.on_ack(e.bolt, 1, Ack(e.tuple_id, e.attempt), now_s=self.now_s)
            self.acked_since_save += len(e.records)


@pytest.mark.req("S13", "S70")
@given(seed=st.integers(0, 2**32), kills=st.lists(st.integers(1, 25), max_size=6))
@settings(max_examples=40)
def test_all_is_processed_and_only_what_was_at_risk_runs_again(seed: int, kills: list[int]) -> None:
    rng, processed, saved = random.Random(seed), Counter[int](), Checkpoint()
    at_risk = 0
    for steps in [*kills, 100_000]:
        run = Run(saved, rng, processed)
        finished = run.go(steps)
        saved = run.saved
        if finished:
            break
        at_risk += run.acked_since_save + run.core.counters.records_pending_now
    assert processed.keys() == set(range(1, RECORDS + 1))
    assert processed.total() - RECORDS <= at_risk
    done = saved.partitions["p"]
    assert (done.position, done.records, done.acked) == (RECORDS, RECORDS, ())
