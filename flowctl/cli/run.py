"""``flowctl run``: the spout of a job file, with its parts replaced from the command line."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from flowctl import logs
from flowctl.cli.click_options import (
    check_not_read,
    check_writable,
    page_beside,
    page_option,
    seconds_of,
)
from flowctl.errors import (
    EXIT_FINISHED,
    EXIT_FINISHED_WITH_LOSSES,
    EXIT_INTERRUPTED,
    ConfigError,
)
from flowctl.instrumentation.numbers import counted
from flowctl.instrumentation.summary import earlier_losses_of, losses_of
from flowctl.instrumentation.text import printable, shown_command

if TYPE_CHECKING:
    from flowctl.runtime.parts import RunnableJob


_SETTINGS = "flowctl.settings"  # settings that have an option of their own
_DEADLINE = "flowctl.deadline"


def _take_events(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    check_writable("--events", path)
    if path is not None:
        _set(ctx, "events.file", str(path))


def _take_record(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    check_writable("--record", path)
    if path is not None:
        _set(ctx, "record.file", str(path))


def _take_forget(ctx: click.Context, _: click.Parameter, forget: bool) -> None:
    if forget:
        _set(ctx, "checkpoint.learned", "forget")


def _set(ctx: click.Context, name: str, value: str) -> None:
    ctx.meta.setdefault(_SETTINGS, {})[name] = value


def _take_deadline(ctx: click.Context, _: click.Parameter, text: str | None) -> None:
    if text is not None:
        ctx.meta[_DEADLINE] = seconds_of("--deadline", text)


@click.command()
@click.argument("job")
@click.option("--redis", "redis_url", metavar="URL", help="Keep the checkpoint in this Redis.")
@click.option("--set", "overrides", metavar="NAME=VALUE", multiple=True,
              help="Replace a setting, e.g. tuple.records_max=500; may be repeated.")  # fmt: skip
@click.option("--report", "report_path", metavar="FILE", type=click.Path(path_type=Path),
              help="Write how the run ended, even if it fails: as the page of --page if FILE ends"
              " in .html, else as JSON.")  # fmt: skip
@click.option("--events", metavar="FILE", type=click.Path(path_type=Path),
              expose_value=False, callback=_take_events,
              help="Keep in FILE what was decided and why, for `flowctl explain`; by default it is"
              " beside the checkpoint, if that is in files.")  # fmt: skip
@click.option("--record", metavar="FILE", type=click.Path(path_type=Path),
              expose_value=False, callback=_take_record,
              help="Record in FILE what the run is told and decides, for `flowctl replay`; without"
              " the values of records.")  # fmt: skip
@click.option("--dead-letters", "dead_letters", metavar="DIR",
              type=click.Path(path_type=Path, file_okay=False),
              help="Keep records that can't be processed in this directory, and go on without them."
              "  `flowctl dlq` shows them and lets the job process them again.")  # fmt: skip
@click.option("--fail-over", "fail_over", metavar="LIMIT",
              help="Fail when more records than this are rejected or dead-lettered: "
              "a count (100) or a share of those done (0.1%).")  # fmt: skip
@click.option("--deadline", metavar="TIME", expose_value=False, callback=_take_deadline,
              help="Save and end after this time, such as 90s, 45min, 2h or 1h30min, with exit code"
              " 124, and say what is left.")  # fmt: skip
@click.option("--metrics", "metrics", metavar="[HOST:]PORT",
              help="Serve /metrics, /healthz and /readyz on this port while the run lasts; "
              "HOST is 127.0.0.1 unless given.")  # fmt: skip
@page_option
@click.option("--forget", is_flag=True, expose_value=False, callback=_take_forget,
              help="Begin without what the last run learned of costs, as once the code of process"
              " has changed; what was done stays done.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master for SparkBolts, e.g. local[4].")
@click.option("--bolts", "bolt_count", type=click.IntRange(min=1), help="How many bolts.")
@click.option("--standby", is_flag=True,
              help="Wait while another driver with --standby runs the job, and take over within "
              "seconds when that driver is gone.")  # fmt: skip
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view.")
@click.option("--quiet", is_flag=True, help="Show nothing but errors.")
def run(
    *,
    job: str,
    redis_url: str | None,
    overrides: tuple[str, ...],
    report_path: Path | None,
    dead_letters: Path | None,
    fail_over: str | None,
    metrics: str | None,
    master: str | None,
    bolt_count: int | None,
    standby: bool,
    plain: bool,
    quiet: bool,
) -> int:
    """Run JOB: FILE.py:ATTRIBUTE or package.module:ATTRIBUTE.

    The attribute is a FlowControlSpout, the job of a topology, or a function that returns one.
    Ctrl-C saves and prints the command that resumes the job.

    \b
    Exit codes:
      0    finished; no record was lost, or no more than --fail-over allows
      1    failed, or more records were lost than --fail-over allows
      2    wrong usage: an argument, a setting
      3    finished, but records were rejected or dead-lettered; or earlier runs did that, and
           nobody has settled it: letters are open, or what was kept nowhere is not done again
      4    saved and ended by spend_max
      75   saved; a quota is used up until the moment that the message names: run again then
      124  saved and ended by --deadline: run again for the rest
      130  interrupted and saved
    """
    from flowctl.cli.find_job import load_spout
    from flowctl.runtime.parts import redis_store

    check_writable("--report", report_path)
    meta = click.get_current_context().meta
    settings = parse_overrides(overrides) | meta.get(_SETTINGS, {})
    _check_program(job, {"--report": report_path, "--events": settings.get("events.file")})
    if fail_over is not None:
        settings["loss.fail_over"] = _checked(fail_over)
    spout = load_spout(job)
    if settings := settings | _metrics_settings(metrics):
        spout.settings = spout.settings.with_overrides(settings)
    spout.checkpoint = redis_store(redis_url) if redis_url else spout.checkpoint
    _change_letters(spout, dead_letters)
    _change_bolts(spout, master, bolt_count)
    view = page_beside(mode := view_mode(plain, quiet)) or mode
    end_s = meta.get(_DEADLINE)
    return run_spout(spout, view=view, report_path=report_path, standby=standby, deadline_s=end_s)


def _check_program(job: str, written: dict[str, Any]) -> None:
    for option, path in written.items():
        check_not_read(option, path, Path(job.partition(":")[0]))


def run_spout(
    spout: RunnableJob,
    *,
    view: Any,
    report_path: Path | None,
    standby: bool = False,
    deadline_s: float | None = None,
) -> int:
    """Run ``spout`` and return the exit code; flowctl's errors propagate to ``main``.

    ``standby``: only once no other driver holds the job's lease.  ``deadline_s``: the run saves and
    ends after this time.
    """
    from flowctl.runtime.launch import Interrupted

    is_quiet = "quiet" in (view, getattr(view, "beside", ""))
    try:
        with logs.running(spout.name), _alone(spout) if standby else nullcontext():
            report = spout.run(
                view=view,
                resume_hint=resume_command(),
                report_path=report_path,
                deadline_s=deadline_s,
            )
    except Interrupted as stopped:
        if is_quiet:  # no view has shown how to resume
            click.echo(f"flowctl: {printable(stopped)}", err=True)
        return EXIT_INTERRUPTED
    finally:
        spout.checkpoint.close()
    lost = " · ".join(fact for fact in (losses_of(report), *earlier_losses_of(report)) if fact)
    if not lost or spout.settings.loss.fail_over is not None:
        return EXIT_FINISHED
    if is_quiet:
        click.echo(f"flowctl: finished, {lost}", err=True)
    return EXIT_FINISHED_WITH_LOSSES


def _alone(spout: RunnableJob) -> AbstractContextManager[None]:
    from flowctl.runtime.standby import standing_by

    return standing_by(
        spout.checkpoint, spout.name, say=lambda text: click.echo(printable(text), err=True)
    )


def resume_command() -> str:
    """Return the command line of this process, ready to paste, without passwords."""
    program = sys.argv[0]
    if program.endswith(("__main__.py", "cli/main.py")):
        return shown_command(["python", "-m", "flowctl", *sys.argv[1:]])
    return shown_command([Path(program).name, *sys.argv[1:]])


def view_mode(plain: bool, quiet: bool) -> Literal["auto", "plain", "quiet"]:
    """Return the view mode that the two flags ask for."""
    if quiet:
        return "quiet"
    return "plain" if plain else "auto"


def parse_overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return ``NAME=VALUE`` pairs as a mapping; raise :class:`ConfigError` for other texts."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(
                "--set",
                f"{pair!r} is not NAME=VALUE.",
                remedy="Example: --set tuple.records_max=500",
            )
        found[name.strip()] = value.strip()
    return found


def _metrics_settings(place: str | None) -> dict[str, str]:
    if place is None:
        return {}
    host, _, port = place.rpartition(":")
    return {"metrics.port": port, **({"metrics.host": host.strip("[]")} if host else {})}


def _checked(limit: str) -> str:
    from flowctl.runtime.losses import LossBudget

    return LossBudget.parse(limit, name="--fail-over").text


def _letters_in(directory: Path) -> Any:
    from flowctl.adapters import load_adapter

    return load_adapter("flowctl_files", "files").FileDeadLetter(directory)


def _change_letters(spout: RunnableJob, directory: Path | None) -> None:
    if directory is not None:
        spout.dead_letter = _letters_in(directory)
    elif spout.dead_letter is None:
        _tell_of_waiting_letters(spout.name)


def _tell_of_waiting_letters(job: str) -> None:
    """Warn that letters marked for redrive will wait, as this run has no dead letter store."""
    from flowctl.adapters import load_adapter

    letters = load_adapter("flowctl_files", "files").FileDeadLetter()
    try:
        waiting = len(letters.to_redrive(job))
    except OSError:
        return  # a problem there does not concern this run
    if waiting:
        click.echo(
            f"flowctl: {counted(waiting, 'dead letter')} of this job would be processed again"
            f" with: --dead-letters {letters.directory}",
            err=True,
        )


def _change_bolts(spout: RunnableJob, master: str | None, count: int | None) -> None:
    if master is not None:
        if not hasattr(spout.bolts, "master"):
            raise ConfigError(
                "--master",
                f"{type(spout.bolts).__name__} do not run on Spark.",
                remedy="Leave it out, or use SparkBolts in the job (SparkStages in a topology).",
            )
        spout.bolts.master = master
    if count is not None:
        if not spout.has_one_count:
            raise ConfigError(
                "--bolts",
                "the stages of a topology have a count each.",
                remedy="Change count= where the job adds its bolts.",
            )
        spout.bolts.count = count
