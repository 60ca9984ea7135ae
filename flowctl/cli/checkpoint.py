"""``flowctl checkpoint list · show · rewind · clear``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from flowctl.cli.click_options import (
    ago,
    confirmed,
    decoded,
    directory_option,
    opened_store,
    redis_option,
)
from flowctl.cli.find_job import load_object
from flowctl.cli.positions import check_line, position_of, shown
from flowctl.core.letters import without_redrives
from flowctl.core.records import PartitionCheckpoint, Position
from flowctl.errors import EXIT_FAILED, CheckpointCorruptError, ConfigError, FlowctlError, JobError
from flowctl.instrumentation.numbers import count, counted
from flowctl.instrumentation.text import printable
from flowctl.runtime.last_run import last_run_of

SHOWN_MAX = 40  # about a screen
_PLACES_SHOWN = 10  # places of one partition, in two lines; JSON has all
DEFAULT_ATTRIBUTE = "sink"

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_sinks = click.option(
    "--sink", "sinks", metavar="FILE.py:NAME", multiple=True,
    help="Make this SqlSink forget as well, so that its rows are written again; may be repeated.",
)  # fmt: skip
_LEDGER = (
    "An SqlSink skips rows that it has already written when their records come again, unless it"
    " forgets them: delete those rows, then give this command again with --sink FILE.py:SINK."
)


@click.group()
def checkpoint() -> None:
    """Inspect what jobs have saved, rewind it, or clear it."""


@checkpoint.command("list")
@redis_option
@directory_option
@_json
def list_command(url: str | None, directory: Path | None, as_json: bool) -> None:
    """List the jobs with a checkpoint, the newest first."""
    _list(url, directory, as_json=as_json)


def _list(url: str | None, directory: Path | None, *, as_json: bool) -> None:
    with opened_store(url, directory) as store:
        rows = [_row(store, job) for job in store.jobs()]
    rows.sort(key=lambda row: row.get("saved_at_unix_ms", 0), reverse=True)
    if as_json:
        return click.echo(json.dumps(rows, indent=2))
    if not rows:
        return click.echo("No checkpoints.")
    texts = [(r["job"], r.get("error") or _headline(r)) for r in rows]
    width = max(len(printable(job)) for job, _ in texts)
    for job, text in texts:
        click.echo(f"{printable(job):<{width}}  {printable(text)}")


@checkpoint.command("show")
@click.argument("name", callback=decoded, required=False)
@click.option("--partition", "pattern", metavar="PATTERN",
              help="Only partitions of this name, or that match it (*, ?, [a-z]).")  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help=f"Print more than {SHOWN_MAX} partitions.")
@redis_option
@directory_option
@_json
def show_command(
    *,
    name: str | None,
    pattern: str | None,
    show_all: bool,
    url: str | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Show how far job NAME has got, per source partition; without NAME list the jobs.

    With many partitions it prints those that are not finished; JSON has all.
    """
    if name is None:
        if pattern is not None or show_all:
            option = "--all" if show_all else "--partition"
            raise ConfigError(option, "of which job?", remedy="Give the NAME of a job.")
        return _list(url, directory, as_json=as_json)
    with opened_store(url, directory) as store:
        stored = store.inspect(name)
        known = [] if stored.saved_at_unix_ms else list(store.jobs())
        last = last_run_of(store, name)
    if not stored.saved_at_unix_ms:
        names = f"Known: {', '.join(known)}." if known else "Nothing is stored here at all."
        raise ConfigError("NAME", f"nothing is stored for job {name!r}.", remedy=names)
    partitions = matching(stored.checkpoint.partitions, pattern)
    if not partitions and pattern is not None:
        raise ConfigError(
            "--partition",
            f"{pattern!r} matches none of the partitions of {name!r}.",
            remedy=f"Leave --partition out to see some of its {len(stored.checkpoint.partitions)}.",
        )
    if as_json:
        chosen = {partition: _plain(partitions[partition]) for partition in sorted(partitions)}
        learned = msgspec.to_builtins(last)
        told = _summary(stored) | {"partitions": chosen, "learned": learned}
        return click.echo(json.dumps(told, indent=2))
    click.echo(f"{printable(name)} · {_headline(_summary(stored))}")
    if last is not None:
        click.echo(f"learned {ago(last.at_unix_ms)} ago: {last.told()}")
    print_partitions(partitions, shown_max=None if show_all else SHOWN_MAX)


@checkpoint.command("rewind")
@click.argument("name", callback=decoded)
@click.option(
    "--partition", required=True, help="The partition, as `flowctl checkpoint show` prints it."
)
@click.option("--to", "to", metavar="POSITION",
              help="Last record to count as done: as `flowctl checkpoint show` prints it (1234,"
              ' 1234:57) or as JSON ([1234, 57], "key").  For a text file this is BYTE:LINE: the'
              " byte where the line begins, counted from 0, and the line number, counted from"
              " 1.")  # fmt: skip
@click.option("--start", is_flag=True, help="Rewind to the partition's beginning.")
@_sinks
@redis_option
@directory_option
@_json
@_yes
def rewind_command(
    *,
    name: str,
    partition: str,
    to: str | None,
    start: bool,
    sinks: tuple[str, ...],
    url: str | None,
    directory: Path | None,
    as_json: bool,
    yes: bool,
) -> int | None:
    """Rewind one partition of job NAME.  Records after the position are processed again.

    A running driver of the job is fenced: it stops at its next save.  A sink that remembers what it
    wrote (SqlSink) skips those records when they come again.  If you name the sink with --sink, it
    forgets what it wrote after the position.  Delete the rows yourself.
    """
    if (to is None) == (not start):
        was = "missing." if to is None else "given, and --start too."
        raise ConfigError("--to", f"is {was}", remedy="Give either --to POSITION or --start.")
    forgetting = load_sinks(sinks)
    for sink in forgetting:
        sink.check_partitions()
    with opened_store(url, directory) as store:
        partition, stored = _stored_partition(store, name, partition)
        position = None if to is None else position_of(to, partition, stored)
        if position is not None:
            _check_line(position, partition, stored)
        goal = shown(position) if position is not None else "its beginning"
        what = f"{printable(partition)} of {printable(name)}"
        if not confirmed(f"Set {what} back to {goal}{_and_sinks(forgetting)}?", yes=yes):
            return EXIT_FAILED
        store.rewind(name, partition, position)
        now = store.inspect(name)
    if not as_json:
        click.echo(f"{what} is back at {goal}. A running driver will stop.")
        counts = now.checkpoint.partitions[partition].records
        if position not in (None, stored.position) and not counts:
            click.echo("How many records were done before that is not known: they count as 0.")
    forgot = _forget(forgetting, name, partition, position, quiet=as_json)
    if as_json:
        result = {"job": name, "partition": partition, "position": position, "epoch": now.epoch}
        click.echo(json.dumps(result | {"sinks": forgot}))
    return None


@checkpoint.command("clear")
@click.argument("name", callback=decoded)
@_sinks
@redis_option
@directory_option
@_json
@_yes
def clear_command(
    *,
    name: str,
    sinks: tuple[str, ...],
    url: str | None,
    directory: Path | None,
    as_json: bool,
    yes: bool,
) -> int | None:
    """Clear job NAME, so that it begins from scratch.  A running driver is fenced: it stops.

    A sink that remembers what it wrote (SqlSink) skips it when it comes again, unless you name the
    sink with --sink: then it forgets that too.  Delete the rows yourself.
    """
    forgetting = load_sinks(sinks)
    question = f"Forget the checkpoint of {printable(name)}{_and_sinks(forgetting)}?"
    if not confirmed(question, yes=yes):
        return EXIT_FAILED
    with opened_store(url, directory) as store:
        cleared = store.clear(name)
        may_run = store.inspect(name).epoch > 0  # 0: no driver has ever started this job
        known = ", ".join(map(printable, store.jobs()))
    is_unknown = not cleared and not may_run
    if not as_json:
        what = printable(name)
        said = f"{what} is forgotten." if cleared else f"Nothing was stored for {what}."
        more = " A running driver will stop." if may_run else ""
        click.echo(f"{said} Known: {known}." if is_unknown and known else said + more)
    if is_unknown and not forgetting and not as_json:
        return None
    forgot = _forget(forgetting, name, quiet=as_json)
    if as_json:
        click.echo(json.dumps({"job": name, "cleared": cleared, "sinks": forgot}))
    return None


def _stored_partition(store: Any, name: str, partition: str) -> tuple[str, PartitionCheckpoint]:
    """Return the partition, given by its name or as ``show`` prints it, and its saved state."""
    partitions = store.load(name).partitions
    if not partitions:
        known = ", ".join(map(printable, store.jobs())) or "none"
        raise ConfigError(
            "NAME", f"nothing is stored for job {name!r}.", remedy=f"Known jobs: {known}."
        )
    if partition not in partitions:
        printed = [known for known in partitions if printable(known) == partition]
        if len(printed) != 1:
            known = ", ".join([printable(p) for p in sorted(partitions)[:10]])
            known += ", …" if len(partitions) > 10 else ""
            raise ConfigError(
                "--partition",
                f"{name!r} has no partition {partition!r}.",
                remedy=f"Known: {known}.",
            )
        partition = printed[0]
    return partition, partitions[partition]


def _check_line(position: Position, partition: str, stored: PartitionCheckpoint) -> None:
    unchecked = check_line(position, partition, stored.position)
    if unchecked:
        click.echo(
            f"flowctl: could not check whether {shown(position)} is where a line of"
            f" {printable(partition)} begins: {unchecked}.",
            err=True,
        )


def _and_sinks(sinks: Sequence[NamedSink]) -> str:
    names = ", ".join(printable(sink.spec) for sink in sinks)
    return f", and make {names} forget what it wrote from there on" if names else ""


def _forget(
    sinks: Sequence[NamedSink], job: str, *arguments: Any, quiet: bool
) -> dict[str, bool | None]:
    """Make the sinks forget; print the result, or the consequence if no sink was named."""
    forgot = {}
    for sink in sinks:
        forgot[sink.spec] = sink.forget(job, *arguments)
        if not quiet:
            click.echo(_said(sink.spec, job, forgot[sink.spec]))
    if not sinks:
        click.echo(_LEDGER, err=quiet)
    return forgot


def _said(spec: str, job: str, forgot: bool | None) -> str:
    if forgot is False:
        return (
            f"{printable(spec)} remembered nothing of {printable(job)} there: is this the database"
            " that the job wrote to, seen from the same directory?"
        )
    return (
        f"{printable(spec)} has forgotten it too: all of it is written again. Delete the rows that"
        " are still there, or they will be duplicated."
    )


def _row(store: Any, job: str) -> dict[str, Any]:
    try:
        return _summary(store.inspect(job))
    except CheckpointCorruptError as error:
        return {"job": job, "error": str(error)}  # the other jobs still deserve a line


def _summary(stored: Any) -> dict[str, Any]:
    """Return a stored job as plain values, with the number of its partitions.

    Dead letters that were processed again are records of the source too: they count once.
    """
    records = without_redrives(stored.checkpoint).records
    return {
        "job": stored.job,
        "epoch": stored.epoch,
        "saved_at_unix_ms": stored.saved_at_unix_ms,
        "records": records,
        "records_kept_nowhere": stored.checkpoint.records_kept_nowhere,
        "redriven": stored.checkpoint.records - records,
        "partitions": len(stored.checkpoint.partitions),
    }


def _plain(partition: PartitionCheckpoint) -> dict[str, Any]:
    acked = [{"first": a.first, "last": a.last, "records": a.records} for a in partition.acked]
    plain = {"position": partition.position, "records": partition.records, "acked": acked}
    if nowhere := [span for span in partition.lost if span.records]:
        plain["kept_nowhere"] = [msgspec.structs.asdict(span) for span in nowhere]
    return plain if partition.end is None else plain | {"end": partition.end}


def _headline(summary: dict[str, Any]) -> str:
    again = f" ({count(redriven)} redriven)" if (redriven := summary["redriven"]) else ""
    nowhere = summary["records_kept_nowhere"]
    return " · ".join(
        (
            counted(summary["records"], "record") + again,
            *([f"{count(nowhere)} rejected and kept nowhere"] if nowhere else []),
            counted(summary["partitions"], "partition"),
            f"saved {ago(summary['saved_at_unix_ms'])} ago",
            f"epoch {summary['epoch']}",
        )
    )


# -- the table of partitions -------------------------------------------------------------------


def matching(
    partitions: Mapping[str, PartitionCheckpoint], pattern: str | None
) -> dict[str, PartitionCheckpoint]:
    """Return the partitions whose name, or its printed form, equals or matches ``pattern``; None:
    all.
    """
    if pattern is None:
        return dict(partitions)
    return {
        name: state
        for name, state in partitions.items()
        if pattern in (name, printable(name)) or fnmatchcase(name, pattern)
    }


def print_partitions(
    partitions: Mapping[str, PartitionCheckpoint], *, shown_max: int | None
) -> None:
    """Print a table by name; with more than ``shown_max``, those that are not done come first."""
    names = sorted(partitions)
    if shown_max is not None and len(names) > shown_max:
        # A stable sort: by name within each kind.
        names = sorted(names, key=lambda name: _rank(partitions[name]))[:shown_max]
    _print_table([("partition", "position", "records", "acked above")], names, partitions)
    for name in [name for name in names if partitions[name].records_kept_nowhere]:
        click.echo(f"{printable(name)}: {_kept_nowhere(partitions[name])}")
    left = len(partitions) - len(names)
    if left:
        ended = sum(1 for state in partitions.values() if state.end is not None)
        click.echo(
            f"… and {counted(left, 'partition')} more; {count(ended)} of {count(len(partitions))}"
            " are read to their ends. --all prints every one, --partition 'PATTERN' some."
        )


def _kept_nowhere(state: PartitionCheckpoint) -> str:
    spans = [span for span in state.lost if span.records]
    told = [
        shown(span.first)
        + (f" to {shown(span.last)} ({count(span.records)})" if span.records > 1 else "")
        for span in spans[:_PLACES_SHOWN]
    ]
    more = ", …" if len(spans) > _PLACES_SHOWN else ""
    number = counted(state.records_kept_nowhere, "record")
    return f"{number} rejected and kept nowhere, at {', '.join(told)}{more}"


def _rank(state: PartitionCheckpoint) -> int:
    """Return the sort key: partitions with holes or unsettled records first, those read to the end
    last.
    """
    return 0 if state.acked or state.records_kept_nowhere else 1 if state.end is None else 2


def _print_table(
    rows: list[tuple[str, str, str, str]],
    names: list[str],
    partitions: Mapping[str, PartitionCheckpoint],
) -> None:
    rows.extend(_rows(names, partitions))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = (
        f"{name:<{widths[0]}}  {position:>{widths[1]}}  {records:>{widths[2]}}  {above}"
        for name, position, records, above in rows
    )
    click.echo("\n".join(lines))


def _rows(
    names: list[str], partitions: Mapping[str, PartitionCheckpoint]
) -> Iterator[tuple[str, str, str, str]]:
    for name in names:
        state = partitions[name]
        above = sum(span.records for span in state.acked)
        ranges = f"{counted(len(state.acked), 'range')}, {counted(above, 'record')}"
        text = ranges if state.acked else "-"
        yield printable(name), shown(state.position), count(state.records), text


# -- sinks that forget -------------------------------------------------------------------------


class NamedSink(NamedTuple):
    """A sink, and its name on the command line."""

    spec: str
    sink: Any

    def forget(self, job: str, *arguments: Any) -> bool | None:
        """Make it forget; False: it had nothing to forget, None: it does not report that."""
        try:
            forgot = self.sink.forget(job, *arguments)
        except Exception as error:
            what = (
                error.problem
                if isinstance(error, FlowctlError)
                else f"{type(error).__name__}: {error}."
            )
            raise JobError(
                f"The checkpoint is rewound, but {self.spec} did not forget {job}: {what}",
                remedy="Fix that and give the same command again before the job runs: until then"
                " the sink skips what it wrote.",
            ) from error
        finally:
            if hasattr(self.sink, "close"):
                self.sink.close()
        return forgot if isinstance(forgot, bool) else None

    def check_partitions(self) -> None:
        """Raise :class:`ConfigError` if it can't forget a single partition."""
        try:
            inspect.signature(self.sink.forget).bind("job", "partition", 1)
        except TypeError:
            raise ConfigError(
                "--sink",
                f"{self.spec}: its forget() can't forget a single partition.",
                remedy="Give it forget(job, partition=None, above=None), or clear the whole job.",
            ) from None


def load_sinks(specs: Sequence[str]) -> list[NamedSink]:
    """Return the sinks that ``specs`` name: ``job.py:sink``, ``package.module:sink``.

    Each is an object with ``forget(job)``, such as ``SqlSink``, or a function that returns one.
    """
    return [NamedSink(spec, _sink(spec)) for spec in dict.fromkeys(specs)]


def _sink(spec: str) -> Any:
    found = load_object(spec, field="--sink", attribute=DEFAULT_ATTRIBUTE)
    if not _forgets(found.value) and callable(found.value) and not isinstance(found.value, type):
        found = found.called("--sink")
    if isinstance(found.value, type) or not _forgets(found.value):
        names = sorted(name for name, value in vars(found.module).items() if _is_sink(value))
        there = ", ".join(f"{found.target}:{name}" for name in names)
        raise ConfigError(
            "--sink",
            f"{found.target}:{found.attribute} is a {type(found.value).__name__}, which has no"
            " forget(job).",
            remedy=f"There is: {there}." if there else "Name an SqlSink in the job's file.",
        )
    return found.value


def _forgets(value: Any) -> bool:
    return callable(getattr(value, "forget", None))


def _is_sink(value: Any) -> bool:
    return _forgets(value) and not isinstance(value, type)
