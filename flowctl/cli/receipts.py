"""``flowctl receipts show · gc``: which results of a job count, and what is left over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from flowctl.cli.click_options import decoded
from flowctl.errors import ConfigError, InfrastructureError
from flowctl.instrumentation.numbers import count, counted
from flowctl.instrumentation.text import printable

_LISTED = 20  # files shown: a screen

_out = click.option(
    "--out", metavar="URL", required=True, envvar="FLOWCTL_OUT", show_envvar=True,
    help="Where the job's results are, as given to apply; or FLOWCTL_OUT.",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def receipts() -> None:
    """Show which result files of a job count, and remove those that nothing names."""


@receipts.command("show")
@click.argument("name", callback=decoded)
@_out
@click.option("--all", "everything", is_flag=True, help="List all files.")
@_json
def show_command(name: str, out: str, *, everything: bool, as_json: bool) -> None:
    """Show how far job NAME is, and the files that hold its results."""
    with _reading(out):
        found = _results(name, out)
        finished, files, left = found.finished(), found.files(), found.leftovers()
        entries = [] if finished else found.entries()
    done = finished.rows_in if finished else sum(one.records for one in entries)
    of_entries = sum(one.kept_nowhere for one in entries)
    nowhere = finished.rows_kept_nowhere if finished else of_entries
    rows = sum(file.rows for file in files)
    if as_json:
        told = {
            "job": name,
            "is_finished": finished is not None,
            "rows_in": done,
            "rows": rows,
            "rows_kept_nowhere": nowhere,
            "files": [
                {"file": file.file, "rows": file.rows, "bytes": file.bytes} for file in files
            ],
            "unnamed": [{"file": one.name, "bytes": one.size_bytes} for one in left.files],
        }
        return click.echo(json.dumps(told, indent=2))
    state = "finished" if finished else "not finished"
    click.echo(
        f"{printable(name)} · {state} · {counted(done, 'row')} in · {counted(rows, 'row')} out in"
        f" {counted(len(files), 'file')}"
        + (f" · {count(nowhere)} rejected and kept nowhere" if nowhere else "")
    )
    shown = files if everything else files[:_LISTED]
    for file in shown:
        click.echo(f"    {count(file.rows):>9}  {printable(file.file)}")
    if len(files) > len(shown):
        click.echo(f"and {count(len(files) - len(shown))} more: --all")
    if left.files or left.copies:
        click.echo(f"{_leftovers(left)}: `flowctl receipts gc {printable(name)} --out …`")
    return None


@receipts.command("gc")
@click.argument("name", callback=decoded)
@_out
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@_json
def gc_command(name: str, out: str, *, dry_run: bool, as_json: bool) -> None:
    """Remove leftovers of job NAME.  Files that no receipt names, and old copies of its input.

    Safe while the job runs: what its bolts write is kept until the job has ended.
    """
    with _reading(out):
        found = _results(name, out)
        left = found.leftovers() if dry_run else found.sweep()
    if as_json:
        told = {"files": [file.name for file in left.files], "copies": left.copies}
        return click.echo(json.dumps(told | {"bytes": left.size_bytes, "removed": not dry_run}))
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{printable(name)}: {_leftovers(left)} {verb}")
    return None


def _leftovers(left: Any) -> str:
    text = f"{counted(len(left.files), 'unnamed file')} ({count(left.size_bytes)} bytes)"
    copies = len(left.copies)
    if not copies:
        return text
    return f"{text} and {'a copy' if copies == 1 else f'{copies} copies'} of the input"


def _results(name: str, out: str) -> Any:
    from flowctl.adapters import load_adapter

    place = load_adapter("flowctl_apply._places", "parquet").place_at(out)
    results = load_adapter("flowctl_apply._results", "parquet").Results(place, name)
    if results.description() is None:
        names = load_adapter("flowctl_apply._results", "parquet").jobs_at(place)
        raise ConfigError(
            "NAME",
            f"there are no results of {name!r} in {place.url}.",
            remedy=f"It holds those of {', '.join(map(repr, names))}."
            if names
            else "Give --out as it was given to apply.",
        )
    return results


@contextmanager
def _reading(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"{out} can't be read: {str(error).partition(chr(10))[0]}.",
            remedy="Check the path and its permissions.",
        ) from error
