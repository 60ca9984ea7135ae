"""The results of ranges, as the last part of the control report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import truediv
from random import Random
from statistics import fmean
from typing import Final

import msgspec

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.machine import Machine
from flowctl_lab.simulation.processes import pool_of
from flowctl_lab.simulation.ranges.run import RangeOutcome, RangeRun
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.workload import Workload
from flowctl_lab.simulation.yardsticks import CHUNKS, chunks_s

_ROWS: Final = ("homog", "hetero", "step", "heavy", "gc", "crash", "lossy")
# Unchanged, the job would consist only of the bolts' first ranges, which are small: so it is made
# ten times as long.
_DRAIN = msgspec.structs.replace(
    CATALOGUE["drain"], what="6,000 tuples, hetero with one bolt at 1/20", tuples=6_000
)
_LONG_S = 16.0
# E of one run with pauses varies by .017 (standard deviation, 42 seeds): a mean of three, by .010,
# can't decide about a goal that is .002 away.  A run takes .3 s.
_RUNS: Final = 12
_RUNS_LONG: Final = 3  # enough for makespans, which vary by only .005


def _by_reference(scenario: Scenario) -> Scenario:
    """Return the scenario with free batches, as bolts choose these; records cost as before."""
    return msgspec.structs.replace(scenario, tuple_s=0.0, record_s=100e-6)


_SCENARIOS: Final = tuple(map(_by_reference, (*(CATALOGUE[name] for name in _ROWS), _DRAIN)))
# 12 bolts, 240 s of work, 10 ms round trip.
_BASE = _by_reference(Scenario(name="equal", what="equal bolts", one_way_s=0.005))
_SLOW = msgspec.structs.replace(_BASE, what="one of 12 is 10x slower", speeds=(*(1.0,) * 11, 0.1))
_HETERO = msgspec.structs.replace(_BASE, what="speeds 2, 1, 1/4", speeds=CATALOGUE["hetero"].speeds)
_PARETO = msgspec.structs.replace(_BASE, what="Pareto(1.5) costs of records")
_PARETO_SHAPE = 1.5


class ParetoWorkload(Workload):
    """Records with costs of Pareto(1.5) with mean 1, which has infinite variance."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed, 0)
        rng = Random(f"pareto {seed}")
        least = (_PARETO_SHAPE - 1) / _PARETO_SHAPE
        records = range(self._even)
        sums = [0.0]
        for _ in range(self.blocks):
            drawn = fmean([least * rng.paretovariate(_PARETO_SHAPE) for _ in records])
            self._factors.append(drawn)
            sums.append(sums[-1] + drawn)
        self._factor_sums = sums


def _row(scenario: Scenario, seeds: Sequence[int]) -> str:
    runs = [RangeRun(scenario, seed, Workload(scenario, seed, 0)).run() for seed in seeds]
    efficiencies = [run.efficiency for run in runs]
    cells = (
        scenario.name,
        scenario.what,
        f"{fmean(efficiencies):.3f}{_mark(runs)}",
        f"{min(efficiencies):.3f}",
        f"{100 * fmean([run.duplicates for run in runs]):.2f}",
        str(sum(run.lost for run in runs)),
        f"{fmean([run.grants for run in runs]):.0f}",
        f"{fmean([run.splits for run in runs]):.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def _makespans(scenario: Scenario, seeds: Sequence[int]) -> str:
    cells = [scenario.what]
    for knows_end in (True, False):
        runs = [_long(scenario, seed, knows_end=knows_end) for seed in seeds]
        ratios = [1 / run.efficiency for run in runs]
        cells += [
            f"{fmean(ratios):.3f}{_mark(runs)}",
            f"{max(ratios):.3f}",
            f"{fmean([run.grants for run in runs]):.0f}",
            f"{fmean([run.splits for run in runs]):.1f}",
        ]
    bounds_s = [run.bound_s for run in runs]
    for chunks in (scenario.bolts, CHUNKS):
        took_s = [_chunks_s(scenario, seed, chunks) for seed in seeds]
        cells.append(f"{fmean(map(truediv, took_s, bounds_s)):.2f}")
    return "| " + " | ".join(cells) + " |"


def _long(scenario: Scenario, seed: int, *, knows_end: bool) -> RangeOutcome:
    data = _data(scenario, seed)
    return RangeRun(scenario, seed, data, range_s=_LONG_S, knows_end=knows_end).run()


def _chunks_s(scenario: Scenario, seed: int, chunks: int) -> float:
    """Return the makespan of ``chunks`` partitions, each a task for the first free bolt."""
    machines = [Machine(scenario, seed, bolt) for bolt in range(scenario.bolts)]
    return chunks_s(scenario, machines, [_data(scenario, seed)], chunks)


def _data(scenario: Scenario, seed: int) -> Workload:
    return (ParetoWorkload if scenario == _PARETO else partial(Workload, spout=0))(scenario, seed)


def _mark(runs: Sequence[RangeOutcome]) -> str:
    return "" if all(run.finished for run in runs) else "*"


def ranges_markdown(first_seed: int, processes: int) -> str:
    """Return the report's part about ranges: ``_RUNS`` seeds, in ``processes`` processes."""
    seeds = range(first_seed, first_seed + _RUNS)
    with pool_of(processes) as pool:
        rows = pool.map(partial(_row, seeds=seeds), _SCENARIOS)
        few = partial(_makespans, seeds=seeds[:_RUNS_LONG])
        makespans = pool.map(few, (_BASE, _SLOW, _HETERO, _PARETO))
        return _page(seeds, list(rows), list(makespans))


def _page(seeds: Sequence[int], rows: Sequence[str], makespans: Sequence[str]) -> str:
    lines = [
        "## Ranges",
        "",
        "The same scenarios where bolts read the source themselves: ranges of about 2 s of work,",
        "batches of .15 s as real bolts make them; of the answers to splits 5 % are lost, 5 % come",
        "twice and 5 % up to a second late. dup: records processed more than once; lost: records",
        f"never processed. Seeds {seeds[0]} to {seeds[-1]}.",
        "",
        "| scenario | what | E | min E | dup % | lost | ranges sent | splits |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Ranges of {_LONG_S:.0f} s: makespan over the oracle's, 12 bolts, 240 s of work, 10 ms",
        "round trip. On the left it is known how much there is, so the last ranges are smaller; on",
        "the right, as with a source that grows, only splits help. Then what the same work takes",
        "as Spark's tasks: repartition(12) and repartition(240), if tasks began at once and cost",
        f"nothing. Seeds {seeds[0]} to {seeds[_RUNS_LONG - 1]}.",
        "",
        "| bolts and data | makespan | worst | sent | splits | makespan | worst | sent | splits"
        " | 12 tasks | 240 tasks |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *makespans,
        "",
    ]
    return "\n".join(lines)
