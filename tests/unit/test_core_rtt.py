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
    rtt.on_sample(0.0, 1.0)
    assert (rtt.srtt_s, rtt.rttvar_s, rtt.rto_s) == (1.0, 0.5, 3.0)
    rtt.on_sample(0.0, 2.0)
    assert (rtt.srtt_s, rtt.rttvar_s) == (1.125, 0.625)
    assert rtt.rto_s == 1.125 + 4 * 0.625


def test_the_time_out_stays_within_its_bounds() -> None:
    rtt = estimator()
    rtt.on_sample(0.0, 0.001)
    assert rtt.rto_s == 0.2
    rtt.on_sample(0.0, 500.0)
    assert rtt.rto_s == 60.0


def test_a_time_out_doubles_once_for_all_that_was_under_way_and_a_sample_undoes_it() -> None:
    rtt = estimator(rto_first_s=1.0)
    for now_s in (10.0, 10.1, 10.9):  # three tuples of one stall
        rtt.back_off(now_s)
    assert rtt.rto_s == 2.0
    rtt.back_off(11.0)  # what was sent after the first time-out timed out as well
    assert rtt.rto_s == 4.0
    rtt.on_sample(0.0, 0.1)
    assert rtt.rto_s == pytest.approx(0.3)
    rtt.back_off(11.5)
    assert rtt.rto_s == pytest.approx(0.6)


def test_endless_back_off_stays_at_the_bound() -> None:
    rtt = estimator()
    for now_s in range(0, 200_000, 100):
        rtt.back_off(float(now_s))
    assert rtt.rto_s == 60.0


def test_a_time_out_that_was_wrong_makes_patient_for_a_while() -> None:
    """K doubles up to 16 and halves per 30 s (after Eifel's response, RFC 4015)."""
    rtt = estimator()
    rtt.on_sample(0.0, 1.0)
    assert rtt.rto_s == 3.0
    for _ in range(9):
        rtt.on_spurious(1.0)
    assert rtt.rto_s == 16 * 3.0
    rtt.on_sample(2.0, 1.0)
    assert rtt.rto_s == 16 * (1.0 + 4 * 0.375)
    rtt.on_sample(31.0, 1.0)
    assert rtt.rto_s == pytest.approx(8 * (1.0 + 4 * 0.28125))
