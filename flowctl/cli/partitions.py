"""The partitions of a checkpoint, for ``flowctl checkpoint show``: a screen of them, or all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import click

from flowctl.cli.positions import shown
from flowctl.core.records import PartitionCheckpoint
from flowctl.instrumentation.numbers import count, counted
from flowctl.instrumentation.text import printable

SHOWN_MAX = 40  # about a screen


def matching(
    partitions: Mapping[str, PartitionCheckpoint], pattern: str | None
) -> dict[str, PartitionCheckpoint]:
    """Return those whose name, or its printed form, equals or matches ``pattern``; None: all."""
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
    left = len(partitions) - len(names)
    if left:
        ended = sum(1 for state in partitions.values() if state.end is not None)
        click.echo(
            f"… and {counted(left, 'partition')} more; {count(ended)} of {count(len(partitions))}"
            " are read to their ends. --all prints every one, --partition 'PATTERN' some."
        )


def _rank(state: PartitionCheckpoint) -> int:
    """Partitions with holes come first, those read to the end last."""
    return 0 if state.acked else 1 if state.end is None else 2


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
