"""What jobs of ``test_flow_sink_spark`` call on workers: found there by its name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flowctl import Batch


def append(batch: Batch) -> None:
    """Add what came to a file of this process: name and position of each row."""
    with Path(os.environ["SINK_JOBS_DIR"], f"{os.getpid()}.txt").open("a") as file:
        for record in batch:
            file.write(f"{record.value.id} {batch.span.partition} {record.position}\n")


class Arrow:
    """A sink that takes Arrow, as :func:`append`; the columns ``id`` and ``a.b`` are equal."""

    takes_arrow = True

    def write(self, rows: Any, *, batch: Batch) -> None:
        with Path(os.environ["SINK_JOBS_DIR"], f"{os.getpid()}.txt").open("a") as file:
            for number, text in zip(rows["id"].to_pylist(), rows["a.b"].to_pylist(), strict=True):
                assert text == str(number)
                file.write(f"{number} {batch.span.partition} {batch.span.first}\n")


arrow = Arrow()


def pick(batch: Batch) -> None:
    """As :func:`append`, but rows whose id is a multiple of 100 are rejected."""
    for record in batch:
        if record.value.id % 100 == 0:
            batch.reject(record, "a round number")
    append(batch)


def numbers(batch: Batch) -> list[tuple[int]]:
    """Return the number in each line."""
    return [(int(record.value),) for record in batch]


def written(folder: Path) -> list[list[str]]:
    """What was appended by all processes: [id, partition, position …] of each row."""
    return [
        line.split(maxsplit=2)
        for path in sorted(folder.glob("*.txt"))
        for line in path.read_text().splitlines()
    ]


def note(way: str, values: Iterable[Any]) -> None:
    """Add values, with their types, to a file of this process for this way of writing."""
    with Path(os.environ["SINK_JOBS_DIR"], f"{way}-{os.getpid()}.types").open("a") as file:
        for value in values:
            file.write(f"{[(type(part).__name__, part) for part in value]!r}\n")


def note_format(batch: Batch) -> None:
    """:func:`note` for ``format("flowctl")``."""
    note("format", [record.value for record in batch])


def noted(folder: Path, way: str) -> list[str]:
    """What was noted by all processes for this way, in any order."""
    files = folder.glob(f"{way}-*.types")
    return sorted(line for path in files for line in path.read_text().splitlines())
