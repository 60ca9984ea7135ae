"""Rows into a table, each record exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowctl.bolts.batch import Batch
from flowctl.core.records import Position
from flowctl.errors import ConfigError, JobError, RetryLater
from flowctl_sql import _postgres
from flowctl_sql._database import Callback, Database, Sqlite, Synchronous
from flowctl_sql._dialect import (
    checked_columns,
    checked_paramstyle,
    checked_quote,
    checked_table,
    dialect_of,
)
from flowctl_sql._refusals import is_refusal, reason_of
from flowctl_sql._rows import Prepared, Row, prepare
from flowctl_sql._session import Session, WriteResult

# SQLite lets one process write at a time and is not fair: five times the longest wait that was seen
# with twelve writers (docs/adr/0004).
_SQLITE_LOCK_MAX_S = 10.0


class SqlSink:
    """Writes rows so that a record that comes again changes nothing.

    Rows and the positions they came from go into the database in one transaction.  A record
    whose position is covered is left out, however its tuple is cut; a driver that was replaced is
    refused.  One ``write`` per tuple and sink; for a second table use a second ``SqlSink``.

    ``url`` is ``sqlite:///relative.db`` or ``sqlite:////absolute.db`` (a file on the machine
    of the workers; WAL does not work on network file systems).  Any other database: ``connect``,
    a function that is called on the worker and returns a DB-API connection, not in autocommit
    mode; ``paramstyle`` (qmark, format, pyformat, numeric), ``quote`` and ``bytes_type`` are for
    drivers that can't be told from their module.

    ``table`` may be ``schema.table``.  ``columns`` names the columns; without it they are the
    keys of the first dict, or all columns of the table for tuples.  ``schema`` is what creates the
    table where it is missing, one statement or several.  ``name`` is the sink's own: two
    sinks of one job need two names; it is the table's if left out.

    ``timeout_s`` is how long a write waits for a lock that others hold before it is refused
    (default: 10 s with SQLite, 4 s with PostgreSQL); other databases have their own.
    ``synchronous`` is SQLite's: whether each commit waits for the disk (FULL) or may be lost in a
    power cut (NORMAL).

    A PostgreSQL connection (psycopg, psycopg2, pg8000) is told to end a transaction of ours that is
    idle for 5 s, as that of a frozen worker would hold its locks for ever, and to look whether we
    are there; it is named ``flowctl/job/bolt``.  These are settings of the session: a pool
    between (PgBouncer) must be in session mode.  ``connect`` should bound itself how long it
    tries: ``connect_timeout=5``.

    Can be pickled; connects at the first write, once a process and thread.  Thread-safe.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        table: str,
        columns: Sequence[str] | None = None,
        schema: str | Sequence[str] = (),
        name: str | None = None,
        connect: Callable[[], Any] | None = None,
        paramstyle: str | None = None,
        quote: str = '"',
        bytes_type: str | None = None,
        timeout_s: float | None = None,
        synchronous: Synchronous = "FULL",
    ) -> None:
        if (url is None) == (connect is None):
            raise ConfigError("url", "give url or connect, one of them.", remedy="See SqlSink.")
        if timeout_s is not None and not 0 <= timeout_s < float("inf"):
            raise ConfigError(
                "timeout_s", f"{timeout_s!r} is no time to wait.", remedy="Give some seconds."
            )
        self._timeout_s = timeout_s
        self._database: Database
        if connect is not None:
            self._database = Callback(connect)
        else:
            wait_s = _SQLITE_LOCK_MAX_S if timeout_s is None else timeout_s
            self._database = Sqlite(url or "", timeout_s=wait_s, synchronous=synchronous)
        self._table = checked_table(table)
        self._columns = None if columns is None else checked_columns(columns)
        self._schema = (schema,) if isinstance(schema, str) else tuple(schema)
        self._name = name or table
        self._paramstyle = checked_paramstyle(paramstyle)
        self._quote = checked_quote(quote)
        self._bytes_type = bytes_type
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def write(self, rows: Iterable[Row | list[Row] | None], *, batch: Batch) -> WriteResult:
        """Write the rows of ``batch``, without those of records that are written already.

        ``rows[i]`` belongs to ``batch[i]``: a dict or a tuple, None for no row, a list for
        several.  The time it takes counts as ``batch.in_sink()``; records that were left out are
        added to ``batch.left_out``.  On return rows and span are committed.  On an error nothing
        is, as far as is known: raises :class:`JobError` for rows of a wrong shape,
        :class:`FencedError` when a newer driver has written, :class:`RetryLater` when the
        database is away, full or locked, and what its driver raises for the rest.
        """
        prepared = prepare(rows, batch, self._columns)
        with batch.in_sink():
            return self._write(prepared, batch)

    def _write(self, prepared: Prepared, batch: Batch) -> WriteResult:
        session: Session | None = None
        try:
            session = self._session()
            session.introduce(batch.span.job, batch.bolt)
            return self._write_with(session, prepared, batch)
        except Exception as error:
            connected = session is not None and session.usable
            if isinstance(error, RetryLater) or not is_refusal(error, connected=connected):
                raise
            refusal = session.refusal(error, batch) if session else RetryLater(reason_of(error))
            raise refusal from error

    def _write_with(self, session: Session, prepared: Prepared, batch: Batch) -> WriteResult:
        if session.repeats(batch, prepared):
            raise JobError(
                f"a second write of other rows for one batch, into {self._name!r}.",
                remedy="Hand over all rows at once; for another table use another SqlSink.",
            )
        result: WriteResult = session.transact(lambda: session.write(prepared, batch))
        if not session.has_written(batch):  # else what is left out is its own
            # Two sinks may leave out the same records.
            batch.left_out = min(len(batch), batch.left_out + result.skipped)
        session.last_written = (batch, prepared)
        return result

    def forget(self, job: str, partition: str | None = None, above: Position | None = None) -> bool:
        """Forget which records of ``job`` are written, so that they can be written again.

        With ``partition``: only that one's, and only above the position ``above`` if it is given.
        For a job that is to start over, or to go back: no driver of it may be running, and rows
        that are there are yours to delete; else they are written a second time.
        ``flowctl checkpoint clear|rewind --sink`` calls this.  False: nothing was remembered.
        """
        if partition is None and above is not None:
            raise ConfigError("above", "is of one partition.", remedy="Name the partition too.")
        session = self._session()
        if partition is None:
            return bool(session.transact(lambda: session.ledger.forget(job)))
        return bool(session.transact(lambda: session.ledger.forget_above(job, partition, above)))

    def unfence(self, job: str) -> None:
        """Forget the newest epoch of ``job``: for when the checkpoint store was lost.

        A store that begins its epochs anew (one of your own; Redis takes the time of day) would
        have every driver refused.  What is written stays known, so no row is doubled.
        """
        session = self._session()
        session.transact(lambda: session.ledger.unfence(job))

    def newest_epoch(self, job: str) -> int | None:
        """The epoch of the newest driver of ``job`` that has written to this database, or None.

        A driver with an older one is refused: a checkpoint store that begins anew must begin above.
        """
        session = self._session()
        epoch: int | None = session.transact(lambda: session.ledger.newest_epoch(job))
        return epoch

    def close(self) -> None:
        """Close this thread's connection; the next write opens another."""
        session: Session | None = getattr(self._local, "session", None)
        if session is not None:
            self._local.session = None
            session.close()

    def _session(self) -> Session:
        session: Session | None = getattr(self._local, "session", None)
        if session is not None and session.usable:
            return session
        connection = self._database.connect()
        dialect = dialect_of(
            connection,
            paramstyle=self._paramstyle,
            quote=self._quote,
            bytes_type=self._bytes_type,
        )
        session = Session(self._database, connection, dialect, self._table, self._name)
        try:
            if dialect.is_postgres:
                wait_s = _postgres.LOCK_MAX_S if self._timeout_s is None else self._timeout_s
                _postgres.bound(connection, lock_max_s=wait_s)
            session.set_up(self._schema)
        except BaseException:
            session.close()
            raise
        self._local.session = session
        return session
