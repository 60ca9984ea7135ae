"""Over real sockets and threads: poison in whole tuples, and a run that holds on to its inputs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowctl.config import Settings
from flowctl.core.events import FlowEvent, TreesHeldUp
from flowctl.runtime.launch import Interrupted
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import (
    Batched,
    Collector,
    Input,
    LocalStages,
    ManualCollector,
    TopologyReport,
)
from flowctl_storm.hub import calls
from tests.listener_parts import Letters
from tests.runtime_parts import Witness
from tests.topology_driver import Numbers, Topology

POISON = {3, 700, 701, 1_999}


@pytest.mark.req("S109", "S124")
def test_poison_in_whole_tuples_is_found_and_all_else_is_stored_once() -> None:
    """4 bad ids of 2,000: 4 letters, as many failed roots as they had attempts, no other twice."""
    stored: Counter[int] = Counter()
    lock = threading.Lock()

    def parse(given: Input, out: Collector) -> None:
        out(given.value)

    def store(inputs: Sequence[Input], out: Collector) -> None:
        values = [given.value for given in inputs]
        if bad := POISON & set(values):
            raise ValueError(f"bad id {min(bad)}")
        with lock:
            stored.update(values)

    made = Topology("poison")
    made.spout("s", Numbers(2_000))
    made.bolt("parse", parse, count=2).shuffle("s")
    made.bolt("store", Batched(store), count=2).shuffle("parse")
    letters = Letters()
    report = made.run(
        LocalStages(),
        checkpoint=MemoryCheckpointStore(),
        settings=Settings().with_overrides({"retry.attempts_max": 3, "hedge.enabled": False}),
        dead_letter=letters,
        view=Witness(),
    )
    assert report.outcome == "finished"
    assert stored == Counter(set(range(1, 2_001)) - POISON)
    assert sorted(positions[0] for _, _, positions, _, _ in letters.kept) == sorted(POISON)
    assert report.trees is not None and report.trees.failed == 3 * len(POISON)
    assert report.tuples_dead_lettered == 4


class Keeper:
    """Holds all that it gets, for ever."""

    def __init__(self) -> None:
        self.held: list[Input] = []

    def execute(self, given: Input, out: ManualCollector) -> None:
        self.held.append(given)


class Impatient(Witness):
    """Presses Ctrl-C when it is told that nothing goes on."""

    def event(self, event: FlowEvent) -> None:
        super().event(event)
        if isinstance(event, TreesHeldUp):
            raise KeyboardInterrupt


def test_a_run_that_can_not_end_says_why_and_so_does_its_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(calls, "_TELL_AFTER_S", 0.3)
    made = Topology("stuck")
    made.spout("s", Numbers(12))
    made.bolt("join", Keeper).shuffle("s")
    view, path = Impatient(), tmp_path / "report.json"
    with pytest.raises(Interrupted) as ended:
        made.run(LocalStages(), checkpoint=MemoryCheckpointStore(), view=view, report_path=path)
    words = "stage 'join' holds 12 inputs at join.1 since"
    report = ended.value.report
    assert isinstance(report, TopologyReport)
    assert any(words in line for line in report.held_up)
    assert any(words in note for note in ended.value.__notes__)
    assert any(words in line for line in report.more())
    told: Any = msgspec.json.decode(path.read_bytes())
    assert any(words in line for line in told["held_up"])
