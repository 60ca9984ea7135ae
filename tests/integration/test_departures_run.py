"""Bolts that lose their place leave it in mid-run: every record is processed once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.config import Settings
from flowctl.runtime.flow_control_spout import FlowControlSpout
from tests.runtime_parts import FailingStore, ListProducer, Witness

RECORDS = 600


class Load:
    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.by: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> None:
        with self._lock:
            self.times.update(record.position for record in batch[:])
            self.by[batch.bolt] += 1
        time.sleep(0.005)


class LosingBolts(LocalBolts):
    """b1 is about to lose its place from its tenth call on; it is not run again."""

    def __init__(self, load: Load) -> None:
        super().__init__(load, count=3)
        self._job = load

    def leaving(self) -> Sequence[str]:
        return ["b1"] if self._job.by["b1"] >= 10 else []


def test_a_bolt_that_loses_its_place_leaves_and_nothing_runs_twice() -> None:
    load, view = Load(), Witness()
    spout = FlowControlSpout(
        name="numbers",
        producer=ListProducer(RECORDS),
        bolts=LosingBolts(load),
        checkpoint=FailingStore(),
        settings=Settings().with_overrides({"tuple.records_max": 1, "hedge.enabled": False}),
    )
    report = spout.run(view=view)
    assert report.outcome == "finished"
    assert load.times == Counter(dict.fromkeys(range(1, RECORDS + 1), 1))
    assert load.by["b1"] < load.by["b2"], "it got nothing more"
    assert any("b1" in text and "about to lose its place" in text for text in view.messages)
    assert report.tuples_failed == 0
