"""Patterns: the names that ``glob`` finds, and none left out without a word."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import pytest

from flowctl.errors import SourceError
from flowctl_files._paths import expand, names_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a/x.log", "a/b/y.log", "a/.hidden/z.log", "c d/[1].log", "top.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one\n")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        *("*.log", "**/*.log", "./*/*.log", "a//*.log", "*/b/y.log", "a/.*/*.log", "**/b/*"),
        *("c d/[[]1].log", "?/x.log", "no/*.log", "*/x.log", "a/b/../*.log", "[a-c]*/*"),
    ],
)
def test_the_names_are_those_of_glob(here: Path, pattern: str) -> None:
    for each in (pattern, str(here / pattern)):
        assert {*names_of(each)} == {*glob.glob(each, recursive=True)}


def refuse(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """As the system does for another user than root, who runs the tests in a container."""
    scandir = os.scandir

    def scan(path: str) -> Any:
        if path.rstrip("/").endswith(folder):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)


@pytest.mark.parametrize("pattern", ["**/*.log", "*/*/*.log", "a/b/*.log"])
def test_a_directory_that_cannot_be_listed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    refuse(monkeypatch, "a/b")
    with pytest.raises(SourceError, match=r"the directory 'a/b/?' can't be read: Permission"):
        expand([pattern], may_be_missing=False)


def test_what_a_repair_left_at_a_root_is_nobodys_input(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "lost+found").mkdir()
    refuse(monkeypatch, "lost+found")
    for pattern in ("**/*.log", "*/*.log"):
        assert "a/x.log" in expand([pattern], may_be_missing=False)


def test_links_back_to_directories_above_end(here: Path) -> None:
    for name in ("one", "two", "a/three"):
        os.symlink(here, name)
    assert expand(["**/*.log"], may_be_missing=False) == [
        *("a/b/y.log", "a/x.log", "c d/[1].log", "top.log")
    ]


def test_a_file_that_is_called_as_the_pattern_does_not_hide_the_others(here: Path) -> None:
    assert expand(["c d/[1].log"], may_be_missing=False) == ["c d/[1].log"]
    (here / "*.log").write_text("> *.log\n")
    with pytest.raises(SourceError, match=r"name of a file, and a pattern that others match.*top"):
        expand(["*.log"], may_be_missing=False)
    assert expand(["[*].log"], may_be_missing=False) == ["*.log"]
