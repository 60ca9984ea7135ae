"""``flowctl dlq list · show · redrive · drop``: records that were left out, and how to reprocess
them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from flowctl.cli.click_options import ago, confirmed, decoded, is_full
from flowctl.core.letters import Letter, redrive_partition
from flowctl.core.positions import show as shown
from flowctl.core.records import Position
from flowctl.errors import EXIT_FAILED, ConfigError, InfrastructureError
from flowctl.instrumentation.failure_groups import folded
from flowctl.instrumentation.numbers import count, counted
from flowctl.instrumentation.text import printable

_LIMIT = 20  # letters shown: a screen
_VALUE_CHARS = 200  # about two lines of a terminal
# Of a number in a position: a Unix time in ms has 13, a digest of a section (7 bytes) up to 17.
_PART_CHARS = 13
_REASONS_LISTED = 3  # as in the summary of a run
_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}

_dir = click.option(
    "--dir", "directory", metavar="DIR", type=click.Path(path_type=Path),
    help="Where the letters are; default: FLOWCTL_DEAD_LETTERS, or .flowctl/dead-letters here.",
)  # fmt: skip
_file = click.option(
    "--file", "file", metavar="FILE", type=click.Path(path_type=Path),
    help="The file that holds the letters (JsonLinesDeadLetter).",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_ids = click.option(
    "--id", "ids", metavar="ID", multiple=True, help="Only this letter; may be repeated."
)


@click.group()
def dlq() -> None:
    """Inspect records that were rejected or given up, process them again, or drop them."""


@dlq.command("list")
@click.argument("name", callback=decoded, required=False)
@_dir
@_file
@_json
def list_command(
    name: str | None, directory: Path | None, file: Path | None, as_json: bool
) -> None:
    """List the jobs with dead letters.  Shows how many, why and since when; NAME: only this job."""
    rows: list[dict[str, Any]] = []
    damaged: list[tuple[str, int]] = []
    with _reading():
        for one in _files(directory, file, name):
            contents = one.read()
            rows += [
                _row(job, contents.of(job), contents.of_unfinished(job))
                for job in contents.jobs()
                if name in (None, job)
            ]
            if contents.damaged:
                damaged.append((one.path, contents.damaged))
    if as_json:
        told = [{"file": path, "lines": lines} for path, lines in damaged]
        return click.echo(json.dumps({"jobs": rows, "damaged": told}, indent=2))
    for row in rows:
        _print_row(row)
    if not rows:
        whose = f" of {printable(name)}" if name else ""
        click.echo(f"No dead letters{whose} in {printable(_place(directory, file))}.")
    for path, lines in damaged:
        click.echo(
            f"{printable(path)}: {counted(lines, 'line')} truncated or damaged, skipped", err=True
        )
    return None


def _row(job: str, letters: Sequence[Letter], unfinished: int) -> dict[str, Any]:
    kinds = Counter(letter.kind for letter in letters)
    reasons = Counter(folded(letter.reason) for letter in letters)
    return {
        "job": job,
        "letters": len(letters),
        "rejected": kinds["rejected"],
        "gave_up": kinds["gave_up"],
        "to_redrive": sum(letter.redrive is not None for letter in letters),
        "of_unfinished_attempts": unfinished,
        "newest_at_unix_ms": max((letter.at_unix_ms for letter in letters), default=None),
        "reasons": [{"reason": text, "letters": n} for text, n in reasons.most_common()],
    }


def _print_row(row: dict[str, Any]) -> None:
    facts = [counted(row["letters"], "letter")]
    facts += [f"{count(row['rejected'])} rejected"] if row["rejected"] else []
    facts += [f"{count(row['gave_up'])} given up"] if row["gave_up"] else []
    facts += [f"{count(row['to_redrive'])} marked for redrive"] if row["to_redrive"] else []
    facts += [f"newest {ago(row['newest_at_unix_ms'])} ago"] if row["letters"] else []
    click.echo(f"{printable(row['job'])}  {' · '.join(facts)}")
    if unfinished := row["of_unfinished_attempts"]:
        click.echo(
            f"    {counted(unfinished, 'row')} of task attempts that did not finish: letters only"
            " if the attempt goes on to finish"
        )
    for told in row["reasons"][:_REASONS_LISTED]:
        click.echo(f"    {count(told['letters']):>7}  {printable(told['reason'])}")
    others = row["reasons"][_REASONS_LISTED:]
    if others:
        rest = sum(told["letters"] for told in others)
        click.echo(f"    {count(rest):>7}  for {counted(len(others), 'other reason')}")


@dlq.command("show")
@click.argument("name", callback=decoded)
@click.option("--limit", default=_LIMIT, show_default=True, type=click.IntRange(min=1),
              help="How many letters, the newest first.")  # fmt: skip
@_ids
@_dir
@_file
@_json
def show_command(  # noqa: PLR0917  (click passes them by name)
    name: str,
    limit: int,
    ids: tuple[str, ...],
    directory: Path | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Show the dead letters of job NAME.  For each: the record, the reason, and its value."""
    letters = _letters(name, ids, directory, file)
    letters.sort(key=lambda letter: letter.at_unix_ms)
    letters.reverse()  # not reverse=True: of the same millisecond, too, the last one kept is first
    if as_json:
        return click.echo(json.dumps([_tree(letter) for letter in letters[:limit]], indent=2))
    click.echo(f"{printable(name)} · {counted(len(letters), 'letter')}")
    for letter in letters[:limit]:
        _print_letter(letter, chars=None if ids else _VALUE_CHARS)
    if len(letters) > limit:
        click.echo(f"and {count(len(letters) - limit)} more: --limit {len(letters)}")
    return None


def _print_letter(letter: Letter, *, chars: int | None) -> None:
    how = "rejected" if letter.kind == "rejected" else f"{counted(letter.attempts, 'attempt')}"
    where = f"{letter.partition} {_place_of(letter.position, is_whole=chars is None)}"
    facts = [letter.id, where, how]
    facts += [f"on {', '.join(letter.bolts)}"] if letter.bolts else []
    facts += [f"failed again {count(letter.redrives)}x"] if letter.redrives else []
    facts += [redrive_partition(letter.redrive[0])] if letter.redrive else []
    facts.append(datetime.fromtimestamp(letter.at_unix_ms / 1000).strftime("%Y-%m-%d %H:%M:%S"))
    click.echo(printable("  ".join(facts)))
    click.echo(f"    {printable(_short(letter.reason, chars))}")
    click.echo(f"    {printable(_short(_text_of(letter), chars))}")


def _place_of(position: Position, *, is_whole: bool) -> str:
    """Return a position as text; flow_sink's hold a digest of the row's section, of which a few
    digits will do.
    """
    if is_whole or not isinstance(position, tuple):
        return shown(position)
    chars = [_PART_CHARS if isinstance(part, int) else None for part in position]
    return ":".join([_short(str(part), most) for part, most in zip(position, chars, strict=True)])


def _text_of(letter: Letter) -> str:
    text = letter.value if isinstance(letter.value, str) else repr(letter.value)
    return text if letter.is_exact else f"{text}  (not kept exactly)"


def _short(text: str, chars: int | None) -> str:
    return text if chars is None or len(text) <= chars else text[: chars - 1] + "…"


def _tree(letter: Letter) -> dict[str, Any]:
    """Return a letter as plain values; what JSON can't express is shown as Python prints it."""
    import msgspec

    tree = {name: getattr(letter, name) for name in letter.__struct_fields__}
    try:
        found: dict[str, Any] = json.loads(msgspec.json.encode(tree))
    except (TypeError, ValueError, OverflowError, RecursionError):
        found = json.loads(msgspec.json.encode(tree | {"value": repr(letter.value)}))
    return found


@dlq.command("redrive")
@click.argument("name", callback=decoded)
@_ids
@_dir
@_file
@_json
def redrive_command(
    name: str, ids: tuple[str, ...], directory: Path | None, file: Path | None, as_json: bool
) -> None:
    """Let the next run of job NAME process its dead letters first.

    A letter is removed when its record is processed and that is saved; one that fails again stays.
    Letters of a Spark readStream are processed by a query of their own: docs/streaming.md, Letters.
    """
    letters = _letters(name, ids, directory, file)
    wanted = {letter.id for letter in letters}
    marked = 0
    number = None
    with _reading():
        for one in _files(directory, file, name):
            taken, its_number = one.redrive(name, wanted)
            marked += taken
            number = its_number if taken else number
    waiting = sum(letter.redrive is not None for letter in letters)
    inexact = sum(not letter.is_exact for letter in letters)
    if as_json:
        told = {"job": name, "marked": marked, "waiting_before": waiting, "not_exact": inexact}
        return click.echo(json.dumps(told | {"redrive": number}))
    if marked:
        click.echo(
            f"{counted(marked, 'letter')} of {printable(name)}: the next run with this dead letter"
            " store (in the job, or by --dead-letters) processes them first. Of flow_sink: the next"
            f" write with this directory and name={printable(name)!r}; without name= they wait."
            " Of a job whose bolts read the source themselves (ranges): a second job does, see"
            " docs/dead-letters.md."
        )
    if waiting:
        click.echo(f"{counted(waiting, 'letter')} already marked for redrive.")
    if inexact:
        click.echo(f"{counted(inexact, 'letter')} not kept exactly and can't be processed again.")
    return None


@dlq.command("drop")
@click.argument("name", callback=decoded)
@_ids
@click.option("--all", "everything", is_flag=True, help="All letters of the job.")
@click.option("--older-than", metavar="AGE", help="Letters older than this: 7d, 12h, 30min.")
@click.option("--marked", is_flag=True, help="Letters that redrive has marked.")
@_dir
@_file
@_json
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_command(
    *,
    name: str,
    ids: tuple[str, ...],
    everything: bool,
    older_than: str | None,
    marked: bool,
    directory: Path | None,
    file: Path | None,
    as_json: bool,
    yes: bool,
) -> int | None:
    """Remove dead letters of job NAME.  Their records will not be processed any more."""
    if bool(ids) + everything + (older_than is not None) + marked != 1:
        raise ConfigError(
            "drop",
            "which letters?",
            remedy="Give one of --id ID, --all, --older-than AGE, --marked.",
        )
    before_ms = None if older_than is None else time.time() * 1000 - parse_age_s(older_than) * 1000
    chosen = {
        letter.id
        for letter in _letters(name, ids, directory, file)
        if (before_ms is None or letter.at_unix_ms < before_ms)
        and (letter.redrive is not None or not marked)
    }
    question = f"Drop {counted(len(chosen), 'letter')} of {printable(name)} for good?"
    if chosen and not confirmed(question, yes=yes):
        return EXIT_FAILED
    with _reading():
        dropped = sum(
            one.drop(name, lambda letter: letter.id in chosen)
            for one in _files(directory, file, name)
        )
    if as_json:
        click.echo(json.dumps({"job": name, "dropped": dropped}))
    else:
        click.echo(f"{counted(dropped, 'letter')} dropped.")
    return None


def parse_age_s(text: str) -> float:
    """Return how long ``7d``, ``12h`` or ``30min`` is [s]; raise :class:`ConfigError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text.strip())
    if found is None or found[2] not in _UNITS_S:
        raise ConfigError(
            "--older-than", f"{text!r} is not an age.", remedy="Write 7d, 12h, 30min or 45s."
        )
    return float(found[1]) * _UNITS_S[found[2]]


def _place(directory: Path | None, file: Path | None) -> str:
    """Return where letters are looked for, as readable text."""
    from flowctl.adapters import load_adapter

    if file is not None:
        return str(file)
    default = load_adapter("flowctl_files.dead_letter", "files").default_directory
    return str((directory or default()).absolute())


def _files(directory: Path | None, file: Path | None, job: str | None) -> list[Any]:
    """Return the files that may hold letters of ``job``; None: of any job."""
    from flowctl.adapters import load_adapter

    adapter = load_adapter("flowctl_files.dead_letter", "files")
    if directory is not None and file is not None:
        raise ConfigError("--file", "can't be combined with --dir.", remedy="Give one of them.")
    if file is not None:
        if not file.is_file():
            raise ConfigError("--file", f"no file {file}.", remedy="Give the file of the letters.")
        return [adapter.JsonLinesDeadLetter(file).file_of("")]
    if directory is not None and not directory.is_dir():
        raise ConfigError("--dir", f"no directory {directory}.", remedy="See --help.")
    place = directory or adapter.default_directory()
    if job is None:
        found: list[Any] = adapter.files_in(place)
        return found
    return [adapter.FileDeadLetter(place).file_of(job)]


def _letters(
    job: str, ids: Collection[str], directory: Path | None, file: Path | None
) -> list[Letter]:
    """Return the letters of ``job``, or those with ``ids``; raise :class:`ConfigError` if there are
    none.

    Damaged lines are reported on stderr.
    """
    with _reading():
        files = _files(directory, file, job)
        read = [(one.path, one.read()) for one in files]
        letters = [letter for _, contents in read for letter in contents.of(job)]
    for path, contents in read:
        if contents.damaged:
            lines = counted(contents.damaged, "line")
            click.echo(f"{printable(path)}: {lines} truncated or damaged, skipped", err=True)
    if not letters:
        where = ", ".join(path for path, _ in read)
        raise ConfigError(
            "NAME",
            f"no dead letters of job {job!r} in {where}.",
            remedy="`flowctl dlq list` names the jobs that have some; --dir or --file says where"
            " to look.",
        )
    unknown = sorted(set(ids) - {letter.id for letter in letters})
    if unknown:
        raise ConfigError(
            "--id", f"{job} has no letter {', '.join(unknown)}.", remedy="See `flowctl dlq show`."
        )
    return [letter for letter in letters if not ids or letter.id in ids]


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"the dead letters can't be read or written: {error}.",
            remedy="Free some space on that disk; what it held before is still there."
            if is_full(error)
            else "Check the path and its permissions.",
        ) from error
