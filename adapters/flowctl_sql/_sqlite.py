"""Set up connections to SQLite files and begin transactions on them, whoever opened them."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Any, Literal

import msgspec

from flowctl.errors import ConfigError, UnrunnableError
from flowctl_sql._casts import LOST_NAN, TableColumns
from flowctl_sql._refusals import is_locked, is_refusal, sqlite_locked

Synchronous = Literal["NORMAL", "FULL"]

# Longest wait for the write lock.  SQLite lets one process write at a time and is not fair: this is
# five times the longest wait measured with twelve writers (docs/adr/0004).
_LOCK_MAX_S = 10.0
# Seconds between attempts to switch to WAL, which SQLite's own busy handler does not cover.
_RETRY_S = 0.01


class SqliteFile(msgspec.Struct, frozen=True):
    """A file and its settings; ``path`` is absolute, as workers have other working directories."""

    path: str
    timeout_s: float
    synchronous: Synchronous

    def open(self) -> sqlite3.Connection:
        """Return a new connection, set up."""
        connection: sqlite3.Connection = self.set_up(lambda: sqlite3.connect(self.path))
        return connection

    def set_up(self, connect: Any) -> Any:
        """Return the connection that ``connect`` opens; its transactions need :meth:`begin`.

        Raises :class:`RetryLater` while others hold the file's lock.
        """
        try:
            connection = connect()
            connection.isolation_level = None  # ``begin`` sends BEGIN IMMEDIATE explicitly
            connection.execute(f"PRAGMA busy_timeout = {int(self.timeout_s * 1000)}")
            self._use_wal(connection)
        except sqlite3.DatabaseError as error:
            if is_locked(error):
                raise sqlite_locked(self.path, self.timeout_s) from error
            if is_refusal(error, connected=False):  # the disk is full
                raise
            raise UnrunnableError(
                "SqlSink",
                f"SQLite file {self.path}: {error}.",
                remedy="Check on the worker that its directory exists, that both may be written, "
                "and that it is a database of SQLite.",
            ) from error
        # Kill -9 of any process loses nothing.  In a power cut NORMAL may lose the last
        # transactions, but only whole ones; FULL waits for the disk at each commit.
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to WAL, where readers don't block writers and a commit is one append."""
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
        """Begin with the write lock, before anything is read, so that what is read stays true."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            raise sqlite_locked(self.path, self.timeout_s) from error


def columns_of(connection: sqlite3.Connection, table: str) -> TableColumns:
    """Return the columns of ``table``; those not declared as text or bytes make NULL of NaN."""
    schema, _, name = table.rpartition(".")
    pragma = f'PRAGMA "{schema}".table_info("{name}")' if schema else f'PRAGMA table_info("{name}")'
    declared = [(row[1], row[2].upper()) for row in connection.execute(pragma)]
    text = ("CHAR", "CLOB", "TEXT", "BLOB")  # sqlite.org/datatype3.html, 3.1
    numbers = [name for name, kind in declared if not any(part in kind for part in text)]
    casts = {name.lower(): LOST_NAN for name in numbers}
    return TableColumns([name for name, _ in declared], casts=casts, any_case=True)


def takes_several(connection: sqlite3.Connection, table: str) -> bool:
    """Whether one statement may insert several rows into ``table``, with OR ROLLBACK.

    Any failure here rolls back the whole transaction, and OR ROLLBACK tells SQLite so.  Without it
    SQLite keeps a copy of each page that a statement changes: with keys in random order that took a
    third longer than row by row, while OR ROLLBACK takes a tenth less.  But OR ROLLBACK overrides
    the ON CONFLICT clauses of the table's constraints and of its triggers' statements.
    """
    schema, _, name = table.rpartition(".")
    # An unqualified name means a temporary table first, and temporary triggers count too.
    where = [f'"{schema}".sqlite_master' if schema else "sqlite_master", "sqlite_temp_master"]
    parts = [f"SELECT type, sql FROM {each} WHERE lower(tbl_name) = lower(?)" for each in where]
    found = connection.execute(" UNION ALL ".join(parts), (name, name)).fetchall()
    tables = [sql.upper() for kind, sql in found if kind == "table"]
    others = {kind for kind, _ in found} - {"table", "index"}  # triggers, views
    return (
        len(tables) == 1
        and not others
        and "CONFLICT" not in tables[0]
        and not tables[0].startswith("CREATE VIRTUAL")
    )


def file_at(path: str, timeout_s: float | None, synchronous: Synchronous) -> SqliteFile:
    """Return the file at ``path``; raise :class:`ConfigError` if workers can't share it."""
    if not path or path == ":memory:":
        raise ConfigError(
            "url",
            "each process would have its own SQLite database in memory.",
            remedy="Name a file: sqlite:///file.db, or sqlite:////absolute/file.db.",
        )
    if synchronous not in ("NORMAL", "FULL"):
        raise ConfigError(
            "synchronous", f"{synchronous!r} is unknown.", remedy="Give NORMAL or FULL."
        )
    return SqliteFile(
        os.path.abspath(os.path.expanduser(path)),
        _LOCK_MAX_S if timeout_s is None else timeout_s,
        synchronous,
    )
