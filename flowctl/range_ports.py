"""Sources that the bolts read themselves, as protocols: a source by reference.

The driver asks a :class:`RangeProducer` how far each partition reaches and hands out ranges of it;
the bolts read them with the producer's :class:`RangeReader`.  ``flowctl.testing.range_conformance``
has a suite for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Receipts, Record

B = TypeVar("B", bound="Block")


class Block(Protocol):
    """Consecutive records that were read at once, about 1 MiB.  Used by one thread at a time.

    ``len(block)`` is how many records it holds, which may be 0.
    """

    @property
    def stop(self) -> int:
        """The end of the block: it has every record that begins below, from the previous block's
        ``stop`` on.
        """

    @property
    def size_bytes(self) -> int:
        """How much memory the block takes, roughly."""

    def __len__(self) -> int: ...

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        """Return records ``i`` to ``j - 1``; their positions are ints in rising order.

        A source that has columns returns :class:`flowctl.core.records.ColumnRecords`.
        """

    def position(self, i: int) -> int:
        """Return the position of record ``i``; that of ``len(block)`` is ``stop``."""


class RangeReader(Protocol):
    """Reads ranges on the workers.

    It is sent to each worker once (by cloudpickle), so it must hold no secrets: each worker finds
    its own credentials.  Thread-safe: several bolts of one process share it.
    """

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[Block]:
        """Yield the records that *begin* in ``[start, stop)``, in order.

        The last block's ``stop`` is the range's, but any block may become the last one: a range is
        cut short when another bolt helps.  So what ``identity`` says is compared after each block
        was read, before it is yielded (:func:`verified`): no record of a source that changed is
        processed, as far as that can be known.  The result is a generator: its ``close`` releases
        what it holds, from the thread that iterates.  Raises
        :class:`flowctl.errors.SourceError` if reading again can't help: the source isn't there, may
        not be read, or is no longer what ``identity`` says.  Other errors are tried again.
        """


@runtime_checkable
class RangeProducer(Protocol):
    """A source whose partitions the bolts read themselves.  All calls come from one thread."""

    def extents(self, checkpoint: Checkpoint) -> Mapping[str, Extent]:
        """Return how far each partition reaches, by name; names are stable between runs.

        Called when a run begins, with what is already done, and again now and then if an extent is
        not final.  ``start`` and the identity of a partition never change within a run.
        """

    def reader(self) -> RangeReader:
        """Return what the bolts read with.  A run calls it after its first ``extents``."""

    def close(self) -> None:
        """Release what ``extents`` acquired; called once, also after errors."""


class ReceiptLog(Protocol):
    """Keeps the receipts of ``process``, with the part of the source that they belong to.

    The log is the truth, the checkpoint its index: a part in the log is done.
    """

    def entries(self) -> Iterable[Receipts]:
        """Return the entries that earlier runs of the job kept; called once, when a run begins."""

    def append(self, entries: Sequence[Receipts]) -> None:
        """Keep ``entries``, durably, before the checkpoint that covers them is saved.

        From one thread at a time.  What it raises ends the run; an
        :class:`flowctl.errors.CheckpointUnavailableError` has it called again with the same
        entries, and more.
        """


def verified(
    blocks: Iterable[B], check: Callable[[], object], *, every_bytes: int = 0
) -> Iterator[B]:
    """Yield ``blocks``, each after ``check`` has been called since it was read.

    ``check`` raises if the source has changed.  If a check costs a request, blocks are collected up
    to ``every_bytes`` for one check, but not while there is nothing to read.
    """
    waiting: list[B] = []
    size_bytes, read_to = 0, None
    try:
        for block in blocks:
            is_idle = block.stop == read_to
            read_to = block.stop
            waiting.append(block)
            size_bytes += block.size_bytes
            if size_bytes < every_bytes and not is_idle:
                continue
            if len(waiting) > 1 or not is_idle:
                check()
            yield from waiting
            waiting, size_bytes = [], 0
    except Exception:
        check()  # records read before the error are good if the source is still the same
        yield from waiting
        raise
    if waiting:
        check()
        yield from waiting
