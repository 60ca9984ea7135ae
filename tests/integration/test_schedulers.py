"""The examples for Dagster and Prefect: imported and run, where these are installed.

They bring 60 packages each: ``pip install dagster prefect`` into an environment of its own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
JOB = """
import pathlib
from flowctl import FlowControlSpout, LocalBolts

def work(batch):
    if (pathlib.Path(__file__).parent / "reject").exists():
        batch.reject(0, "no")

spout = FlowControlSpout(
    name="visits", producer=list("abcdefg"), bolts=LocalBolts(work, count=1)
)
"""


def loaded(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, with a job of ours."""
    (place / "visits.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("FLOWCTL_CHECKPOINTS", str(place / "checkpoints"))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    module.COMMAND = [sys.executable, "-m", "flowctl", "run", "visits.py"]
    module.DIRECTORY = str(place)
    return module


def test_dagster_has_the_report_as_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster = pytest.importorskip("dagster")
    example: Any = loaded("dagster_visits", tmp_path, monkeypatch)
    result = dagster.materialize([example.visits])
    assert result.success
    [made] = result.get_asset_materialization_events()
    assert made.materialization.metadata["records_acked"].value == 7


def test_dagster_does_not_retry_what_a_retry_can_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster = pytest.importorskip("dagster")
    example: Any = loaded("dagster_visits", tmp_path, monkeypatch)
    (tmp_path / "reject").touch()
    result = dagster.materialize([example.visits], raise_on_error=False)
    assert not result.success
    assert not [event for event in result.all_events if event.is_step_restarted]


def test_prefect_returns_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testing = pytest.importorskip("prefect.testing.utilities")
    example: Any = loaded("prefect_visits", tmp_path, monkeypatch)
    with testing.prefect_test_harness():
        assert example.visits("2026-11-27")["records_acked"] == 7


def test_prefect_does_not_retry_what_a_retry_can_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    testing = pytest.importorskip("prefect.testing.utilities")
    example: Any = loaded("prefect_visits", tmp_path, monkeypatch)
    (tmp_path / "reject").touch()
    with testing.prefect_test_harness(), pytest.raises(example.ForGood, match="exit code 3"):
        example.visits("2026-11-27")
