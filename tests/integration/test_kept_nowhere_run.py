"""What was rejected and is kept nowhere is told by each run until it is done again."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dlq_parts import spout

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.errors import TooManyLostError
from flowctl.instrumentation.snapshot import Report
from flowctl.ports import CheckpointStore
from flowctl.runtime.file_store import FileCheckpointStore
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter, TextLines, TextRanges
from tests.runtime_parts import ListProducer

BAD = (3, 7, 40)


class Rejecting:
    """Rejects some records of ``line N`` or ``record N``, unless it ``is_well``."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)

    def __call__(self, batch: Batch) -> None:
        for record in batch:
            if int(record.value.split()[-1]) in self.bad:
                batch.reject(record, "not wanted")


class Job:
    """60 lines of a file, by value or by reference, with a store that outlives each run."""

    def __init__(self, place: Path, source: Callable[[Path], Any], store: CheckpointStore) -> None:
        self.path = place / "in.log"
        self.source, self.store = source, store
        self.letters: FileDeadLetter | None = None
        self.write(60)

    def write(self, lines: int) -> None:
        self.path.write_text("".join(f"line {n}\n" for n in range(lines)))

    def run(self, *bad: int, **settings: Any) -> Report:
        settings = {"tuple.records_max": 5} | {n.replace("__", "."): v for n, v in settings.items()}
        return FlowControlSpout(
            name="job",
            producer=self.source(self.path),
            bolts=LocalBolts(Rejecting(*bad), count=2),
            checkpoint=self.store,
            dead_letter=self.letters,
            settings=settings,
        ).run(view="off")


@pytest.fixture(params=["files", "memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    if request.param == "files":
        return FileCheckpointStore(tmp_path / "checkpoints")
    if request.param == "memory":
        return MemoryCheckpointStore()
    fakeredis = pytest.importorskip("fakeredis")
    from flowctl_redis import RedisCheckpointStore

    return RedisCheckpointStore(client=fakeredis.FakeRedis())


@pytest.fixture(params=[TextLines, TextRanges])
def job(request: pytest.FixtureRequest, store: CheckpointStore, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param, store)


def test_each_later_run_says_what_was_rejected_and_kept_nowhere(job: Job) -> None:
    """Kind: a loss that only the run knows in which it happened, which may be killed."""
    first = job.run(*BAD)
    assert (first.records_kept_nowhere, first.records_kept_nowhere_before) == (3, 0)
    for _ in range(2):
        again = job.run()
        assert (again.outcome, again.records_acked) == ("finished", 0)
        assert (again.records_kept_nowhere, again.records_kept_nowhere_before) == (0, 3)


def test_a_limit_of_losses_counts_what_earlier_runs_rejected(job: Job) -> None:
    """A retry does not turn red into green."""
    job.run(*BAD)
    with pytest.raises(TooManyLostError, match="3 records of earlier runs were rejected and kept"):
        job.run(loss__fail_over="2")
    assert job.run(loss__fail_over="3").outcome == "finished"


def test_cleared_or_set_back_before_all_of_them_nothing_is_left_to_say(job: Job) -> None:
    job.run(*BAD)
    job.store.rewind("job", str(job.path), None)
    assert job.run().records_kept_nowhere_before == 0
    job.store.clear("job")
    assert job.run(*BAD).records_kept_nowhere_before == 0


def test_set_back_to_between_them_those_before_still_count_and_the_others_are_not_doubled(
    job: Job,
) -> None:
    job.run(*BAD)
    line_10 = len("line 0\n") * 10
    position: Any = line_10 if job.source is TextRanges else (line_10, 11)
    job.store.rewind("job", str(job.path), position)
    found = job.run(*BAD)
    assert (found.records_kept_nowhere, found.records_kept_nowhere_before) == (1, 2)
    assert job.run().records_kept_nowhere_before == 3


def test_with_a_dead_letter_from_now_on_what_was_lost_before_still_counts(
    job: Job, tmp_path: Path
) -> None:
    job.run(*BAD)
    if job.source is TextLines:  # a log that has grown: of it more is read
        job.write(70)
    job.letters = FileDeadLetter(tmp_path / "letters")
    told = job.run(65)
    assert (told.records_kept_nowhere, told.records_kept_nowhere_before) == (0, 3)
    assert told.records_rejected == (job.source is TextLines)


def test_what_the_dead_letter_has_is_not_kept_nowhere(job: Job, tmp_path: Path) -> None:
    job.letters = FileDeadLetter(tmp_path / "letters")
    job.run(*BAD)
    job.letters = None
    assert job.run().records_kept_nowhere_before == 0


@pytest.mark.parametrize("mode", ["at_most_once", "no_guarantee"])
def test_a_mode_that_sends_nothing_again_says_so_too(mode: str, store: CheckpointStore) -> None:
    """Of the last records too, after which nothing is read and so nothing saved."""
    settings = {"guarantee.mode": mode}
    first = spout(Rejecting(3, 59, 60), store=store, settings=settings).run(view="off")
    again = spout(Rejecting(), store=store, settings=settings).run(view="off")
    assert again.records_kept_nowhere_before == first.records_kept_nowhere > 1


def test_a_spout_that_is_driven_by_hand_logs_what_it_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryCheckpointStore()
    spout(Rejecting(3, 7), store=store).run(view="off")
    by_hand = ManualSpout(name="job", producer=ListProducer(60), checkpoint=store)
    with caplog.at_level(logging.WARNING):
        by_hand.open({"b": 1})
    by_hand.close()
    assert "records_kept_nowhere" in caplog.text and store.load("job").records_kept_nowhere == 2


# -- as a user sees it -------------------------------------------------------------------------


JOB = """
import os, time
from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines

def load(batch):
    for record in batch:
        if record.value in ("line 7", "line 8"):
            batch.reject(record, "not wanted")
        if "SLOW" in os.environ:
            time.sleep(.02)

spout = FlowControlSpout(
    name="lines", producer=TextLines("in.log"), bolts=LocalBolts(load, count=2),
    settings={"tuple.records_max": 5, "checkpoint.interval_s": .05},
)
"""
NOWHERE = "2 records of earlier runs were rejected and kept nowhere"


def test_a_run_that_is_killed_before_it_can_say_so_is_no_silent_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(tmp_path / "checkpoints"))
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "in.log").write_text("".join(f"line {n}\n" for n in range(1, 401)))
    _run_killed(tmp_path)

    code, text = flowctl(tmp_path, "run", "job.py", "--plain", "--report", "r.json")
    assert code == 3 and f"{NOWHERE}: `flowctl checkpoint show lines`" in text, text
    assert "2 rejected and kept nowhere" in text.partition("finished")[0], "said at once, too"
    assert json.loads((tmp_path / "r.json").read_text())["records_kept_nowhere_before"] == 2
    code, text = flowctl(tmp_path, "run", "job.py", "--quiet")
    assert code == 3 and NOWHERE in text, text
    code, text = flowctl(tmp_path, "run", "job.py", "--plain")
    assert code == 3 and "nothing to do" in text and NOWHERE in text, text

    code, text = flowctl(tmp_path, "checkpoint", "show", "lines")
    assert "400 records · 2 rejected and kept nowhere · 1 partition" in text, text
    assert "in.log: 2 records rejected and kept nowhere, at 42:7, 49:8" in text, text
    shown = json.loads(flowctl(tmp_path, "checkpoint", "show", "lines", "--json")[1])
    (state,) = shown["partitions"].values()
    assert [place["first"] for place in state["kept_nowhere"]] == [[42, 7], [49, 8]]

    (tmp_path / "job.py").write_text(JOB.replace("batch.reject", "print"))
    back = ["checkpoint", "rewind", "lines", "--partition", "in.log", "--to", "42:7", "--yes"]
    assert flowctl(tmp_path, *back)[0] == 0
    code, text = flowctl(tmp_path, "run", "job.py", "--plain")
    assert code == 3 and "1 record of earlier runs was rejected and kept nowhere" in text, text
    assert flowctl(tmp_path, "checkpoint", "clear", "lines", "--yes")[0] == 0
    code, text = flowctl(tmp_path, "run", "job.py", "--plain")
    assert code == 0 and "nowhere" not in text, text


def flowctl(place: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "flowctl", *arguments]
    done = subprocess.run(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def _run_killed(place: Path) -> None:
    """Run the job, and kill it once the two records are done and all is not."""
    command = [sys.executable, "-m", "flowctl", "run", "job.py", "--quiet"]
    process = subprocess.Popen(command, cwd=place, env=os.environ | {"SLOW": "1"})
    store = FileCheckpointStore()
    by_s = time.monotonic() + 30
    while store.load("lines").records < 20 and time.monotonic() < by_s:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    saved = store.load("lines")
    assert 20 <= saved.records < 400 and saved.records_kept_nowhere == 2
