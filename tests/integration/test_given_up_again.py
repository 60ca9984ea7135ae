"""What a job gave up, with ``SqlSink``: after a rewind or a clear it is tried again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowctl.bolts.batch import Batch
from flowctl.bolts.local import LocalBolts
from flowctl.errors import ProcessError
from flowctl.instrumentation.snapshot import Report
from flowctl.ports import CheckpointStore, DeadLetter
from flowctl.runtime.flow_control_spout import FlowControlSpout
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter, TextLines, TextRanges
from flowctl_sql import SqlSink

LINES = 2_000
BAD = {n for n in range(LINES) if n % 97 == 5}


@pytest.fixture(autouse=True)
def _merges_at_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowctl_sql._ledger._MERGE_EVERY_WRITES", 1)


class Job:
    """Lines into SQLite; ``is_well``: the bad ones are written too."""

    def __init__(self, place: Path, source: Callable[[Path], Any], how: str) -> None:
        self.path = place / "in.log"
        self.path.write_text("".join(f"{n}\n" for n in range(LINES)))
        self.database = place / "out.db"
        self.store: CheckpointStore = MemoryCheckpointStore()
        self.letters: DeadLetter | None = FileDeadLetter(place / "letters")
        self.source, self.how, self.attempts_max = source, how, 1
        if "nowhere" in how:
            self.letters = None

    def run(self, *, is_well: bool) -> Report:
        into = SqlSink(
            f"sqlite:///{self.database}",
            table="t",
            schema="CREATE TABLE IF NOT EXISTS t (n INTEGER)",
        )

        def process(batch: Batch) -> None:
            rows: list[tuple[int] | None] = []
            for record in batch:
                rows.append((int(record.value),))
                if int(record.value) in BAD and not is_well:
                    if self.how == "raises":
                        raise ValueError("bad")
                    batch.reject(record, "bad")
                    rows[-1] = None
            into.write(rows, batch=batch)

        settings = {"tuple.records_max": 50, "retry.attempts_max": self.attempts_max}
        return FlowControlSpout(
            name="job",
            producer=self.source(self.path),
            bolts=LocalBolts(process, count=2),
            checkpoint=self.store,
            dead_letter=self.letters,
            settings=settings,
        ).run(view="off")

    @property
    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.database)) as database:
            return [n for (n,) in database.execute("SELECT n FROM t ORDER BY n")]

    @property
    def spans(self) -> int:
        with closing(sqlite3.connect(self.database)) as database:
            return int(database.execute("SELECT COUNT(*) FROM flowctl_spans").fetchone()[0])


@pytest.mark.parametrize("how", ["raises", "rejects", "rejects, kept nowhere"])
@pytest.mark.parametrize("source", [TextLines, TextRanges])
@pytest.mark.parametrize("again", ["cleared", "rewound"])
def test_what_was_given_up_is_written_when_it_comes_again(
    tmp_path: Path, again: str, source: Callable[[Path], Any], how: str
) -> None:
    """Kind: a record that was never written counts as written, as those around it are.

    The sink joined what it remembers over the records that the dead letter has, in this run or in
    a later one, which knew nothing of them.
    """
    job = Job(tmp_path, source, how)
    job.run(is_well=False)
    assert job.rows == sorted(set(range(LINES)) - BAD)
    count = LINES
    if source is TextLines:  # a later run reads on, and writes behind them
        count += 500
        with job.path.open("a") as file:
            file.write("".join(f"{n}\n" for n in range(LINES, count)))
        job.run(is_well=True)
    if again == "cleared":
        job.store.clear("job")
    else:
        job.store.rewind("job", str(job.path), None)
    job.run(is_well=True)
    assert job.rows == list(range(count))
    assert job.spans <= 2 * len(BAD) + 4


def test_where_only_bad_records_are_left_the_error_names_a_way_that_works(tmp_path: Path) -> None:
    """Kind: a remedy that leads to another error, whose remedy leads nowhere."""
    job = Job(tmp_path, TextLines, "raises")
    job.letters, kept, job.attempts_max = None, job.letters, 4
    with pytest.raises(
        ProcessError, match=r"To set such records aside .* give the job dead_letter="
    ):
        job.run(is_well=False)
    assert set(job.rows) == set(range(LINES)) - BAD, "while a bad one waited, all others were done"
    job.letters = kept
    assert job.run(is_well=False).letters_open == len(BAD), "though nothing else is left"
    assert job.rows == sorted(set(range(LINES)) - BAD)
