"""A producer read in batches between offsets, which the caller keeps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from flowctl.core.buffer import sizes_of
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position, Record
from flowctl.errors import SourceError
from flowctl.ports import FlowProducer, SourceChunk

# A producer that is busy is asked again after this [s], before the batch is closed with what it
# has.
_BUSY_MAX_S = 1.0
_POLL_ROWS_MAX = 10_000  # rows of one poll; a batch takes several
# A batch ends when it has this many bytes: as objects of Python they take some three times as much.
_BATCH_BYTES_MAX = 64 << 20


class Piece(NamedTuple):
    """Records of one partition, in order.

    ``batch_first``: the position of the partition's first record in the batch; earlier records
    belong to earlier batches, which are done.  None: the first of these records.
    """

    partition: str
    records: Sequence[Record]
    batch_first: Position | None = None


class Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a batch ends, and how many rows the next should have; JSON-like by :meth:`packed`.

    ``chunks``: into how many pieces it is cut at most, so that it is cut alike when it is repeated.
    """

    rows: int
    partitions: dict[str, PartitionCheckpoint] = {}
    chunks: int = 1
    version: int = 1

    def packed(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it: dicts, lists, numbers and text."""
        return {
            "version": self.version,
            "rows": self.rows,
            "chunks": self.chunks,
            "partitions": {
                name: [_packed(part.position), part.records, _packed(part.end)]
                for name, part in self.partitions.items()
            },
        }

    @classmethod
    def unpacked(cls, given: dict[str, Any]) -> Offset:
        """Return the offset that :meth:`packed` was given; raise :class:`SourceError` for anything
        else.
        """
        try:
            if given["version"] != 1:
                raise ValueError("another version")
            return cls(
                int(given["rows"]),
                {
                    name: PartitionCheckpoint(
                        position=_position(position), records=records, end=_position(end)
                    )
                    for name, (position, records, end) in given["partitions"].items()
                },
                int(given["chunks"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(
                f"an offset in Spark's checkpoint can't be read: {error!r}.",
                remedy="It was written by another source, or by a newer version. Use that, or"
                " another checkpointLocation.",
            ) from error

    def checkpoint(self) -> Checkpoint:
        """Return the offset as a checkpoint, for producers and checkpoint stores."""
        return Checkpoint(dict(self.partitions))


def _packed(position: Any) -> Any:
    return list(position) if isinstance(position, tuple) else position


def _position(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given  # JSON has no tuples


class OffsetReader:
    """Reads what ``make()`` produces.  For one thread.

    Batches follow each other; a batch that begins elsewhere than the last one ended opens another
    producer there.
    """

    def __init__(
        self, make: Callable[[], FlowProducer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_over: bool = False  # the producer reported that no more records will come
        self._make = make
        self._clock = clock
        self.producer: FlowProducer | None = None
        self._at: dict[str, PartitionCheckpoint] = {}
        self._read: deque[SourceChunk] = deque()  # records polled for a later batch

    def take(self, start: Offset, rows: int) -> tuple[list[Piece], dict[str, PartitionCheckpoint]]:
        """Read up to ``rows`` records from ``start`` on, fewer if they are large; return them, and
        where they end.
        """
        self._go_to(start)
        pieces: list[Piece] = []
        left, size_bytes = rows, 0
        began_at_s = self._clock()
        while left > 0 and size_bytes < _BATCH_BYTES_MAX:
            chunk = self._next(left)
            self.is_over = chunk is None
            if chunk is None:
                break
            if chunk.records:
                chunk = self._cut(chunk, left)
                left -= len(chunk.records)
                size_bytes += sum(sizes_of(chunk.records))
                pieces.append(Piece(chunk.partition, chunk.records))
                self._pass(chunk)
            elif chunk.end is not None:
                self._pass(chunk)
            elif not chunk.is_busy or self._clock() - began_at_s > _BUSY_MAX_S:
                break
        return in_order(pieces), dict(self._at)

    def replay(self, start: Offset, end: Offset) -> list[Piece]:
        """Read the records between ``start`` and ``end`` again: the same, in the same order.

        Raises :class:`SourceError` if the source does not have them any more.
        """
        self._go_to(start)
        missing = {
            name: part.records - self._records(name)
            for name, part in end.partitions.items()
            if part.records > self._records(name)
        }
        pieces: list[Piece] = []
        later: deque[SourceChunk] = deque()
        began_at_s = self._clock()
        while missing:
            chunk = self._next(max(missing.values()))
            if chunk is None or (not chunk.records and self._is_stuck(chunk, began_at_s)):
                raise _gone(missing)
            wanted = missing.get(chunk.partition, 0)
            if not wanted:
                later.append(chunk)
                continue
            began_at_s = self._clock()
            rest = self._cut(chunk, wanted)
            pieces.append(Piece(rest.partition, rest.records))
            self._pass(rest)
            missing[chunk.partition] = wanted - len(rest.records)
            if not missing[chunk.partition]:
                del missing[chunk.partition]
        self._read.extendleft(reversed(later))
        self._check_ends(end)
        return in_order(pieces)

    def close(self) -> None:
        """Close the producer; the next batch opens another."""
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.close()

    # -- parts of it ---------------------------------------------------------------------

    def _go_to(self, start: Offset) -> None:
        if self.producer is not None and self._at == start.partitions:
            return
        self.close()
        self._read.clear()
        self._at = dict(start.partitions)
        self.producer = self._make()
        self.producer.open(start.checkpoint())

    def _next(self, rows: int) -> SourceChunk | None:
        if self._read:
            return self._read.popleft()
        assert self.producer is not None
        return self.producer.poll(min(rows, _POLL_ROWS_MAX))

    def _cut(self, chunk: SourceChunk, rows: int) -> SourceChunk:
        """Return the first ``rows`` of ``chunk``; the rest is read next."""
        if len(chunk.records) <= rows:
            return chunk
        self._read.appendleft(msgspec.structs.replace(chunk, records=chunk.records[rows:]))
        return SourceChunk(chunk.partition, chunk.records[:rows])

    def _pass(self, chunk: SourceChunk) -> None:
        """Count all of ``chunk`` to the batch."""
        before = self._at.get(chunk.partition, PartitionCheckpoint())
        position: Position | None = before.position
        if chunk.records:
            position = chunk.records[-1].position
        self._at[chunk.partition] = PartitionCheckpoint(
            position=position, records=before.records + len(chunk.records), end=chunk.end
        )

    def _records(self, partition: str) -> int:
        return self._at.get(partition, PartitionCheckpoint()).records

    def _is_stuck(self, chunk: SourceChunk, since_s: float) -> bool:
        """Whether a replay would wait for records that do not come."""
        return chunk.end is None and self._clock() - since_s > 10 * _BUSY_MAX_S

    def _check_ends(self, end: Offset) -> None:
        """Check that the repeated read ended where the first did."""
        for name, part in end.partitions.items():
            at = self._at.get(name)
            if at is None or at.position != part.position:
                raise SourceError(
                    f"{name} has other records than when this batch was planned.",
                    remedy="A batch can only be repeated if its source stays: restore it, or begin"
                    " with another checkpointLocation.",
                )
        self._at = dict(end.partitions)


def in_order(pieces: list[Piece]) -> list[Piece]:
    """Return one piece for each partition, by name, as polls mix them in any order.

    A repeated batch must give the same rows in the same order, or a sink that knows rows by their
    numbers would leave out the wrong ones.
    """
    by_name: dict[str, list[Record]] = {}
    for piece in pieces:
        by_name.setdefault(piece.partition, []).extend(piece.records)
    return [Piece(name, by_name[name]) for name in sorted(by_name)]


def _gone(missing: dict[str, int]) -> SourceError:
    name, rows = next(iter(missing.items()))
    return SourceError(
        f"{name} ends {rows} records before the batch that Spark repeats.",
        remedy="A batch can only be repeated if its source stays: restore it, or begin with another"
        " checkpointLocation.",
    )
