"""Let the driver read a source by reference: then its records travel to the bolts, in order.

The source by reference decides which partitions exist, where a resumed run goes on and which files
have changed.  So positions, ends and marks are the same, and a job may change from one to the
other.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final

from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import SourceError
from flowctl.ports import SourceChunk, SourceProgress
from flowctl.range_ports import Block, RangeProducer
from flowctl_files._paths import check_folder, is_remote, unreadable

# Turning this many rows of some columns into dicts takes some 10 ms: poll stays within its 100 ms.
_BATCH_RECORDS: Final = 2_000
_NOTHING: Final = PartitionCheckpoint()


class ByValue:
    """Reads the partitions of ``ranges`` one after the other: a
    :class:`flowctl.ports.FlowProducer`."""

    def __init__(self, ranges: RangeProducer) -> None:
        self._ranges = ranges
        self._reset({}, Checkpoint())

    def _reset(self, extents: Mapping[str, Extent], checkpoint: Checkpoint) -> None:
        self._extents = extents
        self._folder = os.getcwd()  # the working directory, to which relative names belong
        self._error: BaseException | None = None
        self._name = ""  # name of the partition being read
        self._blocks: Iterator[Block] | None = None  # its remaining blocks
        self._block: Block | None = None
        self._at = 0  # the next record in the block
        starts = {name: self._start_of(name, checkpoint) for name in extents}
        self._queue = iter([(name, start) for name, start in starts.items() if start is not None])
        self._done_bytes = sum(self._bytes_of(n) for n, start in starts.items() if start is None)

    def _start_of(self, name: str, checkpoint: Checkpoint) -> int | None:
        """Return the first position that is not done; None if the whole partition is done."""
        saved = checkpoint.partitions.get(name, _NOTHING)
        if saved.end is not None and saved.end == self._extents[name].identity:
            return None
        # The source by reference has checked that its positions are ints.
        return saved.position + 1 if isinstance(saved.position, int) else self._extents[name].start

    def _bytes_of(self, name: str) -> int:
        return self._extents[name].size_bytes or 0

    def partitions(self) -> Sequence[str]:
        """The files, sorted."""
        return list(self._ranges.extents(Checkpoint()))

    def open(self, checkpoint: Checkpoint) -> None:
        """Prepare to read on; fails early if a file is missing or was written again."""
        self.close()
        self._reset(self._ranges.extents(checkpoint), checkpoint)

    def poll(self, max_records: int) -> SourceChunk | None:
        """Return the next records, all of one partition; see
        :class:`flowctl.ports.FlowProducer`."""
        if self._error is not None:
            raise self._error  # raised by each later call too: nothing after the error may be read
        try:
            return self._next_chunk(min(max_records, _BATCH_RECORDS))
        except OSError as error:
            self._error = unreadable(self._name, error)
            raise self._error from error
        except SourceError as error:
            self._error = error
            raise

    def _next_chunk(self, most: int) -> SourceChunk | None:
        if self._blocks is None and not self._next_partition():
            return None
        while self._block is None or self._at == len(self._block):
            self._at = 0
            assert self._blocks is not None
            self._block = next(self._blocks, None)
            if self._block is None:
                self._leave()
                self._done_bytes += self._bytes_of(self._name)
                return SourceChunk(self._name, (), end=self._extents[self._name].identity)
        first, self._at = self._at, min(self._at + most, len(self._block))
        records = self.records_of(self._block, first, self._at)
        mark = self._extents[self._name].identity if records else None
        return SourceChunk(self._name, records, mark=mark)

    def _next_partition(self) -> bool:
        name, start = next(self._queue, ("", 0))
        if not name:
            return False
        if not is_remote(name):
            check_folder(name, self._folder)
        self._name, extent = name, self._extents[name]
        self._blocks = iter(self._ranges.reader().open(name, start, extent.stop, extent.identity))
        return True

    def records_of(self, block: Block, i: int, j: int) -> list[Record]:
        """Return records ``i`` to ``j - 1`` of a block of the partition that is read."""
        return list(block.batch_records(i, j))

    def _leave(self) -> None:
        blocks, self._blocks, self._block, self._at = self._blocks, None, None, 0
        if isinstance(blocks, Generator):
            blocks.close()

    def close(self) -> None:
        """Close the open file; harmless when repeated."""
        self._leave()
        self._queue = iter(())
        self._ranges.close()

    def progress(self) -> SourceProgress:
        """Bytes read so far, and bytes of all partitions; callable from any thread."""
        return SourceProgress(self._done_bytes, sum(map(self._bytes_of, self._extents)), "bytes")
