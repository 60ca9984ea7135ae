"""Where connections come from.  Both kinds can be pickled; a connection is opened on the worker."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from flowctl.errors import ConfigError, InfrastructureError
from flowctl_sql._refusals import is_locked, sqlite_locked

Synchronous = Literal["NORMAL", "FULL"]

# Between tries to switch to WAL: SQLite's own busy handler is not asked for that.
_RETRY_S = 0.01


class Database(Protocol):
    """Opens connections and begins transactions that see what others committed."""

    label: str

    def connect(self) -> Any:
        """Open a DB-API connection that commits only when told to."""

    def begin(self, connection: Any) -> None:
        """Begin a transaction, where the driver does not do so by itself."""


class Sqlite:
    """One SQLite file.  The path is made absolute here, since workers have another directory."""

    def __init__(self, url: str, *, timeout_s: float, synchronous: Synchronous) -> None:
        self.path = _path_of(url)
        self.label = self.path
        self.timeout_s = timeout_s
        if synchronous not in ("NORMAL", "FULL"):
            raise ConfigError("synchronous", f"{synchronous!r}.", remedy="Use NORMAL or FULL.")
        self.synchronous = synchronous

    def connect(self) -> sqlite3.Connection:
        try:
            # isolation_level None: we say BEGIN IMMEDIATE ourselves.
            connection = sqlite3.connect(self.path, timeout=self.timeout_s, isolation_level=None)
            self._use_wal(connection)
        except sqlite3.OperationalError as error:
            if is_locked(error):
                raise sqlite_locked(self.path, self.timeout_s) from error
            raise InfrastructureError(
                f"SQLite file {self.path}: {error}.",
                remedy="Check that its directory exists on the worker and may be written.",
            ) from error
        # Kill -9 of any process loses nothing.  In a power cut NORMAL may lose the last
        # transactions, whole ones; FULL waits for the disk at each.
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Readers don't stop writers then, and a commit is one append."""
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(_RETRY_S)

    def begin(self, connection: sqlite3.Connection) -> None:
        # IMMEDIATE takes the write lock before anything is read, so what is read stays true.
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            raise sqlite_locked(self.path, self.timeout_s) from error


class Callback:
    """Any database: ``connect`` is the user's and is called on the worker."""

    label = "the database"

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    def connect(self) -> Any:
        connection = self._connect()
        autocommit = getattr(connection, "autocommit", None) is True
        if isinstance(connection, sqlite3.Connection):
            autocommit = connection.isolation_level is None
        if autocommit:
            connection.close()
            raise ConfigError(
                "connect",
                "the connection is in autocommit mode, so rows and span would not be written "
                "together.",
                remedy="Switch autocommit off.",
            )
        return connection

    def begin(self, connection: Any) -> None:
        """Nothing: a DB-API connection begins with its first statement."""


def _path_of(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme != "sqlite" or not separator:
        if scheme.partition("+")[0] in ("postgres", "postgresql"):
            raise ConfigError(
                "url",
                f"{scheme} is not built in.",
                remedy="Run: pip install 'psycopg[binary]', and pass"
                " connect=lambda: psycopg.connect(URL) in the URL's place.",
            )
        raise ConfigError(
            "url",
            f"{scheme or url!r} is not built in.",
            remedy="Use sqlite:///file.db, or pass connect= with a function that returns a "
            "DB-API connection.",
        )
    path = rest[1:] if rest.startswith("/") else ""
    if not path or path == ":memory:":
        raise ConfigError(
            "url",
            "an SQLite database in memory is one for each process.",
            remedy="Name a file: sqlite:///file.db, or sqlite:////absolute/file.db.",
        )
    if not rest.startswith("/") or "?" in path:
        raise ConfigError("url", f"{url!r} has a host or a query.", remedy="Use sqlite:///file.db.")
    return os.path.abspath(os.path.expanduser(path))
