"""Whether this process may open a connection for each bolt: asked before any is opened."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from flowctl.errors import InfrastructureError

# Beside the bolts: the listener, the store, the sink, files of the source that are open at a time.
_SPARE: Final = 32
_OPEN_AT_START: Final = 16  # where the system doesn't tell: standard streams and libraries


def check_descriptors(connections: int) -> None:
    """Raise :class:`InfrastructureError` if so many more connections exceed the process's limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _open_now() + connections + _SPARE
    if limit != resource.RLIM_INFINITY and wanted > limit:
        raise InfrastructureError(
            f"this process may open {limit} files and connections, the bolts need about {wanted}.",
            remedy=f"Raise the limit (ulimit -n {_rounded(wanted)}), or use fewer bolts.",
        )


def _open_now() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return _OPEN_AT_START


def _rounded(number: int) -> int:
    """Up to the next power of two: a limit that is not at its edge again tomorrow."""
    return 1 << number.bit_length()
