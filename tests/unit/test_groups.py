"""Tests that can't run beside each other share a worker of pytest-xdist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tests_with_spark_share_one_worker(tmp_path: Path) -> None:
    """With a pytest that pytest-xdist does not know, groups silently have no effect."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    spark:\n    req:\n    long:\n")
    (tmp_path / "test_some.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.spark\n"
        "@pytest.mark.parametrize('number', range(8))\n"
        "def test_one(number):\n"
        "    print('on', os.environ['PYTEST_XDIST_WORKER'])\n"
    )
    arguments = ["-q", "-rP", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("on gw")]
    assert len(said) == 8, done.stdout + done.stderr
    assert len(set(said)) == 1, "they ran in two processes at once"
