"""Rows of a table as a source by reference: the bolts read them by ranges of a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final

from flowctl.arguments import check_arguments
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint
from flowctl.delivery.plan import check_whole
from flowctl.errors import ConfigError, FlowctlError, SourceError
from flowctl_sql._dialect import checked_columns, checked_table
from flowctl_sql._pages import Query, RowsReader, fetched, opened, unreadable

# A range ends before its stop, which databases take as a whole number of 64 bits.
_KEY_MAX: Final = (1 << 63) - 1

# A page costs a round trip and a search in the index, some 2 ms: 1 us a row.
_PAGE_ROWS: Final = 2_000


class SqlRanges:
    """Rows of a table, read by the bolts: a :class:`flowctl.range_ports.RangeProducer`.

    ``connect`` opens a DB-API connection (sqlite3, psycopg, psycopg2, pg8000, or a driver of MySQL
    or MariaDB).  It is called on the driver and, after travelling, on the workers: let it find the
    password there (an environment variable, a file).  ``key`` is a column of whole numbers, unique,
    never null, with an index: a record's position is its key, and its value is the row as a dict.
    ``columns`` are the columns to read (None: all); ``where`` is a condition in SQL that rows must
    meet.  The partition is named as the table.

    ``mark`` is a ``SELECT`` of one value that tells the table's contents from others under the same
    name, such as the number of the load that made them.  If the value changes, within a run or
    between runs, a job that has done a part of the table is refused.  None: PostgreSQL's oid of the
    table, which changes if a table is dropped and created again; other databases have nothing as
    good.  "": check nothing.

    The job reads the rows whose keys lie between the smallest and the largest key at its start,
    ``page_rows`` at a time, each page in a transaction of its own.  There is no common snapshot: a
    row that changes during the run is read as it is then, and a row that is added with a key below
    the largest one may be missed.  A later run of the job reads the keys above those: a row that
    was added since, or committed since, with a smaller key is never read.

    Raises :class:`ConfigError` and :class:`SourceError`.  Calls come from one thread.
    """

    @check_arguments("table", "columns", "where", "mark")
    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        key: str,
        *,
        columns: Sequence[str] | None = None,
        where: str = "",
        mark: str | None = None,
        page_rows: int = _PAGE_ROWS,
    ) -> None:
        if not callable(connect):
            raise ConfigError(
                "connect",
                f"{type(connect).__name__} can't be called.",
                remedy="Give a function that opens a connection: it is called on each worker.",
            )
        check_whole(page_rows=page_rows)
        chosen = None if columns is None else checked_columns(columns)
        self._query = Query(
            checked_table(table), checked_columns([key])[0], chosen, where, page_rows, mark
        )
        self._connect = connect

    def extents(self, checkpoint: Checkpoint) -> dict[str, Extent]:
        """The keys that there are."""
        query = self._query
        with opened(self._connect, query.table) as (connection, dialect):
            try:
                with closing(connection.cursor()) as cursor:
                    cursor.execute(query.without_key(dialect))
                    if cursor.fetchone() is not None:
                        raise query.bad_key("is null in some rows")
                    cursor.execute(query.ends(dialect))
                    first, last = fetched(cursor)
                mark = query.mark_of(connection, dialect)
            except FlowctlError:
                raise
            except Exception as error:
                raise unreadable(query.table, error) from error
        if first is None:
            return {query.table: Extent(0, 0, mark)}
        for key in (first, last):
            if type(key) is not int:
                # SQLite takes the quoted name of a column that is not there for a text.
                is_name = key == query.key
                what = "no column" if is_name else f"a {type(key).__name__} in some rows"
                raise query.bad_key(f"is {what}, not a whole number")
        if last >= _KEY_MAX:
            raise query.bad_key(f"is {last} in a row; the largest that can be read is one less")
        saved = checkpoint.partitions.get(query.table)
        if saved is not None and saved.position is not None and not _fits(saved.position):
            raise SourceError(
                f"{query.table}: the checkpoint's position {saved.position!r} is not a key.",
                remedy="Another source used this job's name: choose another name.",
            )
        return {query.table: Extent(first, last + 1, mark)}

    def reader(self) -> RowsReader:
        """What the bolts read with."""
        return RowsReader(self._connect, self._query)

    def close(self) -> None:
        """Nothing is open."""


def _fits(position: object) -> bool:
    return isinstance(position, int)
