"""The few things in which databases and their drivers differ."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from flowctl.errors import ConfigError

# Letters of any language, digits, underscore, and the "$" and "-" and space that real schemas
# have.  No quotes, so that quoting can't be broken out of; no "%", which some drivers interpret.
_NAME = re.compile(r"[^\W\d][\w$ -]{0,127}")

_PLACEHOLDERS = {  # {} is the parameter's number
    "qmark": "?",
    "format": "%s",
    # Drivers that say "pyformat" (psycopg, PyMySQL, MySQL Connector) take plain %s too.
    "pyformat": "%s",
    "numeric": ":{}",
}
_BYTES_TYPES = {"psycopg": "BYTEA", "psycopg2": "BYTEA", "pg8000": "BYTEA"}


class Dialect(msgspec.Struct, frozen=True):
    """How SQL is written for one connection: parameters, quoted names, the type of bytes."""

    paramstyle: str = "qmark"
    quote: str = '"'
    bytes_type: str = "BLOB"
    is_postgres: bool = False

    def parameters(self, count: int) -> str:
        """Return ``count`` placeholders, separated by commas."""
        placeholder = _PLACEHOLDERS[self.paramstyle]
        return ", ".join([placeholder.format(number) for number in range(1, count + 1)])

    def fill(self, statement: str) -> str:
        """Replace each ``?`` of one of our own statements by this driver's placeholder."""
        placeholder = _PLACEHOLDERS[self.paramstyle]
        parts = statement.split("?")
        return "".join(
            [
                parts[0],
                *[placeholder.format(number) + part for number, part in enumerate(parts[1:], 1)],
            ]
        )

    def name(self, name: str) -> str:
        """Return ``name`` quoted; each part of ``schema.table`` by itself."""
        return ".".join([f"{self.quote}{part}{self.quote}" for part in name.split(".")])

    def insert(self, table: str, columns: Sequence[str] | None, width: int) -> str:
        """Return the statement that inserts one row of ``width`` values."""
        into = f" ({', '.join([self.name(column) for column in columns])})" if columns else ""
        return f"INSERT INTO {self.name(table)}{into} VALUES ({self.parameters(width)})"


def checked_table(table: str) -> str:
    """Return ``table`` if it is a name or ``schema.name``; raise :class:`ConfigError`."""
    if not all(_NAME.fullmatch(part) for part in table.split(".")):
        raise ConfigError("table", f"{table!r} is no table name.", remedy="Use letters and digits.")
    return table


def checked_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the column names if they can be quoted; raise :class:`ConfigError`."""
    for column in columns:
        if not _NAME.fullmatch(str(column)):
            raise ConfigError(
                "columns", f"{column!r} is no column name.", remedy="Use letters and digits."
            )
    if len(set(columns)) != len(columns) or not columns:
        raise ConfigError(
            "columns", f"{list(columns)!r} is empty or repeats.", remedy="Name each column once."
        )
    return tuple(columns)


def checked_paramstyle(paramstyle: str | None) -> str | None:
    """Return ``paramstyle`` if it is supported; raise :class:`ConfigError`."""
    if paramstyle is not None and paramstyle not in _PLACEHOLDERS:
        raise ConfigError(
            "paramstyle",
            f"{paramstyle!r} is not supported.",
            remedy=f"Use one of {', '.join(_PLACEHOLDERS)}.",
        )
    return paramstyle


def checked_quote(quote: str) -> str:
    """Return ``quote`` if no name can contain it; raise :class:`ConfigError`."""
    if quote not in ('"', "`"):
        raise ConfigError("quote", f"{quote!r} is not supported.", remedy='Use " or `.')
    return quote


def dialect_of(
    connection: Any, *, paramstyle: str | None, quote: str, bytes_type: str | None
) -> Dialect:
    """Return the dialect of ``connection``; what is None is taken from its driver's module."""
    package = type(connection).__module__.partition(".")[0]
    return Dialect(
        paramstyle
        or checked_paramstyle(getattr(sys.modules.get(package), "paramstyle", None))
        or "qmark",
        quote,
        bytes_type or _BYTES_TYPES.get(package, "BLOB"),
        package in _BYTES_TYPES,
    )
