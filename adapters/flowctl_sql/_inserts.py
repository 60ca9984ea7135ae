"""Insert rows into the user's table with executemany, and compare the driver's row counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import chain
from typing import Any, Final

from flowctl.errors import JobError
from flowctl.logs import ModuleLogger
from flowctl_sql._copy import Copies
from flowctl_sql._dialect import Dialect
from flowctl_sql._refusals import is_statement_fault
from flowctl_sql._rows import Insert, Params
from flowctl_sql._upsert import OnConflict

# -- Rows that a table drops without an error: told once, as they count as written -------------


# Drivers whose ``rowcount`` after an executemany counts all rows; psycopg2 counts the last one.
_COUNTING: Final = frozenset({"psycopg", "sqlite3"})
_VIEW: Final = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND lower(name) = lower(?)"


def driver_of(cursor: Any) -> str:
    """Return the driver's package that a cursor comes from."""
    return type(cursor).__module__.partition(".")[0]


class RowCounts:
    """Compares how many rows a table was given with how many the database says it stored."""

    def __init__(self, table: str, database: str) -> None:
        self._table = table
        self._database = database
        self._counts = False  # whether the database ever reported a stored row
        self._is_told = False

    def note(self, cursor: Any, given: int, stored: int) -> None:
        """Log a warning, once, if ``cursor`` says that it ``stored`` fewer than the ``given``
        rows."""
        driver = driver_of(cursor)
        if self._is_told or driver not in _COUNTING:
            return
        self._counts = self._counts or stored > 0
        if not 0 <= stored < given:
            return
        self._is_told = True
        # SQLite doesn't count rows that a view's trigger passes on.
        if self._counts or driver != "sqlite3" or not self._is_view(cursor):
            self._tell(given, stored)

    def _is_view(self, cursor: Any) -> bool:
        name = self._table.rpartition(".")[2]
        return cursor.connection.execute(_VIEW, (name,)).fetchone() is not None

    def _tell(self, given: int, stored: int) -> None:
        detail = "the table dropped rows without an error, and they count as written"
        remedy = "look for ON CONFLICT IGNORE, a rule, or a trigger that leaves rows out"
        if not self._counts:
            detail = "the table kept none of the rows, without an error; they count as written"
            remedy += "; all is well if it hands them on to another table"
        ModuleLogger("flowctl_sql").warning(
            "rows_not_stored",
            table=self._table,
            database=self._database,
            given=given,
            stored=stored,
            detail=detail,
            remedy=remedy,
        )


# -- How rows get into the user's table --------------------------------------------------------


# Limits of one statement with SQLite.  More rows save nothing: rows of one column took .41 of the
# CPU time with 10 per statement, .32 with 50 and .31 with 100.  SQLite before 3.32 takes at most
# 999 values.
_ROWS_MAX: Final = 50
_VALUES_MAX: Final = 999
# Cached statements: as many as sqlite3 keeps prepared.  Dicts with differing keys could need any
# number.
_STATEMENTS_MAX: Final = 128


class StatementFault(Exception):
    """The database can't run the INSERT for any row with these ``columns``; ``error`` says why."""

    def __init__(self, columns: tuple[str, ...] | None, error: Exception) -> None:
        super().__init__(str(error))
        self.columns = columns
        self.error = error


class Inserts:
    """Inserts rows into one table, over one cursor.  Not thread-safe.

    If ``joins``, several rows go into one statement, which the table must allow (see
    :func:`flowctl_sql._sqlite.takes_several`).  It saves time because Python releases its global
    lock at each statement of SQLite, which takes longer than storing a row of a few columns.
    ``indexes`` is the result of :meth:`.OnConflict.check_table`; ``copies`` takes rows of a
    connection of psycopg.
    """

    def __init__(
        self,
        cursor: Any,
        dialect: Dialect,
        table: str,
        row_counts: RowCounts,
        on_conflict: OnConflict | None = None,
    ) -> None:
        self.joins = False
        self.indexes: Sequence[Set[str]] = ()
        self.copies: Copies | None = None
        self._on_conflict = on_conflict
        self._cursor = cursor
        self._dialect = dialect
        self._table = table
        self._row_counts = row_counts
        self._statements: dict[tuple[Any, ...], str] = {}

    def insert(self, insert: Insert, *, copies: bool = False) -> int:
        """Insert the rows, all of equal width; return the number inserted, without kept rows.

        With ``copies`` by COPY, if it can take them.  Raises :class:`StatementFault`,
        :class:`.CopyRefused`, or what the driver raises for a row.
        """
        if copies and self.copies is not None:
            copied = self.copies.insert(insert)
            if copied is not None:
                return copied
        columns, rows = insert
        try:
            stored = self._insert(columns, rows)
        except Exception as error:
            if is_statement_fault(error):
                raise StatementFault(columns, error) from error
            raise
        if self._on_conflict is None or self._on_conflict.updated(columns or (), self._dialect):
            self._row_counts.note(self._cursor, len(rows), stored)
        elif driver_of(self._cursor) in _COUNTING:
            return stored
        return len(rows)

    def _insert(self, columns: tuple[str, ...] | None, rows: Sequence[Params]) -> int:
        width = len(rows[0])
        at_once = min(_ROWS_MAX, _VALUES_MAX // max(1, width)) if self.joins else 1
        joined = len(rows) // at_once * at_once if at_once > 1 else 0
        stored = 0
        if joined:
            statement = self._statement(columns, width, at_once)
            self._cursor.executemany(statement, _in_parts(rows[:joined], at_once))
            stored = self._cursor.rowcount
        if joined < len(rows):
            one_by_one = rows[joined:] if joined else rows
            self._cursor.executemany(self._statement(columns, width, 1), one_by_one)
            stored += self._cursor.rowcount
        return stored

    def _statement(self, columns: tuple[str, ...] | None, width: int, rows: int) -> str:
        # Drivers look a statement up by its text; one that is the same object is hashed only once.
        key = columns, width, rows
        found = self._statements.get(key)
        if found is None:
            if len(self._statements) == _STATEMENTS_MAX:
                self._statements.clear()
            try:
                found = self._text(columns, width, rows)
            except JobError as error:
                raise StatementFault(columns, error) from error
            self._statements[key] = found
        return found

    def _text(self, columns: tuple[str, ...] | None, width: int, rows: int) -> str:
        text = self._dialect.insert(self._table, columns, width, rows)
        if self._on_conflict is None:
            return text
        assert columns is not None  # refused before
        self._on_conflict.check_others(columns, self.indexes)
        return text + self._on_conflict.clause(self._dialect, columns)


def _in_parts(rows: Sequence[Params], at_once: int) -> Iterator[Params]:
    for at in range(0, len(rows), at_once):
        yield tuple(chain.from_iterable(rows[at : at + at_once]))
