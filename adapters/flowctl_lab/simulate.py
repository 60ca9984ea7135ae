"""``flowctl simulate``: the control law compared with an oracle, in virtual time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowctl.cli.click_options import check_writable, write
from flowctl.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError

if TYPE_CHECKING:
    from flowctl_lab.simulation.engine import Outcome
    from flowctl_lab.simulation.report import Row

_REPLAYS_SHOWN = 12  # a comparison of policies is expected to miss many gates


@click.command()
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--policy", "policies", metavar="NAME[:N][/PARTS][@SEEDS]", multiple=True,
              help="A window policy.  :N sets its first window, /N runs it on one in N of the"
              " steady scenarios, @SEEDS gives it its own seeds.  May be repeated.")  # fmt: skip
@click.option("--seeds", default="1,2,3", show_default=True, help="Seeds, separated by commas.")
@click.option("--random", "drawn", metavar="N", type=click.IntRange(min=1),
              help="Run N random jobs (random:S:0, random:S:1, …) with the default"
              " settings.")  # fmt: skip
@click.option("--seed", metavar="S", default=1, show_default=True, help="Seed of --random.")
@click.option("--set", "overrides", metavar="NAME=VALUE", multiple=True,
              help="Replace a setting, e.g. lab.window.step=2; may be repeated.")  # fmt: skip
@click.option("--report", "report_path", metavar="FILE", type=click.Path(path_type=Path),
              help="Write the table as Markdown.")  # fmt: skip
@click.option("--verify", is_flag=False, flag_value="all", type=click.Choice(["all", "rows"]),
              help="Compare with the report instead of writing it; exit 1 if they differ.  rows:"
              " the report may contain more rows than this run gives.")  # fmt: skip
@click.option("--plot", "plot_path", metavar="FILE.svg", type=click.Path(path_type=Path),
              help="Draw the windows of the first run.")  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=1), help="How many processes; default: one per CPU."
)
@click.option("--check", is_flag=True, help="Exit 1 if a gate is missed.")
@click.option("--list", "wants_list", is_flag=True, help="List scenarios and policies.")
def simulate(
    *,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: str,
    drawn: int | None,
    seed: int,
    overrides: tuple[str, ...],
    report_path: Path | None,
    verify: str | None,
    plot_path: Path | None,
    jobs: int | None,
    check: bool,
    wants_list: bool,
) -> int:
    """Run scenarios in virtual time.  Without SCENARIO: all scenarios that have gates."""
    from flowctl.cli.run import parse_overrides
    from flowctl_lab.simulation.policies import DEFAULT
    from flowctl_lab.simulation.report import headline, markdown, rows_of, text_table
    from flowctl_lab.simulation.sweep import jobs_of, run_jobs

    if wants_list:
        _show_list()
        return EXIT_FINISHED
    _check_files(plot_path, report_path, verify=verify is not None)
    changes = parse_overrides(overrides)
    if drawn_names := _drawn_names(scenarios, drawn, seed):
        met = _run_drawn(drawn_names, policies or (DEFAULT,), changes, jobs)
        return EXIT_FINISHED if met or not check else EXIT_FAILED
    names = _scenarios(scenarios)
    chosen = _policies(policies or (DEFAULT,), seeds)
    _check_settings(names, list(chosen), changes)
    work = jobs_of(names, chosen, changes)
    outcomes = _run(run_jobs(work, jobs or os.cpu_count() or 1), len(work))
    rows = rows_of(outcomes)
    click.echo("\n".join([text_table(rows), *headline(rows)]))
    _show_replays(rows, changes)
    if plot_path is not None:
        _plot(outcomes[0], plot_path)
    is_good = not check or all(row.is_met for row in rows)
    if report_path is not None:
        command = _command(scenarios, policies, seeds, overrides, report_path)
        report = markdown(rows, command=command)
        if not (scenarios or overrides):
            report += _of_ranges(chosen.get(DEFAULT, _seeds(seeds)), jobs)
        if verify:
            is_good &= _is_same(report_path, report, rows_only=verify == "rows")
        else:
            write("--report", report_path, report)
    return EXIT_FINISHED if is_good else EXIT_FAILED


def _check_files(plot_path: Path | None, report_path: Path | None, *, verify: bool) -> None:
    """Check the given files before minutes of work; refuse unusable ones."""
    if plot_path is not None and plot_path.suffix != ".svg":
        raise ConfigError("--plot", f"{plot_path} is not an .svg file.", remedy="Name it FILE.svg.")
    if verify and report_path is None:
        raise ConfigError(
            "--verify", "no report to compare with.", remedy="Name it: --report FILE."
        )
    check_writable("--plot", plot_path)
    if not verify:
        check_writable("--report", report_path)


def _drawn_names(scenarios: Sequence[str], drawn: int | None, seed: int) -> list[str]:
    """Return the names of the jobs to draw; none if only scenarios of the catalogue are wanted."""
    from flowctl_lab.simulation.generated import PREFIX, names

    if not (drawn or any(name.startswith(PREFIX) for name in scenarios)):
        return []
    return [*scenarios, *(names(drawn, seed) if drawn else ())]


def _run_drawn(
    names: Sequence[str], policies: Sequence[str], changes: dict[str, Any], jobs: int | None
) -> bool:
    """Run randomly drawn scenarios under each policy; return whether all pass."""
    from flowctl_lab.simulation import drawn_report
    from flowctl_lab.simulation.generated import seed_of
    from flowctl_lab.simulation.sweep import Job, run_jobs

    met = True
    for policy in policies:
        work = [Job(name, policy, seed_of(name), changes) for name in names]
        outcomes = _run(run_jobs(work, jobs or os.cpu_count() or 1), len(work))
        click.echo("\n".join(drawn_report.text(outcomes)))
        met = all(map(drawn_report.is_met, outcomes)) and met
    return met


def _of_ranges(seeds: Sequence[int], jobs: int | None) -> str:
    from flowctl_lab.simulation.ranges.report import ranges_markdown

    return "\n" + ranges_markdown(seeds[0], jobs or os.cpu_count() or 1)


def _is_same(path: Path, report: str, *, rows_only: bool) -> bool:
    """Whether the file holds this report, or its rows at least; if not, print where they differ."""
    from flowctl_lab.simulation.report import with_rows_of

    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if rows_only:
        report = with_rows_of(report, before)
    names = (f"{path}", "what the code gives now")
    lines = unified_diff(before.splitlines(), report.splitlines(), *names, n=0, lineterm="")
    for line in lines:
        click.echo(line, err=True)
    return before == report


def _policies(given: Sequence[str], seeds: str) -> dict[str, list[int]]:
    """Return the seeds of each policy: those after its ``@``, else those of ``--seeds``."""
    parts = (policy.partition("@") for policy in given)
    return {name: _seeds(own if at else seeds) for name, at, own in parts}


def _scenarios(names: Sequence[str]) -> list[str]:
    from flowctl_lab.simulation.catalogue import CATALOGUE

    for name in names:
        if name not in CATALOGUE:
            known = ", ".join(CATALOGUE)
            raise ConfigError("scenario", f"no scenario {name!r}.", remedy=f"Known: {known}.")
    return list(names) or [name for name, scenario in CATALOGUE.items() if scenario.gates]


def _check_settings(
    names: Sequence[str], policies: Sequence[str], overrides: dict[str, Any]
) -> None:
    """Report wrong names and values here: errors from a child process are harder to read."""
    from flowctl_lab.simulation.catalogue import CATALOGUE
    from flowctl_lab.simulation.policies import settings_of
    from flowctl_lab.simulation.sweep import part_of

    for policy in policies:
        settings_of(*part_of(policy, CATALOGUE[names[0]]), overrides)


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(
            "--seeds", f"{text!r} is not a list of numbers.", remedy="Example: --seeds 1,2,3"
        ) from None


def _run(outcomes: Iterator[Outcome], total: int) -> list[Outcome]:
    """Collect results, with a progress line on a terminal."""
    collected: list[Outcome] = []
    is_shown = sys.stderr.isatty()
    for outcome in outcomes:
        collected.append(outcome)
        if is_shown:
            text = f"{len(collected)}/{total} {outcome.scenario} {outcome.policy}"
            click.echo(f"\r{text:<60}", nl=len(collected) == total, err=True)
    return collected


def _show_replays(rows: Sequence[Row], overrides: dict[str, Any]) -> None:
    """Print, for each missed gate, the command that repeats its worst seed."""
    from flowctl_lab.simulation.sweep import Job

    commands = dict.fromkeys(
        Job(row.scenario, row.policy, verdict.seed, overrides).command
        for row in rows
        for verdict in row.verdicts
        if not verdict.is_met
    )
    if commands:
        click.echo("Missed gates; to repeat the worst seeds:")
    for command in list(commands)[:_REPLAYS_SHOWN]:
        click.echo(f"  {command}")
    if len(commands) > _REPLAYS_SHOWN:
        click.echo(f"  and {len(commands) - _REPLAYS_SHOWN} more")


def _command(
    scenarios: Sequence[str],
    policies: Sequence[str],
    seeds: str,
    overrides: Sequence[str],
    report_path: Path,
) -> str:
    parts = ["flowctl simulate", *scenarios]
    parts += [f"--policy {policy}" for policy in policies]
    parts.append(f"--seeds {seeds}")
    parts += [f"--set {pair}" for pair in overrides]
    return " ".join([*parts, f"--report {report_path}"])


def _plot(outcome: Outcome, path: Path) -> None:
    from flowctl_lab.simulation.curves import svg

    write("--plot", path, svg(outcome))


def _show_list() -> None:
    from flowctl_lab.simulation.catalogue import CATALOGUE
    from flowctl_lab.simulation.policies import known

    for name, scenario in CATALOGUE.items():
        mark = "" if scenario.gates else " (variant, no gate)"
        click.echo(f"{name:<13} {scenario.what}{mark}")
    click.echo("policies: " + ", ".join(known()))
