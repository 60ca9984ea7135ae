"""The results of a job at a place: which files they are, what is known of the job, what may go."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from flowctl.checksums import with_crc
from flowctl.errors import CheckpointCorruptError, InfrastructureError, InternalError
from flowctl_apply._manifest import VERSION, PlaceManifest, checked, directory_of, jobs_at
from flowctl_apply._places import Found, Place

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch
    from flowctl.runtime.receipts import Entry

_T = TypeVar("_T")
_HASH_CHARS = 8  # two jobs at one place whose names differ only in odd characters
_INPUT = re.compile(r"/(input-[0-9a-f]+)/")


class ResultFile(msgspec.Struct, frozen=True):
    """A file of rows, by its name at the place ("" if there are no rows): a receipt."""

    file: str
    rows: int
    bytes: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a job was begun with: another one may not go on under its name.

    ``paths`` is what is read; ``copy`` the directory, below the job's own, of a copy that is ours
    ("": none).  ``source`` and ``fn`` tell one DataFrame and one function from another.  ``run`` is
    random, and tells workers that they see the same place as the driver.
    """

    name: str
    run: str
    schema: str
    source: str
    fn: str
    paths: list[str]
    columns: list[str] | None = None
    copy: str = ""
    uses: dict[str, str] | None = None
    """A digest of each value and function that ``fn`` uses; None: it was not looked at."""
    files: dict[str, str] = {}
    """Identity of each partition, once known."""
    marks: dict[str, str] = {}
    """Of the files that a DataFrame reads: as which each was found."""
    is_mixed: bool = False
    """Whether another function went on, by ``keep_results``: no single one made the results."""
    version: int = VERSION


class Finished(msgspec.Struct, frozen=True):
    """A job is done: these files are its result.  ``base`` is that of the driver that ended it."""

    files: list[ResultFile]
    rows: int
    rows_in: int
    base: tuple[int, str] | None = None
    version: int = VERSION


class Swept(msgspec.Struct, frozen=True):
    """What is left over: files that nothing names, and copies of input that nobody reads."""

    files: list[Found]
    copies: list[str]

    @property
    def size_bytes(self) -> int:
        """Of the files."""
        return sum(file.size_bytes for file in self.files)


def prefix_of(job: str) -> str:
    """Return what the names of all result files of ``job`` begin with."""
    digest = hashlib.sha256(job.encode()).hexdigest()[:_HASH_CHARS]
    return f"part-{_plain(job)}-{digest}."


def new_name(job: str, batch: Batch, *, run: str, rows: int) -> str:
    """Return a name for the ``rows`` of ``batch`` that no other file ever gets.

    It says of what they are, so that a driver that finds the file can name it: see _unnamed.py.  Of
    a batch with rejected rows it does not, since those are not done yet.
    """
    span = batch.span
    is_whole = not batch.rejected and not batch.left_out
    parts = (
        span.epoch,
        _plain(batch.bolt),
        partition_in_name(span.partition),
        f"{span.first}-{span.last}",
        f"{len(batch)}-{rows}" if is_whole else "part",
        f"{run_in_name(run)}-{secrets.token_hex(4)}",
    )
    return f"{prefix_of(job)}{'.'.join(map(str, parts))}.parquet"


def partition_in_name(partition: str) -> str:
    """Return what stands for ``partition`` in names of files."""
    return hashlib.sha256(partition.encode()).hexdigest()[:_HASH_CHARS]


def run_in_name(run: str) -> str:
    """Return what stands for ``Description.run`` in names of files."""
    return run[:_HASH_CHARS]


def merged_name(job: str, epoch: int) -> str:
    """Return a name for rows of several files, merged for the driver of ``epoch``.

    As of :func:`new_name`, the epoch says that a live driver made it.
    """
    return f"{prefix_of(job)}{epoch}.merged.{secrets.token_hex(8)}.parquet"


def epoch_in(name: str, job: str) -> int:
    """Return the epoch of the driver for which a result file was written."""
    digits = name.removeprefix(prefix_of(job)).partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:60]  # names of files end at 255 bytes


class Results:
    """The results of ``job`` at ``place``.  For one thread."""

    def __init__(self, place: Place, job: str) -> None:
        self.place = place
        self.job = job
        self.directory: str = directory_of(job)
        self.manifest: PlaceManifest = PlaceManifest(place, job)

    def description(self) -> Description | None:
        """Return what the job was begun with; None: it was not begun here."""
        return self._read("job.json", Description)

    def finished(self) -> Finished | None:
        """Return the result of a job that is done; None: it is not."""
        return self._read("finished.json", Finished)

    def begin(self, description: Description) -> Description:
        """Keep what the job begins with; return that of another driver if it was first."""
        self._write("job.json", description, is_new=True)
        kept = self.description()
        assert kept is not None
        return kept

    def describe(self, description: Description) -> None:
        """Keep more of what :meth:`begin` returned."""
        self._write("job.json", description)

    def finish(self, finished: Finished) -> Finished:
        """From now on the job is done; return the result of another driver if it was first."""
        self._write("finished.json", finished, is_new=True)
        kept = self.finished()
        assert kept is not None
        return kept

    def check_there(self, files: Iterable[ResultFile]) -> None:
        """Raise :class:`InternalError` if one of ``files`` is not at the place as it was written.

        Whoever names files as a result asks this just before.
        """
        there = {file.name: file.size_bytes for file in self.place.names()}
        for one in files:
            if there.get(one.file) == one.bytes:
                continue
            what = f"it is not in {self.place.url}"
            if one.file in there:
                what = f"it has {there[one.file]} bytes in {self.place.url}, not {one.bytes}"
            raise InternalError(
                f"{self.job}: {one.file} is a file of results, but {what}.",
                remedy="Restore it. To process everything again, give another name or out.",
            )

    def files(self) -> list[ResultFile]:
        """Return the files with rows that count, in the order of the source."""
        finished = self.finished()
        if finished is not None:
            return finished.files
        return self._accepted_files()

    def _accepted_files(self) -> list[ResultFile]:
        entries = sorted(self.entries(), key=lambda one: (one.partition, one.start))
        return files_in(receipt for one in entries for receipt in one.receipts)

    def entries(self) -> list[Entry]:
        """Return what counts, as the manifest says."""
        from flowctl.runtime.receipts import accepted

        return accepted(self.manifest.segments())

    def leftovers(self, owner: tuple[int, str] | None = None) -> Swept:
        """Return what nothing names and nobody will.

        While a driver is at work, what it and its bolts write may still be named, and what its
        manifest names is not merged yet: the newest driver, until it has ended the job or is the
        ``owner`` that asks at its end.
        """
        finished, newest = self.finished(), self.manifest.newest_base()
        is_done = finished is not None and (
            newest is None or newest == owner or finished.base is None or newest <= finished.base
        )
        live_from = float("inf") if is_done else 0 if newest is None else newest[0]
        named = {file.file for file in finished.files} if finished else set()
        if not is_done:
            named |= {file.file for file in self._accepted_files()}
        files = [
            found
            for found in self.place.names()
            if found.name.startswith(prefix_of(self.job))
            and found.name not in named
            and epoch_in(found.name, self.job) < live_from
        ]
        return Swept(files, self._old_copies(is_done=is_done))

    def _old_copies(self, *, is_done: bool) -> list[str]:
        description = self.description()
        if description is None:  # the first one may be being made
            return []
        found = {
            match[1]
            for file in self.place.names(self.directory, recursive=True)
            if (match := _INPUT.search(file.name))
        }
        if not is_done:
            found.discard(description.copy)
        return sorted(found)

    def sweep(self, owner: tuple[int, str] | None = None) -> Swept:
        """Remove the leftovers, and return what they were.  ``owner`` as for :meth:`leftovers`."""
        left = self.leftovers(owner)
        self.place.delete(file.name for file in left.files)
        for copy in left.copies:
            self.place.delete_directory(f"{self.directory}/{copy}")
        if self.finished() is not None:
            self.place.delete_temporary()
        return left

    def withdraw(self) -> None:
        """The job was not begun: nothing is known of its input."""
        self.place.delete([f"{self.directory}/job.json"])

    def stranger(self) -> str | None:
        """Return a Parquet file that a reader of the place reads and no job there has written."""
        ours = tuple(prefix_of(job) for job in jobs_at(self.place) if job != self.job)
        for found in self.place.names(recursive=True):
            *above, name = found.name.split("/")
            is_read = name.endswith(".parquet") and all("=" in each for each in above)
            if is_read and not name.startswith((*ours, "_", ".")):
                return found.name
        return None

    def _read(self, name: str, kind: type[_T]) -> _T | None:
        path = f"{self.directory}/{name}"
        try:
            data = self.place.get(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self.place, error) from error
        return decoded(path, data, kind, where=self.place.url)

    def _write(self, name: str, what: msgspec.Struct, *, is_new: bool = False) -> None:
        path = f"{self.directory}/{name}"
        data = with_crc(path, msgspec.json.format(msgspec.json.encode(what)))
        put = self.place.put_new if is_new else self.place.put
        try:
            put(path, data)
        except OSError as error:
            raise _unusable(self.place, error) from error


def decoded(path: str, data: bytes, kind: type[_T], *, where: str) -> _T:
    """Return what a file of the job's notes holds; raise :class:`CheckpointCorruptError`."""
    try:
        return msgspec.json.decode(checked(path, data), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:  # also what is not UTF-8
        raise CheckpointCorruptError(
            f"{where}/{path} can't be understood: {error}.",
            remedy="Restore the file. To process everything again, give another out or name.",
        ) from error


def files_in(receipts: Iterable[bytes]) -> list[ResultFile]:
    """Return the files with rows that ``receipts`` name."""
    found = [msgspec.json.decode(receipt, type=ResultFile) for receipt in receipts]
    return [file for file in found if file.rows]


def total_rows(files: Sequence[ResultFile]) -> int:
    """Return how many rows ``files`` hold."""
    return sum(file.rows for file in files)


def _unusable(place: Place, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{place.url} can't be read or written: {str(error).partition(chr(10))[0]}.",
        remedy="Check that it exists, and that this machine may read and write there.",
    )
