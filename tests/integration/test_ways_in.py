"""The three programs of the first page of the documentation, run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
LINES_MAX = 13  # "some ten lines"; empty ones don't count


def block(marker: str) -> str:
    """The block of code below ``<!-- marker: … -->``."""
    found = re.search(rf"^<!-- {marker}: .*? -->\n```\w*\n(.*?)^```$", PAGE, re.M | re.S)
    assert found is not None, f"docs/README.md has no block marked {marker}"
    return found[1]


def run(marker: str, place: Path) -> str:
    """Run it in ``place`` as one does whose environment is activated; return what it prints."""
    (place / "way.py").write_text(block(marker), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    without = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "way.py"], cwd=place, env={**without, "PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("marker", ["way_1", "way_2", "way_3"])
def test_each_way_in_is_some_ten_lines(marker: str) -> None:
    assert len([line for line in block(marker).splitlines() if line.strip()]) <= LINES_MAX


def test_what_is_to_be_installed_exists() -> None:
    wanted = re.search(r"\[([\w,]+)\]", block("install"))
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert wanted is not None
    assert set(wanted[1].split(",")) <= set(extras)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "delivery")
def test_a_target_in_the_job_that_you_have(tmp_path: Path) -> None:
    assert "5000 rows: 5000 written" in run("way_1", tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.on_change("pages", "apply")
def test_dataframe_in_dataframe_out(tmp_path: Path) -> None:
    assert "1000 rows" in run("way_2", tmp_path)
    again = run("way_2", tmp_path)
    assert "1000 rows" in again
    assert "nothing is done again" in again


def test_a_job_that_resumes(tmp_path: Path) -> None:
    assert "10 000 records" in run("way_3", tmp_path)
    assert "all 10 000 records were done before" in run("way_3", tmp_path)
