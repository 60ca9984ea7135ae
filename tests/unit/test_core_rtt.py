"""RFC 6298 with its numbers."""

from __future__ import annotations

import pytest

from flowctl.core.rtt import RttEstimator
from flowctl.core.settings import TimeoutSettings


def estimator(**values: float) -> RttEstimator:
    return RttEstimator(TimeoutSettings(**values))


def test_before_the_first_sample_the_configured_time_out_holds() -> None:
    assert estimator(rto_first_s=2.5).rto_s == 2.5


@pytest.mark.req("S3")
def test_the_first_and_the_next_sample_as_in_section_2() -> None:
    rtt = estimator(rto_min_s=0.01)
    rtt.on_sample(1.0, None, 1)
    assert (rtt.srtt_s, rtt.rttvar_s, rtt.rto_s) == (1.0, 0.5, 3.0)
    rtt.on_sample(2.0, None, 1)
    assert (rtt.srtt_s, rtt.rttvar_s) == (1.125, 0.625)
    assert rtt.rto_s == 1.125 + 4 * 0.625


def test_the_time_out_stays_within_its_bounds() -> None:
    rtt = estimator()
    rtt.on_sample(0.001, None, 1)
    assert rtt.rto_s == 1.0
    rtt.on_sample(500.0, None, 1)
    assert rtt.rto_s == 60.0


def test_a_time_out_doubles_once_for_all_that_was_under_way_and_a_sample_undoes_it() -> None:
    rtt = estimator(rto_first_s=1.0)
    for now_s in (10.0, 10.1, 10.9):  # three tuples of one stall
        rtt.back_off(now_s)
    assert rtt.rto_s == 2.0
    rtt.back_off(11.0)  # what was sent after the first time-out timed out as well
    assert rtt.rto_s == 4.0
    rtt.on_sample(0.1, None, 1)
    assert rtt.rto_s == 1.0
    rtt.back_off(11.5)
    assert rtt.rto_s == 2.0


def test_endless_back_off_stays_at_the_bound() -> None:
    rtt = estimator()
    for now_s in range(0, 200_000, 100):
        rtt.back_off(float(now_s))
    assert rtt.rto_s == 60.0


def test_the_service_per_record_comes_from_the_bolt_or_from_the_round_trip() -> None:
    rtt = estimator()
    rtt.on_sample(1.0, 0.5, 10)
    assert rtt.service_per_record_s == pytest.approx(0.05)
    rtt.on_sample(1.3, None, 10)
    assert rtt.service_per_record_s == pytest.approx(0.05 + (0.13 - 0.05) / 8)
