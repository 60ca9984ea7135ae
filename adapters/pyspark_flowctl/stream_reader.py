"""``spark.readStream.format("flowctl")``: any producer as a stream whose batches size themselves.

One reader per query lives in Spark's planner process: it reads the source, decides how many rows a
batch has, and cuts them into chunks.  Each chunk is an input partition of Spark's, which free slots
take one after the other; ``process`` runs where a chunk is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from flowctl.adapters import dead_letter_of, load_adapter
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.delivery.batch_rows import BatchRows
from flowctl.delivery.offset_reader import Offset, OffsetReader, Piece
from flowctl.errors import CheckpointUnavailableError, FencedError
from flowctl.logs import ModuleLogger
from flowctl.ports import CheckpointStore
from pyspark_flowctl.stream_options import StreamOptions
from pyspark_flowctl.stream_task import rows_out

# -- How far a stream is, in Redis: for people, and for queries without a checkpoint of Spark's
#
# Spark's checkpoint decides what a batch is. What is in Redis follows it, one batch behind, and
# never goes back.


_log = ModuleLogger("pyspark_flowctl")


class StreamProgress:
    """Reads and saves the progress of one stream; without a store it does nothing."""

    def __init__(self, name: str, store: CheckpointStore | None) -> None:
        self._name = name
        self._store = store
        self._epoch: int | None = None
        self._known: Checkpoint | None = None
        self._has_told = False

    @classmethod
    def of(cls, name: str, redis: str | None) -> StreamProgress:
        """Return the progress of ``name`` in ``redis`` (a URL; None: none)."""
        if not redis:
            return cls(name, None)
        return cls(name, load_adapter("flowctl_redis", "redis").RedisCheckpointStore(redis))

    def start(self) -> dict[str, PartitionCheckpoint]:
        """Return where to begin a query for which Spark has no checkpoint.

        Acked ranges above a position are ignored: a batch has no gaps, so their records are read
        again.
        """
        if self._store is None:
            return {}
        return {
            name: PartitionCheckpoint(position=part.position, records=part.records, end=part.end)
            for name, part in self._store.load(self._name).partitions.items()
        }

    def done(self, end: Offset) -> None:
        """Save that everything up to ``end`` is done.

        An unreachable store doesn't stop the query: the next batch saves again.  Partitions that
        the store has beyond ``end`` (Spark's checkpoint was set back, or deleted) stay unchanged.
        """
        store = self._store
        if store is None:
            return
        try:
            if self._epoch is None or self._known is None:
                self._epoch = store.acquire(self._name)
                self._known = store.load(self._name)
            ahead = self._ahead(end, self._known)
            if ahead:
                store.save(self._name, Checkpoint(ahead), epoch=self._epoch)
                self._known = Checkpoint({**self._known.partitions, **ahead})
        except CheckpointUnavailableError as error:
            self._epoch = None
            self._tell("progress_not_saved", error.problem)
        except FencedError as error:
            self._tell("progress_saved_by_another_query", error.problem)
        else:
            self._has_told = False

    def _ahead(self, end: Offset, known: Checkpoint) -> dict[str, PartitionCheckpoint]:
        none = PartitionCheckpoint()
        return {
            name: part
            for name, part in end.partitions.items()
            if part.records > known.partitions.get(name, none).records_done
            or (part.end is not None and name not in known.partitions)
        }

    def _tell(self, event: str, problem: str) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning(event, stream=self._name, problem=problem)

    def close(self) -> None:
        """Release the store's connections."""
        if self._store is not None:
            self._store.close()


# -- ``spark.readStream.format("flowctl")`` ----------------------------------------------------


# A ProcessingTime trigger counts as waited for if it fires within this time after it was due.
_TICK_S = 0.15


# A source's partition, its records' positions and values, and its first position in the batch.
_Part: TypeAlias = tuple[str, list[tuple[Any, Any]], Any]


class Chunk(InputPartition):
    """The records that one task reads; they travel with it, so a retried task has the same ones."""

    def __init__(self, number: int, pieces: list[_Part]) -> None:
        super().__init__(number)
        self.pieces = pieces

    def records(self) -> Iterator[Piece]:
        """Yield the records, by their partition in the source."""
        for partition, records, batch_first in self.pieces:
            made = [Record(position, value) for position, value in records]
            yield Piece(partition, made, batch_first)


class FlowctlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that Spark asks for batches, in one thread; copies on workers run ``read``."""

    def __init__(
        self,
        options: StreamOptions,
        schema: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        self._wall_clock = wall_clock
        self._reading: OffsetReader | None = None
        self._sizes: BatchRows | None = None
        self._progress: StreamProgress | None = None
        self._taken: tuple[dict[str, Any], dict[str, Any], list[Piece]] | None = None
        self._planned: tuple[int, float] | None = None  # rows, when
        self._batches = 0
        self._stops_when_empty = False
        self._is_over = False
        self._has_told_end = False

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the options and the schema, as workers need no more."""
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["schema"])  # type: ignore[misc]

    # -- the planner ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query new to Spark begins: at the checkpoint in Redis, if there is one."""
        return Offset(self._options.start_rows, self._saved().start()).packed()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the bound, for which Spark asks once; batches choose their size below it."""
        return ReadMaxRows(self._options.batch_rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end when the source has no more records for the moment."""
        self._stops_when_empty = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Read the next batch and return its end; ``start`` itself if there are no records."""
        begin = Offset.unpacked(start)
        sizes = self._sizes_from(begin)
        self._measure(sizes)
        if self._is_over:
            return start
        rows = sizes.rows
        if isinstance(limit, ReadMaxRows):
            rows = min(rows, limit.max_rows)
        pieces, ends = self.source().take(begin, rows)
        if not pieces and ends == begin.partitions:
            self._is_over = self._stops_when_empty
            self._tell_of_end()
            return start
        end = Offset(sizes.rows, ends, self._options.chunks).packed()
        self._taken = (start, end, pieces)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the batch from ``start`` to ``end`` into chunks; after a restart, read it again."""
        taken, self._taken = self._taken, None
        if start == end:
            return []
        if taken is not None and taken[:2] == (start, end):
            pieces = taken[2]
        else:
            begin, finish = Offset.unpacked(start), Offset.unpacked(end)
            self._sizes_from(finish)
            pieces = self.source().replay(begin, finish)
        rows = sum(len(piece.records) for piece in pieces)
        self._planned = rows, self._clock()
        self._batches += 1
        return chunks_of(pieces, Offset.unpacked(end).chunks)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that Spark has finished everything up to ``end``."""
        self._saved().done(Offset.unpacked(end))

    def stop(self) -> None:
        """The query ends."""
        if self._reading is not None:
            self._reading.close()
        if self._progress is not None:
            self._progress.close()

    def _tell_of_end(self) -> None:
        """Log that the query waits in vain: a source that does not follow never has more."""
        if self._stops_when_empty or self._has_told_end or not self.source().is_over:
            return
        self._has_told_end = True
        _log.warning(
            "source_ended",
            stream=self._options.job,
            remedy="The query runs on, but its source gives no more records: what is added is read"
            " when the query is started again. .option('producer.follow', 'true') follows files"
            " that grow or are added; .trigger(availableNow=True) ends the query here.",
        )

    def _measure(self, sizes: BatchRows) -> None:
        """Measure the last batch, which is over as Spark asks for another."""
        planned, self._planned = self._planned, None
        if planned is None or self._batches == 1:
            return  # the first batch includes the start of workers, so its time is ignored
        rows, began_at_s = planned
        sizes.took(rows, self._clock() - began_at_s, is_bound=self._has_ticked())

    def _has_ticked(self) -> bool:
        """Whether this is a tick of the trigger, so that the end of the last batch is unknown."""
        tick_s = self._options.trigger_s
        return tick_s is not None and self._wall_clock() % tick_s < _TICK_S

    def _sizes_from(self, offset: Offset) -> BatchRows:
        if self._sizes is None:
            options = self._options
            rows = offset.rows or options.start_rows
            self._sizes = BatchRows(
                target_s=options.target_batch_s, rows=rows, rows_max=options.batch_rows_max
            )
        return self._sizes

    def source(self) -> OffsetReader:
        if self._reading is None:
            self._reading = OffsetReader(self._options.make_producer)
            _tell_of_letters(self._options)
        return self._reading

    def _saved(self) -> StreamProgress:
        if self._progress is None:
            self._progress = StreamProgress.of(self._options.job, self._options.redis)
        return self._progress

    # -- workers -------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Process a whole chunk, then yield the rows as Arrow batches."""
        assert isinstance(partition, Chunk)
        yield from rows_out(self._options, self._schema, partition.records())


def chunks_of(pieces: Sequence[Piece], most: int) -> list[Chunk]:
    """Cut a batch into at most ``most`` chunks of about the same number of records.

    The same records in the same order make the same chunks.
    """
    size = max(1, -(-sum(len(piece.records) for piece in pieces) // most))
    chunks: list[list[_Part]] = [[]]
    room = size
    for piece in pieces:
        at = 0
        while at < len(piece.records):
            if not room:
                chunks.append([])
                room = size
            part = piece.records[at : at + room]
            rows = [(r.position, r.value) for r in part]
            chunks[-1].append((piece.partition, rows, piece.records[0].position))
            at += len(part)
            room -= len(part)
    return [Chunk(number, each) for number, each in enumerate(chunks)]


def _tell_of_letters(options: StreamOptions) -> None:
    """Warn of waiting letters, whose rows would be missing in a batch that Spark repeats."""
    if not options.dead_letter:
        return
    try:
        waiting = len(dead_letter_of(options.dead_letter).to_redrive(options.job))
    except OSError:
        return  # only workers have the directory
    if waiting:
        _log.warning(
            "letters_wait",
            stream=options.job,
            letters=waiting,
            remedy="They are marked for redrive, which a stream does not do. Process them by a"
            " query of their own, with flowctl_files:MarkedLetters as producer: docs/streaming.md,"
            " Letters.",
        )


def reader_of(options: Mapping[str, str], schema: str) -> FlowctlStreamReader:
    """Return the reader for ``options``; raise :class:`ConfigError` that names a wrong option."""
    return FlowctlStreamReader(StreamOptions.of(options), schema)
