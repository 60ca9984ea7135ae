"""How a job of ``apply`` ends while others are at work: a second driver, ``receipts gc``, a copy.

The kind: nothing is named as a result that was not looked at just before, one driver ends a job,
and what a driver at work makes is never a leftover.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from flowctl.bolts.batch import Batch
from flowctl.cli.main import cli
from flowctl.config import CheckpointSettings, Settings
from flowctl.core.records import Checkpoint
from flowctl.delivery.options import for_apply
from flowctl.errors import ConfigError, FencedError, FlowctlError, UnrunnableError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl.runtime.receipts import Entry, Segment, flaw
from flowctl_apply._job import Input, Job, merge_files
from flowctl_apply._places import LocalPlace
from flowctl_apply._results import Description, ResultFile, Results
from flowctl_apply.parquet_apply import Applied, Noted, run_job
from flowctl_files.parquet_ranges import ParquetRanges

SCHEMA = pyarrow.schema([("id", pyarrow.int64())])
FAST = Settings(checkpoint=CheckpointSettings(interval_s=0.05))
ROWS = 600
PATIENCE_S = 60.0
Hook = Callable[[], object]


def same(batch: Batch) -> list[tuple[int]]:
    if any(record.value["id"] >= float(os.environ.get("KILLED_AT", "inf")) for record in batch):
        raise UnrunnableError("fn", "is killed.")
    return [(record.value["id"],) for record in batch]


def write_rows(directory: Path, start: int = 0, stop: int = ROWS) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"id": list(range(start, stop))})
    pyarrow.parquet.write_table(table, directory / f"{start}.parquet", row_group_size=100)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in")
    return tmp_path / "in"


def run(
    source: Path, *, before: Hook = int, after: Hook = int, place: LocalPlace | None = None
) -> Applied:
    """One driver; it calls ``before`` and ``after`` when it is about to merge, and has merged."""
    out = source.parent / "out"
    job = Job(same, SCHEMA, name="scores", out=str(out))
    if place is not None:
        job.results = Results(place, "scores")

    def merge(shares: Sequence[Sequence[str]], epoch: int) -> list[ResultFile]:
        before()
        place = job.results.place
        made = [merge_files(place, job.name, SCHEMA, share, epoch=epoch) for share in shares]
        after()
        return made

    given = Input(str(source), [str(source)])
    options = for_apply("scores", {"bolts": 2, "settings": FAST, "view": "off", "files": 1})
    return run_job(job, given, options, merge=merge)


def ids(applied: Applied) -> list[int]:
    files = [file.removeprefix("file://") for file in applied.files]
    return sorted(n for file in files for n in pyarrow.parquet.read_table(file)["id"].to_pylist())


def gc(out: Path) -> None:
    CliRunner().invoke(cli, ["receipts", "gc", "scores", "--out", str(out)], catch_exceptions=False)


def test_gc_while_results_are_merged_removes_none_of_them(source: Path) -> None:
    """Kind: what a live driver makes is never a leftover."""
    applied = run(source, after=lambda: gc(source.parent / "out"))
    assert ids(applied) == list(range(ROWS))


def test_of_two_drivers_in_the_end_the_newer_ends_the_job_and_the_older_stops(source: Path) -> None:
    """Kind: one driver ends a job.  The newer one begins and ends while the older one merges."""
    done: list[Applied] = []
    with pytest.raises(FencedError, match="taken over"):
        run(source, after=lambda: done.append(run(source)))
    assert ids(done[0]) == list(range(ROWS))
    again = run(source)
    assert again.was_done and again.files == done[0].files


def test_the_older_driver_that_ends_while_the_newer_one_merges_takes_nothing_from_it(
    source: Path,
) -> None:
    """Kind: as above, in the other order."""
    merging, newer_merges = threading.Event(), threading.Event()
    told: list[BaseException] = []

    def older() -> None:
        def wait() -> None:
            merging.set()
            assert newer_merges.wait(PATIENCE_S)

        try:
            run(source, after=wait)
        except FlowctlError as error:
            told.append(error)

    thread = threading.Thread(target=older)

    def let_it_end() -> None:
        newer_merges.set()
        thread.join(PATIENCE_S)

    thread.start()
    assert merging.wait(PATIENCE_S)
    applied = run(source, after=let_it_end)
    assert [type(error) for error in told] == [FencedError]
    assert ids(applied) == ids(run(source)) == list(range(ROWS))


class Late(LocalPlace):
    """Something happens right before the job's end is written, or right after."""

    def __init__(self, path: str, hook: Hook, *, is_after: bool = False) -> None:
        super().__init__(path)
        self.hook = hook
        self.is_after = is_after

    def put_new(self, name: str, data: bytes) -> bool:
        if name.endswith("finished.json") and not self.is_after:
            self.hook()
        done = super().put_new(name, data)
        if name.endswith("finished.json") and self.is_after:
            self.hook()
        return done

    def __reduce__(self) -> Any:
        return LocalPlace, (self.url,)


def test_a_driver_that_is_late_with_the_end_returns_the_result_of_the_other(source: Path) -> None:
    """Kind: as above; the newer driver ends between the older one's last look and its end."""
    done: list[Applied] = []
    late = Late(str(source.parent / "out"), lambda: done.append(run(source)))
    applied = run(source, place=late)
    assert applied.files == done[0].files
    assert ids(applied) == list(range(ROWS))


def test_a_driver_that_merges_while_the_older_one_ends_loses_nothing_and_leaves_nothing(
    source: Path,
) -> None:
    """Kind: as above; the newer one begins after the older one's last look."""
    merging, has_ended = threading.Event(), threading.Event()
    newer: list[Applied] = []

    def wait() -> None:
        merging.set()
        assert has_ended.wait(PATIENCE_S)

    thread = threading.Thread(target=lambda: newer.append(run(source, before=wait)))

    def begin() -> None:
        thread.start()
        assert merging.wait(PATIENCE_S)

    out = source.parent / "out"
    older = run(source, place=Late(str(out), begin))
    gc(out)  # as it is at work still
    has_ended.set()
    thread.join(PATIENCE_S)
    assert newer[0].files == older.files
    assert ids(older) == list(range(ROWS))
    assert [f"file://{path}" for path in out.glob("*.parquet")] == list(older.files)


class Apart(Late):
    """An object store: to look whether there is a file and to put it are two steps."""

    def put_new(self, name: str, data: bytes) -> bool:
        if any(found.name == name for found in self.names(recursive=True)):
            return False
        if name.endswith("finished.json"):
            self.hook()
        self.put(name, data)
        return True


def test_where_both_drivers_write_the_end_the_later_result_is_whole(source: Path) -> None:
    """Kind: as above, in a store that can't keep the second one from writing."""
    between, has_ended = threading.Event(), threading.Event()
    newer: list[Applied] = []

    def wait() -> None:
        between.set()
        assert has_ended.wait(PATIENCE_S)

    out = str(source.parent / "out")
    thread = threading.Thread(target=lambda: newer.append(run(source, place=Apart(out, wait))))

    def begin() -> None:
        thread.start()
        assert between.wait(PATIENCE_S)

    run(source, place=Late(out, begin))
    has_ended.set()
    thread.join(PATIENCE_S)
    assert run(source).files == newer[0].files
    assert ids(newer[0]) == list(range(ROWS))


def test_files_that_vanish_as_the_end_is_written_are_not_returned(source: Path) -> None:
    """Kind: nothing is named as a result that was not looked at; after the end as well."""
    out = source.parent / "out"

    def vanish() -> None:
        for path in out.glob("*.parquet"):
            path.unlink()

    with pytest.raises(FlowctlError, match="is a file of results, but it is not in"):
        run(source, place=Late(str(out), vanish, is_after=True))


def test_a_job_that_was_killed_before_it_tidied_up_is_tidied_by_the_next_run(source: Path) -> None:
    """Kind: who reads the directory of a finished job reads each row once."""
    out = source.parent / "out"

    def kill() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        run(source, place=Late(str(out), kill, is_after=True))
    assert len(list(out.glob("*.parquet"))) > 1, "merged files, and those that were merged"
    applied = run(source)
    assert applied.was_done and ids(applied) == list(range(ROWS))
    assert [f"file://{path}" for path in out.glob("*.parquet")] == list(applied.files)


def test_a_finished_job_whose_files_are_gone_says_so(source: Path) -> None:
    """Kind: nothing is named as a result that was not looked at just before."""
    (file,) = run(source).files
    Path(file.removeprefix("file://")).unlink()
    with pytest.raises(FlowctlError, match="is a file of results, but it is not in"):
        run(source)


def test_a_file_that_was_cut_short_is_no_result(source: Path) -> None:
    """Kind: as above."""

    def cut() -> None:
        for path in (source.parent / "out").glob("*.merged.*"):
            path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(FlowctlError, match="bytes"):
        run(source, after=cut)


# -- two drivers that start together -----------------------------------------------------------


def copying(out: Path, hook: Hook, start: int = 0) -> Input:
    def write(url: str) -> None:
        write_rows(Path(url.removeprefix("file://")), start, ROWS)
        hook()

    return Input("rows", write=write)


def run_copy(out: Path, hook: Hook = int, fn: Callable[..., Any] = same) -> Applied:
    job = Job(fn, SCHEMA, name="scores", out=str(out))
    options = for_apply("j", {"bolts": 2, "settings": FAST, "view": "off"})
    return run_job(job, copying(out, hook), options)


def test_of_two_drivers_that_copy_the_input_both_read_the_copy_that_was_there_first(
    tmp_path: Path,
) -> None:
    """Kind: what a job began with is written once, and looked at after a long step."""
    out = tmp_path / "out"
    first: list[Applied] = []
    second = run_copy(out, lambda: first.append(run_copy(out)))
    assert ids(second) == ids(first[0]) == list(range(ROWS))
    assert not list(out.rglob("input-*"))


def test_a_driver_whose_copy_comes_second_continues_the_job_that_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind: as above; the first one is killed halfway, so its results are of its own copy."""
    out = tmp_path / "out"

    def first_is_killed() -> None:
        monkeypatch.setenv("KILLED_AT", str(ROWS // 2))
        with pytest.raises(FlowctlError, match="is killed"):
            run_copy(out)
        monkeypatch.delenv("KILLED_AT")
        assert Results(LocalPlace(str(out)), "scores").files()

    assert ids(run_copy(out, first_is_killed)) == list(range(ROWS))


def test_another_function_that_began_meanwhile_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    """Kind: as above; what began is compared again once the copy is there."""

    def other(batch: Batch) -> list[tuple[int]]:
        return [(-record.value["id"],) for record in batch]

    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"fn: .* was begun with another function"):
        run_copy(out, lambda: run_copy(out, fn=other))


def test_a_driver_whose_job_was_begun_anew_stops_before_it_reads(source: Path) -> None:
    """Kind: what a job began with is looked at after it was acquired."""
    results = Results(LocalPlace(str(source.parent / "out")), "scores")
    begun = Description(name="scores", run="1", schema="", source="", fn="", paths=[])
    producer = Noted(ParquetRanges(str(source)), results, begun)
    with pytest.raises(FencedError, match="has begun 'scores'"):
        producer.extents(Checkpoint())
    Job(same, SCHEMA, name="scores", out=results.place.url).begin(Input(str(source), [str(source)]))
    with pytest.raises(FencedError, match="has begun 'scores'"):
        producer.extents(Checkpoint())


# -- what the receipts say ---------------------------------------------------------------------


def begun(source: Path, *entries: Entry) -> None:
    """A job of which a killed driver has kept ``entries``."""
    results = Job(same, SCHEMA, name="scores", out=str(source.parent / "out")).results
    with pytest.MonkeyPatch.context() as patch, pytest.raises(FlowctlError, match="is killed"):
        patch.setenv("KILLED_AT", "0")
        run(source)
    store = ReceiptStore(MemoryCheckpointStore(), results.manifest)
    store.acquire("scores")
    results.manifest.append(Segment(*store.base, 1, entries))


def test_results_of_what_a_job_does_not_read_are_not_adopted(source: Path) -> None:
    """Kind: receipts are checked for strangers, not only for gaps."""
    begun(source, Entry("another.parquet", 0, 10, 10))
    with pytest.raises(ConfigError, match=r"results of another\.parquet, which this job does not"):
        run(source)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([("a", 0, 6), ("a", 6, 10)], ""),
        ([("a", 0, 6)], r"no result for \('a', 6, 10\)"),
        ([("a", 0, 6), ("a", 5, 10)], "two results of a 5 to 10, or of a part"),
        ([("a", 0, 6), ("a", 0, 6), ("a", 6, 10)], "two results of a 0 to 6"),
        ([("a", 0, 11)], "results of a 0 to 11, which is not in the input"),
        ([("a", 0, 10), ("b", 0, 1)], "results of b 0 to 1, which is not in the input"),
        ([("a", 0, 10), ("b", 3, 3)], "results of b 3 to 3, which is not in the input"),
    ],
)
def test_receipts_are_the_input_each_position_once(
    entries: list[tuple[str, int, int]], problem: str
) -> None:
    """Kind: as above, and for overlaps."""
    made = [Entry(name, start, stop, stop - start) for name, start, stop in entries]
    assert re.search(problem, flaw({"a": (0, 10)}, made))
    assert bool(problem) == bool(flaw({"a": (0, 10)}, made))
