"""The harness of ``make bench-control`` on bolts that are threads: no Spark, half a second each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowctl.bolts.local import LocalBolts
from flowctl.ports import Bolts
from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.scenario import Loss
from tests.benchmarks.control_run import run_real
from tests.benchmarks.control_trace import TraceWorker

TUPLES = 240  # 0.2 s of work for 12 bolts


def _local(worker: TraceWorker, count: int, slots: int) -> Bolts:
    return LocalBolts(worker, count=count, slots=slots)


@pytest.mark.parametrize("name", ["homog", "hetero", "highbdp", "delack", "sink"])
def test_a_trace_is_run_and_its_oracle_never_beaten(name: str) -> None:
    """Real bolts are slower than the bound, and if they were not bound to the trace, faster."""
    scenario = replace(CATALOGUE[name], tuples=TUPLES)
    outcome = run_real(scenario, 7, _local)
    assert 0 < outcome.efficiency <= 1
    assert outcome.moved < 1


def test_lost_tuples_are_sent_again() -> None:
    loss = Loss(bolts=(0, 1), share=0.3)
    outcome = run_real(replace(CATALOGUE["lossy"], tuples=TUPLES, loss=loss), 7, _local)
    assert outcome.moved > 0
