"""A record whose value can't be sent: one dead letter, and the rest of the job is done."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from dlq_parts import spout

from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter
from flowctl_storm import Collector, Input, LocalStages, Topology
from tests.runtime_parts import ListProducer


class OneBad(ListProducer):
    """Record 5 holds a value that can't be sent, as a numpy scalar can't."""

    def value(self, position: int) -> object:
        return {"n": 1j if position == 5 else position}


def test_a_value_that_cannot_be_sent_is_one_dead_letter_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    store, seen = MemoryCheckpointStore(), Counter[Any]()
    made = spout(
        lambda batch: seen.update(record.value["n"] for record in batch),
        producer=OneBad(60), dead_letter=FileDeadLetter(tmp_path), store=store,
    )  # fmt: skip
    report = made.run(view="off")
    assert (report.records_rejected, report.records_acked) == (1, 60)
    assert seen == Counter(n for n in range(1, 61) if n != 5)
    assert store.load("job").partitions["p"].position == 60
    [letter] = FileDeadLetter(tmp_path).file_of("job").read().of("job")
    assert (letter.position, letter.kind, letter.is_exact) == (5, "rejected", False)
    assert "value['n'] is a complex" in letter.reason


def test_if_there_is_nothing_else_it_is_kept_all_the_same(tmp_path: Path) -> None:
    """It was counted as rejected, and the page of letters was never written."""
    store = MemoryCheckpointStore()
    made = spout(
        lambda batch: None, producer=[1j, 2j], dead_letter=FileDeadLetter(tmp_path), store=store
    )
    report = made.run(view="off")
    assert (report.records_rejected, report.records_acked) == (2, 2)
    assert len(FileDeadLetter(tmp_path).file_of("job").read().of("job")) == 2
    assert store.load("job").records == 2


def test_a_topology_sets_it_aside_as_well(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()

    def count(given: Input, out: Collector) -> None:
        seen[given.value["n"]] += 1

    made, failed = Topology("job"), []
    made.spout("s", OneBad(60), on_fail=failed.append)
    made.bolt("count", count).shuffle("s")
    report = made.run(
        LocalStages(),
        checkpoint=MemoryCheckpointStore(),
        dead_letter=FileDeadLetter(tmp_path),
        view="off",
    )
    assert report.outcome == "finished" and report.records_acked == 60
    assert seen == Counter(n for n in range(1, 61) if n != 5)
    [letter] = FileDeadLetter(tmp_path).file_of("job").read().of("job")
    assert (letter.partition, letter.position) == ("s:p", 5)
    assert [end.position for end in failed] == [5]
