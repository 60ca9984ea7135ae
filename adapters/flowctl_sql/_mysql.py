"""How MySQL and MariaDB are told to treat our connections.

As with PostgreSQL (``_postgres.py``): a worker that is frozen inside a transaction must not hold
its locks for long, and nobody waits for a lock without a limit.
"""

from __future__ import annotations

import math
import re
from typing import Any

from flowctl.errors import ConfigError
from flowctl_sql._bounds import IDLE_MAX_S, LOCK_MAX_S, bound_socket
from flowctl_sql._dialect import Dialect

# {} is in whole seconds.  READ COMMITTED: no locks on the gaps between keys, over which writers of
# different partitions would deadlock, and every statement sees what others committed.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # Otherwise a value that does not fit is stored as another one: 3000000000 as 2147483647.
    "SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_TRANS_TABLES')",
    "SET SESSION innodb_lock_wait_timeout = {lock_s}",
    "SET SESSION lock_wait_timeout = {lock_s}",
    # For a client that stops in the middle of a message; the default is 30 s.
    "SET SESSION net_read_timeout = {idle_s}",
)
# MySQL has nothing like it: a frozen process is killed by timeout.end_after_s.
_MARIADB_SETTINGS = ("SET SESSION idle_transaction_timeout = {idle_s}",)

# A view has no engine, but a definition: '' if the user may not see it.
_KIND = (
    "SELECT t.engine, e.transactions, CONVERT(v.view_definition USING utf8mb4)"
    " FROM information_schema.tables t"
    " LEFT JOIN information_schema.engines e ON e.engine = t.engine"
    " LEFT JOIN information_schema.views v"
    " ON v.table_schema = t.table_schema AND v.table_name = t.table_name"
    " WHERE t.table_schema = COALESCE(?, DATABASE()) AND t.table_name = ?"
)
# The server stores the tables of a definition as `schema`.`table`, whatever the user wrote.
_IN_A_VIEW = re.compile(r"`([^`]+)`\.`([^`]+)`")


def bound(connection: Any, *, lock_max_s: float | None, is_mariadb: bool) -> None:
    """Tell server and kernel how long to wait for us and for others.

    ``lock_max_s`` is rounded up to whole seconds, at least 1; None: 4 s.
    """
    lock_s = max(1, math.ceil(LOCK_MAX_S if lock_max_s is None else lock_max_s))
    cursor = connection.cursor()
    try:
        for setting in (*_SETTINGS, *(_MARIADB_SETTINGS if is_mariadb else ())):
            cursor.execute(setting.format(lock_s=lock_s, idle_s=math.ceil(IDLE_MAX_S)))
        connection.commit()
    finally:
        cursor.close()
    bound_socket(connection)


def check_engine(cursor: Any, dialect: Dialect, table: str) -> None:
    """Raise :class:`ConfigError` if ``table`` can't be rolled back, as with MyISAM.

    Nor the tables behind it, if it is a view whose definition the user may see.
    """
    schema, _, name = table.rpartition(".")
    waiting: list[tuple[str | None, str]] = [(schema or None, name)]
    seen = set(waiting)
    while waiting:
        at = waiting.pop()
        cursor.execute(dialect.fill(_KIND), at)
        engine, transactions, definition = cursor.fetchone() or (None, None, None)
        if transactions == "NO":
            raise _without_transactions(table, at[1], engine)
        behind = set(_IN_A_VIEW.findall(definition or "")) - seen
        seen |= behind
        waiting.extend(behind)


def _without_transactions(table: str, name: str, engine: object) -> ConfigError:
    its = "" if table.endswith(name) else f"the table {name!r} behind "
    return ConfigError(
        "table",
        f"{its}{table!r} uses the engine {engine}, which has no transactions.",
        remedy=f"Run: ALTER TABLE {name if its else table} ENGINE = InnoDB.",
    )
