"""``python -m tests.benchmarks law``: what the control law has to show, in virtual time.

``grid``: cost of a call x cost of a record, against the best fixed size.  ``short``: few records on
bolts of speeds 8:1, against greedy.  ``fair``: several spouts on the same bolts, second by second.
``lag``: how long what is done waits for the checkpoint.  ``mute``: drawn jobs whose bolts tell
nothing, against greedy.  ``known``: drawn jobs where all costs and speeds are known from the start.
``again``: drawn jobs that run twice, the second time with what the first learned, or with that made
wrong by a factor of four.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.drawn_report import (
    CHUNKS_MOST,
    GREEDY_ALWAYS,
    GREEDY_MOSTLY,
    against_chunks,
    against_greedy,
)
from flowctl_lab.simulation.engine import Outcome, Simulation, simulate
from flowctl_lab.simulation.generated import names, scenario_of
from flowctl_lab.simulation.measure import jain
from flowctl_lab.simulation.policies import DEFAULT, settings_of
from flowctl_lab.simulation.scenario import Scenario
from flowctl_lab.simulation.yardsticks import best_fixed_s
from tests.benchmarks.law_known import run_again, run_known, wrong

_SEED = 11
_UNEVEN = (2.0, 1.0, 0.5, 0.25) * 3  # 8:1
_GRID_S = 20.0  # of work for each bolt, or a record of 300 s for each and half as many again
_CALLS_S = (0.0, 0.01, 0.1, 0.3, 1.0)
_RECORDS_S = (1e-5, 1e-3, 0.1, 1.0, 30.0, 300.0)
_LOOK_S = 0.05  # how often the checkpoint is looked at


def _run(scenario: Scenario, seed: int = _SEED) -> Outcome:
    return simulate(scenario, settings_of(DEFAULT, scenario), seed, policy=DEFAULT)


def _verdict(what: str, met: int, of: int, least: float) -> bool:
    ok = met >= least * of
    print(f"{what}: {met} of {of}, asked for {100 * least:.0f} %: {'met' if ok else 'MISSED'}")
    return ok


def grid(_: argparse.Namespace) -> bool:
    """At least .90 of the best fixed size everywhere."""
    shares = []
    print("call s \\ record s" + "".join(f"{record_s:>9g}" for record_s in _RECORDS_S))
    for call_s in _CALLS_S:
        row = []
        for record_s in _RECORDS_S:
            records = max(24, min(200_000, int(12 * max(_GRID_S, 1.5 * record_s) / record_s)))
            job = Scenario(name="grid", what="", tuple_s=call_s, record_s=record_s, records=records)
            row.append(best_fixed_s(job, _SEED) / _run(job).makespan_s)
        print(f"{call_s:>17g}" + "".join(f"{share:>9.3f}" for share in row))
        shares += row
    return _verdict(".90 of the best fixed size", sum(s >= 0.9 for s in shares), len(shares), 1.0)


def short(_: argparse.Namespace) -> bool:
    """At least .85 of greedy, whether the end is told late or not."""
    shares = []
    for record_s in (0.01, 1.0):
        for records in (24, 50, 100, 300, 1_000):
            for late_s in (0.0, 0.5):
                job = Scenario(
                    name="short", what="", speeds=_UNEVEN, tuple_s=0.001, record_s=record_s,
                    records=records, end_late_s=late_s,
                )  # fmt: skip
                shares.append(against_greedy(_run(job)))
                print(f"{records} of {record_s} s, end {late_s} s late: {shares[-1]:.3f}")
    return _verdict(".85 of greedy", sum(s >= 0.85 for s in shares), len(shares), 1.0)


def _watch(
    scenario: Scenario, every_s: float, look: Callable[[Simulation, float], None]
) -> Outcome:
    simulation = Simulation(scenario, settings_of(DEFAULT, scenario), _SEED)

    def again(at_s: float, _: Any, __: Any) -> None:
        look(simulation, at_s)
        simulation.loop.at(at_s + every_s, again)

    simulation.loop.at(every_s, again)
    return simulation.run(DEFAULT)


def _jains(spouts: int, one_way_s: float, *, takes_turns: bool) -> list[float]:
    """Jain's index of the spouts' records in each second, from the third on that all are there."""
    joins_s = tuple(0.7 * spout for spout in range(spouts))
    job = replace(
        CATALOGUE["two"], one_way_s=one_way_s, joins_s=joins_s, until_s=joins_s[-1] + 10.0,
        measured_from_s=joins_s[-1], takes_turns=takes_turns, gates=(),
    )  # fmt: skip
    before: list[int] = [0] * spouts
    found: list[float] = []

    def look(simulation: Simulation, at_s: float) -> None:
        now = [spout.core.counters.records_acked for spout in simulation.spouts]
        if at_s >= joins_s[-1] + 3.0:
            found.append(jain([b - a for a, b in zip(before, now, strict=True)]))
        before[:] = now

    _watch(job, 1.0, look)
    return found


def fair(_: argparse.Namespace) -> bool:
    """Jain at least .97 in every second after the third, where bolts take spouts in turn."""
    in_turn: list[float] = []
    as_they_come: list[float] = []
    for spouts in (2, 3, 5):
        for one_way_s in (0.0005, 0.005, 0.1):
            jains = _jains(spouts, one_way_s, takes_turns=True)
            beside = _jains(spouts, one_way_s, takes_turns=False)
            in_turn += jains
            as_they_come += beside
            print(
                f"{spouts} spouts, {one_way_s} s one way: {min(jains):.3f} to {max(jains):.3f}"
                f" in turn, {min(beside):.3f} to {max(beside):.3f} as tuples come"
            )
    print(f"as tuples come: {sum(j >= 0.97 for j in as_they_come)} of {len(as_they_come)}")
    return _verdict("Jain .97 in a second", sum(j >= 0.97 for j in in_turn), len(in_turn), 1.0)


def _lag_s(scenario: Scenario) -> float:
    """The longest that the cumulative ack stood still with something done above it."""
    since: dict[int, tuple[int, float]] = {}
    longest_s = 0.0

    def look(simulation: Simulation, at_s: float) -> None:
        nonlocal longest_s
        for spout in simulation.spouts:
            for ledger in spout.core.intake.ledgers.values():
                stood = since.get(spout.index)
                is_new = stood is None or stood[0] != ledger.cumulative_seq
                if is_new or not ledger.has_holes:
                    since[spout.index] = stood = (ledger.cumulative_seq, at_s)
                assert stood is not None
                longest_s = max(longest_s, at_s - stood[1])

    _watch(scenario, _LOOK_S, look)
    return longest_s


def lag(_: argparse.Namespace) -> bool:
    """At most a second and the longest tuple, a quarter of a second here."""
    met = []
    for name in ("homog", "hetero", "crash", "lossy", "gc", "step"):
        for slots in (1, 4):
            lag_s = _lag_s(replace(CATALOGUE[name], slots=slots, gates=()))
            met.append(lag_s <= 1.25)
            print(f"{name}, {slots} slots: {lag_s:.2f} s")
    return _verdict("lag of 1 s and a tuple", sum(met), len(met), 1.0)


def mute(arguments: argparse.Namespace) -> bool:
    """At least .90 of greedy in 90 % of the jobs."""
    shares = []
    for name in names(arguments.count, arguments.seed):
        job = replace(scenario_of(name), telemetry=arguments.told)
        shares.append(against_greedy(_run(job, arguments.seed)))
    worst = ", ".join(f"{share:.2f}" for share in sorted(shares)[:10])
    print(f"the worst: {worst}")
    return _verdict(".90 of greedy", sum(s >= 0.9 for s in shares), len(shares), 0.9)


def known(arguments: argparse.Namespace) -> bool:
    """What knowledge alone would give: nothing is asked for."""
    shares, chunks = [], []
    for name in names(arguments.count, arguments.seed):
        outcome = run_known(scenario_of(name), arguments.seed)
        shares.append(against_greedy(outcome))
        chunks.append(against_chunks(outcome))
    for least in (GREEDY_MOSTLY, GREEDY_ALWAYS):
        print(f"{least} of greedy: {sum(s >= least for s in shares)} of {len(shares)}")
    as_fast = sum(slower <= CHUNKS_MOST for slower in chunks)
    print(f"at most {CHUNKS_MOST} of 240 chunks' time: {as_fast} of {len(chunks)}")
    return True


_WRONG = {  # calls and records cost so many times as much as the last run says
    "second": (1.0, 1.0), "all dearer": (4.0, 4.0), "all cheaper": (0.25, 0.25),
    "calls dearer": (4.0, 1.0), "calls cheaper": (0.25, 1.0),
}  # fmt: skip
_LITTLE_S = 1.0  # a loss that nobody minds
_WORSE_MOST = 2.0  # points by which wrong memory may be worse than none


def again(arguments: argparse.Namespace) -> bool:
    """The second run at least as good as the first; with wrong costs, within two points."""
    results: dict[str, list[Outcome]] = {"first": [], **{name: [] for name in _WRONG}}
    for name in names(arguments.count, arguments.seed):
        job = scenario_of(name)
        outcome, learned = run_again(job, arguments.seed)
        results["first"].append(outcome)
        for how, (calls, records) in _WRONG.items():
            by = wrong(learned, calls=calls, records=records)
            results[how].append(run_again(job, arguments.seed, by)[0])
    rows = {how: _row(outcomes) for how, outcomes in results.items()}
    print(f"{'% of jobs':<14}.95 of greedy  or 1 s   .80  or 1 s  chunks  mean of greedy")
    for how, row in rows.items():
        print(
            f"{how:<14}"
            + "".join(f"{cell:{8 + 5 * (not at)}.1f}" for at, cell in enumerate(row[:5]))
            + f"{row[5]:16.3f}"
        )
    _print_worst(results)
    first = rows["first"]
    return all(
        cell >= first[at] - (_WORSE_MOST if how != "second" else 0.0)
        for how, row in rows.items()
        for at, cell in enumerate(row[:5])
    )


def _row(outcomes: Sequence[Outcome]) -> list[float]:
    """Return shares of jobs in percent, and the mean speed as a share of greedy's, 1 at most."""
    shares = [against_greedy(outcome) for outcome in outcomes]
    little = [o.finished and o.makespan_s - (o.greedy_s or 0.0) <= _LITTLE_S for o in outcomes]
    as_fast = sum(against_chunks(outcome) <= CHUNKS_MOST for outcome in outcomes)
    met = [
        sum(s >= least or (may and ok) for s, ok in zip(shares, little, strict=True))
        for least in (GREEDY_MOSTLY, GREEDY_ALWAYS) for may in (False, True)
    ]  # fmt: skip
    percent = [100 * number / len(outcomes) for number in (*met, as_fast)]
    return [*percent, sum(min(1.0, share) for share in shares) / len(shares)]


def _print_worst(results: dict[str, list[Outcome]]) -> None:
    pairs = zip(results["first"], results["second"], strict=True)
    lost = sorted(pairs, key=lambda pair: against_greedy(pair[1]) - min(1, against_greedy(pair[0])))
    for first, second in lost[:8]:
        before, now = against_greedy(first), against_greedy(second)
        print(
            f"{first.scenario}: {before:.3f} of greedy, then {now:.3f}; {second.makespan_s:.2f} s"
        )


_PARTS = {
    "grid": grid, "short": short, "fair": fair, "lag": lag, "mute": mute, "known": known,
    "again": again,
}  # fmt: skip


def main(given: Sequence[str]) -> int:
    """Run the named parts, by default all; exit 1 if one shows less than is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks law", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], metavar="|".join(_PARTS))
    parser.add_argument("--count", type=int, default=200, help="Jobs of mute, known and again.")
    parser.add_argument("--seed", type=int, default=1, help="Their seed.")
    parser.add_argument("--told", action="store_true", help="mute: what it is if bolts tell all.")
    arguments = parser.parse_args(given)
    return 0 if all(_results(arguments)) else 1


def _results(arguments: argparse.Namespace) -> Iterable[bool]:
    return [_PARTS[name](arguments) for name in arguments.parts or _PARTS]
