"""Rows of a table as a source by reference: the bolts read them by ranges of a key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from typing import Any, Final

import msgspec

from flowctl.arguments import check_arguments, check_whole
from flowctl.core.ranges.extent import Extent
from flowctl.core.records import Checkpoint, Fields, Record
from flowctl.errors import ConfigError, FlowctlError, SourceError
from flowctl.failure.tables import MYSQL_DRIVERS
from flowctl_sql._dialect import (
    Dialect,
    checked_columns,
    checked_paramstyle,
    checked_table,
    dialect_of,
)
from flowctl_sql._refusals import is_refusal

# -- Rows of a table, page by page, on a worker ------------------------------------------------


_PER_CENT = ("format", "pyformat")


class RowsPage:
    """Rows as records: a :class:`flowctl.range_ports.Block`."""

    __slots__ = ("_records", "stop")

    def __init__(self, records: list[Record], stop: int) -> None:
        self._records = records
        self.stop = stop

    @property
    def size_bytes(self) -> int:
        """An estimate of the memory of the rows: the exact size of Python's values is unknown."""
        return 500 * len(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def position(self, i: int) -> int:
        """See :class:`flowctl.range_ports.Block`."""
        if i >= len(self._records):
            return self.stop
        key = self._records[i].position
        assert isinstance(key, int)
        return key

    def batch_records(self, i: int, j: int) -> Sequence[Record]:
        """See :class:`flowctl.range_ports.Block`."""
        return self._records[i:j]


class Query(msgspec.Struct, frozen=True):
    """The rows to read: see ``SqlRanges`` for the fields."""

    table: str
    key: str
    columns: tuple[str, ...] | None
    where: str
    page_rows: int
    mark: str | None = None

    def ends(self, dialect: Dialect) -> str:
        """Return the statement that gives the smallest and the largest key."""
        key = dialect.quote(self.key)
        return self._from(dialect, f"MIN({key}), MAX({key})", "1 = 1")

    def without_key(self, dialect: Dialect) -> str:
        """Return the statement that finds a row without a key."""
        return self._from(dialect, "1", f"{dialect.quote(self.key)} IS NULL") + " LIMIT 1"

    def page(self, dialect: Dialect) -> str:
        """Return the statement for the rows from one key on and below another."""
        key = dialect.quote(self.key)
        names = "*" if self.columns is None else ", ".join(map(dialect.quote, self.columns))
        bounds = dialect.fill(f"{key} >= ? AND {key} < ?")
        # One row more than a page, which shows whether the page's last key occurs twice.
        limit = f" ORDER BY {key} LIMIT {self.page_rows + 1}"
        return self._from(dialect, f"{key}, {names}", bounds, is_filled=True) + limit

    def mark_of(self, connection: Any, dialect: Dialect) -> str:
        """Return a mark that differs for another table of the same name; "" if there is none."""
        if self.mark is None:
            return _oid(connection, dialect, self.table) if dialect.name == "postgresql" else ""
        if not self.mark:
            return ""
        with closing(connection.cursor()) as cursor:
            cursor.execute(self.mark)
            found = fetched(cursor)
        connection.rollback()
        if found is None or found[0] is None or len(found) != 1:
            raise SourceError(
                f"{self.table}: mark gave {'nothing' if found is None else tuple(found)!r}.",
                remedy="Let it select one value that is not null.",
            )
        return str(found[0])

    def check_mark(self, connection: Any, dialect: Dialect, was: str) -> None:
        """Raise :class:`SourceError` if the mark differs from ``was`` ("" if that is unknown)."""
        now = self.mark_of(connection, dialect) if was else ""
        if now and now != was:
            raise SourceError(
                f"{self.table}: it is another table than before: its mark was {was}, and is {now}.",
                remedy="To read the new one from its beginning, give the job another name. To go"
                ' on anyway: mark="".',
            )

    def bad_key(self, what: str) -> SourceError:
        """Return the error for a key column by which rows can't be found again."""
        return SourceError(
            f"{self.table}: {self.key} {what}.",
            remedy="Give a column of whole numbers that is unique and never null, such as the"
            " primary key.",
        )

    def _from(self, dialect: Dialect, what: str, condition: str, *, is_filled: bool = False) -> str:
        where = self.where
        if is_filled and dialect.paramstyle in _PER_CENT:  # otherwise "%" would begin a parameter
            where = where.replace("%", "%%")
        more = f" AND ({where})" if where else ""
        return f"SELECT {what} FROM {dialect.quoted(self.table)} WHERE {condition}{more}"


class RowsReader:
    """Reads keys on a worker: a :class:`flowctl.range_ports.RangeReader`."""

    def __init__(self, connect: Callable[[], Any], query: Query) -> None:
        self._connect = connect
        self._query = query

    def open(self, partition: str, start: int, stop: int, identity: str) -> Iterator[RowsPage]:
        """See :class:`flowctl.range_ports.RangeReader`; ``identity`` is the mark."""
        query = self._query
        if partition != query.table:
            raise SourceError(
                f"{partition!r} is not the table {query.table!r}.",
                remedy="Another source used this job's name: choose another name.",
            )
        with opened(self._connect, query.table) as (connection, dialect):
            try:  # first, so that a table with other columns is reported as another table
                query.check_mark(connection, dialect, identity)
            except FlowctlError:
                raise
            except Exception as error:
                raise unreadable(query.table, error) from error
            while start < stop:
                rows = self._page(connection, dialect, (start, stop), identity)
                keys = [row[0] for row in rows]
                if any(type(key) is not int for key in keys):
                    raise query.bad_key("is not a whole number in some rows")
                if any(a >= b for a, b in pairwise(keys)):
                    raise query.bad_key("is not unique")
                is_last = len(rows) <= query.page_rows
                start = stop if is_last else keys[-1]
                kept = rows if is_last else rows[:-1]
                yield RowsPage([Record(key, value) for key, value in kept], start)

    def _page(
        self, connection: Any, dialect: Dialect, keys: tuple[int, int], mark: str
    ) -> list[tuple[Any, Fields]]:
        """Return a page of rows, after a check that they are of the table of ``mark``.

        The mark is read after the rows, in the same transaction, which keeps PostgreSQL from
        dropping the table.
        """
        query = self._query
        try:
            with closing(connection.cursor()) as cursor:
                cursor.execute(query.page(dialect), keys)
                names = [column[0] for column in cursor.description][1:]
                rows = [
                    (row[0], Fields(zip(names, row[1:], strict=True)))
                    for row in map(_by_place, cursor)
                ]
            query.check_mark(connection, dialect, mark)
            connection.rollback()  # the page is processed outside any transaction
        except FlowctlError:
            raise
        except Exception as error:
            raise unreadable(query.table, error) from error
        return rows


def _oid(connection: Any, dialect: Dialect, table: str) -> str:
    """Return PostgreSQL's oid of the table; "" if the server only speaks its protocol."""
    found = None
    with closing(connection.cursor()) as cursor, suppress(Exception):
        statement = "SELECT CAST(to_regclass(CAST(? AS text)) AS oid)"
        cursor.execute(dialect.fill(statement), (dialect.quoted(table),))
        found = fetched(cursor)
    connection.rollback()
    return "" if found is None or found[0] is None else f"oid {found[0]}"


@contextmanager
def opened(connect: Callable[[], Any], table: str) -> Iterator[tuple[Any, Dialect]]:
    """Yield an open connection and its dialect; close the connection at the end."""
    try:
        connection = connect()
    except Exception as error:
        raise unreadable(table, error, connected=False) from error
    with closing(connection):
        _let_rows_be_tuples(connection)
        yield connection, _dialect_of(connection)


def _let_rows_be_tuples(connection: Any) -> None:
    """Undo a ``row_factory``: a row as a dict couldn't hold the key beside its columns."""
    if getattr(connection, "row_factory", None) is None:
        return
    packages = {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}
    if "sqlite3" in packages:
        connection.row_factory = None
    elif "psycopg" in packages:
        connection.row_factory = sys.modules["psycopg"].rows.tuple_row


def fetched(cursor: Any) -> Any:
    """Return the cursor's next row, if there is one."""
    row = cursor.fetchone()
    return None if row is None else _by_place(row)


def _by_place(row: Any) -> Any:
    if isinstance(row, tuple | list):
        return row
    raise ConfigError(
        "connect",
        f"its connection gives rows as {type(row).__name__}, not as tuples.",
        remedy="Leave out its row factory or cursor class: records are dicts by themselves.",
    )


def unreadable(table: str, error: Exception, *, connected: bool = True) -> Exception:
    """Return a :class:`SourceError` if trying again can't help, else ``error`` itself."""
    if is_refusal(error, connected=connected):
        return error
    text = " ".join(str(error).split())[:300]
    return SourceError(
        f"{table}: can't be read: {type(error).__name__}: {text}.",
        remedy="Check the table, its columns, and that every worker may read it.",
    )


def _dialect_of(connection: Any) -> Dialect:
    package = type(connection).__module__.partition(".")[0]
    if package in MYSQL_DRIVERS:
        style = getattr(sys.modules.get(package), "paramstyle", "format")
        return Dialect("mysql", checked_paramstyle(style, package), _in_backticks)
    try:
        return dialect_of(connection)
    except ConfigError:
        raise ConfigError(
            "connect",
            f"it returned a {type(connection).__module__}.{type(connection).__name__}, whose"
            " dialect is not known.",
            remedy="Use sqlite3, psycopg, psycopg2, pg8000, or a driver of MySQL.",
        ) from None


def _in_backticks(name: str) -> str:
    return f"`{name}`"


# -- Rows of a table as a source by reference --------------------------------------------------


# The largest key: a range ends before its stop, which must fit into 64 bits in databases.
_KEY_MAX: Final = (1 << 63) - 1

# Rows per page.  A page costs a round trip and a search in the index, some 2 ms, so 1 us per row.
_PAGE_ROWS: Final = 2_000


class SqlRanges:
    """Rows of a table, read by the bolts: a :class:`flowctl.range_ports.RangeProducer`.

    ``connect`` opens a DB-API connection (sqlite3, psycopg, psycopg2, pg8000, or a driver of MySQL
    or MariaDB).  It is called on the driver and, after travelling, on the workers: let it find the
    password there (an environment variable, a file).  ``key`` is a column of whole numbers, unique,
    never null, with an index: a record's position is its key, and its value is the row as a dict.
    ``columns`` are the columns to read (None: all); ``where`` is a condition in SQL that rows must
    meet.  The partition is named as the table.

    ``mark`` is a ``SELECT`` of one value that distinguishes the table's contents from others under
    the same name, such as the number of the load that made them.  If the value changes, within a
    run or between runs, a job that has done a part of the table is refused.  With None it is
    PostgreSQL's oid of the table, which changes if a table is dropped and created again; other
    databases have no equivalent.  With "" nothing is checked.

    The job reads the rows whose keys lie between the smallest and the largest key at its start,
    ``page_rows`` at a time, each page in a transaction of its own.  There is no common snapshot: a
    row that changes during the run is read in its state at that moment, and a row that is added
    with a key below the largest one may be missed.  A later run of the job reads the keys above the
    largest one so far: a row that was added or committed since with a smaller key is never read.

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
        """Return the range of existing keys."""
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
                # SQLite takes the quoted name of a missing column for a text.
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
        """Return the reader for the bolts."""
        return RowsReader(self._connect, self._query)

    def close(self) -> None:
        """Nothing is open."""


def _fits(position: object) -> bool:
    return isinstance(position, int)
