"""docs/architecture.md tells which files a record and an ack pass; a run passes the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowctl.testing.stores import MemoryCheckpointStore
from tests.walk import ACK, RECORDS, STEPS, Trace, files_of, trace_a_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NOT_CALLED = {
    "core/tuples.py": "values, made without a function of ours",
    "adapters/flowctl_redis/store.py": "an example: this run keeps its checkpoint in memory",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return trace_a_run(tmp_path_factory.mktemp("walk"), MemoryCheckpointStore())


def told() -> set[str]:
    """The files and directories in the two tables."""
    sections = re.findall(r"^## The walk of an? \w+\n(.*?)(?=^## )", PAGE, re.M | re.S)
    assert len(sections) == 2
    rows = [line for each in sections for line in each.splitlines() if line.startswith("| **")]
    return {name for row in rows for name in re.findall(r"`([a-z_/]+(?:\.py|/))`", row)}


def full(name: str) -> str:
    return name if name.startswith(("flowctl/", "adapters/")) else f"flowctl/{name}"


def test_a_run_passes_each_file_that_is_told(trace: Trace) -> None:
    for name in told() - NOT_CALLED.keys():
        assert any(path.startswith(full(name)) for path in trace.entered), name


def test_each_file_that_tuples_and_acks_pass_is_told(trace: Trace) -> None:
    names = tuple(full(name) for name in told())
    walk = trace.walk()
    assert walk.keys() == STEPS.keys()
    missing = {path for paths in walk.values() for path in paths if not path.startswith(names)}
    assert not missing


def test_an_ack_calls_nobody_who_waits_for_it(trace: Trace) -> None:
    """A core file that calls back into its caller can't be read by itself."""
    assert trace.crossings >= trace.steps[ACK] > 0
    assert trace.returns < trace.steps[ACK] / 2


def test_few_files_are_entered_on_each_walk(trace: Trace, tmp_path: Path) -> None:
    """Who follows an ack, a record or a row of ``flow_sink`` opens so many files at most.

    Those of ranges and ``apply`` contain what a clock calls, so their number is not exact.
    """
    assert len(trace.walk()[ACK]) <= 12
    assert len(trace.files(RECORDS)) <= 40
    for door in ("a row of flow_sink", "a row of write(df)"):
        assert len(files_of(door, tmp_path)) <= 26
