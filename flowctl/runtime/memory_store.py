"""Checkpoint stores that only need a place for the states of jobs: here in memory, ``file_store``
on disk.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from flowctl.core.records import Checkpoint, Position
from flowctl.core.stored_job import StoredJob, acquired, cleared, no_name, rewound, saved


class StateStore(ABC):
    """A :class:`flowctl.ports.CheckpointStore` with the rules of :mod:`flowctl.core.stored_job`.

    Thread-safe if :meth:`change` is.
    """

    @abstractmethod
    def change(self, job: str, how: Callable[[StoredJob], StoredJob]) -> StoredJob:
        """Replace the stored state by what ``how`` makes of it, with no other change in between.

        Returns the new state; changes nothing if ``how`` raises.
        """

    @abstractmethod
    def inspect(self, job: str) -> StoredJob:
        """Return all that is stored of ``job``, for display."""

    @abstractmethod
    def jobs(self) -> Sequence[str]:
        """See :class:`flowctl.ports.CheckpointStore`."""

    @abstractmethod
    def remember(self, job: str, learned: bytes) -> None:
        """See :class:`flowctl.ports.RememberingStore`."""

    def acquire(self, job: str) -> int:
        """See :class:`flowctl.ports.CheckpointStore`."""
        now_unix_s = int(time.time())
        return self.change(job, lambda stored: acquired(stored, now_unix_s=now_unix_s)).epoch

    def load(self, job: str) -> Checkpoint:
        """See :class:`flowctl.ports.CheckpointStore`."""
        return Checkpoint(dict(self.inspect(job).checkpoint.partitions))

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        """See :class:`flowctl.ports.CheckpointStore`."""
        now_unix_ms = time.time_ns() // 1_000_000
        self.change(
            job, lambda stored: saved(stored, checkpoint, epoch=epoch, now_unix_ms=now_unix_ms)
        )

    def rewind(self, job: str, partition: str, position: Position | None) -> None:
        """See :class:`flowctl.ports.CheckpointStore`."""
        self.change(job, lambda stored: rewound(stored, partition, position))

    def clear(self, job: str) -> bool:
        """See :class:`flowctl.ports.CheckpointStore`."""
        self.remember(job, b"")
        was_saved = False

        def clear(stored: StoredJob) -> StoredJob:
            nonlocal was_saved
            was_saved = stored.saved_at_unix_ms > 0
            return cleared(stored)

        self.change(job, clear)
        return was_saved

    def close(self) -> None:  # noqa: B027
        """Do nothing: no connection is open, and another driver may share the object."""


class MemoryCheckpointStore(StateStore):
    """A :class:`flowctl.ports.CheckpointStore` that lives as long as the object.  Thread-safe.

    Give one object to several drivers: they fence each other as they would with a server.
    ``caution`` says why there is no better one; it is shown when a run begins.
    """

    survives = False  # what is saved is lost with the process

    def __init__(self, *, caution: str = "") -> None:
        self.caution: str = caution
        self._jobs: dict[str, StoredJob] = {}
        self._learned: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"MemoryCheckpointStore({len(self._jobs)} jobs)"

    def change(self, job: str, how: Callable[[StoredJob], StoredJob]) -> StoredJob:
        """See :class:`StateStore`."""
        with self._lock:
            stored = self._jobs[job] = how(self._of(job))
            return stored

    def inspect(self, job: str) -> StoredJob:
        """See :class:`StateStore`."""
        with self._lock:
            return self._of(job)

    def _of(self, job: str) -> StoredJob:
        if not job:
            raise no_name()
        return self._jobs.get(job) or StoredJob(job=job)

    def remember(self, job: str, learned: bytes) -> None:
        """See :class:`flowctl.ports.RememberingStore`."""
        self._learned[job] = learned

    def remembered(self, job: str) -> bytes:
        """See :class:`flowctl.ports.RememberingStore`."""
        return self._learned.get(job, b"")

    def jobs(self) -> Sequence[str]:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            return sorted(job for job, stored in self._jobs.items() if stored.saved_at_unix_ms)
