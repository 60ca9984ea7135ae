"""A watched topology on Spark: hooks of the job's file run on workers, figures come back exact."""

from __future__ import annotations

import functools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.instrumentation.hooks import TaskHook
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Collector, Input
from tests.runtime_parts import Witness
from tests.watch_parts import Totals, three_stages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


class FileHook(TaskHook):
    """Writes a line for each call into a file of its worker's."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder, str(os.getpid()))

    def emit(self, info: Any) -> None:
        self.tell("emit")

    def bolt_execute(self, info: Any) -> None:
        self.tell(f"bolt_execute {info.task_id}")

    def bolt_ack(self, info: Any) -> None:
        self.tell("bolt_ack")

    def tell(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")


@pytest.mark.req("S61", "S63", "S67", "S68")
def test_hooks_and_figures_of_workers_are_exact(spark: Any, tmp_path: Path) -> None:
    from flowctl_storm import SparkStages

    records = 2_000

    def complaining(given: Input, out: Collector) -> None:
        if given.value == 70:
            out.report_error(ValueError("odd"))

    totals = Totals()
    made = three_stages(records, hooks=[functools.partial(FileHook, str(tmp_path))])
    made.bolt("extra", complaining).shuffle("gather")
    made.metrics(totals)
    report = made.run(
        SparkStages(spark=spark),
        checkpoint=MemoryCheckpointStore(),
        # A copy of what is late on a busy machine would be counted as well.
        settings=Settings().with_overrides(
            {"hedge.enabled": "false", "lab.timeout.rto_first_s": 60, "lab.timeout.rto_min_s": 60}
        ),
        view=Witness(),
    )
    assert report.trees is not None
    assert (report.trees.complete, report.trees.failed, report.trees.expired) == (records, 0, 0)
    tens = records // 10
    assert totals.of("split") == {
        "executed": {"s": records},
        "acked": {"s": records},
        "emitted": {"default": records, "tens": tens},
    }
    ours = {"gather": records // 2, "split/tens": tens}
    assert totals.of("store") == {"executed": ours, "acked": ours}
    assert totals.own["store"] == {"rows": records // 2 + tens}
    assert totals.of("s") == {"acked": {"default": records}}
    pids = {(info.component, info.task_id): info.pid for info in totals.infos}
    assert len(set(pids.values())) == len(pids), "each task has a worker of its own"
    assert pids["s", 0] == os.getpid()

    told = Counter(line for path in tmp_path.iterdir() for line in path.read_text().splitlines())
    assert (told["emit"], told["bolt_ack"]) == (records + tens, records)
    assert told["bolt_execute 0"] + told["bolt_execute 1"] == records
    # One that Spark started late may have found nothing left to do.
    at_work = {pid for (component, _), pid in pids.items() if component == "split"}
    assert {int(path.name) for path in tmp_path.iterdir()} == at_work
    (errors,) = report.errors
    assert (errors.task, errors.count, errors.latest) == ("extra.1", 1, ("ValueError: odd",))
