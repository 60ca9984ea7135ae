"""A checkpoint store that keeps receipts, in a manifest that is written before the checkpoint."""

from __future__ import annotations

import secrets
import shlex
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from flowctl.core.rangeset import RangeSet
from flowctl.core.records import Checkpoint, Position, Receipts
from flowctl.errors import ConfigError, FencedError, InternalError
from flowctl.ports import CheckpointStore
from flowctl.runtime.receipts import (
    Entry,
    Segment,
    accepted,
    adopted,
    beyond,
    compacted,
    coverage,
    disjoint,
    missing,
    pieces_of,
)

_TOKEN_BYTES = 4  # it only distinguishes drivers that begin within the same second


class Manifest(Protocol):
    """Keeps the segments of one job.  Called by one thread at a time.

    All methods raise :class:`flowctl.errors.CheckpointUnavailableError` if trying again may help.
    """

    where: str
    """For people: the place in which it is."""

    def segments(self) -> Sequence[Segment]:
        """Return all segments, in any order."""

    def newest_base(self) -> tuple[int, str] | None:
        """Return the epoch and token of the newest base (the largest pair); None: there is none.

        Called before each :meth:`append`, so it must be cheap.
        """

    def append(self, segment: Segment) -> None:
        """Keep ``segment``: it survives a loss of power when this returns.

        The same segment may be appended again, if it is not known whether it was kept.
        """

    def forget_before(self, epoch: int, token: str) -> None:
        """Remove what is older than this base, which is kept; it is no longer needed."""


class ReceiptStore:
    """A :class:`flowctl.ports.CheckpointStore` for one job, over ``inner`` and ``manifest``.

    Also a :class:`flowctl.range_ports.ReceiptLog`.  Receipts are written before the
    checkpoint that counts them, so after a kill the manifest knows at least as much as ``inner``:
    :meth:`load` returns what the manifest covers.  A driver that a newer one has replaced is
    fenced by the manifest too, so this works with ``inner`` in memory.  What a checkpoint counts
    without a receipt (a record in the dead letter) is in the manifest as well, so the manifest
    covers all that the checkpoint counts.  Thread-safe.

    ``unnamed`` returns, for the epoch of a driver that was killed, the results that its bolts had
    finished and that the manifest does not name.  Such a result counts if no named one covers any
    part of it.
    """

    survives = True  # the manifest fences, whatever ``inner`` does

    def __init__(
        self,
        inner: CheckpointStore,
        manifest: Manifest,
        unnamed: Callable[[int], Sequence[Entry]] = lambda epoch: (),
    ) -> None:
        self._inner = inner
        self._manifest = manifest
        self._unnamed = unnamed
        self._lock = threading.Lock()  # guards _kept and _covered
        self._saving = threading.Lock()
        self._kept: list[Entry] = []
        self._covered: dict[str, RangeSet] = {}
        self._writing: Segment | None = None
        self._base = (0, "")
        self._number = 0
        self._adopted = Checkpoint()

    @property
    def inner(self) -> CheckpointStore:
        """The checkpoint store that this one wraps."""
        return self._inner

    def entries(self) -> Sequence[Receipts]:
        """Return nothing: :meth:`load` has adopted the receipts of earlier runs."""
        return ()

    def append(self, entries: Sequence[Receipts]) -> None:
        """Keep ``entries``, no part of which was done before, until the next :meth:`save`."""
        with self._lock:
            for entry in entries:
                self._append(entry)

    def _append(self, entry: Receipts) -> None:
        span = (entry.start, entry.stop)
        whole = Entry(
            entry.partition, *span, entry.records, tuple(entry.receipts), entry.kept_nowhere
        )
        covered = self._covered.setdefault(entry.partition, RangeSet())
        free = missing({entry.partition: span}, {entry.partition: covered})
        if free != [(entry.partition, *span)]:
            raise InternalError(f"receipts of {entry.partition} {span}: settled before, in part.")
        pieces = pieces_of(whole, entry.apart)
        for piece in pieces:
            if piece.start < piece.stop:
                covered.add(piece.start, piece.stop)
        self._kept += pieces

    def acquire(self, job: str) -> int:
        """Take ownership; adopt the manifest's entries as the base of this driver."""
        epoch = self._inner.acquire(job)
        newest = self._manifest.newest_base()
        # A store that lost its data, or one in memory on a machine whose clock is behind, starts
        # below.  Each call gives a larger epoch, so this also fences by it.
        while newest is not None and epoch <= newest[0]:
            epoch = self._inner.acquire(job)
        entries = compacted(self._known())
        self._base = (epoch, secrets.token_hex(_TOKEN_BYTES))
        self._number = 0
        with self._lock:
            self._kept.clear()
            self._covered = coverage(entries)
        self._writing = None
        self._check(job, entries)
        self._manifest.append(Segment(*self._base, 0, tuple(entries), is_base=True))
        self._manifest.forget_before(*self._base)
        self._adopted = adopted(entries)
        return epoch

    def _known(self) -> list[Entry]:
        """Return the manifest's entries, and what the newest driver's bolts finished besides."""
        segments = self._manifest.segments()
        newest = max((one.epoch for one in segments if one.is_base), default=None)
        named = accepted(segments)
        return named if newest is None else disjoint([*named, *self._unnamed(newest)])

    def _check(self, job: str, entries: Sequence[Entry]) -> None:
        """Refuse a checkpoint that counts what the manifest does not hold."""
        lost = beyond(self._inner.load(job), coverage(entries))
        if lost:
            partition, start, stop = lost[0]
            raise ConfigError(
                "out",
                f"the checkpoint of {job!r} counts {partition} {start} to {stop - 1} as done, but"
                f" {self._manifest.where} holds no results of that.",
                remedy="Give the out of the run that did it, or another name. To process everything"
                f" again: `flowctl checkpoint clear {shlex.quote(job)}`.",
            )

    def load(self, job: str) -> Checkpoint:
        """Return the adopted checkpoint; call :meth:`acquire` before."""
        del job
        return self._adopted

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        """Write the receipts kept so far, then the checkpoint."""
        with self._saving:
            self._note_left_out(checkpoint)
            self._flush()
            self._inner.save(job, checkpoint, epoch=epoch)

    def _note_left_out(self, checkpoint: Checkpoint) -> None:
        """Note that records which are done without a receipt are in the dead letter: they have no
        results.
        """
        with self._lock:
            for partition, start, stop in beyond(checkpoint, self._covered):
                self._covered.setdefault(partition, RangeSet()).add(start, stop)
                self._kept.append(Entry(partition, start, stop, stop - start))

    @property
    def base(self) -> tuple[int, str]:
        """The epoch and token of this driver, once it has acquired the job."""
        return self._base

    def check_owner(self) -> None:
        """Raise :class:`FencedError` if a newer driver has acquired the job."""
        if self._manifest.newest_base() != self._base:
            raise FencedError(
                f"another driver has taken over the results in {self._manifest.where}.",
                remedy="Let it work; or, to keep both, give one another name and out.",
            )

    def _flush(self) -> None:
        while (segment := self._next()) is not None:
            self.check_owner()
            self._manifest.append(segment)
            self._writing = None

    def _next(self) -> Segment | None:
        """Return the segment to write: the same again until that has succeeded."""
        if self._writing is None:
            with self._lock:
                kept, self._kept = self._kept, []
            if kept:
                self._number += 1
                self._writing = Segment(*self._base, self._number, tuple(kept))
        return self._writing

    def jobs(self) -> Sequence[str]:
        """See :class:`flowctl.ports.CheckpointStore`."""
        return self._inner.jobs()

    def rewind(self, job: str, partition: str, position: Position | None) -> None:
        """Has no effect on results: the next run adopts what the manifest holds."""
        self._inner.rewind(job, partition, position)

    def clear(self, job: str) -> bool:
        """Has no effect on results: the next run adopts what the manifest holds."""
        return self._inner.clear(job)

    def close(self) -> None:
        """See :class:`flowctl.ports.CheckpointStore`."""
        self._inner.close()
