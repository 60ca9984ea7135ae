"""Watched topologies over real sockets and threads: what is counted is what went through."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowctl.config import Settings
from flowctl.core.records import Checkpoint
from flowctl.errors import ProcessError
from flowctl.instrumentation.hooks import TaskHook
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_storm import Collector, Input, LocalStages, Topology, TopologyReport
from flowctl_storm.hub.roots import RootEnd
from tests.runtime_parts import Witness
from tests.topology_driver import Numbers, passing
from tests.watch_parts import CountingHook, Totals, three_stages

# A copy at the end, or of what expired on a busy machine, would be counted as well.
ONCE = {"hedge.enabled": "false", "lab.timeout.rto_first_s": "60", "lab.timeout.rto_min_s": "60"}


def run(made: Topology, overrides: dict[str, Any], **arguments: Any) -> TopologyReport:
    settings = Settings().with_overrides({**ONCE, **overrides})
    store = MemoryCheckpointStore()
    return made.run(LocalStages(), checkpoint=store, settings=settings, view=Witness(), **arguments)


@pytest.mark.req("S51", "S56", "S61", "S62", "S63", "S67", "S85")
@pytest.mark.parametrize("interval_s", ["0.05", "60"])
def test_what_the_consumers_got_adds_up_to_what_went_through(interval_s: str) -> None:
    records = 4_000
    totals, hooked = Totals(), Counter[str]()
    lock = threading.Lock()

    def tell(method: str) -> None:
        with lock:
            hooked[method] += 1

    made = three_stages(records, hooks=[lambda: CountingHook(tell), CountingHook(tell)])
    made.metrics(totals)
    report = run(made, {"metrics.interval_s": interval_s})
    assert report.trees is not None
    assert (report.trees.complete, report.trees.failed, report.trees.expired) == (records, 0, 0)
    tens = records // 10
    assert totals.of("s") == {"acked": {"default": records}}
    assert totals.of("split") == {
        "executed": {"s": records},
        "acked": {"s": records},
        "emitted": {"default": records, "tens": tens},
    }
    assert totals.of("gather") == {
        "executed": {"split": records},
        "acked": {"split": records},
        "emitted": {"default": records // 2},
    }
    ours = {"gather": records // 2, "split/tens": tens}
    assert totals.of("store") == {"executed": ours, "acked": ours}
    assert totals.own["split"] == {"seen": records}
    assert totals.own["store"] == {"rows": records // 2 + tens}
    assert totals.means["s"]["complete_s"] and totals.means["split"]["execute_s"]
    assert totals.means["gather"]["process_s"]
    assert hooked == {  # two hooks
        "emit": 2 * (records + tens),
        "bolt_execute": 2 * records,
        "bolt_ack": 2 * records,
    }
    tasks = Counter((info.component, info.task_id) for info in totals.infos)
    assert {task for component, task in tasks if component == "split"} == {0, 1}
    if interval_s == "60":
        assert set(tasks.values()) == {1}, "one tick, at the end"
    else:
        assert max(tasks.values()) > 1


@pytest.mark.req("S51", "S63", "S67", "S86")
def test_a_hook_that_raises_fails_its_input_and_nothing_is_lost() -> None:
    raised: set[Any] = set()
    got: Counter[Any] = Counter()

    class Raising(TaskHook):
        def bolt_ack(self, info: Any) -> None:
            if info.message.value % 50 == 0 and info.message.value not in raised:
                raised.add(info.message.value)
                raise ValueError("mine")

    class OfSpout(TaskHook):
        def __init__(self) -> None:
            for method in ("emit", "spout_ack", "spout_fail"):
                setattr(self, method, lambda info, method=method: told[method].append(info))

    told: dict[str, list[Any]] = {"emit": [], "spout_ack": [], "spout_fail": []}
    totals = Totals()
    made = Topology("raising")
    made.spout("s", Numbers(500), hooks=[OfSpout])
    made.bolt("a", passing, hooks=[Raising]).shuffle("s")
    made.bolt("b", lambda given, out: got.update([given.value])).shuffle("a")
    made.metrics(totals)
    report = run(made, {"retry.backoff_first_s": "0.01", "lab.metrics.sample_one_in": "1"})
    assert report.trees is not None
    assert (report.trees.complete, report.trees.failed) == (500, 10)
    assert got == dict.fromkeys(range(1, 501), 1)
    assert totals.of("a")["failed"] == {"s": 10}
    assert totals.of("a")["acked"] == {"s": 500}
    assert totals.of("s") == {"acked": {"default": 500}, "failed": {"default": 10}}
    assert {method: len(infos) for method, infos in told.items()} == {
        "emit": 510,
        "spout_ack": 500,
        "spout_fail": 10,
    }
    assert {info.reason for info in told["spout_fail"]} == {"ValueError: mine"}
    assert all(info.delta_s > 0 for info in told["spout_ack"] + told["spout_fail"])


@pytest.mark.req("S68", "S85")
def test_errors_that_bolts_report_are_in_the_report_and_fail_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def complaining(given: Input, out: Collector) -> None:
        if given.value % 10 == 0:
            out.report_error(ValueError(f"odd: {given.value} of postgres://me:secret@db/x"))

    made = Topology("reporting")
    made.spout("s", Numbers(300))
    made.bolt("a", complaining).shuffle("s")
    written = tmp_path / "report.json"
    report = run(
        made, {"tuple.records_max": "50", "metrics.interval_s": "none"}, report_path=written
    )
    assert report.trees is not None and report.trees.failed == 0
    (errors,) = report.errors
    assert (errors.task, errors.count, len(errors.latest)) == ("a.1", 30, 20)
    assert errors.latest[-1].startswith("ValueError: odd: ") and "secret" not in errors.latest[-1]
    told = [record for record in caplog.records if record.getMessage().startswith("task_error")]
    assert len(told) == 5, "a flood is counted, not told"
    assert json.loads(written.read_bytes())["errors"][0]["count"] == 30


@pytest.mark.req("S68")
def test_an_error_that_ends_a_task_is_reported_and_the_task_comes_back() -> None:
    made_at: list[int] = []

    class Fragile:
        def __init__(self) -> None:
            made_at.append(1)
            if len(made_at) == 1:
                raise OSError("no connection to mongodb://me:secret@db")

        def execute(self, given: Input, out: Any) -> None:
            out.ack(given)

    made = Topology("fragile")
    made.spout("s", Numbers(100))
    made.bolt("a", Fragile).shuffle("s")
    report = run(made, {})
    assert report.records_acked == 100
    (errors,) = report.errors
    assert errors.latest == ("died: OSError: no connection to mongodb://***@db",)


@pytest.mark.req("S68")
def test_the_report_of_a_run_that_fails_has_what_its_tasks_reported(tmp_path: Path) -> None:
    def failing(given: Input, out: Collector) -> None:
        out.report_error(ValueError("first a word"))
        raise ValueError("then the end")

    made = Topology("failing")
    made.spout("s", Numbers(10))
    made.bolt("a", failing).shuffle("s")
    written = tmp_path / "report.json"
    with pytest.raises(ProcessError, match="then the end"):
        run(made, {"retry.attempts_max": "1"}, report_path=written)
    report = json.loads(written.read_bytes())
    assert report["outcome"] == "failed"
    assert report["errors"][0]["latest"][-1] == "ValueError: first a word"
    assert report["trees"]["failed"] >= 1


class Opened(Numbers):
    """Says when it is opened."""

    is_open = threading.Event()

    def open(self, checkpoint: Checkpoint) -> None:
        self.is_open.set()
        super().open(checkpoint)


@pytest.mark.req("S55")
def test_an_inactive_topology_opens_nothing_and_a_paused_one_emits_nothing() -> None:
    records, paused_at = 2_000, 300
    paused = threading.Event()
    acked: list[int] = []

    def on_ack(end: RootEnd) -> None:
        acked.append(1)
        if len(acked) == paused_at:
            job.deactivate()
            job.deactivate()
            paused.set()

    made = Topology("paused", max_pending=50)
    made.spout("s", Opened(records), on_ack=on_ack)
    made.bolt("a", passing).shuffle("s")
    job = made.job(LocalStages(), checkpoint=MemoryCheckpointStore())
    job.deactivate()
    reports: list[TopologyReport] = []
    thread = threading.Thread(target=lambda: reports.append(job.run(view=Witness())), daemon=True)
    thread.start()
    assert not Opened.is_open.wait(0.3) and job.core is None
    job.activate()
    assert paused.wait(30)
    core = job.core
    assert core is not None
    while core.tree_figures().pending_now:
        time.sleep(0.01)
    done = core.tree_figures().complete
    assert paused_at <= done < records
    time.sleep(0.7)  # longer than the hub sleeps
    assert core.tree_figures().complete == done and thread.is_alive()
    job.activate()
    thread.join(60)
    assert reports[0].records_acked == records == len(acked)


@pytest.mark.req("S63", "S68")
def test_the_example_of_the_documents_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "topologies.md"
    block = page.read_text(encoding="utf-8").partition("## Watching it")[2]
    names: dict[str, Any] = {}
    exec(compile(block.partition("```python\n")[2].partition("```")[0], page.name, "exec"), names)
    made = Topology("visits")
    made.spout("lines", Numbers(100))

    def parse(given: Input, out: Collector) -> None:
        out({"client": given.value % 7, "path": None if given.value == 50 else "/a/b"})

    made.bolt("parse", parse).shuffle("lines")
    names["watch"](made)
    report = run(made, {})
    assert report.records_acked == 100
    assert sum(errors.count for errors in report.errors) == 1
    told = capsys.readouterr().out.splitlines()
    found = [re.search(r"'rows': (\d+)", line) for line in told]
    assert sum(int(match[1]) for match in found if match) == 3 * 99
