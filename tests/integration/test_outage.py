"""A service that is down, then limited, then well: no record is lost, and it is left alone."""

from __future__ import annotations

import pytest

from flowctl import LocalBolts
from tests.benchmarks.outage import BOLTS, LIMITED_S, flowctl_arm, gates


@pytest.mark.slow
def test_down_for_twelve_seconds_then_limited_then_well() -> None:
    outcome, report = flowctl_arm(lambda process: LocalBolts(process, count=BOLTS))
    assert gates(outcome, report) == []
    assert outcome.refused_limited <= 0.05
    assert report.tuples_failed == 0 and report.tuples_dead_lettered == 0
    assert report.calls_refused > 0
    assert report.target_down_total_s > LIMITED_S
