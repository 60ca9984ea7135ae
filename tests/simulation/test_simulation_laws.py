"""The table of laws on targets as they are: its rows are what the code gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowctl_lab.simulation.law_catalogue import SETTINGS
from flowctl_lab.simulation.law_report import report_of, runs_of

pytestmark = pytest.mark.on_change()

TABLE = Path(__file__).parents[2] / "docs" / "dev" / "targets-report.md"
SLOW = {"by the hour", "a thousand join", "window"}
NAMES = [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in SETTINGS]


@pytest.mark.parametrize("name", NAMES)
def test_flowctls_cell_of_a_target_is_what_the_code_gives(name: str) -> None:
    said = next(row for row in TABLE.read_text("utf-8").splitlines() if f"| {name}: " in row)
    now = report_of(runs_of([name], ["flowctl"], processes=1), ["flowctl"]).splitlines()[-1]
    assert now.split("|")[2] == said.split("|")[2]
