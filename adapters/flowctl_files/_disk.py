"""What a file that several processes write needs from the disk: locks, whole writes, durable names.

All functions raise ``OSError``.
"""

from __future__ import annotations

import errno
import os
import time

# A writer holds the lock for one append or one rewrite; only a frozen one holds it longer, and a
# run must not hang with it.
_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.02
# File systems without locks, such as some NFS mounts: the operator must ensure that there is one
# writer at a time.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``; it is on the disk only after an ``fsync``."""
    while data:
        data = data[os.write(descriptor, data) :]


def lock(descriptor: int, path: str, *, shared: bool = False) -> None:
    """Lock the file until it is closed; raises :class:`TimeoutError` when it stays taken."""
    import fcntl

    how = fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(descriptor, how)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{path} stays locked by another process") from None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        time.sleep(_LOCK_POLL_S)


def is_at(descriptor: int, path: str) -> bool:
    """Whether ``path`` still leads to the open file: it may have been replaced meanwhile."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def sync_directory(path: str) -> None:
    """A new name in a directory is on the disk only once the directory is synced."""
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
