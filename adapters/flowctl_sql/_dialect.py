"""SQL as one connection needs it: parameters, names, and the contents of flowctl's own tables."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from flowctl.errors import ConfigError, JobError

# Names of tables: letters of any language, digits, underscore, and "$", "-" and space, which real
# schemas have.  No quotes, so nothing can break out of the quoting; no "%", which some drivers
# interpret.
_NAME = re.compile(r"[^\W\d][\w$ -]{0,127}")

# Names of columns, which are quoted as a whole: "a.b" may come from a flattened DataFrame.  No
# database's quotes, no control characters, and nothing that a driver takes for a placeholder.
_COLUMN = re.compile(r"""[^"'`\[\]\\%?:\x00-\x1f\x7f]{1,128}""")

_PLACEHOLDERS = {  # {} is the parameter's number
    "qmark": "?",
    "format": "%s",
    # Drivers that say "pyformat" (psycopg, PyMySQL, MySQL Connector) take plain %s too.
    "pyformat": "%s",
    "numeric": ":{}",
    "named": ":{}",  # oracledb takes a sequence for :1, :2
}
# SQLAlchemy's names.
MYSQL_NAMES = ("mysql", "mariadb")
_POSTGRES_DRIVERS = ("psycopg", "psycopg2", "pg8000")

# flowctl's tables in SQLite and PostgreSQL, which both compare text and bytes byte by byte.
_CREATE = {
    "flowctl_epochs": "(job TEXT NOT NULL, epoch BIGINT NOT NULL, PRIMARY KEY (job))",
    "flowctl_partitions": "(job TEXT NOT NULL, sink TEXT NOT NULL, part TEXT NOT NULL,"
    " writes BIGINT NOT NULL, PRIMARY KEY (job, sink, part))",
    "flowctl_spans": "(job TEXT NOT NULL, sink TEXT NOT NULL, part TEXT NOT NULL,"
    " first_position {bytes} NOT NULL, last_position {bytes} NOT NULL, crc BIGINT,"
    " PRIMARY KEY (job, sink, part, first_position))",
}
OWN_TABLES = tuple(_CREATE)

# Databases that ignore case or trailing spaces when they compare get a name as its readable
# beginning and a digest: 64 + 1 + 32 characters.
_READABLE_CHARS = 64
NAME_CHARS = _READABLE_CHARS + 33
# Longest stored position, in hex digits.  With three names it makes a primary key: (3 * 97 + 400) *
# 4 bytes in utf8mb4 are below InnoDB's 3,072 bytes, and one byte per character is below SQL
# Server's 900.
POSITION_CHARS = 400


def _in_double_quotes(name: str) -> str:
    return f'"{name}"'


class Dialect(msgspec.Struct, frozen=True):
    """SQL for SQLite and PostgreSQL; ``name`` is SQLAlchemy's name of the dialect.

    ``has_transactions``: a rollback surely undoes everything, so that it isn't tested.
    """

    name: str = "sqlite"
    paramstyle: str = "qmark"
    quote: Callable[[str], str] = _in_double_quotes
    has_transactions: bool = True

    def parameters(self, count: int) -> str:
        """Return ``count`` placeholders, separated by commas."""
        placeholder = _PLACEHOLDERS[self.paramstyle]
        return ", ".join([placeholder.format(number) for number in range(1, count + 1)])

    def about_table(self, statement: str, table: str) -> tuple[str, tuple[str, ...]]:
        """Return a question to MySQL's information_schema, which names {schema}, and parameters."""
        schema, _, name = table.rpartition(".")
        asked = statement.format(schema="?" if schema else "DATABASE()")
        return self.fill(asked), (schema, name) if schema else (name,)

    def fill(self, statement: str) -> str:
        """Replace each ``?`` in one of flowctl's own statements by this driver's placeholder."""
        placeholder = _PLACEHOLDERS[self.paramstyle]
        parts = statement.split("?")
        return "".join(
            [
                parts[0],
                *[placeholder.format(number) + part for number, part in enumerate(parts[1:], 1)],
            ]
        )

    def quoted(self, name: str) -> str:
        """Return ``name`` quoted; each part of ``schema.table`` separately."""
        return ".".join([self.quote(part) for part in name.split(".")])

    def insert(self, table: str, columns: Sequence[str] | None, width: int, rows: int = 1) -> str:
        """Return the statement that inserts ``rows`` rows of ``width`` values.

        Several rows only with SQLite: there a row that it can't store rolls the transaction back.
        Raises :class:`JobError` for two names that SQLite takes for the same column, as it would
        keep only one of the values.
        """
        if columns and self.name == "sqlite":
            _check_differ(columns)
        into = f" ({', '.join([self.quote(column) for column in columns])})" if columns else ""
        verb = "INSERT OR ROLLBACK INTO" if rows > 1 else "INSERT INTO"
        values = ", ".join([f"({self.parameters(width)})"] * rows)
        return f"{verb} {self.quoted(table)}{into} VALUES {values}"

    def create(self, own_table: str) -> str:
        """Return the statement that creates one of flowctl's own tables."""
        bytes_type = "BYTEA" if self.name == "postgresql" else "BLOB"
        columns = _CREATE[own_table].format(bytes=bytes_type)
        # Otherwise SQLite keeps both a table and an index, and each commit would write one more
        # page.
        kind = " WITHOUT ROWID" if self.name == "sqlite" else ""
        return f"CREATE TABLE IF NOT EXISTS {own_table} {columns}{kind}"

    def stored_name(self, name: str) -> str:
        """Return the stored form of ``name`` (of a job, sink or partition)."""
        return name

    def stored_position(self, encoded: bytes) -> Any:
        """Return the stored form of an encoded position; it sorts in the same order."""
        return encoded

    def encoded_position(self, stored: Any) -> bytes:
        """Return the encoded position of ``stored``."""
        return bytes(stored)


class PortableDialect(Dialect, frozen=True, kw_only=True):
    """SQL for any other database: our tables hold plain ASCII, which all of them compare alike.

    ``ddl`` maps each of our own tables to the statement that creates it.
    """

    ddl: dict[str, str]

    def create(self, own_table: str) -> str:
        return self.ddl[own_table]

    def stored_name(self, name: str) -> str:
        return _portable_name(name)

    def stored_position(self, encoded: bytes) -> str:
        stored = encoded.hex()
        if len(stored) > POSITION_CHARS:  # a database that is not strict would truncate it
            raise JobError(
                f"a position of {len(encoded)} bytes is too long for a key of {self.name}.",
                remedy=f"Use positions of at most {POSITION_CHARS // 2} bytes.",
            )
        return stored

    def encoded_position(self, stored: Any) -> bytes:
        return bytes.fromhex(stored)


@functools.lru_cache(maxsize=4096)  # cached: some are needed five times per write
def _portable_name(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    readable = "".join([c if c.isascii() and c.isprintable() else "?" for c in name])
    return f"{readable[:_READABLE_CHARS]}#{digest}"


def checked_table(table: str) -> str:
    """Return ``table`` if it is a name or ``schema.name``; raise :class:`ConfigError`."""
    if not all(_NAME.fullmatch(part) for part in table.split(".")):
        raise ConfigError(
            "table", f"{table!r} is not a table name.", remedy="Use letters and digits."
        )
    return table


def checked_columns(columns: Sequence[object], field: str = "columns") -> tuple[str, ...]:
    """Return the column names if they can be quoted; raise :class:`ConfigError` for ``field``."""
    checked = [name for name in columns if isinstance(name, str) and _COLUMN.fullmatch(name)]
    if len(checked) < len(columns):
        wrong = next(name for name in columns if name not in checked)
        raise ConfigError(
            field,
            f"{wrong!r} is not a column name (in {field}=, or as a key of a row).",
            remedy="Give text without quotes, brackets and any of %, ?, : and backslash.",
        )
    if not checked:
        raise ConfigError(
            field, f"a row is empty, or {field}=[].", remedy="Name one column or more."
        )
    if len(set(checked)) != len(checked):
        raise ConfigError(field, f"{checked!r} has a name twice.", remedy="Name each column once.")
    return tuple(checked)


def _check_differ(columns: Sequence[str]) -> None:
    seen: dict[bytes, str] = {}
    for column in columns:
        # Lower case for ASCII only, as in SQLite: "É" and "é" are two names.
        other = seen.setdefault(column.encode().lower(), column)
        if other is not column:
            raise JobError(
                f"{other!r} and {column!r} are one column to SQLite, so it would keep one of two"
                " values."
            )


def checked_paramstyle(paramstyle: str, driver: str) -> str:
    """Return ``paramstyle`` if it is supported; raise :class:`ConfigError`."""
    if paramstyle not in _PLACEHOLDERS:
        raise ConfigError(
            "url",
            f"the driver {driver} takes parameters as {paramstyle!r}, which is not supported.",
            remedy=f"Use a driver that takes one of {', '.join(_PLACEHOLDERS)}.",
        )
    return paramstyle


def dialect_of(connection: Any) -> Dialect:
    """Return the dialect of a connection of sqlite3, psycopg, psycopg2 or pg8000.

    Raises :class:`ConfigError` for others, since flowctl must know how a database compares text to
    know what is written.
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(connection).__mro__}
    if "sqlite3" in packages:
        return Dialect()
    for package in _POSTGRES_DRIVERS:
        if package in packages:
            paramstyle = getattr(sys.modules.get(package), "paramstyle", "format")
            return Dialect("postgresql", checked_paramstyle(paramstyle, package))
    raise ConfigError(
        "connect",
        f"it returned a {type(connection).__module__}.{type(connection).__name__}, whose dialect "
        "is not known.",
        remedy="Pass the database's URL too: SqlSink('mysql+pymysql://', connect=…).",
    )
