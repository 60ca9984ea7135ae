"""``flowctl checkpoint list · show · rewind · clear``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from flowctl.core.positions import show as shown
from flowctl.core.records import PartitionCheckpoint, Position
from flowctl.errors import EXIT_FAILED, CheckpointCorruptError, ConfigError
from flowctl.instrumentation.numbers import count, counted

_URL_VARIABLE = "FLOWCTL_REDIS_URL"
_DAY_S = 86_400

_redis = click.option(
    "--redis", "url", metavar="URL", envvar=_URL_VARIABLE,
    help="Where the checkpoints are; default: the server of .flowctl/redis in this directory.",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def checkpoint() -> None:
    """Look at what jobs have saved, set it back, or forget it."""


@checkpoint.command("list")
@_redis
@_json
def list_command(url: str | None, as_json: bool) -> None:
    """List the jobs with a checkpoint."""
    with _store(url) as store:
        rows = [_row(store, job) for job in store.jobs()]
    if as_json:
        return click.echo(json.dumps(rows, indent=2))
    if not rows:
        return click.echo("No checkpoints.")
    texts = [(r["job"], r.get("error") or _headline(r)) for r in rows]
    width = max(len(job) for job, _ in texts)
    for job, text in texts:
        click.echo(f"{job:<{width}}  {text}")


@checkpoint.command("show")
@click.argument("name")
@_redis
@_json
def show_command(name: str, url: str | None, as_json: bool) -> None:
    """Show how far job NAME is, per source partition."""
    with _store(url) as store:
        stored = store.inspect(name)
        known = [] if stored.saved_at_unix_ms else list(store.jobs())
    if not stored.saved_at_unix_ms:
        names = f"Known: {', '.join(known)}." if known else "Nothing is stored here at all."
        raise ConfigError("NAME", f"nothing is stored of job {name!r}.", remedy=names)
    tree = _tree(stored)
    if as_json:
        return click.echo(json.dumps(tree, indent=2))
    click.echo(f"{name} · {_headline(tree)}")
    _print_partitions(stored.checkpoint.partitions)
    if tree["windows"]:
        windows = ", ".join(f"{bolt} {size:g}" for bolt, size in tree["windows"].items())
        click.echo(f"windows  {windows}")


@checkpoint.command("rewind")
@click.argument("name")
@click.option("--partition", required=True, help="As `flowctl checkpoint show` names it.")
@click.option("--to", "to", metavar="POSITION",
              help='Last record to count as done, as JSON: 1234, [1234, 57] or "key".')  # fmt: skip
@click.option("--start", is_flag=True, help="Back to the partition's beginning.")
@_redis
@_json
@_yes
def rewind_command(  # noqa: PLR0917  (click passes them by name)
    name: str,
    partition: str,
    to: str | None,
    start: bool,
    url: str | None,
    as_json: bool,
    yes: bool,
) -> int | None:
    """Set one partition of job NAME back, so that what follows is processed again.

    A running driver of the job is fenced: it stops at its next save.
    """
    if (to is None) == (not start):
        raise ConfigError("--to", "give --to POSITION or --start.", remedy="One of the two.")
    position = None if to is None else parse_position(to)
    goal = shown(position) if position is not None else "its beginning"
    if not _confirmed(f"Set {partition} of {name} back to {goal}?", yes):
        return EXIT_FAILED
    with _store(url) as store:
        store.rewind(name, partition, position)
        epoch = store.inspect(name).epoch
    if as_json:
        result = {"job": name, "partition": partition, "position": position, "epoch": epoch}
        click.echo(json.dumps(result))
    else:
        click.echo(f"{partition} of {name} is back at {goal}. A running driver will stop.")
    return None


@checkpoint.command("clear")
@click.argument("name")
@_redis
@_json
@_yes
def clear_command(name: str, url: str | None, as_json: bool, yes: bool) -> int | None:
    """Forget job NAME, so that it begins anew.  A running driver is fenced."""
    if not _confirmed(f"Forget the checkpoint of {name}?", yes):
        return EXIT_FAILED
    with _store(url) as store:
        cleared = store.clear(name)
    if as_json:
        click.echo(json.dumps({"job": name, "cleared": cleared}))
    else:
        click.echo(f"{name} is forgotten." if cleared else f"Nothing was stored of {name}.")
    return None


def parse_position(text: str) -> Position:
    """Return the position that ``text`` means, in JSON; raise :class:`ConfigError`."""
    try:
        value = json.loads(text)
        if not isinstance(value, bool):
            position: Position = msgspec.convert(value, Position)
            return position
    except (ValueError, msgspec.ValidationError):
        pass
    raise ConfigError(
        "--to", f"{text!r} is no position.", remedy="Write JSON: 1234, [1234, 57] or '\"key\"'."
    )


@contextmanager
def _store(url: str | None) -> Iterator[Any]:
    from flowctl.cli.adapters import load_adapter

    adapter = load_adapter("flowctl_redis", "redis")
    if not url and not adapter.DEFAULT_DATA_DIR.exists():
        # Starting a server here would only make an empty one to look at.
        raise ConfigError(
            "--redis",
            f"no URL is given, {_URL_VARIABLE} is not set, and there is no"
            f" {adapter.DEFAULT_DATA_DIR} in {os.getcwd()}.",
            remedy="Give --redis URL, or go to the directory that the job runs in.",
        )
    store = adapter.RedisCheckpointStore(url or None)
    try:
        yield store
    finally:
        store.close()


def _row(store: Any, job: str) -> dict[str, Any]:
    try:
        tree = _tree(store.inspect(job))
    except CheckpointCorruptError as error:
        return {"job": job, "error": str(error)}  # the other jobs are still worth a line
    partitions = tree.pop("partitions")
    del tree["windows"]
    return tree | {"partitions": len(partitions)}


def _tree(stored: Any) -> dict[str, Any]:
    """A stored job as plain values."""
    partitions = stored.checkpoint.partitions
    return {
        "job": stored.job,
        "epoch": stored.epoch,
        "saved_at_unix_ms": stored.saved_at_unix_ms,
        "records": stored.checkpoint.records,
        "partitions": {name: _plain(partitions[name]) for name in sorted(partitions)},
        "windows": dict(sorted(stored.checkpoint.windows.items())),
    }


def _plain(partition: PartitionCheckpoint) -> dict[str, Any]:
    acked = [{"first": a.first, "last": a.last, "records": a.records} for a in partition.acked]
    return {"position": partition.position, "records": partition.records, "acked": acked}


def _headline(tree: dict[str, Any]) -> str:
    partitions = tree["partitions"]
    number = partitions if isinstance(partitions, int) else len(partitions)
    return " · ".join(
        (
            counted(tree["records"], "record"),
            counted(number, "partition"),
            f"saved {_ago(tree['saved_at_unix_ms'])} ago",
            f"epoch {tree['epoch']}",
        )
    )


def _ago(at_unix_ms: int) -> str:
    # Another machine's clock may be ahead of ours.
    seconds = max(0, int(time.time() - at_unix_ms / 1000))
    for size, unit in ((_DAY_S, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _print_partitions(partitions: dict[str, PartitionCheckpoint]) -> None:
    rows = [("partition", "position", "records", "acked above")]
    for name in sorted(partitions):
        value = partitions[name]
        above = sum(span.records for span in value.acked)
        ranges = f"{counted(len(value.acked), 'range')}, {counted(above, 'record')}"
        rows.append(
            (name, shown(value.position), count(value.records), ranges if value.acked else "-")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, position, records, above_text in rows:
        click.echo(
            f"{name:<{widths[0]}}  {position:>{widths[1]}}  {records:>{widths[2]}}  {above_text}"
        )


def _confirmed(question: str, yes: bool) -> bool:
    if yes:
        return True
    try:
        sure = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise  # Ctrl-C
        raise ConfigError(
            "--yes", "is needed where nobody can be asked.", remedy="Add it if you mean it."
        ) from None
    if not sure:
        click.echo("Nothing was changed.", err=True)
    return sure
