"""Dead letters from end to end: kept, shown, put back, killed on the way; exit codes."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dlq_parts import FAST, Target, letters_left, spout

from flowctl.config import Settings
from flowctl.ports import SourceChunk
from flowctl.runtime.manual import ManualSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter
from flowctl_storm import Collector, Input, LocalStages, Topology
from tests.cli_parts import flowctl_here
from tests.runtime_parts import ListProducer, Witness

ROOT = Path(__file__).resolve().parents[2]
LINES = 400
POISON = (7, 8, 200, 399)

# -- in this process ---------------------------------------------------------------------------


def test_put_back_they_are_processed_once_though_there_is_nothing_else_to_do(
    tmp_path: Path,
) -> None:
    letters, store = FileDeadLetter(tmp_path), MemoryCheckpointStore()
    target = Target(3, 40, 41)
    first = spout(target, dead_letter=letters, store=store).run(view="off")
    assert (first.records_dead_lettered, first.records_rejected) == (3, 0)
    assert first.dead_letters_hint == f"flowctl dlq show job --dir {tmp_path}"
    assert [(told.reason, told.records) for told in first.loss_reasons] == [
        ("ValueError: bad record #", 3)
    ]
    idle = spout(target, dead_letter=letters, store=store).run(view="off")
    assert idle.records_acked == 0 and letters_left(letters) == [3, 40, 41]

    target.poison = {41}
    letters.file_of("job").redrive("job")
    again = spout(target, dead_letter=FileDeadLetter(tmp_path), store=store).run(view="off")
    assert (again.outcome, again.records_acked, again.records_dead_lettered) == ("finished", 3, 1)
    assert again.records_saved == first.records_saved == 60, "as `checkpoint show` says"
    (letter,) = letters.file_of("job").read().of("job")
    assert (letter.partition, letter.position, letter.redrives) == ("p", 41, 1)
    assert letter.redrive is None and letter.bolts

    target.poison = set()
    letters.file_of("job").redrive("job")
    spout(target, dead_letter=FileDeadLetter(tmp_path), store=store).run(view="off")
    assert letters_left(letters) == [] and list(tmp_path.iterdir()) == []
    assert target.done == Counter(f"record {n}" for n in range(1, 61))
    assert len(target.partitions) == 3  # the source's and one for each redrive
    last = spout(target, dead_letter=FileDeadLetter(tmp_path), store=store).run(view="off")
    assert last.records_acked == 0


def test_letters_go_while_an_endless_source_is_still_read(tmp_path: Path) -> None:
    letters, store, target = FileDeadLetter(tmp_path), MemoryCheckpointStore(), Target(5)
    spout(target, dead_letter=letters, store=store).run(view="off")
    letters.file_of("job").redrive("job")
    target.poison = set()
    seen: list[list[Any]] = []

    class Endless(ListProducer):
        def poll(self, max_records: int) -> SourceChunk | None:
            if not letters_left(letters):
                seen.append([])
                return None
            return SourceChunk("p", ())

    quick = {"checkpoint.interval_s": 0.05}
    spout(
        target, dead_letter=FileDeadLetter(tmp_path), store=store, producer=Endless(60),
        settings=quick,
    ).run(view="off")  # fmt: skip
    assert seen and target.done["record 5"] == 1


def test_driven_by_hand_letters_come_first_too(tmp_path: Path) -> None:
    letters, store = FileDeadLetter(tmp_path), MemoryCheckpointStore()
    spout(Target(5), dead_letter=letters, store=store).run(view="off")
    letters.file_of("job").redrive("job")
    hand = ManualSpout(
        name="job",
        producer=ListProducer(60),
        checkpoint=store,
        settings=Settings().with_overrides(FAST),
        dead_letter=FileDeadLetter(tmp_path),
    )
    hand.open({"one": 4})
    hand.activate()
    emission = hand.next_tuple()
    assert emission is not None and [r.value for r in emission.records] == ["record 5"]
    hand.ack(emission)
    hand.save()
    assert letters_left(letters) == []
    hand.close()


class Numbers(ListProducer):
    def value(self, position: int) -> object:
        return {"n": position}


def test_a_topologys_letters_go_through_their_spout_again(tmp_path: Path) -> None:
    letters, store = FileDeadLetter(tmp_path), MemoryCheckpointStore()
    seen: Counter[int] = Counter()
    poison = {9}

    def last(given: Input, out: Collector) -> None:
        if given.value["n"] in poison:
            raise ValueError("nine")
        seen[given.value["n"]] += 1

    def run() -> Any:
        topology = Topology("job")
        topology.spout("numbers", Numbers(20))
        topology.bolt("last", last, count=2).shuffle("numbers")
        settings = Settings().with_overrides({"retry.backoff_first_s": 0.01})
        return topology.run(
            LocalStages(), checkpoint=store, settings=settings, view="off",
            dead_letter=FileDeadLetter(tmp_path),
        )  # fmt: skip

    report = run()
    assert report.records_dead_lettered == 1 and letters_left(letters) == [9]
    (letter,) = letters.file_of("job").read().of("job")
    assert letter.partition == "numbers:p" and letter.value == {"n": 9}
    letters.file_of("job").redrive("job")
    assert run().records_dead_lettered == 1
    (letter,) = letters.file_of("job").read().of("job")
    assert (letter.partition, letter.position, letter.redrives) == ("numbers:p", 9, 1)
    letters.file_of("job").redrive("job")
    poison.clear()
    assert run().records_acked == 1
    assert letters_left(letters) == [] and seen == Counter(range(1, 21))


def test_letters_that_fail_again_in_a_row_are_not_taken_for_a_target_that_is_down(
    tmp_path: Path,
) -> None:
    letters, store, target = FileDeadLetter(tmp_path), MemoryCheckpointStore(), Target()
    target.poison = set(range(2, 400, 2))
    quick = {"retry.give_up_after_s": 20.0}
    producer = ListProducer(400)
    spout(
        target, producer=producer, dead_letter=letters, store=store, settings=quick
    ).run(view="off")  # fmt: skip
    letters.file_of("job").redrive("job")
    target.poison -= {2, 4}
    view = Witness()
    report = spout(
        target, producer=ListProducer(400), dead_letter=FileDeadLetter(tmp_path), store=store,
        settings=quick,
    ).run(view=view)  # fmt: skip
    assert (report.records_acked, report.records_dead_lettered) == (199, 197)
    assert report.target_down_total_s == 0 and report.elapsed_s < 15
    assert letters_left(letters) == sorted(target.poison)


# -- as people run it --------------------------------------------------------------------------

JOB = """
import os, time
from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines
from flowctl_sql import SqlSink

sink = SqlSink("sqlite:///out.db", table="lines",
               schema="CREATE TABLE IF NOT EXISTS lines (text TEXT)")
POISON = {f"line {n}" for n in map(int, filter(None, os.environ.get("POISON", "").split(",")))}

def load(batch):
    time.sleep(len(batch) * float(os.environ.get("COST_S", "0")))
    for record in batch:
        if record.value in POISON:
            raise ValueError(f"bad row in {record.value!r}")
    sink.write([{"text": r.value} for r in batch], batch=batch)

spout = FlowControlSpout(
    name="lines",
    producer=TextLines("in.log"),
    bolts=LocalBolts(load, count=4),
)
"""
SMALL = [
    *("--set", "tuple.records_max=1", "--set", "retry.attempts_max=2"),
    *("--set", "retry.backoff_first_s=0.01"),
]
LETTERS = ["--dead-letters", ".flowctl/dead-letters"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in.log").write_text("".join(f"line {n}\n" for n in range(1, LINES + 1)))
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def start(place: Path, *words: str, poison: tuple[int, ...] = (), cost_s: float = 0.0) -> Any:
    path = os.pathsep.join([str(ROOT), str(ROOT / "adapters")])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOWCTL", "COLUMNS"))}
    more = {"PYTHONPATH": path, "POISON": ",".join(map(str, poison)), "COST_S": str(cost_s)}
    return subprocess.Popen(
        [sys.executable, "-m", "flowctl.cli.main", *words], cwd=place, env={**kept, **more},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def flowctl(place: Path, *words: str, poison: tuple[int, ...] = ()) -> tuple[int, str]:
    if words[0] != "run":
        said = flowctl_here(place, *words)
        return said.returncode, said.stdout + said.stderr
    process = start(place, *words, poison=poison)
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def rows(place: Path) -> Counter[str]:
    connection = sqlite3.connect(place / "out.db")
    try:
        return Counter(text for (text,) in connection.execute("SELECT text FROM lines"))
    finally:
        connection.close()


EXACT = Counter(f"line {n}" for n in range(1, LINES + 1))


@pytest.mark.on_change("cli")
def test_kept_listed_shown_put_back_and_dropped(place: Path) -> None:
    code, text = flowctl(place, "run", "job.py", *SMALL, poison=POISON)
    assert code == 1 and "flowctl run --dead-letters .flowctl/dead-letters" in text

    code, text = flowctl(
        place, "run", "job.py", *SMALL, *LETTERS, "--report", "r.json", poison=POISON
    )
    assert code == 3, text
    assert "4 records dead-lettered (see `flowctl dlq show lines`)" in text
    assert "most frequent: ValueError: bad row in '…' (4)" in text
    report = json.loads((place / "r.json").read_text())
    assert (report["outcome"], report["records_dead_lettered"]) == ("finished", 4)
    assert report["loss_reasons"] == [{"reason": "ValueError: bad row in '…'", "records": 4}]
    assert sum(rows(place).values()) == LINES - 4

    code, text = flowctl(place, "dlq", "list", "lines")
    assert code == 0 and "lines  4 letters · 4 given up" in text
    code, text = flowctl(place, "dlq", "show", "lines")
    assert code == 0 and all(f"    line {n}\n" in text for n in POISON)
    (first,) = [t for t in json.loads(flowctl(place, "dlq", "show", "lines", "--json")[1])
                if t["value"] == "line 7"]  # fmt: skip
    assert flowctl(place, "dlq", "drop", "lines", "--id", first["id"], "--yes")[0] == 0

    code, text = flowctl(place, "dlq", "redrive", "lines")
    assert code == 0 and "3 letters of lines" in text
    code, text = flowctl(place, "run", "job.py", *SMALL)
    assert code == 0 and "3 dead letters of this job would be processed again with" in text
    code, text = flowctl(place, "run", "job.py", *SMALL, *LETTERS, poison=(399,))
    assert code == 3, text
    assert "3 dead letters to process again first" in text
    assert rows(place) == EXACT - Counter(["line 7", "line 399"])
    (letter,) = json.loads(flowctl(place, "dlq", "show", "lines", "--json")[1])
    assert (letter["partition"], letter["value"], letter["redrives"]) == ("in.log", "line 399", 1)

    assert flowctl(place, "dlq", "redrive", "lines")[0] == 0
    code, text = flowctl(place, "run", "job.py", *SMALL, *LETTERS, "--quiet")
    assert (code, text) == (0, "")
    assert rows(place) == EXACT - Counter(["line 7"])
    where = place / ".flowctl" / "dead-letters"
    assert flowctl(place, "dlq", "list") == (0, f"No dead letters in {where}.\n")
    assert "nothing to do" in flowctl(place, "run", "job.py")[1]


def test_exit_codes_say_whether_what_was_lost_was_allowed(place: Path) -> None:
    run = ["run", "job.py", "--quiet", *SMALL, *LETTERS]
    code, text = flowctl(place, *run, "--fail-over", "1%", poison=POISON)  # 4 of 400 are 1 %
    assert (code, text) == (0, "")
    (place / "in.log").write_text("".join(f"line {n}\n" for n in range(1, 2 * LINES + 1)))
    code, text = flowctl(place, *run, poison=(LINES + 1,))
    earlier = "4 dead letters of earlier runs are still open: flowctl dlq show lines"
    assert (code, text) == (3, f"flowctl: finished, 1 record dead-lettered · {earlier}\n")
    (place / "in.log").write_text("".join(f"line {n}\n" for n in range(1, 3 * LINES + 1)))
    code, text = flowctl(place, *run, "--fail-over", "0", poison=(2 * LINES + 1,))
    assert code == 1 and "too many records were left out: 1 record dead-lettered" in text
    code, text = flowctl(place, "run", "job.py", "--fail-over", "some")
    assert code == 2 and "--fail-over: 'some' is neither a count nor a share" in text
    code, text = flowctl(place, "run", "--help")
    assert code == 0 and "3    finished, but records were rejected or dead-lettered" in text


REJECTING_JOB = """
from flowctl import FlowControlSpout, LocalBolts
from flowctl_files import TextLines

def load(batch):
    for record in batch:
        if record.value in ("line 7", "line 8"):
            batch.reject(record, "not wanted")

spout = FlowControlSpout(
    name="lines", producer=TextLines("in.log"), bolts=LocalBolts(load, count=2),
)
"""


def test_what_is_kept_nowhere_is_said_at_the_end_also_of_a_quiet_run(place: Path) -> None:
    (place / "job.py").write_text(REJECTING_JOB)
    text = "2 records rejected and kept nowhere: --dead-letters DIR keeps such records"
    told = flowctl(place, "run", "job.py", "--quiet", "--report", "r.json")
    assert told == (3, f"flowctl: finished, {text}\n")
    assert json.loads((place / "r.json").read_text())["records_kept_nowhere"] == 2
    (place / ".flowctl" / "checkpoints").rename(place / "old")
    code, said = flowctl(place, "run", "job.py", "--plain")
    assert code == 3 and text in said


def test_a_retry_does_not_turn_red_into_green(place: Path) -> None:
    run = ["run", "job.py", "--plain", *SMALL, *LETTERS]
    assert flowctl(place, *run, "--fail-over", "0", poison=POISON)[0] == 1
    flowctl(place, *run, poison=POISON)  # to the end of the input
    open_letters = "4 dead letters of earlier runs are still open"
    code, text = flowctl(place, *run, "--fail-over", "0", poison=POISON)
    assert code == 1 and open_letters in text, text
    assert f"{open_letters}, of 400 records done in all runs" in text
    code, text = flowctl(place, *run, "--report", "r.json")
    assert code == 3 and f"{open_letters}: flowctl dlq show lines" in text, text
    assert json.loads((place / "r.json").read_text())["letters_open"] == 4
    assert flowctl(place, *run, "--fail-over", "1%")[0] == 0  # 4 of the 400 of all runs
    assert flowctl(place, "dlq", "redrive", "lines")[0] == 0
    code, text = flowctl(place, *run, "--fail-over", "0")
    assert code == 0 and "still open" not in text, text


@pytest.mark.on_change("cli")
@pytest.mark.slow
@pytest.mark.req("S14")
def test_killed_again_and_again_while_letters_are_put_back(place: Path) -> None:
    poison = tuple(range(1, LINES, 2))
    code, text = flowctl(place, "run", "job.py", *SMALL, *LETTERS, poison=poison)
    assert code == 3, text
    assert flowctl(place, "dlq", "redrive", "lines")[1].startswith("200 letters")
    still = poison[5:45]  # these fail again, in a row
    chance = random.Random(7)
    run = ["run", "job.py", "--plain", *SMALL, *LETTERS, "--set", "checkpoint.interval_s=0.05"]
    for _ in range(4):
        until = sum(rows(place).values()) + chance.randint(10, 30)
        process = start(place, *run, poison=still, cost_s=0.05)
        while process.poll() is None and sum(rows(place).values()) < until:
            time.sleep(0.01)
        assert process.poll() is None, "there was nothing left to do"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    # Those that failed again before the last kill fail once more, and the rest is done.
    assert flowctl(place, "dlq", "redrive", "lines")[0] == 0
    assert flowctl(place, *run, poison=still)[0] == 3
    assert flowctl(place, *run, poison=still)[0] == 3  # they are still open
    told = json.loads(flowctl(place, "dlq", "show", "lines", "--limit", "999", "--json")[1])
    assert sorted(t["value"] for t in told) == sorted(f"line {n}" for n in still)
    assert {t["partition"] for t in told} == {"in.log"}
    assert rows(place) == EXACT - Counter(f"line {n}" for n in still)
