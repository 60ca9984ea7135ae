"""flowctl's own tables for dialects other than SQLite and PostgreSQL. Imports SQLAlchemy."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, MetaData, String, Table
from sqlalchemy.engine.interfaces import Dialect as AlchemyDialect
from sqlalchemy.schema import CreateTable

from flowctl_sql._dialect import NAME_CHARS, OWN_TABLES, POSITION_CHARS


def ddl(dialect: AlchemyDialect) -> dict[str, str]:
    """Return the statement that creates each table, by its name."""
    return {
        table.name: str(CreateTable(table).compile(dialect=dialect)).strip() for table in _tables()
    }


def _tables() -> list[Table]:
    epochs, partitions, spans = OWN_TABLES
    return [
        _table(epochs, _name("job"), _number("epoch")),
        _table(partitions, *map(_name, ("job", "sink", "part")), _number("writes")),
        _table(
            spans,
            *map(_name, ("job", "sink", "part")),
            Column("first_position", String(POSITION_CHARS), primary_key=True),
            Column("last_position", String(POSITION_CHARS), nullable=False),
            Column("crc", BigInteger),
        ),
    ]


def _table(name: str, *columns: Column[object]) -> Table:
    # The ledger needs an engine with transactions, whatever the server's default is.
    return Table(name, MetaData(), *columns, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def _name(name: str) -> Column[object]:
    return Column(name, String(NAME_CHARS), primary_key=True)


def _number(name: str) -> Column[object]:
    return Column(name, BigInteger, nullable=False)
