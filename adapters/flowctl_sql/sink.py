"""Rows into a table, each record exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, TypeAlias

from flowctl.arguments import check_arguments
from flowctl.bolts.batch import Batch
from flowctl.core.records import Position
from flowctl.errors import (
    ConfigError,
    FlowctlError,
    JobError,
    MissingExtraError,
    RetryLater,
    RowError,
    UnrunnableError,
    without_secrets,
)
from flowctl_sql._columns import Columns, columns_of, is_record_batch
from flowctl_sql._database import Database, Direct, Psycopg, Sqlite
from flowctl_sql._dialect import checked_columns, checked_table
from flowctl_sql._inserts import StatementFault
from flowctl_sql._refusals import (
    is_canceled,
    is_of_a_driver,
    is_statement_fault,
    reason_of,
    remedy_of,
)
from flowctl_sql._rows import Prepared, Row, none_fits, prepare
from flowctl_sql._session import Session, WriteResult
from flowctl_sql._sqlite import Synchronous, file_at
from flowctl_sql._upsert import Mode, on_conflict

RecordBatch: TypeAlias = Any  # pyarrow's, which is imported only if one comes

# -- From the arguments of ``SqlSink`` to a database: the lightest way that works --------------


_POSTGRES = ("postgresql", "postgres")


def database_of(
    url: str | None,
    connect: Callable[[], Any] | None,
    *,
    timeout_s: float | None,
    synchronous: Synchronous,
) -> Database:
    """Return the database of ``url`` and ``connect``, at least one of which is given.

    SQLAlchemy is imported only for URLs that Python's ``sqlite3`` and libpq can't read.
    """
    if url is None:
        if connect is None:
            raise ConfigError("url", "give url or connect.", remedy="See SqlSink.")
        return Direct(connect, timeout_s=timeout_s)
    if not isinstance(url, str):
        raise ConfigError(
            "url",
            f"a {type(url).__name__} is not a URL.",
            remedy="Give a text; that of an SQLAlchemy URL is"
            " url.render_as_string(hide_password=False).",
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(
            "url",
            f"{without_secrets(url)!r} is not a URL.",
            remedy="Write sqlite:///file.db, postgresql://host/database, or any URL of SQLAlchemy.",
        )
    if scheme == "sqlite" and connect is None and "?" not in rest:
        return Sqlite(file_at(_path_of(rest), timeout_s, synchronous))
    if scheme in _POSTGRES:
        if connect is None and find_spec("psycopg") is None:
            raise MissingExtraError("url", "psycopg", "postgres")
        return Direct(connect or Psycopg(url), label=without_secrets(url), timeout_s=timeout_s)

    from flowctl_sql._engine import Engine  # takes .5 s

    return Engine(url, connect, timeout_s=timeout_s, synchronous=synchronous)


def _path_of(rest: str) -> str:
    if rest and not rest.startswith("/"):
        host = rest.partition("/")[0]
        raise ConfigError("url", f"it has a host: {host!r}.", remedy="Use sqlite:///file.db.")
    return rest[1:]


# -- Rows into a table, each record exactly once -----------------------------------------------


class SqlSink:
    """Writes rows so that a record that comes again changes nothing.

    Rows and the positions they came from go into the database in one transaction.  A record whose
    position is covered is skipped, however tuples are split; a driver that was replaced is refused.
    One ``write`` per tuple and sink; for a second table use a second ``SqlSink``.

    ``url`` names the database: ``sqlite:///relative.db`` or ``sqlite:////absolute.db`` (a file on
    the machine of the workers; WAL does not work on network file systems),
    ``postgresql://user:password@host/database`` (needs the extra ``postgres``), or any URL of
    SQLAlchemy, such as ``mysql+pymysql://…`` (needs the extra ``sql`` and the driver; the extra
    ``mysql`` brings both).  ``connect`` opens connections in its place: a function that is called
    on the worker and returns a DB-API connection, not in autocommit mode.  With sqlite3, psycopg,
    psycopg2 and pg8000 it may stand alone; with other drivers ``url`` says which dialect it is.

    ``table`` may be ``schema.table``.  ``columns`` names the columns; without it they are the keys
    of each dict, or all columns of the table for tuples.  Columns that a dict lacks get their
    default, or NULL. SQLite would store NULL for NaN, so NaN is refused in a column that is not
    declared as text or bytes.  ``schema`` creates the table if it is missing, with one statement or
    several.  ``name`` identifies the sink, by default by its table: two sinks of one job need two
    names.

    ``mode`` decides what happens to a row whose ``key`` the table already has: "insert" adds it,
    and fails where a unique index forbids that; "upsert" updates the existing row, in the columns
    of ``update`` (default: all columns of the new row except ``key``); "ignore" keeps the existing
    row unchanged.  ``key`` names the columns of the primary key, or of a unique index; "ignore"
    without ``key`` applies to any unique index.  Of two rows of a batch with the same key the last
    one stays; batches of one partition or of several may come in any order. "upsert" and "ignore"
    need SQLite, PostgreSQL, MySQL or MariaDB.

    ``timeout_s`` is how long a write waits for a lock that others hold before it is refused
    (default: 10 s with SQLite, 4 s with PostgreSQL, MySQL and MariaDB, which count whole seconds);
    other databases use their own limit.  ``synchronous`` is for SQLite: each commit waits for the
    disk (FULL) or may be lost in a power cut (NORMAL).

    PostgreSQL and MariaDB are set to end a transaction of flowctl's that is idle for 5 s, since a
    frozen worker would otherwise hold its locks forever; a PostgreSQL connection is named
    ``flowctl/job/bolt``.  These are settings of the session, so a pool in between (PgBouncer) must
    be in session mode.  ``connect`` should itself limit how long it tries: ``connect_timeout=5``.

    Raises :class:`ConfigError` for invalid arguments, and :class:`flowctl.errors.MissingExtraError`
    if SQLAlchemy or a driver is missing.  Can be pickled; connects at the first write, once per
    process and thread.  Thread-safe.
    """

    # Whoever has columns hands them over as they are.
    takes_arrow: ClassVar[bool] = True
    # As many as Spark puts into a batch of Arrow.  The six statements of a write, besides the rows,
    # take a tenth of its time then, into PostgreSQL; with 500 rows, two thirds.
    rows_per_write: ClassVar[int] = 10_000
    # Of one partition: what its ledger says of a span is true up to there, in the order of rows.
    calls_max: ClassVar[int] = 1

    @check_arguments("table", "columns", "mode", "key", "update", "schema", "name", "connect")
    def __init__(
        self,
        url: str | None = None,
        *,
        table: str,
        columns: Sequence[str] | None = None,
        mode: Mode = "insert",
        key: Sequence[str] = (),
        update: Sequence[str] | None = None,
        schema: str | Sequence[str] = (),
        name: str | None = None,
        connect: Callable[[], Any] | None = None,
        timeout_s: float | None = None,
        synchronous: Synchronous = "FULL",
    ) -> None:
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and 0 <= timeout_s < float("inf")):
            raise ConfigError(
                "timeout_s",
                f"must be 0 or more and finite, got {timeout_s!r}.",
                remedy="Give a number of seconds.",
            )
        self._database: Database = database_of(
            url, connect, timeout_s=timeout_s, synchronous=synchronous
        )
        self._table = checked_table(table)
        self._columns = None if columns is None else checked_columns(columns)
        self._on_conflict = on_conflict(mode, key, update)
        self._schema = (schema,) if isinstance(schema, str) else tuple(schema)
        self._name = name or table
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"SqlSink(table={self._table!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def write(
        self, rows: Iterable[Row | list[Row] | None] | RecordBatch, *, batch: Batch
    ) -> WriteResult:
        """Write the rows of ``batch``, except those of records that are already written.

        ``rows[i]`` belongs to ``batch[i]``: a dict or a tuple, None for no row, a list for several.
        Or ``rows`` is a ``pyarrow.RecordBatch`` whose row ``i`` belongs to ``batch[i]``, which
        costs least: no object is made of a value where the database takes columns (PostgreSQL).
        The time it takes counts as ``batch.in_sink()``; skipped records are added to
        ``batch.left_out``.  On return, rows and span are committed.  On an error neither is, as far
        as is known.  Raises :class:`RowError` for rows of a wrong shape and for values that the
        database can't hold, :class:`UnrunnableError`, which ends the run, if no row can be written
        because of the table, its columns or the program, or because the database denies access,
        :class:`FencedError` if a newer driver has written, :class:`RetryLater` if the database is
        unavailable, full or locked, and the driver's own exception otherwise.  Values of numpy and
        pandas are written as Python's own (docs/sql.md).
        """
        if is_record_batch(rows):
            with batch.in_sink():
                return self._write(columns_of(rows, batch, self._columns), batch)
        listed = rows if isinstance(rows, list | tuple) else list(rows)
        try:
            prepared = prepare(listed, batch, self._columns)
        except RowError as error:
            is_first = getattr(self._local, "session", None) is None and batch.attempt == 1
            if is_first and none_fits(listed, self._columns):
                raise self._unrunnable(error.problem, error.remedy) from error
            raise
        with batch.in_sink():
            return self._write(prepared, batch)

    def _write(self, prepared: Prepared | Columns, batch: Batch) -> WriteResult:
        session: Session | None = None
        try:
            session = self.session()
            session.introduce(batch.span.job, batch.bolt)
            prepared = session.fitted(prepared, batch)
            return self._write_with(session, prepared, batch)
        except StatementFault as fault:
            assert session is not None
            raise self._unfit(fault, session, prepared, batch) from fault.error
        except ConfigError as error:  # the table is missing, or can't be written to
            problem = error.problem.removeprefix(f"{error.field}: ")
            raise UnrunnableError(error.field, problem, remedy=error.remedy) from error
        except Exception as error:
            if session is None and self._schema and is_statement_fault(error):
                raise UnrunnableError(
                    "schema", f"{_said(error)}.", remedy="Correct its statements."
                ) from error
            connected = session is not None and session.usable
            refuses = self._database.is_refusal(error, connected=connected)
            # An error of flowctl's own statements, such as those that look for its tables.
            refuses = refuses or (session is None and is_canceled(error))
            if session is not None and not (refuses or isinstance(error, FlowctlError)):
                session.explain(error, prepared, batch)
            if session is None and not refuses and is_of_a_driver(error):
                problem = f"{self._database.label} can't be opened: {_said(error)}."
                raise self._unrunnable(problem, remedy_of(error)) from error
            if isinstance(error, RetryLater) or not refuses:
                raise
            if session is None:
                raise RetryLater(reason_of(error, self._database.label)) from error
            raise session.refusal(error, batch) from error

    def _unfit(
        self, fault: StatementFault, session: Session, prepared: Prepared | Columns, batch: Batch
    ) -> JobError:
        """Return the error for rows that don't fit the table; it ends the run if no row can fit.

        If the columns come from the keys of dicts, the misfits may be a few odd records.
        """
        keys = f"rows with the keys {sorted(fault.columns)}" if fault.columns else "rows"
        problem = f"{keys} don't fit the table {self._table!r}: {_said(fault.error)}"
        remedy = "Correct the keys of the rows, columns= or the table, and run again."
        is_first = session.is_unused and batch.attempt == 1
        from_keys = self._columns is None and fault.columns is not None
        if from_keys and (prepared.shapes is not None or not is_first):
            return RowError(f"{problem}.", remedy=remedy)
        return self._unrunnable(f"{problem}.", remedy)

    def _unrunnable(self, problem: str, remedy: str) -> UnrunnableError:
        return UnrunnableError(f"SqlSink {self._name!r}", problem, remedy=remedy)

    def _write_with(
        self, session: Session, prepared: Prepared | Columns, batch: Batch
    ) -> WriteResult:
        if session.repeats(batch, prepared):
            raise JobError(
                f"a second write of other rows for one batch, into {self._name!r}.",
                remedy="Pass all rows at once; for another table use another SqlSink.",
            )
        result = session.write_alone(prepared, batch)
        if not session.has_written(batch):  # otherwise the caller counts the skipped records itself
            # Two sinks may skip the same records.
            batch.left_out = min(len(batch), batch.left_out + result.skipped)
            if session.skipped_at:
                batch.left_out_at = session.skipped_at | (batch.left_out_at or set())
        session.note_written(batch, prepared)
        return result

    def forget(self, job: str, partition: str | None = None, above: Position | None = None) -> bool:
        """Forget which records of ``job`` are written, so that they can be written again.

        With ``partition`` only that partition's records are forgotten, and with ``above`` only
        those above that position.  For a job that will start over, or go back: no driver of the job
        may be running, and you have to delete the existing rows, or they are written a second time.
        ``flowctl checkpoint clear|rewind --sink`` calls this.  Returns False if nothing was
        remembered.
        """
        if partition is None and above is not None:
            raise ConfigError(
                "above", "applies to one partition.", remedy="Name the partition too."
            )
        session = self.session()
        if partition is None:
            return bool(session.transact(lambda: session.ledger.forget(job)))
        return bool(session.transact(lambda: session.ledger.forget_above(job, partition, above)))

    def unfence(self, job: str) -> None:
        """Forget the newest epoch of ``job``: use it when the checkpoint store was lost.

        A store whose epochs restart at 1 (one of your own; Redis uses the time of day) would have
        every driver refused.  The records already written stay known, so no row is duplicated.
        """
        session = self.session()
        session.transact(lambda: session.ledger.unfence(job))

    def newest_epoch(self, job: str) -> int | None:
        """Return the epoch of the newest driver of ``job`` that wrote to this database, or None.

        A driver with an older one is refused, so an emptied checkpoint store must start above it.
        """
        session = self.session()
        epoch: int | None = session.transact(lambda: session.ledger.newest_epoch(job))
        return epoch

    def close(self) -> None:
        """Close this thread's connection; the next write opens another."""
        session: Session | None = getattr(self._local, "session", None)
        if session is not None:
            self._local.session = None
            session.close()

    def release(self) -> None:
        """Close this thread's connection while the bolt waits for others; same as :meth:`close`."""
        self.close()

    def session(self) -> Session:
        """Return this thread's connection, opened and set up if there is none.  For tests."""
        session: Session | None = getattr(self._local, "session", None)
        if session is not None and session.usable:
            return session
        session = Session(self._database, self._table, self._name, self._on_conflict)
        try:
            session.set_up(self._schema)
        except BaseException:
            session.close()
            raise
        self._local.session = session
        return session


def _said(error: Exception) -> str:
    """Return the database's message in one line."""
    return " ".join(str(error).split())[:300].rstrip(".")
