"""A service that is down, then limited, then well: no record is lost, and it is left alone."""

from __future__ import annotations

import pytest

from flowctl import LocalBolts
from tests.benchmarks.outage import BOLTS, LATENCY_S, LIMITED_S, flowctl_arm


@pytest.mark.on_change("core", "wire")
@pytest.mark.slow
def test_down_for_twelve_seconds_then_limited_then_well() -> None:
    # Calls twice as long as the benchmark's: half of its CPU time.
    outcome, report = flowctl_arm(
        lambda process: LocalBolts(process, count=BOLTS), latency_s=2 * LATENCY_S
    )
    assert outcome.missing == 0
    # Looser than the benchmark's gates, as other tests run beside this one.
    assert max(outcome.calls_down) <= 2 * BOLTS + 4, "two calls a second and bolt at first"
    assert max(outcome.calls_down[4:]) <= BOLTS / 4, "and falling"
    assert outcome.back_rate >= 0.7 * outcome.well_rate
    assert outcome.refused_limited <= 0.1
    assert report.tuples_failed == 0 and report.tuples_dead_lettered == 0
    assert report.calls_refused > 0
    assert report.target_down_total_s > LIMITED_S
