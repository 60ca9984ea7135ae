"""Rows that a table drops without an error: told once, as they count as written."""

from __future__ import annotations

from typing import Any, Final

from flowctl.logs import ModuleLogger

# Drivers whose ``rowcount`` after an executemany is that of all rows; psycopg2's is the last row's.
_COUNTING: Final = frozenset({"psycopg", "sqlite3"})


class RowCounts:
    """Compares how many rows a table was given with how many the database says it stored."""

    def __init__(self, table: str, database: str) -> None:
        self._table = table
        self._database = database
        # A view or a table that hands its rows on by a trigger counts none, ever.
        self._counts = False
        self._is_told = False

    def note(self, cursor: Any, given: int) -> None:
        """Log a warning, once, if ``cursor`` stored fewer than the ``given`` rows."""
        if self._is_told or type(cursor).__module__.partition(".")[0] not in _COUNTING:
            return
        stored = cursor.rowcount
        self._counts = self._counts or stored > 0
        if self._counts and 0 <= stored < given:
            self._is_told = True
            ModuleLogger("flowctl_sql").warning(
                "rows_not_stored",
                table=self._table,
                database=self._database,
                given=given,
                stored=stored,
                detail="the table dropped rows without an error, and they count as written",
                remedy="look for ON CONFLICT IGNORE, a rule, or a trigger that leaves rows out",
            )
