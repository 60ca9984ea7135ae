"""Dead letters in files: the records that can't be processed."""

from __future__ import annotations

import copy
import os
import shlex
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flowctl import disk
from flowctl.arguments import check_arguments
from flowctl.core.letters import LeftOut, Letter, redrive_number
from flowctl.core.records import Checkpoint, PartitionCheckpoint, Record
from flowctl.errors import ConfigError, SourceError
from flowctl.ports import SourceChunk
from flowctl_files._letters import Fate, LetterFile, Line, line_of

if TYPE_CHECKING:
    from typing_extensions import Self


DEFAULT_DIRECTORY: Final = Path(".flowctl", "dead-letters")
DIRECTORY_VARIABLE: Final = "FLOWCTL_DEAD_LETTERS"
_SUFFIX: Final = ".jsonl"


class _InFiles:
    """A :class:`flowctl.ports.RedrivableDeadLetter` in files; the subclass chooses the file."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, int, int], Letter] = {}  # by job, redrive, position there
        self._task_attempt = ""

    def file_of(self, job: str) -> LetterFile:
        """Return the file that holds the letters of ``job``."""
        raise NotImplementedError

    def dead_letter(
        self,
        job: str,
        partition: str,
        records: Sequence[Record],
        *,
        attempts: int,
        reason: str,
        bolts: Sequence[str] = (),
        epoch: int | None = None,
    ) -> None:
        """See :class:`flowctl.ports.RedrivableDeadLetter`; raises ``OSError``."""
        lines = self._lines(
            job, partition, records, attempts=attempts, reason=reason, bolts=bolts, epoch=epoch
        )
        self.file_of(job).append(lines)

    def dead_letter_many(
        self, job: str, dead: Sequence[LeftOut], *, epoch: int | None = None
    ) -> None:
        """See :class:`flowctl.ports.BatchDeadLetter`; raises ``OSError``."""
        if type(self).dead_letter is not _InFiles.dead_letter:
            for one in dead:  # a user's subclass may override the method for single letters
                self.dead_letter(
                    job, one.partition, one.records, attempts=one.attempts, reason=one.reason,
                    bolts=one.bolts, epoch=epoch,
                )  # fmt: skip
            return
        lines = [
            line
            for one in dead
            for line in self._lines(
                job, one.partition, one.records, attempts=one.attempts, reason=one.reason,
                bolts=one.bolts, epoch=epoch,
            )
        ]  # fmt: skip
        self.file_of(job).append(lines)

    def _lines(
        self,
        job: str,
        partition: str,
        records: Sequence[Record],
        *,
        attempts: int,
        reason: str,
        bolts: Sequence[str],
        epoch: int | None,
    ) -> list[Line]:
        number = redrive_number(partition)
        return [
            line_of(
                job, partition, record, attempts=attempts, reason=reason, bolts=bolts, epoch=epoch,
                redriven=self._redriven(job, number, record), task_attempt=self._task_attempt,
            )
            for record in records
        ]  # fmt: skip

    def _redriven(self, job: str, number: int | None, record: Record) -> Letter | None:
        if number is None or not isinstance(record.position, int):
            return None
        return self._given.get((job, number, record.position))

    def to_redrive(self, job: str) -> Sequence[Letter]:
        """See :class:`flowctl.ports.RedrivableDeadLetter`; raises ``OSError``."""
        waiting = [letter for letter in self.letters(job) if letter.redrive]
        for letter in waiting:
            if letter.redrive is not None:
                number, position = letter.redrive
                self._given[job, number, position] = letter
        return waiting

    def on_redriven(self, job: str, letters: Sequence[Letter]) -> None:
        """See :class:`flowctl.ports.RedrivableDeadLetter`; raises ``OSError``."""
        file = self.file_of(job)
        file.redriven(job, letters)
        for letter in letters:
            if letter.redrive is not None:
                self._given.pop((job, *letter.redrive), None)
        if not any(owner == job for owner, *_ in self._given):
            file.tidy()

    def of_attempt(self) -> Self:
        """See :class:`flowctl.ports.AttemptDeadLetter`."""
        one = copy.copy(self)
        one._task_attempt = uuid.uuid4().hex[:16]
        return one

    def count_attempt(self, job: str, partition: str, fate: Fate) -> None:
        """See :class:`flowctl.ports.AttemptDeadLetter`; raises ``OSError``."""
        self.file_of(job).count_attempt(job, partition, self._task_attempt, fate)

    def letters(self, job: str) -> Sequence[Letter]:
        """See :class:`flowctl.ports.ReadableDeadLetter`; raises ``OSError``."""
        return self.file_of(job).read().of(job)

    def open_letters(self, job: str) -> int:
        """See :class:`flowctl.ports.CountingDeadLetter`; raises ``OSError``."""
        return sum(owner == job for owner, _ in self.file_of(job).read().held)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""


class FileDeadLetter(_InFiles):
    """One file per job in ``directory``, which ``flowctl dlq`` finds by the job's name.

    Default: the directory that ``FLOWCTL_DEAD_LETTERS`` names, or ``.flowctl/dead-letters``.  Each
    record is a line of JSON that is on the disk (fsync) before the record counts as done, with its
    value for people and, as base64, exactly.
    """

    @check_arguments("directory")
    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        given = default_directory() if directory is None else directory
        _refuse_url("directory", given)
        self.directory: Path = Path(given).expanduser()

    def file_of(self, job: str) -> LetterFile:
        """Return the file that holds the letters of ``job``."""
        return LetterFile(self.directory / disk.file_name(job, _SUFFIX))

    def hint(self, job: str) -> str:
        """Return the command that shows the letters of ``job``."""
        words = ["flowctl", "dlq", "show", job]
        if self.directory.absolute() != default_directory().absolute():
            words += ["--dir", str(self.directory)]
        return shlex.join(words)


class JsonLinesDeadLetter(_InFiles):
    """Like :class:`FileDeadLetter`, but all jobs share one file, ``path``.

    Without a path it is a :class:`FileDeadLetter` in the default directory.  Show its letters with
    ``flowctl dlq show NAME --file PATH``.
    """

    @check_arguments("path")
    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        if path is not None:
            _refuse_url("path", path)
        self._all = LetterFile(path) if path is not None else None
        self._by_job = FileDeadLetter()

    def file_of(self, job: str) -> LetterFile:
        """Return the file that holds the letters of ``job``."""
        return self._all or self._by_job.file_of(job)

    def hint(self, job: str) -> str:
        """Return the command that shows the letters of ``job``."""
        if self._all is None:
            return self._by_job.hint(job)
        return shlex.join(["flowctl", "dlq", "show", job, "--file", self._all.path])


def _refuse_url(argument: str, given: str | os.PathLike[str]) -> None:
    if not os.fspath(given):
        raise ConfigError(
            argument, "it is empty.", remedy=f"Leave it out, or give {DEFAULT_DIRECTORY}."
        )
    if disk.is_url(given):
        raise ConfigError(
            argument,
            f"{os.fspath(given)!r} is a URL, and letters are kept in files of a disk.",
            remedy="Give a directory; on Spark one that all workers mount.",
        )


def default_directory() -> Path:
    """Return the default directory of letters."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def files_in(directory: Path) -> list[LetterFile]:
    """Return the files of letters in ``directory``, sorted; none if there is no such directory."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [LetterFile(directory / name) for name in names if name.endswith(_SUFFIX)]


# -- Letters as a source: for a Spark stream, whose own records they can't be any more ---------


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
