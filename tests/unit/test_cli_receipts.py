"""``flowctl receipts``: how far a job is, which files are its result, what is left over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowctl.cli.main import cli
from flowctl.core.records import Checkpoint, Receipts
from flowctl.errors import ConfigError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl.runtime.receipt_store import ReceiptStore
from flowctl_apply._places import LocalPlace
from flowctl_apply._results import Description, Finished, ResultFile, Results, prefix_of


def flowctl(*words: str) -> Result:
    return CliRunner().invoke(cli, ["receipts", *words], catch_exceptions=False)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A job of which one driver was killed, and another one is at work."""
    results = Results(LocalPlace(str(tmp_path)), "scores")
    results.describe(Description(name="scores", run="1", schema="", source="", fn="", paths=[]))
    for number, end in enumerate((10, 20)):
        store = ReceiptStore(MemoryCheckpointStore(), results.manifest)
        epoch = store.acquire("scores")
        for name in (f"{prefix_of('scores')}{epoch}.a{number}", f"{prefix_of('scores')}{epoch}.b"):
            (tmp_path / name).write_bytes(b"12345")
        file = f'{{"file":"{prefix_of("scores")}{epoch}.a{number}","rows":3,"bytes":5}}'
        store.append([Receipts("p", end - 10, end, 10, [file.encode()])])
        store.save("scores", Checkpoint(), epoch=epoch)
    return tmp_path


def test_it_shows_how_far_a_job_is_and_the_files_that_count(out: Path) -> None:
    shown = flowctl("show", "scores", "--out", str(out)).output
    head, *files, left = shown.splitlines()
    assert head == "scores · not finished · 20 rows in · 6 rows out in 2 files"
    assert [line.split()[0] for line in files] == ["3", "3"]
    assert left.startswith("1 unnamed file (5 bytes)")
    told = json.loads(flowctl("show", "scores", "--out", str(out), "--json").output)
    assert (told["rows_in"], told["rows"], told["is_finished"]) == (20, 6, False)
    assert {one["file"].rpartition(".")[2] for one in told["files"]} == {"a0", "a1"}
    assert [one["bytes"] for one in told["unnamed"]] == [5]


def test_gc_removes_what_the_killed_driver_left_and_nothing_of_the_live_one(out: Path) -> None:
    assert "would be removed" in flowctl("gc", "scores", "--out", str(out), "--dry-run").output
    assert len(list(out.glob("part-*"))) == 4
    assert "1 unnamed file (5 bytes) removed" in flowctl("gc", "scores", "--out", str(out)).output
    kept = sorted(path.name.rpartition(".")[2] for path in out.glob("part-*"))
    assert kept == ["a0", "a1", "b"]
    told = json.loads(flowctl("gc", "scores", "--out", str(out), "--json").output)
    assert told == {"files": [], "copies": [], "bytes": 0, "removed": True}


def test_of_a_finished_job_only_its_files_stay(out: Path) -> None:
    results = Results(LocalPlace(str(out)), "scores")
    files = results.files()[:1]
    results.finish(Finished(files, 3, 20))
    (out / "_flowctl/scores/input-0a").mkdir()
    (out / "_flowctl/scores/input-0a/part.parquet").write_bytes(b"1")
    (out / ".flowctl-tmp-1").write_bytes(b"1")
    shown = flowctl("show", "scores", "--out", str(out)).output
    assert shown.startswith("scores · finished · 20 rows in · 3 rows out in 1 file")
    assert "3 unnamed files (15 bytes) and a copy of the input" in shown
    assert flowctl("gc", "scores", "--out", str(out)).exit_code == 0
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert {name for name in names if not name.endswith((".json", ".jsonl"))} == {files[0].file}


def test_long_lists_are_cut(tmp_path: Path) -> None:
    results = Results(LocalPlace(str(tmp_path)), "scores")
    results.describe(Description(name="scores", run="1", schema="", source="", fn="", paths=[]))
    results.finish(Finished([ResultFile(f"f{n}", 1, 1) for n in range(25)], 25, 25))
    assert "and 5 more: --all" in flowctl("show", "scores", "--out", str(tmp_path)).output
    every = flowctl("show", "scores", "--out", str(tmp_path), "--all").output
    assert len(every.splitlines()) == 26


def test_a_job_without_results_is_an_error_that_names_those_there_are(out: Path) -> None:
    with pytest.raises(ConfigError, match=r"no results of 'other'.*It holds those of 'scores'"):
        flowctl("show", "other", "--out", str(out))
    with pytest.raises(ConfigError, match="Give --out as it was given to apply"):
        flowctl("gc", "other", "--out", str(out / "nowhere"))
