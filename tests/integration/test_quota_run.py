"""Runs whose target has a quota of a day, or whose money is spent: they end saved, and go on."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from flowctl import FlowControlSpout, Limits, LocalBolts, paced
from flowctl.cli.click_options import seconds_of
from flowctl.errors import ConfigError, DeadlineError, QuotaUsedUpError, SpentError
from flowctl.pacing.gates import gate_of
from flowctl.testing.stores import MemoryCheckpointStore
from tests.runtime_parts import ListProducer

NAMES = (f"quota-run-{n}" for n in itertools.count())
DAY = datetime(2026, 11, 28, tzinfo=timezone.utc).timestamp()


class Job:
    """2,000 rows into a service with a quota, by four bolts; a test moves the calendar."""

    def __init__(self, **options: Any) -> None:
        self.pace = paced(next(NAMES), name="job", limits=Limits(give_up_after_s=0.5), **options)
        self.wall_s = DAY + 8 * 3600
        gate_of(self.pace.settings).wall = lambda: self.wall_s
        self.taken: list[Any] = []
        self.store = MemoryCheckpointStore()

    def run(self) -> Any:
        @self.pace
        def process(batch: Any) -> None:
            self.taken += [record.value for record in batch]

        return FlowControlSpout(
            name="job",
            producer=ListProducer(2_000),
            bolts=LocalBolts(process, count=4),
            checkpoint=self.store,
            settings={"tuple.records_max": 1, "hedge.enabled": False},
        ).run(view="off")


def test_a_day_of_500_rows_ends_each_run_saved_and_each_row_is_written_once() -> None:
    job = Job(budget="500 rows/day", cost=len)
    for day in range(1, 5):
        if day < 4:
            with pytest.raises(QuotaUsedUpError, match=r"used up until 2026-") as caught:
                job.run()
            assert (caught.value.exit_code, len(job.taken)) == (75, day * 500)
            report = caught.value.report
            assert report is not None and report.outcome == "paused"
            until = datetime.fromtimestamp(caught.value.until_s, timezone.utc)
            assert report.paused_until == until.isoformat()
            job.wall_s = caught.value.until_s - (day == 2)
            if day == 2:
                with pytest.raises(QuotaUsedUpError):  # too early: nothing is called
                    job.run()
                job.wall_s += 1
        else:
            assert job.run().outcome == "finished"
    assert Counter(job.taken) == {f"record {n}": 1 for n in range(1, 2_001)}


def test_a_run_that_spent_its_money_ends_saved() -> None:
    job = Job(spend_max="$5", cost=lambda batch: {"$": 0.01 * len(batch)})
    with pytest.raises(SpentError, match=r"5 \$ are spent") as caught:
        job.run()
    assert (caught.value.exit_code, len(job.taken)) == (4, 500)
    report = caught.value.report
    assert report is not None
    assert (report.outcome, report.paused_until) == ("paused", ""), "not by itself"
    assert max(Counter(job.taken).values()) == 1


def test_a_copy_that_finds_no_quota_does_not_fail_a_run_that_is_done() -> None:
    """Of the tuple before the last one; the last one is under way, and succeeds."""
    first_call = threading.Lock()
    is_copied, is_done, has_failed = (threading.Event() for _ in range(3))

    def process(batch: Any) -> None:
        if batch[0].position == 50:
            assert has_failed.wait(60)
            time.sleep(0.2)  # until it is known
        elif batch[0].position == 49 and first_call.acquire(blocking=False):
            assert is_copied.wait(60)
            is_done.set()
        elif batch[0].position == 49:
            is_copied.set()
            assert is_done.wait(60)
            time.sleep(0.2)  # until it is known
            has_failed.set()
            raise QuotaUsedUpError("svc: the quota 5/day is used up until 2026-11-29 00:00:00 UTC.")

    report = FlowControlSpout(
        name="job",
        producer=ListProducer(50),
        bolts=LocalBolts(process, count=4),
        checkpoint=MemoryCheckpointStore(),
        settings={"tuple.records_max": 1},
    ).run(view="off")
    assert (report.outcome, report.records_acked) == ("finished", 50)


PROGRAM = """
from flowctl import FileCheckpointStore, FlowControlSpout, LocalBolts, paced
@paced("svc", budget="20 rows/day", cost=len)
def process(batch):
    pass
job = FlowControlSpout(
    name="q", producer=range(200), bolts=LocalBolts(process, count=1),
    checkpoint=FileCheckpointStore("cp"), settings={"tuple.records_max": 1},
)
"""


def test_the_command_says_until_when_and_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    made = subprocess.run(
        [sys.executable, "-m", "flowctl", "run", "job.py:job", "--plain", "--report", "r.json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 75
    assert "svc: the quota 20 rows/day is used up until " in made.stderr
    assert "run again then" in made.stderr
    assert "quotas_per_process" in made.stdout + made.stderr, "no Redis: it is said"
    assert "20 records" in made.stdout + made.stderr
    told = json.loads((tmp_path / "r.json").read_text())
    until = datetime.fromisoformat(told["paused_until"])
    assert (told["outcome"], until.hour, until.minute) == ("paused", 0, 0)
    assert f"paused and saved, until {until:%Y-%m-%d} 00:00 UTC" in made.stdout + made.stderr
    explained = subprocess.run(
        [sys.executable, "-m", "flowctl", "explain", "q", "--dir", "cp"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "paused at" in explained.stdout, explained.stdout + explained.stderr


# -- a deadline ----------------------------------------------------------------------------------


def test_a_run_ends_at_its_deadline_saved_and_goes_on_when_it_is_run_again() -> None:
    store, taken = MemoryCheckpointStore(), []
    ends = threading.Event()

    def process(batch: Any) -> None:
        taken.extend(record.position for record in batch)
        if batch[-1].position >= 100 and not ends.is_set():
            ends.wait(1.0)  # the deadline comes meanwhile; what is in flight is finished

    def run(deadline_s: float | None) -> Any:
        return FlowControlSpout(
            name="job",
            producer=ListProducer(300),
            bolts=LocalBolts(process, count=1),
            checkpoint=store,
            settings={"tuple.records_max": 1, "hedge.enabled": False},
        ).run(view="off", deadline_s=deadline_s)

    with pytest.raises(DeadlineError, match=r"deadline of 0:00 was reached: .*saved") as caught:
        run(0.5)
    assert caught.value.exit_code == 124
    done = len(taken)
    assert 0 < done < 300
    assert f"{done} records" in caught.value.problem
    assert caught.value.report is not None and caught.value.report.outcome == "paused"
    ends.set()
    assert run(3600).records_total == 300
    assert sorted(taken) == list(range(1, 301))


def test_a_deadline_while_nothing_comes_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM.replace("range(200)", "slow()").replace(
        "job = ", "import time\ndef slow():\n    time.sleep(300)\n    yield 1\njob = "
    ))  # fmt: skip
    made = subprocess.run(
        [sys.executable, "-m", "flowctl", "run", "job.py:job", "--plain", "--deadline", "0.3s"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 124, made.stderr
    assert "the deadline of 0:00 was reached: 0 records done" in made.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("1h30min", 5400), ("45m", 2700), ("90", 90), ("1.5 s", 1.5)],
)
def test_a_deadline_is_written_as_people_do(text: str, seconds: float) -> None:
    assert seconds_of("--deadline", text) == seconds
    for wrong in ("", "h", "2 days", "-3s", "0"):
        with pytest.raises(ConfigError, match="--deadline"):
            seconds_of("--deadline", wrong)
