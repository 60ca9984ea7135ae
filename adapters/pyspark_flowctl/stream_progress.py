"""How far a stream is, in Redis: for people, and for queries without a checkpoint of Spark's.

Spark's checkpoint decides what a batch is.  What is in Redis follows it, one batch behind, and
never goes back.
"""

from __future__ import annotations

from flowctl.adapters import load_adapter
from flowctl.core.records import Checkpoint, PartitionCheckpoint
from flowctl.delivery.reading import Offset
from flowctl.errors import CheckpointUnavailableError, FencedError
from flowctl.logs import ModuleLogger
from flowctl.ports import CheckpointStore

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
    def of(cls, name: str, redis: str) -> StreamProgress:
        """Return the progress of ``name`` in ``redis`` (a URL; "": none)."""
        if not redis:
            return cls(name, None)
        return cls(name, load_adapter("flowctl_redis", "redis").RedisCheckpointStore(redis))

    def start(self) -> dict[str, PartitionCheckpoint]:
        """Return where a query begins that Spark knows nothing of.

        Acked ranges above a position are left out: a batch has no holes, and what is in them is
        read again.
        """
        if self._store is None:
            return {}
        return {
            name: PartitionCheckpoint(position=part.position, records=part.records, end=part.end)
            for name, part in self._store.load(self._name).partitions.items()
        }

    def done(self, end: Offset) -> None:
        """Save that everything up to ``end`` is done.

        A store that is away holds nothing up: the next batch saves again.  Partitions for which it
        is already further (Spark's checkpoint was set back, or deleted) stay as they are.
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
