"""A job that makes rows of rows: what it was begun with, what its workers write, how it ends."""

from __future__ import annotations

import asyncio
import functools
import linecache
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowctl.bolts.batch import Batch
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Receipts, Record, Span
from flowctl.errors import ConfigError, InfrastructureError, InternalError, UnrunnableError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl_apply import _row_writer
from flowctl_apply._job import Applied, Input, Job, shares_of
from flowctl_apply._places import LocalPlace
from flowctl_apply._results import ResultFile, Results, prefix_of
from flowctl_apply._unnamed import Unnamed
from flowctl_apply._uses import fingerprint
from flowctl_apply.parquet_apply import Noted

SCHEMA = pyarrow.schema([("id", pyarrow.int64()), ("label", pyarrow.string())])
GIVEN = Input("rows", ["in.parquet"])


def score(batch: Batch) -> list[tuple[int, str]]:
    return [(record.value["x"], "even") for record in batch if record.value["x"] % 2 == 0]


def other(batch: Batch) -> list[tuple[int, str]]:
    return []


def job(out: Path, fn: Callable[..., Any] = score, **options: Any) -> Job:
    return Job(fn, options.pop("schema", SCHEMA), name="scores", out=str(out), **options)


def batch(start: int, stop: int, *, epoch: int = 1) -> Batch:
    records = [Record(row, {"x": row}) for row in range(start, stop)]
    span = Span("scores", "in.parquet", start, stop - 1, epoch)
    return Batch(records, span, bolt="b1", attempt=1)


def test_what_a_first_batch_would_import_is_imported_as_the_process_arrives(tmp_path, monkeypatch):
    sent = pickle.dumps(job(tmp_path).process(job(tmp_path).begin(GIVEN)))
    encoded: list[int] = []
    monkeypatch.setattr(_row_writer, "encoded", lambda table: encoded.append(table.num_rows))
    process = pickle.loads(sent)
    assert encoded == [0]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    process.warm_up()  # no error yet: the first batch says what is missing
    assert encoded == [0]


class Driver:
    """What a run does, without bolts."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process = job.process(job.begin(GIVEN))
        results = job.results
        self.store = ReceiptStore(MemoryCheckpointStore(), results.manifest, Unnamed(results))
        self.epoch = self.store.acquire(job.name)

    def do(self, start: int, stop: int, *, is_accepted: bool = True) -> None:
        receipt = self.process(batch(start, stop, epoch=self.epoch))
        if is_accepted:
            self.store.append([Receipts("in.parquet", start, stop, stop - start, [receipt])])
            self.store.save("scores", Checkpoint(), epoch=self.epoch)

    def finish(self, stop: int, **options: Any) -> Applied:
        return self.job.finish(extents(stop), self.store, **options)


def rows_of(applied: Applied) -> list[dict[str, Any]]:
    files = [file.removeprefix("file://") for file in applied.files]
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def extents(stop: int) -> dict[str, Extent]:
    return {"in.parquet": Extent(0, stop)}


EVEN = [{"id": n, "label": "even"} for n in range(0, 10, 2)]


def test_accepted_results_are_the_result_and_the_others_are_swept(tmp_path: Path) -> None:
    here = job(tmp_path)
    driver = Driver(here)
    driver.do(4, 10)
    driver.do(0, 3, is_accepted=False)  # a copy that lost
    driver.do(0, 3)
    driver.do(3, 4)  # no rows: no file
    assert len(list(tmp_path.glob("*.parquet"))) == 3
    applied = driver.finish(10)
    assert rows_of(applied) == EVEN
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    again = job(tmp_path).done(GIVEN)
    assert again == applied
    assert again.was_done


def test_a_job_with_a_gap_does_not_end(tmp_path: Path) -> None:
    here = job(tmp_path)
    driver = Driver(here)
    driver.do(0, 3)
    with pytest.raises(InternalError, match=r"no result for \('in.parquet', 3, 10\)"):
        driver.finish(10)
    assert here.done(GIVEN) is None


def test_a_file_that_two_receipts_name_does_not_count_twice(tmp_path: Path) -> None:
    driver = Driver(job(tmp_path))
    receipt = driver.process(batch(0, 2, epoch=driver.epoch))
    for start in (0, 2):
        driver.store.append([Receipts("in.parquet", start, start + 2, 2, [receipt])])
    driver.store.save("scores", Checkpoint(), epoch=driver.epoch)
    with pytest.raises(InternalError, match="two receipts name one file"):
        driver.finish(4)


def test_files_are_merged_in_order(tmp_path: Path) -> None:
    here = job(tmp_path)
    driver = Driver(here)
    for start in (8, 4, 0, 2, 6):
        driver.do(start, start + 2)
    applied = driver.finish(10, files=2)
    assert rows_of(applied) == EVEN
    assert len(applied.files) == len(list(tmp_path.glob("*.parquet"))) == 2


def test_a_merge_that_loses_rows_does_not_end_the_job(tmp_path: Path) -> None:
    driver = Driver(job(tmp_path))
    for start in (0, 4):
        driver.do(start, start + 4)
    with pytest.raises(InternalError, match="merging its files lost rows"):
        driver.finish(8, files=1, merge=lambda shares, epoch: [])
    assert driver.job.done(GIVEN) is None


def test_a_merge_that_names_what_is_not_there_does_not_end_the_job(tmp_path: Path) -> None:
    driver = Driver(job(tmp_path))
    for start in (0, 4):
        driver.do(start, start + 4)
    with pytest.raises(
        InternalError, match=r"gone\.parquet is a file of results, but it is not in"
    ):
        driver.finish(8, files=1, merge=lambda shares, epoch: [ResultFile("gone.parquet", 4, 100)])
    assert driver.job.done(GIVEN) is None


@given(st.lists(st.sampled_from([0, 1, 10, 500]), max_size=12), st.integers(1, 6))
def test_shares_are_all_files_in_order_and_none_is_much_larger(sizes: list[int], most: int) -> None:
    files = [ResultFile(str(n), 1, size) for n, size in enumerate(sizes)]
    shares = shares_of(files, most)
    assert [file for share in shares for file in share] == files
    assert len(shares) <= most and all(shares)
    largest = max((sum(file.bytes for file in share) for share in shares), default=0)
    assert largest <= sum(sizes) / most + max(sizes, default=0)


def test_shares_are_in_order_and_about_as_large() -> None:
    files = [ResultFile(str(n), 1, size) for n, size in enumerate([10, 10, 60, 10, 10, 100])]
    assert [[int(file.file) for file in share] for share in shares_of(files, 2)] == [
        [0, 1, 2, 3, 4], [5],
    ]  # fmt: skip
    assert [len(share) for share in shares_of(files, 100)] == [1] * 6
    assert shares_of([], 3) == []


def test_a_result_without_rows_has_no_files_and_says_so(tmp_path: Path) -> None:
    driver = Driver(job(tmp_path, other))
    driver.do(0, 10)
    with pytest.warns(RuntimeWarning, match="no result for any of 10 rows.*forget its return"):
        applied = driver.finish(10, files=3)
    assert (applied.files, applied.rows) == ([], 0)


def test_what_the_bolts_of_a_live_driver_write_is_not_swept(tmp_path: Path) -> None:
    here = job(tmp_path)
    old = Driver(here)
    old.do(0, 2)
    old.do(2, 4, is_accepted=False)
    new = Driver(here)
    new.do(4, 6, is_accepted=False)  # its receipt may be on the way
    old.do(6, 8, is_accepted=False)  # a zombie
    swept = here.results.sweep()
    assert sorted(int(file.name.split(".")[4].split("-")[0]) for file in swept.files) == [2, 6]
    assert here.results.sweep().files == []


def test_results_of_another_job_are_left_alone(tmp_path: Path) -> None:
    here = job(tmp_path)
    Driver(here).do(0, 2)
    theirs = Job(score, SCHEMA, name="scores.2", out=str(tmp_path))
    theirs.begin(GIVEN)
    assert theirs.results.leftovers().files == []
    assert prefix_of("scores") != prefix_of("scores.2")


# -- another job under the same name -----------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "given", "field"),
    [
        ({"schema": pyarrow.schema([("id", pyarrow.int32())])}, GIVEN, "schema: .*int32"),
        ({"fn": other}, GIVEN, "fn: .*keep_results=True"),
        ({}, Input("others", ["in.parquet"]), "df: .*keep_results=True"),
        ({}, GIVEN._replace(columns=["x"]), r"columns: .*None, not \['x'\]"),
    ],
)
def test_another_job_under_the_same_name_is_refused(
    tmp_path: Path, changed: dict[str, Any], given: Input, field: str
) -> None:
    job(tmp_path).begin(GIVEN)
    with pytest.raises(ConfigError, match=f"(?s){field}") as error:
        job(tmp_path, **changed).done(given)
    assert "another name or out" in error.value.remedy
    assert job(tmp_path).done(GIVEN) is None


def test_results_may_not_lie_within_the_input(tmp_path: Path) -> None:
    given = Input("rows", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"out: .* lies within the input"):
        job(tmp_path / "out").done(given)
    assert job(tmp_path.parent / f"{tmp_path.name}-out").done(given) is None


def test_results_of_an_earlier_function_can_be_kept(tmp_path: Path) -> None:
    Driver(job(tmp_path)).do(0, 6)
    here = job(tmp_path, other, keep_results=True)
    assert here.done(Input("others", ["in.parquet"])) is None
    driver = Driver(here)
    driver.do(6, 10)
    assert rows_of(driver.finish(10)) == EVEN[:3]


def test_a_value_that_is_used_no_more_or_anew_is_another_one(tmp_path: Path) -> None:
    begun = job(tmp_path).begin(GIVEN)
    uses = dict(begun.uses or {})
    for changed in ({**uses, "variable 'gone'": "a"}, {k: v for k, v in uses.items() if not k}):
        job(tmp_path).results.describe(msgspec.structs.replace(begun, uses=changed))
        if changed == uses:
            continue
        with pytest.raises(ConfigError, match="was begun with another"):
            job(tmp_path).done(GIVEN)
    job(tmp_path).results.describe(msgspec.structs.replace(begun, uses=None))
    assert job(tmp_path).done(GIVEN) is None, "of an older version"


def test_what_another_driver_has_ended_is_the_result_of_one_that_failed(tmp_path: Path) -> None:
    driver = Driver(job(tmp_path))
    driver.do(0, 4)
    assert driver.job.ended_by_another(GIVEN, driver.store) is None
    applied = driver.finish(4)
    assert driver.job.ended_by_another(GIVEN, driver.store) == applied


def test_a_place_that_cannot_be_read_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> bytes:
        raise OSError("no route\nand more of it")

    results = job(tmp_path).results
    job(tmp_path).begin(GIVEN)
    for method in ("get", "names"):
        with monkeypatch.context() as patch:
            patch.setattr(LocalPlace, method, away)
            with pytest.raises(InfrastructureError, match=r"can't be read or written: no route\."):
                results.description()


def test_files_that_were_added_are_read_from_now_on(tmp_path: Path) -> None:
    job(tmp_path).begin(GIVEN)
    more = Input("more", ["in.parquet", "two.parquet"], marks={"two.parquet": "10 7"})
    grown = job(tmp_path, keep_results=True).begin(more)
    assert (grown.paths, grown.source) == (["in.parquet", "two.parquet"], "more")
    assert job(tmp_path).results.description() == grown
    assert grown.marks == {"two.parquet": "10 7"}
    assert not grown.is_mixed


@pytest.mark.parametrize("paths", [[], ["in.parquet"]], ids=["a DataFrame", "files"])
def test_a_job_that_has_a_copy_goes_on_with_it_and_says_so(
    tmp_path: Path, paths: list[str]
) -> None:
    def write(url: str) -> None:
        directory = Path(url.removeprefix("file://"))
        directory.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), directory / "part.parquet")

    begun = job(tmp_path).begin(Input("rows", write=write))
    with pytest.warns(RuntimeWarning, match="goes on with the copy"):
        again = job(tmp_path, keep_results=True).begin(Input("others", paths))
    assert again == begun
    assert job(tmp_path, keep_results=True).begin(Input("rows", paths)) == begun, "no word"


def test_functions_are_told_apart_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python 3.13 keeps the source of a program that is given by -c under the name of all of them.
    lines = [f"line {n}\n" for n in range(9)]
    monkeypatch.setitem(linecache.cache, "<string>", (9, None, lines, "<string>"))

    def inner(batch: Batch) -> int:
        return len(batch)

    class Model:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, batch: Batch) -> int:
            return self.size

    scope: dict[str, Any] = {}
    exec("def a(b):\n  return [1]\ndef c(b):\n  return [2]\ndef d(b):\n  return [1]", scope)
    prints = [fingerprint(fn) for fn in (score, other, inner, Model(1), scope["a"], scope["c"])]
    assert len(set(prints)) == len(prints)
    assert fingerprint(functools.partial(score)) == fingerprint(score)
    assert fingerprint(Model(2)) == fingerprint(Model(1))
    assert fingerprint(scope["a"]) == fingerprint(scope["d"])


# -- the input ---------------------------------------------------------------------------------


def test_a_copy_counts_once_it_is_complete(tmp_path: Path) -> None:
    written: list[str] = []

    def write(url: str) -> None:
        written.append(url)
        directory = Path(url.removeprefix("file://"))
        directory.mkdir(parents=True)
        (directory / "a.parquet").write_bytes(b"1")
        (directory / "_SUCCESS").write_bytes(b"")
        if len(written) == 1:
            raise OSError("killed")

    here = job(tmp_path)
    with pytest.raises(OSError, match="killed"):
        here.begin(Input("rows", write=write))
    assert here.results.leftovers().copies == []  # nobody knows whether it is being made
    description = here.begin(Input("rows", write=write))
    assert [Path(path).name for path in description.paths] == ["a.parquet"]
    assert job(tmp_path).begin(Input("rows", write=write)) == description
    assert len(written) == 2
    assert here.results.leftovers().copies == [written[0].rpartition("/")[2]]
    Driver(here).finish(0)
    assert not list(tmp_path.rglob("a.parquet"))  # its copy is not needed any more


class Files:
    def __init__(self, found: dict[str, Extent]) -> None:
        self.found = found

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        return self.found

    def reader(self) -> Any: ...
    def close(self) -> None: ...


def test_files_must_stay_what_they_were(tmp_path: Path) -> None:
    here = job(tmp_path)
    begun = here.begin(GIVEN)
    first, second = Extent(0, 10, "1"), Extent(0, 10, "2")

    def look(found: dict[str, Extent]) -> dict[str, Extent]:
        results = Results(here.results.place, "scores")
        noted = Noted(Files(found), results, begun)
        assert noted.extents(Checkpoint()) == noted.seen
        return dict(noted.seen)

    look({"a": first})
    look({"a": first})
    with pytest.raises(ConfigError, match="a is not the file of the first run"):
        look({"a": second})
    with pytest.raises(ConfigError, match="a is gone"):
        look({"b": first})
    look({"a": first, "b": second})
    with pytest.raises(ConfigError, match="b is gone"):
        look({"a": first})


def test_a_file_that_was_written_again_is_refused_though_the_job_is_done(tmp_path: Path) -> None:
    def given(**marks: str) -> Input:
        return Input("rows", ["in.parquet"], marks=marks)

    here = job(tmp_path)
    here.begin(given(a="10 bytes of 1", b="7 bytes of 1"))
    Driver(here).finish(0)
    with pytest.raises(ConfigError, match="df: a was written again"):
        here.done(given(a="10 bytes of 2"))
    assert here.done(given(b="7 bytes of 1")), "a is gone, or can't be looked at now"
    assert here.done(given(a="10 bytes of 1", c="not known then"))
    assert job(tmp_path, keep_results=True).done(given(a="10 bytes of 2"))


# -- what a killed driver's bolts had finished ------------------------------------------------


def noted(here: Job, partition: str = "in.parquet") -> Job:
    """The first run has looked at the source."""
    description = here.begin(GIVEN)
    files = {**description.files, partition: "identity 10"}
    here.results.describe(msgspec.structs.replace(description, files=files))
    return here


def adopted(here: Job) -> list[tuple[int, int]]:
    Driver(here)
    return [(entry.start, entry.stop) for entry in here.results.entries()]


def test_the_next_driver_names_whole_files_that_no_receipt_did(tmp_path: Path) -> None:
    here = noted(job(tmp_path))
    driver = Driver(here)
    driver.do(0, 3)
    driver.do(2, 5, is_accepted=False)  # a part of it is done
    driver.do(5, 10, is_accepted=False)
    driver.do(6, 9, is_accepted=False)  # a copy of a part of the former
    assert adopted(here) == [(0, 3), (5, 10)]
    driver = Driver(here)
    driver.do(3, 5)
    assert rows_of(driver.finish(10)) == EVEN
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_files_of_others_hide_none_of_the_job(tmp_path: Path) -> None:
    here = noted(job(tmp_path))
    driver = Driver(here)
    driver.do(2, 4, is_accepted=False)
    (ours,) = tmp_path.glob("*.parquet")
    for name in ("a.parquet", f"{ours.name[:20]}other.parquet", ours.name.replace(".2-3.", ".2.")):
        (tmp_path / name).write_bytes(b"")
    driver.do(6, 8, is_accepted=False)
    assert adopted(here) == [(2, 4), (6, 8)]


def test_what_may_be_another_result_is_not_adopted(tmp_path: Path) -> None:
    here = noted(job(tmp_path))
    driver = Driver(here)
    rejecting = batch(0, 2, epoch=driver.epoch)
    rejecting.reject(1)  # it is not done, as the dead letter may not have it yet
    driver.process(rejecting)
    partial = batch(0, 2, epoch=driver.epoch)
    partial.left_out = 1  # its sink had a row from an earlier attempt, which has another result
    driver.process(partial)
    driver.process(batch(2, 4, epoch=driver.epoch - 1))  # of a driver before: gc may remove it
    description = here.begin(GIVEN)
    here.results.describe(msgspec.structs.replace(description, run="0" * 16))
    here.process(here.begin(GIVEN))(batch(4, 6, epoch=driver.epoch))  # of a job that was removed
    here.results.describe(description)
    assert len(list(tmp_path.glob("*.parquet"))) == 4
    assert adopted(here) == []


def test_a_name_that_two_files_share_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("_results", "_unnamed"):
        monkeypatch.setattr(f"flowctl_apply.{module}.partition_in_name", lambda partition: "abc")
    here = noted(job(tmp_path))
    Driver(here).do(0, 3, is_accepted=False)
    assert adopted(here) == [(0, 3)]
    Driver(here).do(3, 5, is_accepted=False)
    assert adopted(noted(here, "two.parquet")) == [(0, 3)]


def test_a_result_that_is_gone_does_not_count_as_done(tmp_path: Path) -> None:
    here = job(tmp_path)
    driver = Driver(here)
    driver.do(0, 10)
    (file,) = tmp_path.glob("*.parquet")
    file.unlink()
    with pytest.raises(InternalError, match="is a file of results, but it is not in"):
        driver.finish(10)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_file_of_the_result_must_be_there_as_it_was_written(
    tmp_path: Path, number: int
) -> None:
    driver = Driver(job(tmp_path))
    for start in (0, 2, 4):
        driver.do(start, start + 2)
    files = sorted(tmp_path.glob("*.parquet"))
    files[number].write_bytes(files[number].read_bytes()[:-1])
    with pytest.raises(InternalError, match=f"{files[number].name} is a file .* it has .* not"):
        driver.finish(6)


def test_names_of_files_are_plain_and_short_whatever_the_job_is_called() -> None:
    odd, long = prefix_of("täglich/é v1"), prefix_of("x" * 500)
    assert odd.startswith("part-t_glich___v1-") and len(long) < 100
    assert prefix_of("a/b") != prefix_of("a b"), "though they look alike"


def test_a_file_whose_name_says_of_no_driver_is_of_none_that_lives(tmp_path: Path) -> None:
    here = job(tmp_path)
    Driver(here)
    odd = tmp_path / f"{prefix_of('scores')}odd.parquet"
    odd.write_bytes(b"")
    assert [file.name for file in here.results.leftovers().files] == [odd.name]


# -- on a worker -------------------------------------------------------------------------------


def test_a_worker_looks_once_whether_it_sees_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = job(tmp_path)
    process = here.process(here.begin(GIVEN))
    asked: list[str] = []
    get = LocalPlace.get
    monkeypatch.setattr(LocalPlace, "get", lambda self, name: asked.append(name) or get(self, name))
    for start in (0, 2, 4):
        process(batch(start, start + 2))
    assert len(asked) == 1


def test_a_coroutine_function_writes_its_rows_too(tmp_path: Path) -> None:
    async def slowly(rows: Batch) -> list[tuple[int, str]]:
        await asyncio.sleep(0)
        return score(rows)

    here = job(tmp_path, slowly)
    process = here.process(here.begin(GIVEN))
    receipt = asyncio.run(process(batch(0, 4)))  # type: ignore[arg-type]
    file = msgspec.json.decode(receipt, type=ResultFile)
    assert pyarrow.parquet.read_table(tmp_path / file.file).to_pylist() == EVEN[:2]


def test_a_worker_that_sees_another_directory_ends_the_run(tmp_path: Path) -> None:
    here = job(tmp_path)
    process = here.process(here.begin(GIVEN))
    (description,) = tmp_path.rglob("job.json")
    description.unlink()
    with pytest.raises(UnrunnableError, match=r"out: .* is not what the driver sees") as caught:
        process(batch(0, 2))
    assert "workers mount" in caught.value.remedy
    assert not list(tmp_path.rglob("*.parquet"))


def test_two_drivers_that_begin_at_once_are_told_apart_from_two_directories(tmp_path: Path) -> None:
    here = job(tmp_path)
    process = here.process(here.begin(GIVEN))
    begun = here.results.description()
    assert begun is not None
    here.results.describe(msgspec.structs.replace(begun, run="another"))
    with pytest.raises(UnrunnableError, match=r"out: .* notes of another run of .*Let that one"):
        process(batch(0, 2))
    assert not list(tmp_path.rglob("*.parquet"))


def test_each_file_has_a_name_of_its_own(tmp_path: Path) -> None:
    here = job(tmp_path)
    process = here.process(here.begin(GIVEN))
    receipts = [msgspec.json.decode(process(batch(0, 2)), type=ResultFile) for _ in range(2)]
    assert len({receipt.file for receipt in receipts}) == 2
    assert {path.name for path in tmp_path.glob("*.parquet")} == {one.file for one in receipts}
    assert all(one.rows == 1 and one.bytes > 100 for one in receipts)
