"""Sources of connections.  All of them can be pickled; connections are opened on the worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from flowctl.errors import ConfigError
from flowctl_sql import _postgres, _refusals
from flowctl_sql._bounds import CONNECT_MAX_S, LOCK_MAX_S
from flowctl_sql._dialect import Dialect, dialect_of
from flowctl_sql._sqlite import SqliteFile


class Opened(NamedTuple):
    """A new connection and how SQL is written for it.

    ``lock_max_s`` is how long a write waits for locks, checking their holders meanwhile; 0 if the
    database itself does the waiting.
    """

    connection: Any
    dialect: Dialect
    lock_max_s: float = 0.0


class Database(Protocol):
    """Opens connections, and begins transactions that see what others committed.

    ``label`` is its name in errors, without a password.
    """

    label: str

    def connect(self) -> Opened:
        """Open a DB-API connection that commits only when told to, with bounded waits."""

    def begin(self, connection: Any) -> None:
        """Begin a transaction, if the driver does not do so by itself."""

    def check_table(self, cursor: Any, dialect: Dialect, table: str) -> None:
        """Raise :class:`ConfigError` if writes to ``table`` can't be undone."""

    def is_refusal(self, error: BaseException, *, connected: bool = True) -> bool:
        """Whether ``error`` says "not now", so that the same records may succeed later."""


class Direct:
    """Connections that a user's function opens, with a driver that flowctl knows.

    ``timeout_s`` is how long to wait for a lock; None for the database's default.
    """

    def __init__(
        self, connect: Callable[[], Any], *, label: str = "the database", timeout_s: float | None
    ) -> None:
        self.label = label
        self._connect = connect
        self._timeout_s = timeout_s

    def connect(self) -> Opened:
        connection, lock_max_s = self._connect(), 0.0
        try:
            refuse_autocommit(connection)
            dialect = dialect_of(connection)
            if dialect.name == "postgresql":
                lock_max_s = bound_postgres(connection, self._timeout_s)
        except BaseException:
            connection.close()
            raise
        return Opened(connection, dialect, lock_max_s)

    def begin(self, connection: Any) -> None:
        """Do nothing: a DB-API connection begins a transaction with its first statement."""

    def check_table(self, cursor: Any, dialect: Dialect, table: str) -> None:
        """Do nothing: all tables of these databases have transactions."""

    def is_refusal(self, error: BaseException, *, connected: bool = True) -> bool:
        return _refusals.is_refusal(error, connected=connected)


class Psycopg:
    """Opens connections to a ``postgresql://`` URL, which libpq parses itself."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self) -> Any:
        import psycopg  # imported here: a worker pays for every import

        try:
            said = psycopg.conninfo.conninfo_to_dict(self._url)
        except psycopg.ProgrammingError:  # it may quote a part of the password
            raise ConfigError(
                "url",
                "libpq can't read it.",
                remedy="Write postgresql://user:password@host/database; percent-encode / ? # @ %"
                " in a password.",
            ) from None
        return psycopg.connect(
            self._url, connect_timeout=said.get("connect_timeout", CONNECT_MAX_S)
        )


class Sqlite:
    """One SQLite file."""

    def __init__(self, file: SqliteFile) -> None:
        self.label = file.path
        self._file = file

    def connect(self) -> Opened:
        return Opened(self._file.open(), Dialect())

    def begin(self, connection: Any) -> None:
        self._file.begin(connection)

    def check_table(self, cursor: Any, dialect: Dialect, table: str) -> None:
        """Do nothing: all tables have transactions."""

    def is_refusal(self, error: BaseException, *, connected: bool = True) -> bool:
        return _refusals.is_refusal(error, connected=connected)


def bound_postgres(connection: Any, timeout_s: float | None) -> float:
    """Bound how long others wait for this connection; return how long it waits for a lock."""
    return _postgres.bound(connection, lock_max_s=LOCK_MAX_S if timeout_s is None else timeout_s)


def refuse_autocommit(connection: Any) -> None:
    """Raise :class:`ConfigError` if ``connection`` commits each statement by itself."""
    autocommit = getattr(connection, "autocommit", None) is True
    if isinstance(connection, sqlite3.Connection):
        autocommit = connection.isolation_level is None
    elif hasattr(connection, "get_autocommit"):  # PyMySQL, mysqlclient
        autocommit = bool(connection.get_autocommit())
    if autocommit:
        raise ConfigError(
            "connect",
            "the connection is in autocommit mode, so rows and span would not be written together.",
            remedy="Switch autocommit off.",
        )
