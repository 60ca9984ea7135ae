"""A call of ``process`` that never returns: told, bounded, and the fault of its record."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowctl import FlowControlSpout, LocalBolts, Records, Settings
from flowctl.bolts import slots
from flowctl.core.events import BoltRemoved
from flowctl.errors import BoltsUnavailableError, CallTooLongError, ProcessError
from flowctl.instrumentation.snapshot import Report, Snapshot
from flowctl.ports import SourceChunk
from flowctl.testing.stores import MemoryCheckpointStore
from flowctl_files import FileDeadLetter, TextRanges
from flowctl_sql import SqlSink
from flowctl_storm import Collector, Input, LocalStages
from tests.topology_driver import Numbers, Topology

# Far longer than a call here takes, and not much longer than a heartbeat.
BOUND_S = 0.6


class Hanging:
    """A ``process`` whose call for ``bad`` returns only when :attr:`release` is set."""

    def __init__(self, bad: object) -> None:
        self.bad = bad
        self.release = threading.Event()
        self.done: Counter[object] = Counter()
        self.hung = 0

    def __call__(self, batch: Any) -> None:
        for record in batch:
            if record.value == self.bad:
                self.hung += 1
                self.release.wait(120)
                return
        self.done.update(record.value for record in batch)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    process = Hanging(50)
    yield process
    process.release.set()


def _spout(process: Any, tmp_path: Path, *, count: int, slots: int = 1, **settings: Any) -> Any:
    return FlowControlSpout(
        name="hangs",
        producer=list(range(200)),
        bolts=LocalBolts(process, count=count, slots=slots),
        checkpoint=MemoryCheckpointStore(),
        dead_letter=FileDeadLetter(tmp_path),
        settings={"call.timeout_s": BOUND_S, "hedge.enabled": False, **settings},
    )


def test_a_call_that_never_returns_is_the_fault_of_its_record(
    hanging: Hanging, tmp_path: Path
) -> None:
    """Kind: a call without an end, which nothing bounds: one record went from bolt to bolt."""
    spout = _spout(hanging, tmp_path, count=2, slots=4, **{"retry.attempts_max": 3})
    report: Report = spout.run(view="off")
    assert report.records_dead_lettered == 1
    assert hanging.done == Counter(value for value in range(200) if value != 50)
    assert report.calls_overdue == hanging.hung == 3, "after attempts_max bolts, not for ever"
    assert {(call.first, call.last) for call in report.long_calls} == {(50, 50)}


def test_what_a_call_writes_after_it_was_given_up_is_not_there_besides_its_letter(
    hanging: Hanging, tmp_path: Path
) -> None:
    """Kind: the letter is put back, and its row, which the late call wrote, is there twice."""
    sink = SqlSink(f"sqlite:///{tmp_path}/t.db", table="t", schema="CREATE TABLE t (n INTEGER)")
    late = threading.Semaphore(0)

    def process(batch: Any) -> None:
        hanging(batch)
        try:
            sink.write([(record.value,) for record in batch], batch=batch)
        except CallTooLongError:
            late.release()
            raise

    settings = {"retry.attempts_max": 2}
    report = _spout(process, tmp_path, count=2, slots=4, **settings).run(view="quiet")
    assert report.records_dead_lettered == 1
    hanging.release.set()
    for _ in range(hanging.hung):
        assert late.acquire(timeout=60)
    with sqlite3.connect(tmp_path / "t.db") as connection:
        found = connection.execute("SELECT n FROM t ORDER BY n").fetchall()
    assert found == [(n,) for n in range(200) if n != 50]


@pytest.mark.slow
@pytest.mark.on_change("wire")
def test_a_bolt_whose_only_thread_is_stuck_leaves_and_its_tuple_goes_to_another(
    hanging: Hanging, tmp_path: Path
) -> None:
    spout = _spout(hanging, tmp_path, count=4, **{"retry.attempts_max": 2})
    report = spout.run(view="off")
    assert report.records_dead_lettered == 1
    assert hanging.done == Counter(value for value in range(200) if value != 50)
    assert {call.bolt for call in report.long_calls} < {"b1", "b2", "b3", "b4"}
    assert len(report.long_calls) == hanging.hung == 2


def test_an_async_call_past_its_bound_is_cancelled_and_its_bolt_goes_on(tmp_path: Path) -> None:
    cancelled: list[int] = []
    done: Counter[int] = Counter()

    async def load(batch: Any) -> None:
        for record in batch:
            if record.value == 50:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(record.value)
        done.update(record.value for record in batch)

    report = _spout(load, tmp_path, count=1, slots=4, **{"retry.attempts_max": 2}).run(view="off")
    assert report.records_dead_lettered == 1
    assert done == Counter(value for value in range(200) if value != 50)
    assert report.calls_overdue == len(cancelled) == 2
    assert report.bolts_lost == 0
    assert not report.long_calls


@pytest.mark.slow
@pytest.mark.on_change("wire")
def test_without_a_dead_letter_the_run_names_the_record(hanging: Hanging, tmp_path: Path) -> None:
    spout = _spout(hanging, tmp_path, count=4, **{"retry.attempts_max": 2})
    spout.dead_letter = None
    with pytest.raises(
        ProcessError, match=r"record 50: process failed 2 times, .*longer than 0.6 s"
    ):
        spout.run(view="off")


class Watching:
    """A view that lets the call go once it was told."""

    def __init__(self, process: Hanging) -> None:
        self._process = process
        self.told: list[str] = []

    def start(self, job: str, headline: str) -> None: ...
    def event(self, event: Any) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self, report: Report) -> None: ...

    def update(self, snapshot: Snapshot) -> None:
        if snapshot.long_calls:
            self.told += [f"{call.bolt} {call.first}" for call in snapshot.long_calls]
            self._process.release.set()


def test_without_a_bound_the_view_says_which_bolt_works_on_which_record(
    hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a call that never returns and is never named."""
    monkeypatch.setattr(slots, "TELL_AFTER_S", 0.3)
    view = Watching(hanging)
    spout = _spout(hanging, tmp_path, count=1, **{"call.timeout_s": None})
    report = spout.run(view=view)
    assert view.told[0] == "b1 50"
    assert report.records_acked == 200
    assert not report.calls_overdue


def test_in_the_tail_one_record_does_not_go_from_bolt_to_bolt_for_ever(
    hanging: Hanging, tmp_path: Path
) -> None:
    """Kind: a bolt is given up before its call is, so that nobody's failure counts."""
    impatient = {
        "lab.timeout.rto_first_s": 0.2,
        "lab.timeout.rto_max_s": 0.2,
        "retry.attempts_max": 2,
    }
    report = _spout(hanging, tmp_path, count=8, **impatient).run(view="off")
    assert report.records_dead_lettered == 1
    assert hanging.hung == report.calls_overdue == 2, "after attempts_max bolts"
    assert hanging.done == Counter(value for value in range(200) if value != 50)


class LettingGo(Watching):
    """A view that lets the call go once its bolt has left, and says when the run knows it back."""

    def __init__(self, process: Hanging) -> None:
        super().__init__(process)
        self.is_back = threading.Event()

    def event(self, event: Any) -> None:
        if isinstance(event, BoltRemoved):
            assert event.reason == "a call took longer than 0.6 s"
            self._process.release.set()

    def update(self, snapshot: Snapshot) -> None:
        if self._process.release.is_set() and not snapshot.long_calls:
            self.is_back.set()


def test_a_bolt_that_left_comes_back_when_its_call_returns(
    hanging: Hanging, tmp_path: Path
) -> None:
    view = LettingGo(hanging)

    class OpenUntilBack(Records):
        """Or the run may end before the thread that was stuck says that it is back."""

        def poll(self, max_records: int) -> SourceChunk | None:
            chunk = super().poll(max_records)
            is_open = chunk is None and not view.is_back.is_set()
            return SourceChunk("records", []) if is_open else chunk

    spout = _spout(hanging, tmp_path, count=1)
    spout.producer = OpenUntilBack(range(200))
    report = spout.run(view=view)
    assert hanging.hung == 2, "the second call returned at once"
    assert (report.records_acked, report.calls_overdue) == (200, 1)
    assert not report.long_calls


@pytest.mark.slow
@pytest.mark.on_change("wire")
def test_one_record_that_hangs_holds_no_bolt_however_few_there_are(
    hanging: Hanging, tmp_path: Path
) -> None:
    """Kind: attempts that are bounded by the bolts, so that the job can never get to its end."""
    report = _spout(hanging, tmp_path, count=1).run(view="off")
    assert report.records_dead_lettered == 1
    assert hanging.done == Counter(value for value in range(200) if value != 50)
    assert report.calls_overdue == hanging.hung == len(report.long_calls)
    assert 5 <= hanging.hung <= 8, "a failure beside which nothing succeeded counts for nobody"
    assert {call.bolt for call in report.long_calls} == {"b1"}


def test_where_every_bolt_is_stuck_the_error_names_the_record_and_what_helps(
    hanging: Hanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: a message about bolts that never came, where they came and can't go on."""
    monkeypatch.setattr("flowctl.bolts.local.STUCK_MAX", 0)
    spout = _spout(hanging, tmp_path, count=2, **{"start.bolts_timeout_s": 1.0})
    with pytest.raises(BoltsUnavailableError) as caught:
        spout.run(view="off")
    assert "every bolt is in a call that does not return: b" in str(caught.value)
    assert "works on record 50 of " in str(caught.value)
    assert "time-out" in caught.value.remedy
    assert "slow to start" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.on_change("wire")
def test_the_rest_of_a_range_goes_to_others_when_a_call_of_it_never_returns(
    tmp_path: Path,
) -> None:
    """By reference: the bolt leaves, as nobody else can end its range."""
    process = Hanging("50")
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(200)))
    spout = _spout(process, tmp_path / "letters", count=4, **{"retry.attempts_max": 2})
    spout.producer = TextRanges(str(tmp_path / "in.txt"))
    try:
        report = spout.run(view="off")
    finally:
        process.release.set()
    assert report.records_dead_lettered == 1
    assert process.done == Counter(str(number) for number in range(200) if number != 50)
    assert report.calls_overdue == process.hung == 2
    assert [call.partition.endswith("in.txt") for call in report.long_calls] == [True, True]


def test_in_a_topology_the_input_of_a_call_that_never_returns_goes_to_another_bolt() -> None:
    release = threading.Event()
    stored: Counter[int] = Counter()
    hung: list[int] = []

    def parse(given: Input, out: Collector) -> None:
        out(given.value)

    def store(given: Input, out: Collector) -> None:
        if given.value == 50 and not hung:
            hung.append(given.value)
            release.wait(120)
            return
        stored[given.value] += 1

    made = Topology("stuck")
    made.spout("s", Numbers(200))
    made.bolt("parse", parse, count=1).shuffle("s")
    made.bolt("store", store, count=3).shuffle("parse")
    try:
        report = made.run(
            LocalStages(),
            checkpoint=MemoryCheckpointStore(),
            settings=Settings().with_overrides({"call.timeout_s": BOUND_S, "hedge.enabled": False}),
            view="off",
        )
    finally:
        release.set()
    assert set(stored) == set(range(1, 201))
    assert report.calls_overdue == 1
    assert [call.bolt.split(".")[0] for call in report.long_calls] == ["store"]
