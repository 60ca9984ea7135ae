"""What commands that change something saved ask and say: are you sure, and how long ago it was."""

from __future__ import annotations

import sys
import time

import click

from flowctl.errors import ConfigError

_UNITS_S = ((86_400, "d"), (3_600, "h"), (60, "min"))


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask on the terminal, unless ``yes`` says so already; say when the answer is no.

    Raises :class:`ConfigError` where there is no terminal to ask on.
    """
    if yes:
        return True
    try:
        sure = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        click.echo(err=True)  # the question's line is open
        raise ConfigError(
            "--yes",
            "is needed because there is no terminal to ask on.",
            remedy="Add it to confirm.",
        ) from None
    if not sure:
        click.echo("Nothing was changed.", err=True)
    return sure


def ago(at_unix_ms: int) -> str:
    """How long ago that was, in the largest unit of which at least two have passed."""
    # Another machine's clock may be ahead of this one.
    seconds = max(0, int(time.time() - at_unix_ms / 1000))
    for size, unit in _UNITS_S:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
