"""The results of randomly drawn scenarios, compared with other schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flowctl_lab.simulation.engine import Outcome
from flowctl_lab.simulation.generated import declaration, scenario_of
from flowctl_lab.simulation.measure import quantile

# The requirements (docs/control.md): nearly as fast as greedy nearly always, never much slower, and
# never slower than a Spark user's job today.
GREEDY_MOSTLY: Final = 0.95
GREEDY_ALWAYS: Final = 0.80
CHUNKS_MOST: Final = 1.05
_SHOWN = 12
COLUMNS: Final = ("scenario", "makespan s", "E", "/ greedy", "/ 240 chunks", "repeated %")


def against_greedy(outcome: Outcome) -> float:
    """Return the run's speed as a share of greedy's (from makespans); 0 if the run did not end."""
    assert outcome.greedy_s is not None
    if not outcome.finished:
        return 0.0
    return outcome.greedy_s / outcome.makespan_s


def against_chunks(outcome: Outcome) -> float:
    """Return the makespan over the makespan with 240 chunks: above 1 the run is slower."""
    assert outcome.chunks_s is not None
    return outcome.makespan_s / outcome.chunks_s if outcome.finished else float("inf")


def is_met(outcome: Outcome) -> bool:
    """Whether the run is as fast as required and lost nothing."""
    return (
        against_greedy(outcome) >= GREEDY_ALWAYS
        and against_chunks(outcome) <= CHUNKS_MOST
        and not outcome.lost
    )


def text(outcomes: Sequence[Outcome]) -> list[str]:
    """Return lines for a terminal: a summary, the worst runs, and the failed ones."""
    worst = sorted(outcomes, key=against_greedy)
    lines = [*_summary(outcomes), "", "The slowest against greedy:"]
    lines += _table(worst[:_SHOWN])
    failed = [outcome for outcome in worst if not is_met(outcome)]
    if failed:
        lines += ["", f"{len(failed)} failed; each again, and what it is:"]
    for outcome in failed[:_SHOWN]:
        lines.append(f"  flowctl simulate {outcome.scenario} --policy {outcome.policy}")
        lines.append(f"    {declaration(scenario_of(outcome.scenario))}")
    if len(failed) > _SHOWN:
        rest = " ".join(outcome.scenario for outcome in failed[_SHOWN:])
        lines.append(f"  and {rest}")
    return lines


def _summary(outcomes: Sequence[Outcome]) -> list[str]:
    shares = sorted(map(against_greedy, outcomes))
    mostly = sum(share >= GREEDY_MOSTLY for share in shares) / len(shares)
    always = sum(share >= GREEDY_ALWAYS for share in shares) / len(shares)
    chunks = sum(against_chunks(outcome) <= CHUNKS_MOST for outcome in outcomes)
    quantiles = ", ".join(
        f"{name} {quantile(shares, share):.3f}"
        for name, share in (("min", 0.0), ("1 %", 0.01), ("5 %", 0.05), ("half", 0.5))
    )
    return [
        f"{len(outcomes)} scenarios, {sum(o.finished for o in outcomes)} finished,"
        f" {sum(o.lost for o in outcomes)} records lost.",
        f"Speed as a share of greedy's: {quantiles}.",
        f"At least {GREEDY_MOSTLY} of greedy: {100 * mostly:.1f} %;"
        f" at least {GREEDY_ALWAYS}: {100 * always:.1f} %.",
        f"At most {100 * (CHUNKS_MOST - 1):.0f} % slower than 240 chunks:"
        f" {chunks} of {len(outcomes)}.",
    ]


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    rows = [COLUMNS, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.scenario,
        f"{outcome.makespan_s:.2f}",
        f"{outcome.efficiency:.3f}",
        f"{against_greedy(outcome):.3f}",
        f"{against_chunks(outcome):.2f}",
        f"{100 * outcome.duplicates:.1f}",
    )
