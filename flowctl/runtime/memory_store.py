"""The checkpoint of ``checkpoint=None``: for tests, and for jobs that may start over."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import msgspec

from flowctl.core.positions import encode, show
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Position
from flowctl.errors import ConfigError, FencedError, InternalError


class _Stored(msgspec.Struct):
    epoch: int = 0
    saved: bool = False
    partitions: dict[str, PartitionCheckpoint] = {}


class MemoryCheckpointStore:
    """A :class:`flowctl.ports.CheckpointStore` that lives as long as the object.  Thread-safe.

    Give one object to several drivers: they fence each other as they would with a server.
    """

    survives = False  # what is saved is lost with the process

    def __init__(self) -> None:
        self._jobs: dict[str, _Stored] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"MemoryCheckpointStore({len(self._jobs)} jobs)"

    def acquire(self, job: str) -> int:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            stored = self._jobs.setdefault(job, _Stored())
            # Starts at the time of day, as its data are lost with the process: see the protocol.
            stored.epoch = max(stored.epoch + 1, int(time.time()))
            return stored.epoch

    def load(self, job: str) -> Checkpoint:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            stored = self._jobs.get(job, _Stored())
            return Checkpoint(dict(stored.partitions))

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            stored = self._jobs.setdefault(job, _Stored())
            if epoch < stored.epoch:
                raise FencedError(
                    f"job {job!r} was taken over from this driver (epoch {stored.epoch}, ours"
                    f" {epoch}):"
                    " another driver has started, or somebody cleared or rewound its checkpoint.",
                    remedy="If it was cleared or rewound, start the job again. If another driver"
                    " was started on purpose, let it work; otherwise give this job another name.",
                )
            for name, value in checkpoint.partitions.items():
                before = stored.partitions.get(name, PartitionCheckpoint())
                if _sort_key(value.position) < _sort_key(before.position):
                    raise InternalError(
                        f"job {job!r}, partition {name!r}: the position would go back.",
                        remedy="Please report this.",
                    )
            stored.epoch, stored.saved = epoch, True
            stored.partitions.update(checkpoint.partitions)

    def jobs(self) -> Sequence[str]:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            return sorted(job for job, stored in self._jobs.items() if stored.saved)

    def rewind(self, job: str, partition: str, position: Position | None) -> None:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            stored = self._jobs.get(job, _Stored())
            before = stored.partitions.get(partition)
            if before is None:
                field, what = ("partition", partition) if stored.saved else ("job", job)
                raise ConfigError(field, f"nothing is stored for {what!r}.", remedy="See jobs().")
            if _sort_key(position) > _sort_key(before.position):
                raise ConfigError(
                    "position",
                    f"{show(position)} lies ahead of what is saved, {show(before.position)}.",
                    remedy="Give a position at or below it.",
                )
            kept_records = before.records if position == before.position else 0
            stored.partitions[partition] = PartitionCheckpoint(
                position, kept_records, given_up=before.given_up
            )
            stored.epoch += 1

    def clear(self, job: str) -> bool:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            stored = self._jobs.get(job)
            if stored is None:
                return False
            self._jobs[job] = _Stored(epoch=stored.epoch + 1)
            return stored.saved

    def close(self) -> None:
        """Keeps everything: another driver may share the object."""


def _sort_key(position: Position | None) -> bytes:
    return b"" if position is None else encode(position)
