"""The ledger of the records already written, in flowctl's own tables next to the user's.

============================  ======================================================
``flowctl_epochs``            the newest driver seen, per job
``flowctl_partitions``        one row per (job, sink, partition): the lock, and a count;
                              none with SQLite, where a transaction locks the file
``flowctl_spans``             covered positions, disjoint ranges, both ends inclusive;
                              each with a checksum, NULL if an older version wrote it
============================  ======================================================

Positions are stored as :func:`flowctl.core.positions.encode` writes them, so the database sorts
them as the source does.  Databases other than SQLite and PostgreSQL hold names and positions in the
form of docs/adr/0015-sqlalchemy.md.  All methods run inside the caller's transaction.  Why this is
exact: docs/adr/0004-covered-spans.md.
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowctl.checksums import crc32
from flowctl.core.positions import encode, show
from flowctl.core.records import Position, Record, Span
from flowctl.errors import FencedError, UnrunnableError
from flowctl_sql._dialect import Dialect

# Writes between two merges of a partition's ranges, and so about its rows in the ledger, besides
# ranges in flight.  A merge costs about as much as a write, so it adds 2 %.
_MERGE_EVERY_WRITES = 64

_HERE = "job = ? AND sink = ? AND part = ?"
_COLUMNS = "first_position, last_position, crc"


class Range(NamedTuple):
    """A range of covered positions: encoded, both ends inclusive."""

    first: bytes
    last: bytes


class Ledger:
    """The ledger of one sink name, over one connection.  Not thread-safe."""

    def __init__(self, cursor: Any, dialect: Dialect, sink: str) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._sink = sink
        self._filled: dict[str, str] = {}
        self._looked_at: set[tuple[str, str, str]] = set()  # partitions

    def _run(self, statement: str, *values: Any) -> Any:
        filled = self._filled.get(statement)
        if filled is None:
            filled = self._filled[statement] = self._dialect.fill(statement)
        self._cursor.execute(filled, values)
        return self._cursor

    def create(self, table: str) -> None:
        """Create one of flowctl's own tables."""
        self._cursor.execute(self._dialect.create(table))

    def _job(self, job: str) -> str:
        return self._dialect.stored_name(job)

    def _here(self, job: str, partition: str) -> tuple[str, str, str]:
        stored = self._dialect.stored_name
        return stored(job), stored(self._sink), stored(partition)

    def _ends(self, new: Range) -> tuple[Any, Any]:
        stored = self._dialect.stored_position
        return stored(new.first), stored(new.last)

    def _ranges(self, span: Span, found: Sequence[tuple[Any, Any, Any]]) -> list[Range]:
        """Return the ranges in the rows ``found``; raise for a range whose checksum is wrong."""
        encoded = self._dialect.encoded_position
        ranges: list[Range] = []
        for first, last, crc in found:
            try:
                read = Range(encoded(first), encoded(last))
            except ValueError:  # no hex
                raise _damaged(span) from None
            if crc is not None and int(crc) != self._crc(span, read):
                raise _damaged(span)
            ranges.append(read)
        return ranges

    def _crc(self, span: Span, covered: Range) -> int:
        """Return the checksum of a range; it includes the lengths of the encoded ends."""
        label = "\0".join((span.job, self._sink, span.partition)).encode()
        return crc32(label, b"%d|%b|%b" % (len(covered.first), *covered))

    def take(self, span: Span) -> bool:
        """Lock the partition until the transaction ends; return whether this write merges ranges.

        Raises :class:`FencedError` if a newer driver has written.  May raise the driver's integrity
        error if another connection adds the same first row at the same moment: roll back and try
        again.
        """
        if self._dialect.name == "sqlite":  # BEGIN IMMEDIATE has locked the file
            self._check_epoch(span, self.newest_epoch(span.job))
            # A count would be one more page to write.
            return zlib.crc32(encode(span.first)) % _MERGE_EVERY_WRITES == 0
        here = self._here(span.job, span.partition)
        # "writes + 1": some drivers count only changed rows, and the update takes the lock.
        if not self._run(
            f"UPDATE flowctl_partitions SET writes = writes + 1 WHERE {_HERE}", *here
        ).rowcount:
            self.add(span)
        writes, newest = self._run(
            "SELECT writes, (SELECT epoch FROM flowctl_epochs WHERE job = ?) "
            f"FROM flowctl_partitions WHERE {_HERE}",
            here[0],
            *here,
        ).fetchone()
        self._check_epoch(span, newest)
        return int(writes) % _MERGE_EVERY_WRITES == 0

    def _check_epoch(self, span: Span, newest: int | None) -> None:
        if newest is None:
            self._run("INSERT INTO flowctl_epochs VALUES (?, ?)", self._job(span.job), span.epoch)
        elif newest < span.epoch:
            self._run(
                "UPDATE flowctl_epochs SET epoch = ? WHERE job = ? AND epoch < ?",
                span.epoch,
                self._job(span.job),
                span.epoch,
            )
        elif newest > span.epoch:
            raise FencedError(
                f"job {span.job!r}: the driver of epoch {span.epoch} was replaced; epoch {newest} "
                "has written to this database.",
                remedy="Let the newer driver work. If there is none, the checkpoint store was "
                "emptied or its clock set back: call SqlSink.unfence(job) once.",
                newest_epoch=newest,
            )

    def add(self, span: Span) -> None:
        """Add the partition's row."""
        here = self._here(span.job, span.partition)
        self._run("INSERT INTO flowctl_partitions VALUES (?, ?, ?, 1)", *here)

    def knows(self, span: Span) -> bool:
        """Whether anything of the partition of ``span`` was ever written."""
        here = self._here(span.job, span.partition)
        found = self._run(f"SELECT writes FROM flowctl_partitions WHERE {_HERE}", *here)
        return found.fetchone() is not None

    def remembers(self) -> bool:
        """Whether records of any job count as written by this sink."""
        sink = self._dialect.stored_name(self._sink)
        found = self._run("SELECT COUNT(*) FROM flowctl_spans WHERE sink = ?", sink)
        return bool(found.fetchone()[0])

    def covered(self, span: Span) -> list[Range]:
        """Return the covered ranges that touch ``span``, in order.

        Raises :class:`UnrunnableError` if one of them was merged beyond ``span.section``: then it
        is unknown which rows were written at these positions.  The first call for a partition
        checks all its ranges and raises for a damaged one too, since it might touch the span.
        """
        here = self._here(span.job, span.partition)
        if here not in self._looked_at:
            found = self._run(f"SELECT {_COLUMNS} FROM flowctl_spans WHERE {_HERE}", *here)
            self._ranges(span, found.fetchall())
            self._looked_at.add(here)
        found = self._run(
            f"SELECT {_COLUMNS} FROM flowctl_spans WHERE {_HERE} "
            "AND last_position >= ? AND first_position <= ? ORDER BY first_position",
            *here,
            *self._ends(Range(encode(span.first), encode(span.last))),
        ).fetchall()
        ranges = self._ranges(span, found)
        if ranges and span.section is not None:
            low, high = map(encode, span.section)
            if ranges[0].first < low or ranges[-1].last > high:
                raise _merged_since(span)
        return ranges

    def cover(self, span: Span, touching: Sequence[Range]) -> None:
        """Note ``span`` as covered; ``touching`` is the result of :meth:`covered` for it."""
        new = Range(encode(span.first), encode(span.last))
        if touching:
            # They share positions with the span, so together they form one range without a gap.
            new = Range(min(new.first, touching[0].first), max(new.last, touching[-1].last))
        if [new] != touching:
            self._replace(span, touching, new)

    def merge(self, span: Span) -> None:
        """Merge the ranges up to ``span.acked_through``: no record between them can still come.

        Ranges are not joined across ``span.unsettled``, from where records can still come.
        """
        if span.acked_through is None:
            return
        if span.unsettled is None:
            self._join_up_to(span, span.acked_through)
            return
        last, first = span.unsettled
        if last is not None:
            self._join_up_to(span, last)
        self._join_up_to(span, span.acked_through, first)

    def _join_up_to(self, span: Span, last: Position, first: Position | None = None) -> None:
        """Join the ranges that begin at or after ``first`` and end at or before ``last``."""
        stored = self._dialect.stored_position
        begin = () if first is None else (stored(encode(first)),)
        found = self._run(
            f"SELECT {_COLUMNS} FROM flowctl_spans WHERE {_HERE} "
            f"AND last_position <= ? {'AND first_position >= ? ' * len(begin)}"
            "ORDER BY first_position",
            *self._here(span.job, span.partition),
            stored(encode(last)),
            *begin,
        ).fetchall()
        ranges = self._ranges(span, found)
        if len(ranges) > 1:
            self._replace(span, ranges, Range(ranges[0].first, ranges[-1].last))

    def _replace(self, span: Span, old: Sequence[Range], new: Range) -> None:
        here = self._here(span.job, span.partition)
        if old:  # ranges are disjoint and sorted, so this deletes just ``old``
            self._run(
                f"DELETE FROM flowctl_spans WHERE {_HERE} "
                "AND first_position >= ? AND first_position <= ?",
                *here,
                *self._ends(Range(old[0].first, old[-1].first)),
            )
        self._insert(span, new)

    def _insert(self, span: Span, new: Range) -> None:
        here = self._here(span.job, span.partition)
        crc = self._crc(span, new)
        self._run(
            f"INSERT INTO flowctl_spans (job, sink, part, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            *here,
            *self._ends(new),
            crc,
        )

    def forget(self, job: str) -> bool:
        """Drop the ranges of ``job`` but not its epoch; return False if there were none."""
        statement = "DELETE FROM flowctl_spans WHERE job = ? AND sink = ?"
        return bool(self._run(statement, *self._here(job, "")[:2]).rowcount)

    def forget_above(self, job: str, partition: str, above: Position | None) -> bool:
        """Drop a partition's ranges above a position (None: all); False if there were none."""
        here = self._here(job, partition)
        drop = f"DELETE FROM flowctl_spans WHERE {_HERE}"
        if above is None:
            return bool(self._run(drop, *here).rowcount)
        span = Span(job, partition, above, above, 0)
        dropped = self._run(
            f"{drop} AND first_position > ?", *here, self._dialect.stored_position(encode(above))
        ).rowcount
        touching = self.covered(span)
        if not touching or touching[0].last == encode(above):
            return bool(dropped)
        self._replace(span, touching, Range(touching[0].first, encode(above)))
        return True

    def newest_epoch(self, job: str) -> int | None:
        """Return the newest epoch of ``job``, None if no driver has written."""
        found = self._run(
            "SELECT epoch FROM flowctl_epochs WHERE job = ?", self._job(job)
        ).fetchone()
        return None if found is None else int(found[0])

    def unfence(self, job: str) -> None:
        """Drop the newest epoch of ``job``."""
        self._run("DELETE FROM flowctl_epochs WHERE job = ?", self._job(job))


def _damaged(span: Span) -> UnrunnableError:
    return UnrunnableError(
        "flowctl_spans",
        f"the table is damaged: a range of job {span.job!r}, partition {span.partition!r} has"
        " another checksum, so nobody knows which rows were written.",
        remedy="Restore the database; or delete the job's rows from your table and call"
        f" SqlSink.forget({span.job!r}), which has them written again.",
    )


def _merged_since(span: Span) -> UnrunnableError:
    return UnrunnableError(
        "checkpointLocation",
        f"it was set back to {show(span.first)} of {span.partition!r}, by more batches than SqlSink"
        " tells apart: it no longer knows which rows it wrote there.",
        remedy="Go on with a newer checkpoint; or delete the rows of these batches and call"
        f" SqlSink.forget({span.job!r}, {span.partition!r}), which has them written again.",
    )


def not_covered(records: Sequence[Record], touching: Sequence[Range]) -> list[bool]:
    """Return for each record whether it lies outside all of the sorted ranges."""
    lasts = [covered.last for covered in touching]

    def is_new(key: bytes) -> bool:
        at = bisect.bisect_left(lasts, key)  # the first range that ends at or after the key
        return at == len(touching) or key < touching[at].first

    return [is_new(encode(record.position)) for record in records]
