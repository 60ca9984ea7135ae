"""The curves of the windows as text, compared with what is committed.

After a change of the law look at the difference, then renew them with
``FLOWCTL_SNAPSHOTS=write pytest tests/simulation/test_simulation_curves.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flowctl_lab.simulation.curves import sparklines, svg
from tests.simulation.simulation_runs import run

pytestmark = pytest.mark.on_change()

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize(("name", "policy", "tuples"), [("highbdp", "aiad", 6_000),
                                                        ("step", "aiad", 24_000)])  # fmt: skip
def test_the_curve_is_the_committed_one(name: str, policy: str, tuples: int) -> None:
    _, outcome = run(name, policy, tuples=tuples)
    path = SNAPSHOTS / f"{name}-{policy}.txt"
    if os.environ.get("FLOWCTL_SNAPSHOTS") == "write":
        path.write_text(sparklines(outcome), encoding="utf-8")
    assert sparklines(outcome) == path.read_text(encoding="utf-8")


def test_the_picture_is_well_formed_and_repeatable() -> None:
    pictures = [svg(run("hetero", "aiad", tuples=1_000)[1]) for _ in range(2)]
    assert pictures[0] == pictures[1]
    lines = ElementTree.fromstring(pictures[0]).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3 * 12 + 1  # a window, a speed and a share each, and the use
