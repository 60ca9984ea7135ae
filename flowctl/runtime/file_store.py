"""The checkpoint in files: one per job, replaced in one step, fenced by its epoch.

A file of a directory has a readable line and a body of msgpack::

    flowctl checkpoint 1 9f1c03aa 1042\\n     version, checksum of all behind it, revision
    [job, epoch, saved_at_unix_ms]          epoch: generation of ownership, only rises
    [[partition, position, records, acked, end, mark, given_up, lost], ...]

``given_up`` is the last place of ``lost``: older versions know only that.

``revision`` rises with every write.  A driver that finds the line that it wrote last knows that the
rest is unchanged too, and reads no further.

Each change holds a lock on ``JOB.lock`` beside the file, from reading the epoch to the end of the
write, so of two drivers at once one is fenced.  The kernel releases it when its holder dies.  The
new content is written beside the file, synced, and renamed: after a kill or a loss of power the
file has the old content or the new one.  The lock's file stays, since another process may just be
opening it.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote

import msgspec

from flowctl import disk
from flowctl.arguments import check_arguments
from flowctl.checksums import crc32
from flowctl.core.records import (
    AckedRange,
    Checkpoint,
    LostRange,
    PartitionCheckpoint,
    Position,
)
from flowctl.core.stored_job import StoredJob, acquired, no_name, saved
from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    ConfigError,
    JobError,
)
from flowctl.runtime.memory_store import StateStore

DIRECTORY_VARIABLE: Final = "FLOWCTL_CHECKPOINTS"
# Below the current directory: a checkpoint belongs to the place where its job runs.
DEFAULT_DIRECTORY: Final = Path(".flowctl", "checkpoints")
LOCK_TIMEOUT_S: Final = 10.0  # a save holds it for some milliseconds: only a frozen one is longer
_SUFFIX: Final = ".checkpoint"
_SHOWN_SUFFIX: Final = ".shown"
_LEARNED_SUFFIX: Final = ".learned"
VERSION: Final = 1
_VERSION_OF: Final = re.compile(rb"flowctl checkpoint (\d{1,9})[ \n]")
_LINE: Final = re.compile(rb"flowctl checkpoint 1 (?P<crc>[0-9a-f]{8}) (?P<revision>\d{1,18})\n")
_LINE_BYTES_MAX: Final = 64
_ARRAY32: Final = b"\xdd"  # msgpack's prefix of an array with a length of four bytes


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    job: bytes  # not str: names that are not UTF-8 come with surrogates
    epoch: int
    saved_at_unix_ms: int


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    partition: bytes
    position: Position | None
    records: int
    acked: tuple[AckedRange, ...]
    end: Position | None
    mark: Position | None
    given_up: Position | None
    lost: tuple[LostRange, ...] = ()


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(tuple[_Head, list[_Row]]).decode


class _Held(NamedTuple):
    """A file's first line, the state in it, and the bytes of each partition in it."""

    line: bytes
    stored: StoredJob
    rows: dict[str, bytes]  # empty: not known

    @property
    def age(self) -> tuple[int, int]:
        """A number that is higher for the newer of two states of a job."""
        return self.stored.epoch, self.revision

    @property
    def revision(self) -> int:
        found = _LINE.fullmatch(self.line)
        return int(found["revision"]) if found else 0


class FileCheckpointStore(StateStore):
    """A :class:`flowctl.ports.CheckpointStore` in files: for drivers on one machine, without a
    server.

    ``directory``: by default the one that ``FLOWCTL_CHECKPOINTS`` names, else
    ``.flowctl/checkpoints`` below the current directory.  It is created by the first save.  What
    :meth:`save` has confirmed survives SIGKILL, and a loss of power if the disk keeps what it
    confirms.  Two machines need a Redis: locks of network file systems are not always shared.

    Each save writes all partitions of the job, some 60 bytes each: with more than 100,000 give a
    Redis, which is sent only what changed.

    Thread-safe.  A full disk, and a lock that stays taken for 10 s, is a
    :class:`CheckpointUnavailableError`: the run goes on within its bounds, and saves when it can.
    """

    survives = True

    @check_arguments("directory")
    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        place = directory or default_directory()
        if disk.is_url(place):
            raise ConfigError(
                "directory",
                f"{os.fspath(place)!r} is a URL, and checkpoints are files of a disk.",
                remedy="Give a directory, or a Redis: checkpoint='redis://host:6379/0'.",
            )
        self.directory: Path = Path(place).absolute()
        self._held: dict[str, _Held] = {}  # of the jobs that this object owns
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FileCheckpointStore({str(self.directory)!r})"

    @property
    def place(self) -> str:
        """Where the checkpoints are, as text."""
        return str(self.directory)

    @property
    def caution(self) -> str:
        """A warning about this place; "" if there is none."""
        kind = disk.network_of(self.place)
        if not kind:
            return ""
        return (
            f"{self.place} is on a network file system ({kind}). If it does not share locks"
            " between machines, two drivers of one job are not kept apart: use --redis URL for that"
        )

    def change(
        self,
        job: str,
        how: Callable[[StoredJob], StoredJob],
        touched: Iterable[str] | None = None,
    ) -> StoredJob:
        """See :class:`StateStore`; ``touched``: the partitions that may change (None: any)."""
        path = self._path(job)
        with self._lock, self._reported(path), self._locked(path):
            found = self._current(job, path)
            stored = how(found.stored)
            if stored is not found.stored:
                self._held[job] = self._write(path, found, stored, touched)
            return stored

    def acquire(self, job: str) -> int:
        """See :class:`flowctl.ports.CheckpointStore`."""
        with self._lock:
            self._held.pop(job, None)
        return super().acquire(job)

    def save(self, job: str, checkpoint: Checkpoint, *, epoch: int) -> None:
        """See :class:`flowctl.ports.CheckpointStore`.

        If the file was removed or set back, the earlier saves of this driver are saved again.
        """
        now_unix_ms = time.time_ns() // 1_000_000
        self.change(
            job,
            lambda stored: saved(stored, checkpoint, epoch=epoch, now_unix_ms=now_unix_ms),
            checkpoint.partitions,
        )

    def inspect(self, job: str) -> StoredJob:
        """Return all that is stored of ``job``, for display."""
        path = self._path(job)
        with self._reported(path):  # without a lock: a file is replaced, never changed
            return self._read(job, path).stored

    def clear(self, job: str) -> bool:
        """See :class:`flowctl.ports.CheckpointStore`.  Also removes a file that can't be read."""
        try:
            return super().clear(job)
        except CheckpointCorruptError:
            path = self._path(job)
            blank = StoredJob(job=job)
            with self._lock, self._reported(path), self._locked(path):
                # Its epoch can't be read: the time of day is higher, as a driver began with it.
                fence = acquired(blank, now_unix_s=int(time.time()))
                self._write(path, _Held(b"", blank, {}), fence, None)
            return True

    def jobs(self) -> Sequence[str]:
        """See :class:`flowctl.ports.CheckpointStore`.

        A file that can't be read is listed too, by its own name.
        """
        with self._reported(self.place):
            try:
                names = os.listdir(self.directory)
            except FileNotFoundError:
                return []
            paths = [str(self.directory / n) for n in sorted(names) if n.endswith(_SUFFIX)]
            return sorted(job for path in paths if (job := _job_in(path)))

    # -- what a run shows -------------------------------------------------------------------

    def show(self, job: str, shown: bytes) -> None:
        """See :class:`flowctl.ports.ShowingStore`."""
        self._put(job, _SHOWN_SUFFIX, shown)

    def shown(self, job: str) -> bytes:
        """See :class:`flowctl.ports.ShowingStore`."""
        return self._got(job, _SHOWN_SUFFIX)

    def all_shown(self) -> Sequence[bytes]:
        """See :class:`flowctl.ports.ShowingStore`."""
        with self._reported(self.place):
            paths = sorted(self.directory.glob(f"*{_SHOWN_SUFFIX}"))
            return [path.read_bytes() for path in paths]

    # -- what a run learned -----------------------------------------------------------------

    def remember(self, job: str, learned: bytes) -> None:
        """See :class:`flowctl.ports.RememberingStore`."""
        if learned:
            return self._put(job, _LEARNED_SUFFIX, learned)
        path = self._path(job, _LEARNED_SUFFIX)
        with self._reported(path):
            Path(path).unlink(missing_ok=True)
        return None

    def remembered(self, job: str) -> bytes:
        """See :class:`flowctl.ports.RememberingStore`."""
        return self._got(job, _LEARNED_SUFFIX)

    def _put(self, job: str, suffix: str, value: bytes) -> None:
        path = self._path(job, suffix)
        with self._reported(path):
            disk.make_directory(self.place)
            disk.swap(path, value)

    def _got(self, job: str, suffix: str) -> bytes:
        path = self._path(job, suffix)
        with self._reported(path), suppress(FileNotFoundError):
            return Path(path).read_bytes()
        return b""

    # -- the file ---------------------------------------------------------------------------

    def _path(self, job: str, suffix: str = _SUFFIX) -> str:
        if not job:
            raise no_name()
        return str(self.directory / disk.file_name(job, suffix))

    @contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        disk.make_directory(self.place)
        name = f"{path.removesuffix(_SUFFIX)}.lock"
        descriptor = os.open(name, os.O_CREAT | os.O_RDWR, disk.MODE)
        try:
            _lock(descriptor, name)
            yield
        finally:
            disk.unlock(descriptor)

    def _current(self, job: str, path: str) -> _Held:
        """Return the state in the file; our last save, if the file was removed or set back
        since.
        """
        held = self._held.get(job)
        if held is None:
            return self._read(job, path)
        if _first_line(path) == held.line:
            return held
        found = self._read(job, path)
        if found.age > held.age:
            return found  # written by another driver, or by a command that cleared or rewound it
        return held._replace(line=found.line)

    def _read(self, job: str, path: str) -> _Held:
        try:
            raw = Path(path).read_bytes()
        except FileNotFoundError:
            return _Held(b"", StoredJob(job=job), {})
        line, stored = _decoded(path, job, raw)
        return _Held(line, stored, {})

    def _write(
        self, path: str, found: _Held, stored: StoredJob, touched: Iterable[str] | None
    ) -> _Held:
        partitions = stored.checkpoint.partitions
        is_known = touched is not None and bool(found.rows)
        new = touched if touched is not None and is_known else partitions
        rows = (found.rows if is_known else {}) | {n: _row(n, partitions[n]) for n in new}
        head = _encode(_Head(_raw(stored.job), stored.epoch, stored.saved_at_unix_ms))
        count = _ARRAY32 + len(rows).to_bytes(4, "big")
        body = b"\x92" + head + count + b"".join(rows.values())
        revision = found.revision + 1
        checksum = crc32(_raw(stored.job), b"%d\n" % revision + body)
        line = b"flowctl checkpoint %d %08x %d\n" % (VERSION, checksum, revision)
        disk.replace(path, line + body)
        return _Held(line, stored, rows)

    @contextmanager
    def _reported(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = str(error) if isinstance(error, TimeoutError) else error.strerror
            raise CheckpointUnavailableError(
                f"the checkpoint {path} can't be read or written: {reason}.",
                remedy="Make room, or see who owns the directory; or keep checkpoints elsewhere:"
                f" flowctl.FileCheckpointStore(DIRECTORY), {DIRECTORY_VARIABLE}, or a Redis:"
                " --redis URL.",
            ) from error


def default_directory() -> Path:
    """Return where checkpoints are kept by default."""
    return Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def _lock(descriptor: int, name: str) -> None:
    try:
        if not disk.lock(descriptor, name, timeout_s=LOCK_TIMEOUT_S):
            raise OSError(0, "its file system has no locks, so two drivers can't be kept apart")
    except TimeoutError:
        holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace") or "another process"
        raise TimeoutError(f"{name} stays locked by {holder}") from None
    us = f"process {os.getpid()} on {os.uname().nodename}".encode()
    os.pwrite(descriptor, us, 0)  # for drivers that wait in vain
    os.ftruncate(descriptor, len(us))


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _row(name: str, state: PartitionCheckpoint) -> bytes:
    row = _Row(
        _raw(name),
        state.position,
        state.records,
        state.acked,
        state.end,
        state.mark,
        state.given_up,
        state.lost,
    )
    try:
        return _encode(row)
    except (OverflowError, TypeError, UnicodeEncodeError) as error:
        raise JobError(
            f"a position of {name!r} can't be stored: {error}.",
            remedy="Use int, float or str positions.",
        ) from None


def _first_line(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.readline(_LINE_BYTES_MAX)
    except FileNotFoundError:
        return b""


def _decoded(path: str, job: str, raw: bytes) -> tuple[bytes, StoredJob]:
    version = _VERSION_OF.match(raw)
    if version is not None and int(version[1]) != VERSION:
        raise CheckpointCorruptError(
            f"{path} has format version {int(version[1])}; this flowctl reads {VERSION}.",
            remedy=f"Install the flowctl that wrote it, or clear it with `{_clear(job)}`.",
        )
    line = _LINE.match(raw)
    if line is None:
        _corrupt(path, job, "it does not begin as one")
    if int(line["crc"], 16) != crc32(_raw(job), raw[line.start("revision") :]):
        _corrupt(path, job, "its checksum is not that of its content")
    try:
        head, rows = _decode(raw[line.end() :])
    except msgspec.MsgspecError as error:
        _corrupt(path, job, f"it does not decode ({error})")
    partitions = {
        row.partition.decode("utf-8", "surrogateescape"): PartitionCheckpoint(
            row.position, row.records, row.acked, row.end, row.mark, _lost(row)
        )
        for row in rows
    }
    return line[0], StoredJob(
        job=job,
        epoch=head.epoch,
        saved_at_unix_ms=head.saved_at_unix_ms,
        checkpoint=Checkpoint(partitions),
    )


def _lost(row: _Row) -> tuple[LostRange, ...]:
    """Return the lost ranges of a row; one of an older version has only the last that was given
    up.
    """
    if row.lost or row.given_up is None:
        return row.lost
    return (LostRange(row.given_up, row.given_up, 0),)


def _corrupt(path: str, job: str, problem: str) -> NoReturn:
    raise CheckpointCorruptError(
        f"{path} is not a readable checkpoint: {problem}.",
        remedy=f"Restore it, or clear it and start from the beginning with `{_clear(job)}`.",
    )


def _clear(job: str) -> str:
    return f"flowctl checkpoint clear {shlex.quote(job)}"


def _job_in(path: str) -> str:
    """Return the job of a file if something is saved there; for a damaged file its name."""
    raw = Path(path).read_bytes()
    named = unquote(os.path.basename(path).removesuffix(_SUFFIX))
    line = _LINE.match(raw)
    try:
        head: Any = _decode(raw[line.end() :])[0] if line is not None else None
    except msgspec.MsgspecError:
        head = None
    if head is None:
        return named
    return head.job.decode("utf-8", "surrogateescape") if head.saved_at_unix_ms else ""
