"""A journal of processed records, written by the bolts independently of flowctl's own counts.

One file per run (epoch), bolt and process; a line per tuple when it is begun:
``unix seconds, bolt, file, line numbers``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from flowctl.bolts.batch import Batch
from flowctl.core.records import Record
from flowctl.errors import InternalError


class Entry(NamedTuple):
    """One tuple that was begun; ``records`` are (file, line number)."""

    began_unix_s: float
    bolt: str
    records: tuple[tuple[str, int], ...]


def line_of(record: Record) -> int:
    """Return the 1-based line number from the position that ``TextLines`` gives."""
    match record.position:
        case (_, int(line), *_):
            return line
    raise InternalError(f"{record.position!r} is not (byte, line).", remedy="Please report it.")


def enter(directory: Path, batch: Batch) -> None:
    """Append ``batch`` to the journal; other processes can read it when this returns."""
    started_unix_s(directory, batch.span.epoch)
    lines = ",".join(str(line_of(record)) for record in batch[:])
    file = Path(batch.span.partition).name
    entry = f"{time.time():.3f} {batch.bolt} {file} {lines}\n"
    name = f"{batch.span.epoch}-{batch.bolt}-{os.getpid()}.txt"
    # A single write call, so that a killed process leaves whole lines.
    os.write(_open_append(directory / name), entry.encode())


@cache
def _open_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


@cache
def started_unix_s(directory: Path, epoch: int) -> float:
    """Return when the first tuple of run ``epoch`` was begun; all processes agree on it."""
    path = directory / f"{epoch}.start"
    if not path.exists():
        mine = directory / f"{epoch}.start.{os.getpid()}-{threading.get_ident()}"
        mine.write_text(repr(time.time()))
        try:
            os.link(mine, path)  # the first file wins, and is never read half written
        except FileExistsError:
            pass
        finally:
            mine.unlink(missing_ok=True)
    return float(path.read_text())


def epochs(directory: Path) -> list[int]:
    """Return the runs in the journal, oldest first."""
    return sorted(int(path.stem) for path in directory.glob("*.start"))


def entries(directory: Path, epoch: int) -> Iterator[Entry]:
    """Yield the tuples that run ``epoch`` began, in no particular order."""
    for path in sorted(directory.glob(f"{epoch}-*.txt")):
        for line in path.read_text().splitlines():
            began, bolt, file, numbers = line.split(" ")
            records = tuple((file, int(number)) for number in numbers.split(","))
            yield Entry(float(began), bolt, records)


def begun(directory: Path, epoch: int) -> set[tuple[str, int]]:
    """Return the records that run ``epoch`` began at least once."""
    return {record for entry in entries(directory, epoch) for record in entry.records}
