"""Letters as a source: for a Spark stream, whose own records they can't be any more."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from flowctl.arguments import check_arguments
from flowctl.core.letters import Letter
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import SourceError
from flowctl.ports import SourceChunk
from flowctl_files.dead_letter import FileDeadLetter


class MarkedLetters:
    """Reads the letters of ``job`` that ``flowctl dlq redrive`` has marked: a
    :class:`flowctl.ports.FlowProducer`.

    A job redrives its letters by itself; ``spark.readStream.format("flowctl")`` does not, because a
    batch that Spark repeats must have the same rows.  There a query of its own, over this source,
    processes them.  Each redrive is a partition, ``letters-NUMBER``, with the letters in their
    order.  They stay in the file, marked, so that a batch can be repeated: when the query has
    ended, ``flowctl dlq drop JOB --marked`` removes them.  Give the query another name than
    ``job``: what fails again becomes a letter of that name.

    ``directory`` is as in :class:`FileDeadLetter`.  Letters that are marked while it reads are left
    out.
    Raises :class:`SourceError` if the letters can't be read.
    """

    @check_arguments("job", "directory")
    def __init__(self, job: str, directory: str | os.PathLike[str] | None = None) -> None:
        self._job = job
        self._file = FileDeadLetter(directory).file_of(job)
        self._chunks: deque[SourceChunk] = deque()

    def partitions(self) -> Sequence[str]:
        """See :class:`flowctl.ports.FlowProducer`."""
        return list(self._marked())

    def open(self, checkpoint: Checkpoint) -> None:
        """See :class:`flowctl.ports.FlowProducer`."""
        none = PartitionCheckpoint()
        self._chunks.clear()
        for name, letters in self._marked().items():
            done = checkpoint.partitions.get(name, none).position
            left = [
                Record(at, letters[at].value)
                for at in sorted(letters)
                if not isinstance(done, int) or at > done
            ]
            if left:
                self._chunks.append(SourceChunk(name, left))

    def poll(self, max_records: int) -> SourceChunk | None:
        """See :class:`flowctl.ports.FlowProducer`."""
        if not self._chunks or max_records <= 0:
            return None
        chunk = self._chunks.popleft()
        if len(chunk.records) > max_records:
            self._chunks.appendleft(SourceChunk(chunk.partition, chunk.records[max_records:]))
        return SourceChunk(chunk.partition, chunk.records[:max_records])

    def close(self) -> None:
        """See :class:`flowctl.ports.FlowProducer`."""
        self._chunks.clear()

    def _marked(self) -> dict[str, dict[int, Letter]]:
        try:
            letters = self._file.read().of(self._job)
        except OSError as error:
            raise SourceError(
                f"the letters of {self._job} can't be read: {error}.",
                remedy="Give the directory that the stream's dead_letter names.",
            ) from error
        found: dict[str, dict[int, Letter]] = {}
        for letter in letters:
            if letter.redrive is not None:
                number, position = letter.redrive
                found.setdefault(f"letters-{number}", {})[position] = letter
        return dict(sorted(found.items()))
