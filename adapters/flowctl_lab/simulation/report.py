"""Tables of many runs: for a terminal, and as the Markdown that is committed.

The same outcomes give the same bytes: no dates, no durations of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean

import msgspec

from flowctl_lab.simulation.catalogue import CATALOGUE
from flowctl_lab.simulation.engine import Outcome
from flowctl_lab.simulation.gates import Verdict, judge

COLUMNS = (
    "scenario", "policy", "E", "min E", "q", "R50", "R99", "dup %", "wasted %", "lag s", "gate"
)  # fmt: skip


class Row(msgspec.Struct, frozen=True):
    """One scenario under one policy, over all seeds: means, but ``min_efficiency`` and ``lag_s``
    (the worst)."""

    scenario: str
    policy: str
    seeds: tuple[int, ...]
    efficiency: float
    min_efficiency: float
    queued: float
    r50: float
    r99: float
    duplicates: float
    wasted: float
    lag_s: float
    finished: bool
    verdicts: tuple[Verdict, ...]

    @property
    def base_policy(self) -> str:
        """The policy's name without the part of the data on which it ran."""
        return self.policy.partition("/")[0]

    @property
    def is_met(self) -> bool:
        """Whether all gates are met; True where there are none."""
        return all(verdict.is_met for verdict in self.verdicts)

    def cells(self) -> tuple[str, ...]:
        """Return the row's cells as text, in the order of ``COLUMNS``."""
        mark = "" if self.finished else "*"
        return (
            self.scenario,
            self.policy,
            f"{self.efficiency:.3f}{mark}",
            f"{self.min_efficiency:.3f}{mark}",
            f"{self.queued:.2f}",
            f"{self.r50:.2f}",
            f"{self.r99:.2f}",
            f"{100 * self.duplicates:.2f}",
            f"{100 * self.wasted:.2f}",
            f"{self.lag_s:.2f}",
            ("met: " if self.is_met else "missed: ") + ", ".join(map(str, self.verdicts))
            if self.verdicts
            else "-",
        )


def rows_of(outcomes: Iterable[Outcome]) -> list[Row]:
    """Fold the outcomes of neighbouring seeds into rows."""
    groups = groupby(outcomes, key=lambda outcome: (outcome.scenario, outcome.policy))
    return [_row(list(group)) for _, group in groups]


def _row(outcomes: Sequence[Outcome]) -> Row:
    first = outcomes[0]
    return Row(
        scenario=first.scenario,
        policy=first.policy,
        seeds=tuple(outcome.seed for outcome in outcomes),
        efficiency=fmean(outcome.efficiency for outcome in outcomes),
        min_efficiency=min(outcome.efficiency for outcome in outcomes),
        queued=fmean(outcome.queued for outcome in outcomes),
        r50=fmean(outcome.r50 for outcome in outcomes),
        r99=fmean(outcome.r99 for outcome in outcomes),
        duplicates=fmean(outcome.duplicates for outcome in outcomes),
        wasted=fmean(outcome.wasted for outcome in outcomes),
        lag_s=max(outcome.lag_s for outcome in outcomes),
        finished=all(outcome.finished for outcome in outcomes),
        verdicts=tuple(judge(CATALOGUE[first.scenario], outcomes)),
    )


def text_table(rows: Sequence[Row]) -> str:
    """Return the table with aligned columns, for a terminal."""
    table = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    last = len(COLUMNS) - 1
    lines = []
    for cells in table:
        padded = (
            cell if column == last else cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def headline(rows: Sequence[Row]) -> list[str]:
    """Return, per policy, its smallest E over the scenarios with gates, and the number met.

    The E of a scenario is the mean over its seeds; the worst of a single seed is reported too.
    """
    lines = []
    for policy in dict.fromkeys(row.base_policy for row in rows):
        gated = [row for row in rows if row.base_policy == policy and row.verdicts]
        if gated:
            worst = min(gated, key=lambda row: row.efficiency)
            text = f"{policy}: min E {worst.efficiency:.3f} ({worst.scenario})"
            if len(worst.seeds) > 1:
                one = min(gated, key=lambda row: row.min_efficiency)
                text += f", of a single seed {one.min_efficiency:.3f} ({one.scenario})"
            met = sum(row.is_met for row in gated)
            lines.append(f"{text}, {met} of {len(gated)} scenarios meet all their gates")
    return lines


def _seeds_told(rows: Sequence[Row]) -> list[str]:
    """Return the line about the policies and their seeds."""
    policies: dict[tuple[int, ...], dict[str, None]] = {}
    for row in rows:
        policies.setdefault(row.seeds, {})[row.base_policy] = None
    told = [(", ".join(map(str, seeds)), ", ".join(names)) for seeds, names in policies.items()]
    if len(told) == 1:
        return [f"Seeds {told[0][0]}."]
    return [f"Seeds {seeds}: {names}.  " for seeds, names in told]


def markdown(rows: Sequence[Row], *, command: str) -> str:
    """Return the report to commit; ``command`` is the command that writes it."""
    lines = [
        "# Control report",
        "",
        f"Written by `{command}`; do not edit.",
        "",
        *_seeds_told(rows),
        "",
        "E: the oracle's makespan over the run's (mean over the seeds; min E: the worst).",
        "q: mean number of tuples that wait at a bolt. R50, R99: round trip over the same tuple's",
        "without load. lag: the most work acked above the cumulative ack, in seconds of it.",
        "`*`: broken off. Gates are those of the default policy, held against every policy here,",
        "by the worst seed.",
        *(
            ["A policy with `/N` was run on an Nth of the data, where the scenario is steady."]
            if any("/" in row.policy for row in rows)
            else []
        ),
        "",
        *(f"- {line}" for line in headline(rows)),
        "",
    ]
    for name, group in groupby(rows, key=lambda row: row.scenario):
        lines += [f"## {name}", "", f"{CATALOGUE[name].what.capitalize()}.", ""]
        lines.append("| " + " | ".join(COLUMNS[1:]) + " |")
        lines.append("|" + "---|" * (len(COLUMNS) - 1))
        lines += ["| " + " | ".join(row.cells()[1:]) + " |" for row in group]
        lines.append("")
    return "\n".join(lines)


def with_rows_of(report: str, page: str) -> str:
    """Return ``page`` with the rows of ``report`` in place of its own, missing ones at the end."""
    rows = {key: line for key, line in _keyed(report) if key is not None}
    lines = [line if key is None else rows.pop(key, line) for key, line in _keyed(page)]
    return "\n".join([*lines, *rows.values()])


def _keyed(page: str) -> Iterator[tuple[tuple[str, str] | None, str]]:
    """Yield each line with its key, section and subject; None for lines that are no rows."""
    section = ""
    for line in page.split("\n"):
        if line.startswith("## "):
            section = line
        about = ""
        if line.startswith("| "):
            about = line.split(" | ")[0]
        elif line.startswith("- "):
            about = line.partition(":")[0]
        yield (section, about) if about else None, line
