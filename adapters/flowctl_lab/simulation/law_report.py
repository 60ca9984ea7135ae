"""The table of laws that pace a target: ``python -m flowctl_lab.simulation.law_report``.

Each cell is the mean over the seeds: goodput of each span as a share of the best, refused after
20 s in %, and the latency over that without load where it matters.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from flowctl_lab.simulation.law_catalogue import LAWS, SEEDS, SETTINGS, Figures, Setting, measured
from flowctl_lab.simulation.processes import pool_of

Runs = Mapping[tuple[str, str], Sequence[Figures]]
_HEAD: Final = (
    "# Laws on targets as they are\n\n"
    "Written by `python -m flowctl_lab.simulation.law_report --report FILE`, in virtual time,\n"
    "with flowctl's gates and leases and each law in their leader's place; three seeds. A cell:\n"
    "goodput as a share of the best in each span, refused after 20 s, latency over that without\n"
    "load.\n"
    "**Bold**: a gate of `law_catalogue.py` is missed.\n"
)


def report_of(runs: Runs, laws: Sequence[str]) -> str:
    """Return the table."""
    lines = [_HEAD, f"| target | {' | '.join(laws)} |", "|---" * (1 + len(laws)) + "|"]
    for name, setting in SETTINGS.items():
        if (name, laws[0]) not in runs:
            continue
        cells = [_cell(setting, runs[name, law], law) for law in laws]
        lines.append(f"| {name}: {setting.what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def is_met(setting: Setting, figures: Iterable[Figures]) -> bool:
    """Whether the means over the seeds meet the gates."""
    seen = list(figures)
    least, later_most, slower_most = setting.gates
    goodput = [fmean(each) for each in zip(*(one.goodput for one in seen), strict=True)]
    return (
        all(had >= asked for had, asked in zip(goodput, least, strict=False))
        and fmean(one.later for one in seen) <= later_most
        and fmean(one.slower for one in seen) <= slower_most
    )


def _cell(setting: Setting, seen: Sequence[Figures], law: str) -> str:
    goodput = [fmean(each) for each in zip(*(one.goodput for one in seen), strict=True)]
    parts = [", ".join(f"{each:.2f}" for each in goodput)]
    later, slower = fmean(one.later for one in seen), fmean(one.slower for one in seen)
    if later:
        parts.append(f"{later:.1%}")
    if slower > 1:
        parts.append(f"{slower:.1f}x")
    text = "; ".join(parts)
    return text if law != "flowctl" or is_met(setting, seen) else f"**{text}**"


def _run(job: tuple[str, str, int]) -> Figures:
    name, law, seed = job
    return measured(SETTINGS[name], LAWS[law], seed)


def runs_of(names: Sequence[str], laws: Sequence[str], processes: int) -> Runs:
    """Run these targets with each law and seed."""
    jobs = [(name, law, seed) for name in names for law in laws for seed in SEEDS]
    with pool_of(processes) as pool:
        figures = list(pool.map(_run, jobs))
    found: dict[tuple[str, str], list[Figures]] = {}
    for (name, law, _), one in zip(jobs, figures, strict=True):
        found.setdefault((name, law), []).append(one)
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the table, or write it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laws", default=",".join(LAWS), help="names, separated by commas")
    parser.add_argument("--targets", default=",".join(SETTINGS), help="the same")
    parser.add_argument("--report", type=Path, help="write the table as Markdown")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    laws = given.laws.split(",")
    report = report_of(runs_of(given.targets.split(","), laws, given.jobs), laws)
    if given.report is None:
        sys.stdout.write(report)
    else:
        given.report.write_text(report, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
