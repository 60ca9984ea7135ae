"""One open connection and the transactions on it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from flowctl.bolts.batch import Batch
from flowctl.core.records import Span
from flowctl.errors import ConfigError, RetryLater
from flowctl.logs import ModuleLogger
from flowctl_sql import _postgres
from flowctl_sql._bounds import END_STALLED_EVERY_S
from flowctl_sql._casts import KINDS_OF_MYSQL, TableColumns, of_mysql
from flowctl_sql._columns import Columns
from flowctl_sql._copy import Copies, CopyRefused
from flowctl_sql._database import Database
from flowctl_sql._dialect import MYSQL_NAMES, OWN_TABLES
from flowctl_sql._inserts import Inserts, RowCounts, driver_of
from flowctl_sql._ledger import Ledger, not_covered
from flowctl_sql._refusals import (
    is_canceled,
    is_deadlock,
    is_locked,
    reason_of,
)
from flowctl_sql._rows import Prepared
from flowctl_sql._sqlite import columns_of, takes_several
from flowctl_sql._upsert import OnConflict
from flowctl_sql._values import unfit_of

# Tries to add a partition's first row: another connection can be first only once in a partition's
# life, and two more tries are a margin.
_FIRST_ROW_TRIES = 3


class WriteResult(NamedTuple):
    """Rows ``written``, and records ``skipped`` because an earlier attempt wrote them.

    With ``mode="ignore"``, rows that the table already had are not counted as written, if the
    driver reports their number (sqlite3 and psycopg do).
    """

    written: int
    skipped: int


# A connection inherited over a fork is neither used nor closed here: closing it would end the
# parent's transaction, or delete its WAL.  This keeps the garbage collector from doing it.
_inherited: list[Any] = []


class Session:
    """One connection, in the thread and process that opened it."""

    def __init__(
        self, database: Database, table: str, name: str, on_conflict: OnConflict | None = None
    ) -> None:
        connection, dialect, self.lock_max_s = database.connect()
        self.ledger = Ledger(connection.cursor(), dialect, name)
        self.is_unused: bool = True  # nothing was written yet
        self.skipped_at: set[int] = set()  # the last batch's records that were there already
        # Rows are dropped with their batch: keeping them would double the memory, and writing the
        # next ones took 3 % more CPU.
        self._written: WeakKeyDictionary[Batch, Prepared | Columns] = WeakKeyDictionary()
        self._database = database
        self.connection = connection
        self.cursor = connection.cursor()
        self._dialect = dialect
        self._is_postgres = dialect.name == "postgresql"
        self._copies: Copies | None = None  # with psycopg
        self._table = table
        self._sink = name
        self._columns = TableColumns()
        row_counts = RowCounts(table, database.label)
        self._inserts = Inserts(self.cursor, dialect, table, row_counts, on_conflict)
        if driver_of(self.cursor) == "psycopg":
            self._copies = Copies(self.cursor, dialect, table, on_conflict, database.label)
            self._inserts.copies = self._copies
        self._on_conflict = on_conflict
        self._key = on_conflict.key if on_conflict is not None else ()
        self._introduced = ""
        self._pid = os.getpid()
        self._broken = False
        self._end_stalled_at_s = time.monotonic()  # from then on

    @property
    def usable(self) -> bool:
        """Whether this process may continue to use the connection."""
        if self._pid != os.getpid():
            _inherited.append(self)
            return False
        return not self._broken

    def close(self) -> None:
        """Close the connection, whatever its state; never raises."""
        self._broken = True
        try:
            self.connection.close()
        except Exception:  # it is given up anyway: the reason doesn't matter
            return

    def introduce(self, job: str, bolt: str) -> None:
        """Name the connection after job and bolt, for other writers that wait for it."""
        if self._is_postgres:
            name = _postgres.name_of(job, bolt)
            if name != self._introduced:
                try:
                    _postgres.introduce(self.connection, self._dialect, name)
                except BaseException:
                    self.close()
                    raise
                self._introduced = name

    def refusal(self, error: Exception, batch: Batch) -> RetryLater:
        """Return the refusal for an error that means "not now"; it names the lock's holder."""
        if isinstance(error, RetryLater):
            return error
        if not (self._is_postgres and is_locked(error) and self.usable):
            return RetryLater(reason_of(error, self._database.label))
        partition = batch.span.partition
        try:
            who = _postgres.holder(
                self.connection,
                self._dialect,
                job=batch.span.job,
                sink=self._sink,
                partition=partition,
                table=self._table,
            )
        except Exception:  # this look-up only explains the refusal
            self.close()
            who = "is locked"
        return RetryLater(f"partition {partition!r} of the sink {self._sink!r} {who}")

    def transact(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` in a separate transaction; after an error roll back and re-raise it."""
        try:
            self._database.begin(self.connection)
            result = work()
            self.connection.commit()
        except BaseException:
            self._roll_back()
            raise
        return result

    def write_alone(self, given: Prepared | Columns, batch: Batch) -> WriteResult:
        """Write ``batch`` in a separate transaction, waiting for locks within their limit.

        What COPY refuses is inserted: so an error is the same with and without it.  A writer that
        holds the lock of this partition but has stalled (frozen, or cut off) is ended.
        """
        try:
            return self._write_alone(lambda: self.write(given, batch, copies=True), batch)
        except CopyRefused as refused:
            assert self._copies is not None
            prepared = given if isinstance(given, Prepared) else self._as_rows(given, batch)
            result = self._write_alone(lambda: self.write(prepared, batch), batch)
            self._copies.give_up(refused)
            return result

    def _write_alone(self, write: Callable[[], WriteResult], batch: Batch) -> WriteResult:
        by_s = time.monotonic() + self.lock_max_s
        while True:
            try:
                result: WriteResult = self.transact(write)
                return result
            except Exception as error:
                waits = is_locked(error) and self.usable and time.monotonic() < by_s
                if not waits:
                    raise
            self._end_stalled(batch)

    def _end_stalled(self, batch: Batch) -> None:
        now_s = time.monotonic()
        if now_s < self._end_stalled_at_s:
            return
        span = batch.span
        try:
            ended = _postgres.end_stalled(
                self.connection,
                self._dialect,
                job=span.job,
                sink=self._sink,
                partition=span.partition,
            )
        except Exception:  # not permitted, or no connection: the next try reports it
            return
        if ended is not None:
            self._end_stalled_at_s = now_s + END_STALLED_EVERY_S
            ModuleLogger("flowctl_sql").warning(
                "sink_writer_ended", bolt=ended, partition=span.partition, why="it stalled"
            )

    def _roll_back(self) -> None:
        if self._copies is not None:
            self._copies.forget_stages()
        try:
            self.connection.rollback()
        except Exception:  # the server is gone: the next write opens another connection
            self.close()

    def has_written(self, batch: Batch) -> bool:
        """Whether ``batch`` was already written over this connection."""
        return batch in self._written

    def repeats(self, batch: Batch, prepared: Prepared | Columns) -> bool:
        """Whether ``batch`` was written before with other rows: then these would be lost."""
        return self.has_written(batch) and self._written[batch] != prepared

    def note_written(self, batch: Batch, prepared: Prepared | Columns) -> None:
        """Note that ``batch`` is committed with these rows."""
        self.is_unused = False
        self._written[batch] = prepared

    def write(
        self, given: Prepared | Columns, batch: Batch, *, copies: bool = False
    ) -> WriteResult:
        """Write ``batch`` in the transaction that is open, with ``copies`` by COPY where it can."""
        try:
            merges = self._take(batch)
        except Exception as error:
            if is_canceled(error):  # these are our own statements: no record is to blame
                raise RetryLater(reason_of(error, self._database.label)) from error
            raise
        touching = self.ledger.covered(batch.span)
        is_new = not_covered(batch[:], touching) if touching else None
        self.skipped_at = {at for at, new in enumerate(is_new) if not new} if is_new else set()
        key = None if self._on_conflict is None else self._key
        inserts = given.inserts(is_new, key, self._columns.plain_text)
        copies = copies and len(inserts) == 1  # others are too few, or their order matters
        written = sum([self._inserts.insert(insert, copies=copies) for insert in inserts])
        for part in _written_parts(batch, given):
            self.ledger.cover(part, touching if part is batch.span else self.ledger.covered(part))
        if merges:
            self.ledger.merge(batch.span)
        batch.check_in_time()  # last: the commit follows
        return WriteResult(written, len(self.skipped_at))

    def fitted(self, given: Prepared | Columns, batch: Batch) -> Prepared | Columns:
        """Return columns if they can be copied, else rows with Python's own values.

        Raises :class:`JobError` that names a value which the database can't hold, or would change.
        """
        if isinstance(given, Columns):
            given = given.local(self._columns.zoned)
            if self._takes(given):
                return given
        return self._as_rows(given, batch)

    def _takes(self, columns: Columns) -> bool:
        # Then the record is looked for, row by row.
        if self._copies is None or columns.has_null(self._key) or columns.changed_by(self._columns):
            return False
        return self._copies.takes(columns.table, columns.columns)

    def _as_rows(self, given: Prepared | Columns, batch: Batch) -> Prepared:
        prepared = self._as_python(given.as_rows(batch), batch)
        self._refuse_unfit(prepared, batch)
        return prepared

    def _as_python(self, prepared: Prepared, batch: Batch) -> Prepared:
        """Return ``prepared`` with Python's own values; :class:`JobError` for unfit ones."""
        prepared = prepared.as_python(batch, self._dialect.name)
        table = self._columns
        return prepared.as_json(table.names, table.json) if table.json else prepared

    def explain(self, error: Exception, given: Prepared | Columns, batch: Batch) -> None:
        """Raise :class:`JobError` if an unfit value was the cause of the driver's ``error``."""
        prepared = given.as_rows(batch)
        unfit = unfit_of(prepared.rows, self._dialect.name, error)
        if unfit is not None:
            raise prepared.unfit(batch, unfit) from error

    def _refuse_unfit(self, prepared: Prepared, batch: Batch) -> None:
        """Raise :class:`JobError` for rows of unequal widths, without a key, or for a value of
        which the column would make another."""
        prepared.refuse_widths(batch)
        if self._on_conflict is not None:
            prepared.refuse_keyless(batch, self._key)
        prepared.refuse_casts(batch, self._columns)

    def _take(self, batch: Batch) -> bool:
        for _ in range(_FIRST_ROW_TRIES - 1):
            try:
                return self.ledger.take(batch.span)
            except Exception as error:
                if not (_is_integrity_error(error) or is_deadlock(error)):
                    raise
                # Another connection was first to add the row, and now the row exists.  InnoDB may
                # report that as a deadlock, if a third connection rolled back its own row.
                self.connection.rollback()
                self._database.begin(self.connection)
        return self.ledger.take(batch.span)

    def set_up(self, schema: Sequence[str]) -> None:
        """Create flowctl's tables and the user's table if they are missing."""
        # Check first: a user who may write rows may not be allowed to create tables.
        for own_table in OWN_TABLES:
            self._create_unless(own_table, partial(self.ledger.create, own_table))
        if self._missing("flowctl_spans", "crc"):
            self._add_checksums()
        if not schema and (missing := self._missing(self._table)):
            raise ConfigError(
                "table",
                f"{self._table!r} in {self._database.label} can't be read ({missing}).",
                remedy="Create it, or pass schema='CREATE TABLE …'.",
            ) from missing
        if schema and self._missing(self._table):
            self._tell_if_dropped()
        self._create_unless(self._table, lambda: self._create_table(schema))
        self._database.check_table(self.cursor, self._dialect, self._table)
        if self._on_conflict is not None:
            self._check_updated(self._on_conflict.update or ())
            check = self._on_conflict.check_table
            self._inserts.indexes = check(self.cursor, self._dialect, self._table)
        self._columns = self._found_columns()
        if self._copies is not None:
            self._copies.look()
        if self._dialect.name == "sqlite":
            self._inserts.joins = takes_several(self.connection, self._table)
        self._roll_back()
        if not self._dialect.has_transactions:
            self._prove_rollback()

    def _found_columns(self) -> TableColumns:
        if self._is_postgres:
            return _postgres.columns_of(self.cursor, self._dialect, self._table)
        if self._dialect.name == "sqlite":
            return columns_of(self.connection, self._table)
        if self._dialect.name in MYSQL_NAMES:
            self.cursor.execute(*self._dialect.about_table(KINDS_OF_MYSQL, self._table))
            return of_mysql(self.cursor.fetchall())
        return TableColumns()

    def _check_updated(self, columns: Sequence[str]) -> None:
        """Raise :class:`ConfigError` for one that the table has not: it would never be updated."""
        for column in columns:
            # With its table: SQLite takes an unknown name in quotes for text.
            place = f"{self._dialect.quoted(self._table)}.{self._dialect.quote(column)}"
            if self._missing(self._table, place):
                raise ConfigError(
                    "update", f"{self._table!r} has no column {column!r}.", remedy="Correct it."
                )

    def _tell_if_dropped(self) -> None:
        """Log a warning if the table was dropped with rows that flowctl has noted as written.

        It is no error, since a staging table may be dropped once its rows are merged.
        """
        # The table's absence is checked again after the ledger was read: another connection may
        # have created it and written its first rows in between.
        if not (self.ledger.remembers() and self._missing(self._table)):
            return
        ModuleLogger("flowctl_sql").warning(
            "table_dropped",
            table=self._table,
            database=self._database.label,
            detail="the table is missing and is created again; records that were written to it "
            "before count as written, and their rows don't come again",
            remedy="to write them again: flowctl checkpoint clear NAME --sink FILE:SINK",
        )

    def _create_table(self, schema: Sequence[str]) -> None:
        """Execute the user's statements; :class:`ConfigError` if they fail to create the table."""
        for statement in schema:
            try:
                self.cursor.execute(statement)
            except (
                sqlite3.ProgrammingError,
                sqlite3.Warning,
            ) as error:  # several at once; 3.10 warns
                raise ConfigError(
                    "schema", f"{error}", remedy="Give a list: schema=['CREATE …', 'CREATE …']."
                ) from error
        try:
            self.cursor.execute(f"SELECT 1 FROM {self._dialect.quoted(self._table)} WHERE 1 = 0")
            self.cursor.fetchall()
        except Exception as error:
            raise ConfigError(
                "schema",
                f"its statements don't create the table {self._table!r} ({error}).",
                remedy="Give the statement that creates the table which the sink writes to.",
            ) from error

    def _prove_rollback(self) -> None:
        """Raise :class:`ConfigError` if a row is still in the table after a rollback."""
        nobody = Span("flowctl: does a rollback work?", uuid4().hex, 0, 0, 0)
        self._database.begin(self.connection)
        self.ledger.add(nobody)
        self.connection.rollback()
        if self.ledger.knows(nobody):
            raise ConfigError(
                "url",
                f"{self._database.label} keeps what was rolled back, so rows and span would not be "
                "written together.",
                remedy="Switch autocommit off, or use a database with transactions.",
            )
        self._roll_back()

    def _create_unless(self, table: str, create: Callable[[], Any]) -> None:
        if not self._missing(table):
            return
        try:
            self.transact(create)
        except Exception:
            if self._missing(table):
                raise
            # Another connection created it at the same moment.

    def _add_checksums(self) -> None:
        """Add the column for checksums, which tables of older versions lack."""
        statement = "ALTER TABLE flowctl_spans ADD crc BIGINT"
        try:
            self.transact(lambda: self.cursor.execute(statement))
        except Exception as error:
            if self._missing("flowctl_spans", "crc"):
                raise ConfigError(
                    "table",
                    f"flowctl_spans in {self._database.label} is of an older version, and can't be"
                    f" brought up to date ({error}).",
                    remedy=f"Run once as a user who may: {statement}",
                ) from error

    def _missing(self, table: str, column: str = "1") -> Exception | None:
        try:
            self.cursor.execute(f"SELECT {column} FROM {self._dialect.quoted(table)} WHERE 1 = 0")
            self.cursor.fetchall()
        except Exception as error:
            # Such errors tell nothing about the table.
            if self._database.is_refusal(error) or is_canceled(error):
                raise
            return error
        finally:
            self._roll_back()
        return None


def _is_integrity_error(error: Exception) -> bool:
    # By PEP 249 each driver has a class of this name, but there is no common base.
    return any(cls.__name__ == "IntegrityError" for cls in type(error).__mro__)


def _written_parts(batch: Batch, prepared: Prepared | Columns) -> list[Span]:
    """Return the parts of ``batch``'s span between records that were rejected and have no row."""
    left = [-1, *sorted(at for at in batch.rejected if not prepared.rows_of(at)), len(batch)]
    if len(left) == 2:
        return [batch.span]
    span, parts = batch.span, []
    for before, after in pairwise(left):
        if after - before > 1:
            first = span.first if before < 0 else batch[before + 1].position
            last = span.last if after == len(batch) else batch[after - 1].position
            parts.append(msgspec.structs.replace(span, first=first, last=last))
    return parts
