"""A file that a job has done is not done again because its path is written in another way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl import Batch, FlowControlSpout, LocalBolts
from flowctl.errors import SourceError
from flowctl.runtime.memory_store import MemoryCheckpointStore
from flowctl_files import ParquetRanges, ParquetRows, TextLines, TextRanges


class Job:
    """A job of one name, started again and again, whose source is given in several ways."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._store = MemoryCheckpointStore()

    def run(self, paths: str | list[str]) -> int:
        """Return how many records were processed."""
        done: list[object] = []

        def process(batch: Batch) -> None:
            done.extend(batch)

        spout = FlowControlSpout(
            name="job",
            producer=self._kind(paths),
            bolts=LocalBolts(process, count=1),
            checkpoint=self._store,
        )
        spout.run(view="off")
        return len(done)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=[TextLines, TextRanges, ParquetRows, ParquetRanges])
def job(request: pytest.FixtureRequest) -> Job:
    if request.param in (TextLines, TextRanges):
        Path("m.data").write_text("one\ntwo\n")
    else:
        pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), "m.data")
    return Job(request.param)


def test_the_same_file_by_another_path_is_refused_by_both_names(job: Job, here: Path) -> None:
    assert job.run("m.data") == 2
    for other in ("./m.data", str(here / "m.data"), [str(here / "*.data")]):
        with pytest.raises(SourceError, match=r"m\.data: an earlier run .* as m\.data") as caught:
            job.run(other)
        assert "another name" in caught.value.remedy
    assert job.run("m.data") == 0


def test_a_link_to_it_alone_is_refused_too(job: Job) -> None:
    assert job.run("m.data") == 2
    os.symlink("m.data", "link.data")
    with pytest.raises(SourceError, match=r"link\.data: an earlier run .* as m\.data"):
        job.run("link.data")


def test_a_link_that_came_since_and_sorts_before_it_changes_nothing(job: Job) -> None:
    assert job.run("*.data") == 2
    os.symlink("m.data", "a.data")
    assert job.run("*.data") == 0


def test_a_file_that_is_gone_or_no_longer_asked_for_stands_in_no_new_ones_way(job: Job) -> None:
    Path("x.data").write_bytes(Path("m.data").read_bytes())
    assert job.run("m.data") == 2
    assert job.run("x.data") == 2, "m.data is still there, but another file"
    Path("m.data").rename("y.data")
    assert job.run("y.data") == 2, "who renames a file gives it again"


@pytest.mark.parametrize("kind", [TextLines, TextRanges])
def test_nor_is_a_url_of_it_another_file(kind: Any, here: Path) -> None:
    pytest.importorskip("fsspec")
    Path("m.data").write_text("one\n")
    job = Job(kind)
    assert job.run("m.data") == 1
    with pytest.raises(SourceError, match="an earlier run of this job read this file as"):
        job.run(f"file://{here}/m.data")


@pytest.mark.parametrize("kind", [TextLines, TextRanges])
def test_a_pattern_passes_over_hidden_files_behind_a_url_too(kind: Any, here: Path) -> None:
    pytest.importorskip("fsspec")
    (here / ".work").mkdir()
    for name in ("a.log", ".a.log.crc", ".b.log", ".work/c.log"):
        (here / name).write_text("one\n")
    assert Job(kind).run(f"file://{here}/*") == 1
    assert Job(kind).run(f"file://{here}/**/*.log") == 1
    assert Job(kind).run(f"file://{here}/.*.log") == 1, "unless it is asked for"
    assert Job(kind).run(f"file://{here}/.work/*.log") == 1
