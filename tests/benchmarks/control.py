"""``make bench-control``: the control law's scenarios on real Spark, beside the simulator's figure.

12 bolts whose service times are sleeps: the simulator's draws for the same scenario and seed, so
that two cores can stand for twelve and one oracle bounds both.  E is the oracle's makespan over
the one seen, from the common start, when all bolts are there, to the last ack.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from flowctl.config import Settings
from flowctl.ports import Bolts
from flowctl_lab.simulation.engine import Outcome, simulate
from tests.benchmarks.control_cases import CASES, LEFT_OUT, SHIPPED, Case
from tests.benchmarks.control_run import RealOutcome, run_real
from tests.benchmarks.control_trace import TraceWorker
from tests.benchmarks.parts import local_session, machine

_ALL = {**CASES, **SHIPPED}
_SEED = 1_000  # of the first run; none that the law was tuned to
_HEADER = (
    f"{'scenario':<9} {'E sim':>6} {'E real':>6}  {'(min-max)':<13} {'gate':>5}  {'met':<4}"
    f" {'R50 sim':>7} {'real':>5} {'q sim':>6} {'held':>5} {'again':>6}"
)


class _Row(msgspec.Struct, frozen=True):
    """All runs of one case."""

    case: Case
    simulated: list[Outcome]
    real: list[RealOutcome]

    @property
    def misses(self) -> list[str]:
        """Which gates are not met, with what was seen."""
        case, missed = self.case, []
        efficiency = median(run.efficiency for run in self.real)
        if efficiency < case.gate_e:
            missed.append(f"E {efficiency:.3f} < {case.gate_e:g}")
        recovered_s = median(run.recovered_s for run in self.real)
        if case.recovered_most_s is not None and recovered_s > case.recovered_most_s:
            missed.append(f"recovered after {recovered_s:.1f} s > {case.recovered_most_s:g}")
        growth = median(run.growth_idle for run in self.real)
        if case.growth_most is not None and growth > case.growth_most:
            missed.append(f"unused windows grew by {growth:g} > {case.growth_most}")
        return missed

    def __str__(self) -> str:
        real = sorted(run.efficiency for run in self.real)
        spread = f"({real[0]:.3f}-{real[-1]:.3f})"
        return (
            f"{self.case.scenario.name:<9}"
            f" {median(map(_efficiency, self.simulated)):6.3f} {median(real):6.3f}"
            f"  {spread:<13} {self.case.gate_e:5.2f}  {'NO' if self.misses else 'yes':<4}"
            f" {median(o.r50 for o in self.simulated):7.2f}"
            f" {_median(run.r50 for run in self.real):5.2f}"
            f" {median(o.queued for o in self.simulated):6.2f}"
            f" {_median(run.held for run in self.real):5.2f}"
            f" {100 * median(run.moved for run in self.real):5.1f}%"
        )


def _efficiency(outcome: Outcome) -> float:
    """Against the oracle, or against greedy where the settings are as shipped."""
    if outcome.greedy_s is None:
        return outcome.efficiency
    return outcome.greedy_s / outcome.makespan_s


def _median(values: Any) -> float:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def run_cases(cases: Sequence[Case], *, runs: int, seed: int, spark: Any) -> list[_Row]:
    """Run them in turn, each with ``runs`` seeds from ``seed`` on; print as they come."""
    from pyspark_flowctl import SparkBolts

    def bolts(worker: TraceWorker, count: int, slots: int) -> Bolts:
        return SparkBolts(worker, count, slots=slots, spark=spark)

    rows = []
    for case in cases:
        seeds = range(seed, seed + runs)
        simulated = [simulate(case.scenario, Settings(), one) for one in seeds]
        real = [run_real(case.scenario, one, bolts) for one in seeds]
        rows.append(_Row(case, simulated, real))
        print(rows[-1], flush=True)
    return rows


def _explain(rows: Sequence[_Row]) -> None:
    print("again: tuples sent again; held: in flight per bolt; q: waiting per bolt (simulated)")
    for row in rows:
        for miss in row.misses:
            print(f"  {row.case.scenario.name}: MISSED {miss}")
        if row.case.differs:
            print(f"  {row.case.scenario.name}: {row.case.differs}")
    for name, why in LEFT_OUT.items():
        print(f"  {name}: left out: {why}")


def main(arguments: Sequence[str]) -> int:
    """Run the named scenarios (default: all); with ``--check`` exit 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks control", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=" ".join(_ALL))
    parser.add_argument("--runs", type=int, default=3, help="the median of so many (default: 3)")
    parser.add_argument("--seed", type=int, default=_SEED, help="of the first run")
    parser.add_argument("--check", action="store_true", help="exit 1 if a gate is missed")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.scenarios if name not in _ALL]:
        parser.error(f"no scenario {unknown[0]!r}; known: {', '.join(_ALL)}")
    print(machine())
    began_s = time.monotonic()
    spark = local_session()
    spark.sparkContext.setLogLevel("OFF")  # or each worker that is killed prints a page
    print(_HEADER)
    cases = [_ALL[name] for name in asked.scenarios or _ALL]
    rows = run_cases(cases, runs=max(1, asked.runs), seed=asked.seed, spark=spark)
    spark.stop()
    _explain(rows)
    is_missed = any(row.misses for row in rows)
    spent_s = time.monotonic() - began_s
    print(f"{'A GATE IS MISSED' if is_missed else 'all gates hold'}; {spent_s:.0f} s")
    return 1 if is_missed and asked.check else 0
