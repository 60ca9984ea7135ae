"""``flowctl explain``: why a run is, or was, not faster, from its event log."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowctl import disk
from flowctl.cli.click_options import decoded, directory_option
from flowctl.errors import ConfigError
from flowctl.instrumentation.event_log import SUFFIX, read_lines
from flowctl.instrumentation.text import printable

if TYPE_CHECKING:
    from flowctl.instrumentation.explained import LoggedRun

_FORMS = ("%H:%M:%S", "%H:%M")


@click.command()
@click.argument("name", callback=decoded)
@click.option("--at", metavar="TIME", help="At this time, e.g. 10:32, or 2026-11-27T10:32:07.")
@click.option("--bolt", metavar="BOLT", default="", help="What this bolt did, e.g. b5.")
@click.option("--target", metavar="TARGET", default="", help="What this paced target took.")
@directory_option
def explain(*, name: str, at: str | None, bolt: str, target: str, directory: Path | None) -> None:
    """Explain a run: what holds it up, where the time went, what was decided, what to change.

    NAME is that of a job whose checkpoint is in files, or the file that `flowctl run --events`
    wrote.  The run may be over, or go on.  Times are local.
    """
    from flowctl.instrumentation.explained import Question, explained, runs_of

    path = _path_of(name, directory)
    try:
        runs = runs_of(read_lines(path))
    except OSError as error:
        raise ConfigError(
            "NAME", f"{path} can't be read: {error.strerror}.", remedy="Name another file."
        ) from None
    if not runs:
        raise ConfigError(
            "NAME",
            f"there is no run in {path}.",
            remedy="Name a job, or the file that --events wrote.",
        )
    run, when = (runs[-1], None) if at is None else _asked(runs, at)
    asked = Question(when, bolt, target)
    for line in explained(run, asked, now=datetime.now().astimezone()):
        click.echo(printable(line))


def _path_of(name: str, directory: Path | None) -> str:
    if os.path.isfile(name):
        return name
    from flowctl.runtime.file_store import default_directory

    place = directory or default_directory()
    path = os.path.join(place, disk.file_name(name, SUFFIX))
    if os.path.isfile(path):
        return path
    there = sorted(os.listdir(place)) if os.path.isdir(place) else []
    known = ", ".join(file.removesuffix(SUFFIX) for file in there if file.endswith(SUFFIX))
    raise ConfigError(
        "NAME",
        f"there is no event log of {name!r} in {place}.",
        remedy=f"Known: {known}." if known else "Name the file that --events wrote, or give --dir.",
    )


def _asked(runs: list[LoggedRun], text: str) -> tuple[LoggedRun, datetime]:
    """Return the newest run that was there at the time ``text``, and that time."""
    for run in reversed(runs):
        day = run.ended
        while day.date() >= run.began.date():
            at = _time_on(day, text)
            # A time without seconds means the whole minute.
            if run.began - timedelta(minutes=1) <= at <= run.ended + timedelta(seconds=1):
                return run, max(at, run.began)
            day -= timedelta(days=1)
    first, last = runs[0].began, runs[-1].ended
    raise ConfigError(
        "--at",
        f"no run was there at {text}.",
        remedy=f"The log is of {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S}.",
    )


def _time_on(day: datetime, text: str) -> datetime:
    for form in _FORMS:
        try:
            time = datetime.strptime(text, form)
        except ValueError:
            continue
        return day.replace(hour=time.hour, minute=time.minute, second=time.second, microsecond=0)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ConfigError(
            "--at", f"{text!r} is not a time.", remedy="Give 10:32, 10:32:07 or an ISO 8601 time."
        ) from None
