"""Links that a pattern matches: none is left out without a word."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from flowctl.core.records import Checkpoint
from flowctl.errors import ConfigError, SourceError
from flowctl_files import ParquetRows, TextLines
from flowctl_files._paths import expand, listed_paths


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").write_text("one\n")
    return tmp_path


def test_a_link_that_leads_nowhere_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    os.symlink("/not/mounted", "nowhere.log")
    assert expand(["*.log"], may_be_missing=False) == ["a.log"]
    assert expand(["*.log"], may_be_missing=False) == ["a.log"]
    assert caplog.messages == ["link_leads_nowhere file='nowhere.log'"]


def test_a_link_that_cannot_be_followed_is_an_error() -> None:
    os.symlink("loop.log", "loop.log")
    with pytest.raises(SourceError, match=r"'loop\.log' can't be read"):
        expand(["*.log"], may_be_missing=False)


@pytest.mark.parametrize("given", [None, 5, b"a.log", ["a.log", None]])
def test_what_is_no_path_is_refused_by_name(given: object) -> None:
    with pytest.raises(ConfigError, match=r"paths: .* is not a path"):
        listed_paths(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [TextLines, ParquetRows])
def test_a_relative_name_is_not_read_in_another_directory(here: Path, kind: Any) -> None:
    (here / "other").mkdir()
    (here / "other" / "a.log").write_text("another\n")
    if kind is ParquetRows:
        pyarrow.parquet.write_table(pyarrow.table({"n": [1]}), "a.log")
    producer = kind("*.log")
    producer.open(Checkpoint())
    os.chdir(here / "other")
    with pytest.raises(SourceError, match=r"a\.log: the working directory was"):
        producer.poll(10)
