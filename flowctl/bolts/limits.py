"""How many bolts and slots there may be."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

from flowctl.errors import InfrastructureError

# -- Whether this process may open one connection per bolt: checked before any is opened -------


# Besides the bolts: the listener, the store, the sink, and source files that are open at a time.
_SPARE: Final = 32
_OPEN_AT_START: Final = 16  # if the system does not say: standard streams and libraries


def check_descriptors(connections: int) -> None:
    """Raise :class:`InfrastructureError` if this many more connections exceed the process's
    limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _open_now() + connections + _SPARE
    if limit != resource.RLIM_INFINITY and wanted > limit:
        raise InfrastructureError(
            f"this process may open only {limit} files and connections, but the bolts need about"
            f" {wanted}.",
            remedy=f"Raise the limit (ulimit -n {_rounded(wanted)}), or use fewer bolts.",
        )


def _open_now() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return _OPEN_AT_START


def _rounded(number: int) -> int:
    """Round up to the next power of two, so that the limit is not reached again tomorrow."""
    return 1 << number.bit_length()
