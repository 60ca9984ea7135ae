"""Options and questions that several commands share: names, seconds, files, "are you sure?"."""

from __future__ import annotations

import errno
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from flowctl.errors import ConfigError, InfrastructureError
from flowctl.instrumentation.text import repaired
from flowctl.instrumentation.views import Page, ViewMode


def decoded(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return the name as text, whatever the locale: with ``LC_ALL=C`` Python may not decode it."""
    return None if value is None else repaired(value)


_PAGE: Final = "flowctl.page"


def _take_page(ctx: click.Context, _: click.Parameter, place: str | None) -> None:
    ctx.meta[_PAGE] = None if place is None else Page.at(place, name="--page")


# With nothing behind it: any free port.
page_option: Final = click.option(
    "--page", metavar="[HOST:]PORT", is_flag=False, flag_value="0",
    expose_value=False, callback=_take_page,
    help="Show the run in a browser, too: why it is as fast as it is, each bolt, the target, what a"
    " kill costs.  Without a PORT any free one; HOST is 127.0.0.1 unless given.",
)  # fmt: skip


def page_beside(mode: ViewMode) -> Page | None:
    """Return the page that ``--page`` of this command asks for, beside a view of ``mode``."""
    page: Page | None = click.get_current_context().meta.get(_PAGE)
    return page and msgspec.structs.replace(page, beside=mode)


# -- which checkpoint store ----------------------------------------------------------------------

URL_VARIABLE: Final = "FLOWCTL_REDIS_URL"
redis_option: Final = click.option(
    "--redis", "url", metavar="URL", envvar=URL_VARIABLE, show_envvar=True,
    help="Redis with the checkpoints; default: files, see --dir.",
)  # fmt: skip
directory_option: Final = click.option(
    "--dir", "directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Directory with the checkpoints; default: FLOWCTL_CHECKPOINTS, or .flowctl/checkpoints"
    " here.",
)  # fmt: skip


@contextmanager
def opened_store(url: str | None, directory: Path | None) -> Iterator[Any]:
    """Return the store that a job without a store uses, unless the command line names another."""
    from flowctl.runtime.file_store import FileCheckpointStore
    from flowctl.runtime.parts import redis_store

    if url and directory is None:
        store: Any = redis_store(url)
    else:
        store = FileCheckpointStore(directory)
        if not store.directory.is_dir():
            raise ConfigError(
                "--dir",
                f"there is no directory {store.place}, {URL_VARIABLE} is not set, and no --redis"
                " is given.",
                remedy="Go to the directory that the job runs in, or give --dir DIR or --redis URL:"
                " the first line of a run says where its checkpoint is.",
            )
    try:
        yield store
    finally:
        store.close()


# -- times -----------------------------------------------------------------------------------------


class Seconds(click.FloatRange):
    """A finite number of seconds: click lets nan pass any range, and inf one without a maximum."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; refuse a time that is too long to wait for."""
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


_TIME: Final = re.compile(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?"
)


def seconds_of(option: str, text: str) -> float:
    """Return the seconds of a time as people write it: ``2h``, ``1h30min``, ``90s``, ``90``."""
    found = _TIME.fullmatch(text.strip().replace(" ", ""))
    seconds = sum(
        float(part) * unit_s
        for part, unit_s in zip(found.groups(), (3600, 60, 1), strict=True)
        if part
    ) if found else 0.0  # fmt: skip
    if seconds <= 0:
        raise ConfigError(option, f"{text!r} is not a time.", remedy="Write 90s, 45min or 2h.")
    return seconds


# -- files that a command writes ---------------------------------------------------------------

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Whether ``error`` means that there was no space left to write."""
    return error.errno in _FULL


def check_not_read(option: str, path: Path | str | None, read: Path) -> None:
    """Refuse to write over ``read``, which the command reads."""
    if path is not None and os.path.exists(path) and read.exists() and read.samefile(path):
        raise ConfigError(option, f"{path} is what is read.", remedy="Name another file.")


def check_writable(option: str, path: Path | None) -> None:
    """Refuse a file that can't be written: now, not after hours of running."""
    if path is None:
        return
    directory = path.absolute().parent
    if not directory.is_dir():
        raise ConfigError(option, f"no directory {directory}.", remedy="Make it first.")
    if path.is_dir():
        raise ConfigError(option, f"{path} is a directory.", remedy="Name a file in it.")
    try:
        # Open it instead of checking its mode: this also finds read-only file systems and ACLs.
        _open_and_leave_as_it_was(path)
    except OSError as error:
        raise ConfigError(
            option,
            f"{path} can't be written: {error.strerror or error}.",
            remedy="Name another file.",
        ) from None


def write(option: str, path: Path, text: str) -> None:
    """Write the output of a command; if that fails, name the option that gave the file."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InfrastructureError(
            f"{option}: {path} can't be written: {error.strerror or error}.",
            remedy="Free some space, or name another file.",
        ) from error


def _open_and_leave_as_it_was(path: Path) -> None:
    try:
        path.open("xb").close()
    except FileExistsError:
        path.open("ab").close()
    else:
        # Only the process that made it removes it: two drivers, one on standby, may name the same
        # file.
        path.unlink(missing_ok=True)


# -- what changes something that is saved ------------------------------------------------------

_UNITS_S = ((86_400, "d"), (3_600, "h"), (60, "min"))


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask on the terminal, unless ``yes`` confirms already; print a line if the answer is no.

    Raises :class:`ConfigError` if there is no terminal.
    """
    if yes:
        return True
    try:
        sure = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        click.echo(err=True)  # ends the line of the question
        raise ConfigError(
            "--yes",
            "is needed because there is no terminal to ask on.",
            remedy="Add it to confirm.",
        ) from None
    if not sure:
        click.echo("Nothing was changed.", err=True)
    return sure


def ago(at_unix_ms: int) -> str:
    """Return how long ago that was, in the largest unit of which at least two have passed."""
    # Another machine's clock may be ahead of this one.
    seconds = max(0, int(time.time() - at_unix_ms / 1000))
    for size, unit in _UNITS_S:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
