"""Rows that a table drops without an error: told once, as they count as written."""

from __future__ import annotations

from typing import Any, Final

from flowctl.logs import ModuleLogger

# Drivers whose ``rowcount`` after an executemany is that of all rows; psycopg2's is the last row's.
_COUNTING: Final = frozenset({"psycopg", "sqlite3"})
_VIEW: Final = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND lower(name) = lower(?)"


class RowCounts:
    """Compares how many rows a table was given with how many the database says it stored."""

    def __init__(self, table: str, database: str) -> None:
        self._table = table
        self._database = database
        self._counts = False  # whether the database ever said that it stored one
        self._is_told = False

    def note(self, cursor: Any, given: int, stored: int) -> None:
        """Log a warning, once, if ``cursor`` says that it ``stored`` fewer than the ``given``
        rows."""
        driver = type(cursor).__module__.partition(".")[0]
        if self._is_told or driver not in _COUNTING:
            return
        self._counts = self._counts or stored > 0
        if not 0 <= stored < given:
            return
        self._is_told = True
        # What a trigger hands on from a view, SQLite does not count.
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
