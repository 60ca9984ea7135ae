"""The results of a job at a place: their files, the job's notes, and the leftovers to remove."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

import msgspec

from flowctl.checksums import with_crc, without_crc
from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    InfrastructureError,
    InternalError,
)
from flowctl.failure.classify import store_denies
from flowctl_apply._places import Found, Place

if TYPE_CHECKING:
    from flowctl.bolts.batch import Batch
    from flowctl.runtime.receipts import Entry, Segment


# -- The manifest -----------------------------------------------------------------------------
#
# The manifest of a job's results: small files of JSON lines, one for each flush, beside them.
#
# Object stores can't append, so each flush is a file of its own, which appears as a whole. When a
# run begins it writes all that counts into one file, the base, and removes the older ones.


# Spark and pyarrow ignore names that begin with an underscore.
ROOT = "_flowctl"
# What a batch API was asked, and its answers, below the directory of the job.
BATCHES = "batches"
# The format's version.  Version 1 had no checksums and is still read.
VERSION = 2
_NAME = re.compile(r"(\d{20})-([0-9a-f]+)-(\d{8})\.jsonl")
# Tries to read a manifest: a driver that begins removes segments that it has adopted, so another
# one that reads at that moment starts over, each time with a newer base.
_READS_MAX = 10


class _Bytes(msgspec.Struct):
    base64: bytes


class _Line(msgspec.Struct, omit_defaults=True):
    """An entry of a segment.  A receipt in UTF-8 is written as text, so that people can read it."""

    partition: str
    start: int
    stop: int
    records: int
    receipts: list[str | _Bytes] = []
    kept_nowhere: int = 0


class _Version(msgspec.Struct):
    version: int


class _Head(_Version):
    entries: int


def directory_of(job: str) -> str:
    """Return the directory of ``job`` below the place of its results."""
    return f"{ROOT}/{quote(job, safe='')}"


def jobs_at(place: Place) -> list[str]:
    """Return the names of the jobs that have results at ``place``."""
    found = {one.name.split("/")[1] for one in place.names(ROOT, recursive=True)}
    return sorted(unquote(name) for name in found)


class PlaceManifest:
    """Implements :class:`flowctl.runtime.receipt_store.Manifest` at a place."""

    def __init__(self, place: Place, job: str) -> None:
        self._place = place
        self._directory = directory_of(job)
        self.where: str = place.url

    def segments(self) -> Sequence[Segment]:
        """See the protocol."""
        with _retriable(self.where):
            for _ in range(_READS_MAX):
                try:
                    return [self._read(name) for name in (*self._list("bases"), *self._list("log"))]
                except FileNotFoundError:
                    continue
        raise CheckpointUnavailableError(
            f"other drivers replace the manifest in {self.where} again and again.",
            remedy="Run one driver at a time under one name.",
        )

    def newest_base(self) -> tuple[int, str] | None:
        """See the protocol."""
        with _retriable(self.where):
            names = self._list("bases")
        if not names:
            return None
        epoch, token, _ = _parts(max(names, key=lambda name: _parts(name)[:2]))
        return epoch, token

    def append(self, segment: Segment) -> None:
        """See the protocol."""
        with _retriable(self.where):
            name = self._name_of(segment)
            self._place.put(name, with_crc(name, encode(segment)))

    def forget_before(self, epoch: int, token: str) -> None:
        """See the protocol."""
        with _retriable(self.where):
            for kind in ("log", "bases"):
                old = [name for name in self._list(kind) if _parts(name)[:2] < (epoch, token)]
                self._place.delete(old)

    def _name_of(self, segment: Segment) -> str:
        kind = "bases" if segment.is_base else "log"
        file = f"{segment.epoch:020d}-{segment.token}-{segment.number:08d}.jsonl"
        return f"{self._directory}/{kind}/{file}"

    def _list(self, kind: str) -> list[str]:
        files = self._place.names(f"{self._directory}/{kind}")
        return [file.name for file in files if _NAME.search(file.name)]

    def _read(self, name: str) -> Segment:
        from flowctl.runtime.receipts import Segment

        epoch, token, number = _parts(name)
        is_base = "/bases/" in name
        entries = decode(name, self._place.get(name), self.where)
        return Segment(epoch, token, number, tuple(entries), is_base)


def _parts(name: str) -> tuple[int, str, int]:
    found = _NAME.search(name)
    assert found is not None
    return int(found[1]), found[2], int(found[3])


def encode(segment: Segment) -> bytes:
    """Return the contents of the segment's file, without their checksum."""
    lines = [msgspec.json.encode(_Head(VERSION, len(segment.entries)))]
    for one in segment.entries:
        receipts = [_readable(receipt) for receipt in one.receipts]
        span = (one.partition, one.start, one.stop)
        lines.append(msgspec.json.encode(_Line(*span, one.records, receipts, one.kept_nowhere)))
    return b"\n".join(lines) + b"\n"


def checked(name: str, data: bytes) -> bytes:
    """Return the JSON of the file ``name``; raise ``ValueError`` if its checksum is wrong."""
    text, has_crc = without_crc(name, data)
    first, _, _ = text.partition(b"\n{")
    version = msgspec.json.decode(first, type=_Version).version
    if version != (VERSION if has_crc else VERSION - 1):
        raise ValueError(f"version {version} with{'' if has_crc else 'out'} a checksum")
    return text


def decode(name: str, data: bytes, where: str) -> list[Entry]:
    """Return the entries of a segment's file; raise :class:`CheckpointCorruptError`."""
    from flowctl.runtime.receipts import Entry

    try:
        first, *rest = checked(name, data).splitlines() or [b""]
        head = msgspec.json.decode(first, type=_Head)
        lines = [msgspec.json.decode(line, type=_Line) for line in rest]
        if head.entries != len(lines):
            raise ValueError(f"it has {len(lines)} of {head.entries} entries")
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointCorruptError(
            f"{where}/{name} is not part of a manifest, or is damaged: {error}.",
            remedy="Restore the file. To process everything again, remove the results or give"
            " another out.",
        ) from error
    return [
        Entry(
            one.partition,
            one.start,
            one.stop,
            one.records,
            tuple(
                receipt.encode() if isinstance(receipt, str) else receipt.base64
                for receipt in one.receipts
            ),
            one.kept_nowhere,
        )
        for one in lines
    ]


def _readable(receipt: bytes) -> str | _Bytes:
    try:
        return receipt.decode()
    except UnicodeDecodeError:
        return _Bytes(receipt)


@contextmanager
def _retriable(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # An error of permissions doesn't pass: waiting would last until the run gives up.
        kind = InfrastructureError if store_denies(error) else CheckpointUnavailableError
        raise kind(
            f"the manifest in {where} can't be read or written: {error}.",
            remedy="Check that the path exists, and that this machine may read and write there.",
        ) from error


# -- The results of a job at a place -----------------------------------------------------------


_T = TypeVar("_T")
_HASH_CHARS = 8  # of two jobs at one place whose names differ only in special characters
# A copy of the input, or of what a later round reads (with the number of that round).
_INPUT = re.compile(r"/(input-[0-9a-f]+|(?:round|letters)-(\d+)-[0-9a-f]+)/")
_JOB = re.compile(r"job(?:-(\d+))?\.json")


class ResultFile(msgspec.Struct, frozen=True):
    """A receipt: the name of a file of rows at the place ("" if there are no rows)."""

    file: str
    rows: int
    bytes: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The input and function with which a job began; no other job may use its name.

    ``paths`` are the files read; ``copy`` is the directory of flowctl's copy of the input, below
    the job's own ("": none).  ``source`` and ``fn`` distinguish DataFrames and functions.  ``run``
    is random and lets workers check that they see the same place as the driver.
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
    shape: str = ""
    """Distinguishes DataFrames as ``source`` does, but not by their files; "": it can't grow."""
    round: int = 0
    """How often the finished job went on because there was more input."""
    settled: list[ResultFile] = []
    """The result of the rounds before: of the partitions ``settled_partitions``."""
    settled_partitions: list[str] = []
    copies: list[str] = []
    """Of what rounds read, below the job's directory: kept, since the next round asks for it."""
    redriven: list[str] = []
    """The ids of the letters that this round does again."""

    @property
    def own_paths(self) -> list[str]:
        """Return those of ``paths`` that are in ``copies``."""
        return [path for path in self.paths if any(f"/{copy}/" in path for copy in self.copies)]

    @property
    def is_noted(self) -> bool:
        """Whether the round has seen its input."""
        return self.files.keys() > set(self.settled_partitions)


class Finished(msgspec.Struct, frozen=True):
    """The end of a job: ``files`` are its result.

    ``base`` belongs to the driver that ended the job.  Of ``rows_in``, ``rows_kept_nowhere`` were
    rejected and are in no dead letter.
    """

    files: list[ResultFile]
    rows: int
    rows_in: int
    base: tuple[int, str] | None = None
    version: int = VERSION
    rows_kept_nowhere: int = 0
    round: int = 0


class Swept(msgspec.Struct, frozen=True):
    """The leftovers: files that no manifest names, and copies of input that are no longer read."""

    files: list[Found]
    copies: list[str]

    @property
    def size_bytes(self) -> int:
        """Of the files."""
        return sum(file.size_bytes for file in self.files)


def prefix_of(job: str) -> str:
    """Return the prefix of the names of all result files of ``job``."""
    digest = hashlib.sha256(job.encode()).hexdigest()[:_HASH_CHARS]
    return f"part-{_plain(job)}-{digest}."


def new_name(job: str, batch: Batch, *, run: str, rows: int) -> str:
    """Return a unique name for a file with the ``rows`` made of ``batch``.

    The name tells which input the rows cover, so that a later driver can adopt the file: see
    _unnamed.py.  For a batch with rejected rows it doesn't, since these are not done yet.
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
    """Return the part of file names that stands for ``partition``."""
    return hashlib.sha256(partition.encode()).hexdigest()[:_HASH_CHARS]


def run_in_name(run: str) -> str:
    """Return the part of file names that stands for ``Description.run``."""
    return run[:_HASH_CHARS]


def merged_name(job: str, epoch: int) -> str:
    """Return a name for a file merged from several by the driver of ``epoch``.

    As in :func:`new_name`, the epoch protects the file while that driver is alive.
    """
    return f"{prefix_of(job)}{epoch}.merged.{secrets.token_hex(8)}.parquet"


def epoch_in(name: str, job: str) -> int:
    """Return the epoch of the driver for which a result file was written."""
    digits = name.removeprefix(prefix_of(job)).partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:60]  # names of files have at most 255 bytes


class Results:
    """The results of ``job`` at ``place``.  For one thread."""

    def __init__(self, place: Place, job: str) -> None:
        self.place = place
        self.job = job
        self.directory: str = directory_of(job)
        self.manifest: PlaceManifest = PlaceManifest(place, job)

    def description(self) -> Description | None:
        """Return the description of the job's newest round; None if the job was not begun here."""
        newest = self._round()
        return None if newest is None else self._read(_file_of("job", newest), Description)

    def finished(self) -> Finished | None:
        """Return the result if the job's newest round is done, else None."""
        newest = self._round()
        return None if newest is None else self._read(_file_of("finished", newest), Finished)

    def _round(self) -> int | None:
        try:
            names = [one.name.rpartition("/")[2] for one in self.place.names(self.directory)]
        except OSError as error:
            raise _unusable(self.place, error) from error
        found = [int(match[1] or 0) for name in names if (match := _JOB.fullmatch(name))]
        return max(found, default=None)

    def begin(self, description: Description) -> Description:
        """Keep the description of a new round; return another driver's if that was first."""
        self._write(_file_of("job", description.round), description, is_new=True)
        kept = self.description()
        assert kept is not None
        return kept

    def describe(self, description: Description) -> None:
        """Replace the description that :meth:`begin` returned by a more complete one."""
        self._write(_file_of("job", description.round), description)

    def finish(self, finished: Finished) -> Finished:
        """Mark the round as done; return the result of another driver if that was first."""
        name = _file_of("finished", finished.round)
        self._write(name, finished, is_new=True)
        kept = self._read(name, Finished)
        assert kept is not None
        return kept

    def check_there(self, files: Iterable[ResultFile]) -> None:
        """Raise :class:`InternalError` if one of ``files`` is missing or was changed.

        To be called just before files are named as a result.
        """
        files = list(files)
        there = {file.name: file.size_bytes for file in self.place.names()}
        if any("/" in one.file for one in files):  # in a copy
            copies = self.place.names(self.directory, recursive=True)
            there |= {file.name: file.size_bytes for file in copies}
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

    def added(self) -> tuple[Description, list[ResultFile]] | None:
        """Return the round that has ended, with the files that it added; None: one is under way."""
        description, finished = self.description(), self.finished()
        if description is None or finished is None:
            return None
        earlier = {file.file for file in description.settled}
        return description, [file for file in finished.files if file.file not in earlier]

    def files(self) -> list[ResultFile]:
        """Return the accepted files with rows, in the order of the source."""
        finished = self.finished()
        if finished is not None:
            return finished.files
        return self._accepted_files()

    def _accepted_files(self) -> list[ResultFile]:
        entries = sorted(self.entries(), key=lambda one: (one.partition, one.start))
        return files_of(entries, self.description())

    def entries(self) -> list[Entry]:
        """Return the manifest's entries that count."""
        from flowctl.runtime.receipts import accepted

        return accepted(self.manifest.segments())

    def leftovers(self, owner: tuple[int, str] | None = None) -> Swept:
        """Return the files that no manifest names or will name.

        The newest driver counts as at work until it has ended the job, or if it isn't the ``owner``
        that asks at its end.  Meanwhile files of this driver and its bolts may still get named, and
        those that its manifest names are needed for merging.
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
        if description is None:  # a first copy may be in progress
            return []
        # The next round may be about to begin, with a copy that no description names yet.
        found = {
            match[1]
            for file in self.place.names(self.directory, recursive=True)
            if (match := _INPUT.search(file.name)) and int(match[2] or 0) <= description.round
        }
        if not is_done:
            found.discard(description.copy)
        return sorted(found.difference(description.copies))

    def sweep(self, owner: tuple[int, str] | None = None) -> Swept:
        """Remove the leftovers and return them.  ``owner`` is as for :meth:`leftovers`."""
        left = self.leftovers(owner)
        self.place.delete(file.name for file in left.files)
        for copy in left.copies:
            self.place.delete_directory(f"{self.directory}/{copy}")
        if self.finished() is not None:
            self.place.delete_temporary()
            if self.place.names(f"{self.directory}/{BATCHES}"):  # of a batch API: all were used
                self.place.delete_directory(f"{self.directory}/{BATCHES}")
        return left

    def withdraw(self) -> None:
        """Withdraw the newest round, which was not begun: its input was never seen."""
        self.place.delete([f"{self.directory}/{_file_of('job', self._round() or 0)}"])

    def stranger(self) -> str | None:
        """Return a Parquet file at the place that no job there has written, if there is one."""
        there = self.place.names(recursive=True)
        # Jobs are listed after the files, since each job is noted before it writes any file; so is
        # this one.
        is_begun = self.description() is not None
        ours = tuple(prefix_of(job) for job in jobs_at(self.place) if is_begun or job != self.job)
        for found in there:
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
    """Return the contents of a file of the job's notes; raise :class:`CheckpointCorruptError`."""
    try:
        return msgspec.json.decode(checked(path, data), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:  # also for bytes that aren't UTF-8
        raise CheckpointCorruptError(
            f"{where}/{path} can't be understood: {error}.",
            remedy="Restore the file. To process everything again, give another out or name.",
        ) from error


def _file_of(kind: str, number: int) -> str:
    return f"{kind}-{number}.json" if number else f"{kind}.json"


def files_of(entries: Sequence[Entry], description: Description | None) -> list[ResultFile]:
    """Return the files with rows that make up the result: of earlier rounds, and of ``entries``."""
    settled = set(description.settled_partitions) if description else ()
    new = [one for one in entries if one.partition not in settled]
    earlier = description.settled if description else []
    return [*earlier, *files_in(receipt for one in new for receipt in one.receipts)]


def files_in(receipts: Iterable[bytes]) -> list[ResultFile]:
    """Return the files with rows that ``receipts`` name."""
    found = [msgspec.json.decode(receipt, type=ResultFile) for receipt in receipts]
    return [file for file in found if file.rows]


def total_rows(files: Sequence[ResultFile]) -> int:
    """Return the total number of rows in ``files``."""
    return sum(file.rows for file in files)


def _unusable(place: Place, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{place.url} can't be read or written: {str(error).partition(chr(10))[0]}.",
        remedy="Check that it exists, and that this machine may read and write there.",
    )
