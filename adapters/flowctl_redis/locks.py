"""File locks between processes.  The kernel releases them when their holder dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A start takes 0.1 s: quick enough to notice, slow enough to cost nothing.
_POLL_S = 0.02


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock on ``path``, or None when another holds it.

    The lock lasts until every copy of the descriptor is closed, those of child processes that
    inherited it included.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def wait_for_lock(path: Path, timeout_s: float) -> int | None:
    """As :func:`try_lock`, trying for up to ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        descriptor = try_lock(path)
        if descriptor is not None or time.monotonic() >= deadline_s:
            return descriptor
        time.sleep(_POLL_S)


@contextmanager
def held(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock on ``path``; raises :class:`TimeoutError` when it stays taken."""
    descriptor = wait_for_lock(path, timeout_s)
    if descriptor is None:
        raise TimeoutError(f"{path} stays locked")
    try:
        yield
    finally:
        os.close(descriptor)
