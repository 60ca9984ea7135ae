"""Files that several processes write: locks, whole writes, names that survive a loss of power.

All functions raise ``OSError``.
"""

from __future__ import annotations

import errno
import os
import re
import time
from contextlib import suppress
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

# A writer holds a lock for one write; only a frozen one holds it longer, and a run must not hang
# with it.
LOCK_TIMEOUT_S: Final = 10.0
_LOCK_POLL_S: Final = 0.02
# The errors of file systems without locks, such as some NFS mounts.
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_NAME_MAX: Final = 200  # bytes; file systems take 255 with a suffix
MOUNTS: Final = "/proc/self/mounts"  # what Linux has mounted where
MODE: Final = 0o644  # as other files of the user; a umask can narrow it
# File systems of other machines, as Linux names them.
_NETWORK: Final = (
    "nfs", "cifs", "smb", "9p", "afs", "ceph", "gfs", "lustre", "fuse.blobfuse", "fuse.ceph",
    "fuse.gcsfuse", "fuse.gluster", "fuse.goofys", "fuse.juicefs", "fuse.rclone", "fuse.s3fs",
    "fuse.sshfs",
)  # fmt: skip


def lock(
    descriptor: int, path: str, *, shared: bool = False, timeout_s: float = LOCK_TIMEOUT_S
) -> bool:
    """Lock the file until it is closed; False if the file system has no locks.

    Raises ``TimeoutError`` when it stays taken for ``timeout_s``.
    """
    import fcntl

    how = fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, how)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{path} stays locked by another process") from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
        time.sleep(_LOCK_POLL_S)


def unlock(descriptor: int) -> None:
    """Release the lock and close the file, also where a child has inherited it."""
    import fcntl

    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``; it is on the disk only after an ``fsync``."""
    while data:
        data = data[os.write(descriptor, data) :]


def write_new(path: str, data: bytes) -> None:
    """Replace the content of the file ``path`` by ``data``; it is on the disk when this returns.

    No file is left if that fails.
    """
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, MODE)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def replace(path: str, data: bytes) -> None:
    """Replace the content of the file ``path`` in one step: after a kill or a loss of power it has
    the old one or the new one.

    For one writer at a time: the caller holds a lock.
    """
    new = f"{path}.new"
    write_new(new, data)
    os.replace(new, path)
    sync_directory(path)


def swap(path: str, data: bytes) -> None:
    """Replace the content of the file ``path`` in one step for its readers; after a loss of power
    it may be empty.

    For one writer at a time.
    """
    new = f"{path}.new"
    with open(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, MODE), "wb") as file:
        file.write(data)
    os.replace(new, path)


def is_at(descriptor: int, path: str) -> bool:
    """Whether ``path`` still leads to the open file: it may have been replaced meanwhile."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def make_directory(path: str) -> None:
    """Make the directory and those above it that are missing; they are there after a loss of
    power."""
    if os.path.isdir(path):
        return
    path = path.rstrip("/")
    make_directory(os.path.dirname(path) or ".")
    with suppress(FileExistsError):
        os.mkdir(path)
    sync_directory(path)


def why_not_writable(directory: str) -> str:
    """Return why files can't be made in ``directory``, which may not exist yet; "" if they can."""
    there = os.path.abspath(directory)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        return f"{there} is not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} can't be written to"


def sync_directory(path: str) -> None:
    """Sync a directory: only then is a new name in it on the disk."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a URL: of it a disk would make a directory called ``s3:``."""
    return re.match(r"[A-Za-z][\w+.-]+:/", os.fspath(path)) is not None


def file_name(job: str, suffix: str) -> str:
    """Return a file name for ``job`` that every file system accepts, and that no other job has."""
    raw = job.encode("utf-8", "surrogateescape")  # a name may come from a file's
    name = quote(raw, safe=" @+,=")
    if len(name) > _NAME_MAX:
        name = f"{name[: _NAME_MAX - 20]}-{blake2b(raw, digest_size=8).hexdigest()}"
    return name + suffix


def network_of(path: str) -> str:
    """Return the kind of network file system that ``path`` is on, such as ``nfs4``; "" if none.

    "" too where the mounts can't be listed (not Linux).
    """
    place = os.path.realpath(path)
    found = ("", "")
    with suppress(OSError), open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, point, kind, *_ = line.split(" ")
            point = point.replace("\\040", " ")
            is_below = place == point or place.startswith(point.rstrip("/") + "/")
            if is_below and len(point) >= len(found[0]):  # of two on one point the later counts
                found = (point, kind)
    return found[1] if found[1].startswith(_NETWORK) else ""
