"""Producers and functions that tests name in options of a stream."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pandas

from flowctl import Batch, Checkpoint, Record, RetryLater, SourceChunk
from flowctl.errors import UnrunnableError
from flowctl_sql import SqlSink


class Numbers:
    """One partition "n" with the numbers from 0 to below ``count``; ``follow``: more may come."""

    def __init__(self, count: int = 1_000, follow: bool = False) -> None:
        self.count = count
        self.follow = follow
        self.at = 0

    def partitions(self) -> Sequence[str]:
        return ["n"]

    def open(self, checkpoint: Checkpoint) -> None:
        known = checkpoint.partitions.get("n")
        self.at = 0 if known is None or known.position is None else int(str(known.position)) + 1

    def poll(self, max_records: int) -> SourceChunk | None:
        last = min(self.count, self.at + max_records)
        records = [Record(number, number) for number in range(self.at, last)]
        self.at = last
        if records or self.follow:
            return SourceChunk("n", records)
        return None

    def close(self) -> None:
        pass


def double(batch: Batch) -> list[tuple[int, int]]:
    """Return number and twice the number."""
    return [(record.value, 2 * record.value) for record in batch]


def odd_only(batch: Batch) -> list[dict[str, int]]:
    """Return odd numbers; reject multiples of 100."""
    for record in batch:
        if record.value % 100 == 0:
            batch.reject(record, "round")
    return [{"n": record.value, "twice": 0} for record in batch if record.value % 2]


def misspelt(batch: Batch) -> list[dict[str, int]]:
    """Return rows with a column that the schema has not."""
    return [{"N": record.value, "twice": 0} for record in batch]


def halves(batch: Batch) -> list[tuple[int, float]]:
    """Return the half of 7, which is not a whole number."""
    return [(record.value, 3.5 if record.value == 7 else 0.0) for record in batch]


def framed(batch: Batch) -> pandas.DataFrame:
    """Return number and twice the number, as pandas has them."""
    return pandas.DataFrame({"n": [r.value for r in batch], "twice": [2 * r.value for r in batch]})


def refused_in_part(batch: Batch) -> list[tuple[int, int]]:
    """Return number and twice the number, but at first a target refuses one record."""
    if batch.attempt == 1:
        raise RetryLater("one refused", again=[0], after_s=0)
    return double(batch)


async def refused_in_part_later(batch: Batch) -> list[tuple[int, int]]:
    """As :func:`refused_in_part`."""
    return refused_in_part(batch)


def stored(batch: Batch) -> list[tuple[int, int]]:
    """Write numbers into STREAM_DB, but for the 30 while STREAM_DB.away exists; return no rows."""
    database = os.environ["STREAM_DB"]
    if 30 in [record.value for record in batch] and os.path.exists(f"{database}.away"):
        raise UnrunnableError("process", "the task dies.", remedy="Spark runs it again.")
    sink = SqlSink(f"sqlite:///{database}", table="t", schema="CREATE TABLE t (n INTEGER)")
    sink.write([{"n": record.value} for record in batch], batch=batch)
    sink.close()
    return []


def nothing(batch: Batch) -> None:
    """Return no rows."""


def wrong(batch: Batch) -> int:
    """Return what is not a list of rows."""
    return 7


def no_producer() -> int:
    """Return what is no producer."""
    return 7


_late: list[threading.Thread] = []
_go = threading.Event()


def late(batch: Batch) -> list[tuple[int, int]]:
    """The first call returns only while the second runs."""
    if not _late:
        _late.append(threading.current_thread())
        _go.wait(60)
    else:
        _go.set()
        _late[0].join(60)
    return [(record.value, 2 * record.value) for record in batch]
