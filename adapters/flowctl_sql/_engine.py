"""Connections through SQLAlchemy, for URLs that need it.  Imported only then: it takes .5 s."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from flowctl.errors import ConfigError, MissingExtraError, without_secrets
from flowctl_sql import _refusals
from flowctl_sql._bounds import CONNECT_MAX_S, IDLE_MAX_S, LOCK_MAX_S, bound_socket
from flowctl_sql._database import Opened, bound_postgres, refuse_autocommit
from flowctl_sql._dialect import MYSQL_NAMES, Dialect, PortableDialect, checked_paramstyle
from flowctl_sql._sqlite import SqliteFile, Synchronous, file_at
from flowctl_sql._tables import ddl

# -- How MySQL and MariaDB are told to treat our connections -----------------------------------
#
# As with PostgreSQL (``_postgres.py``): a worker that is frozen inside a transaction must not
# hold its locks for long, and nobody waits for a lock without a limit.


# {} stands for whole seconds.  READ COMMITTED: no locks on the gaps between keys, over which
# writers of different partitions would deadlock, and every statement sees what others committed.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # Without these modes a value that does not fit is changed: 3000000000 is stored as 2147483647.
    "SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',STRICT_TRANS_TABLES')",
    "SET SESSION innodb_lock_wait_timeout = {lock_s}",
    "SET SESSION lock_wait_timeout = {lock_s}",
    # For a client that stops in the middle of a message; the server's default is 30 s.
    "SET SESSION net_read_timeout = {idle_s}",
)
# MySQL lacks such a setting; there ``timeout.end_after_s`` kills a frozen process.
_MARIADB_SETTINGS = ("SET SESSION idle_transaction_timeout = {idle_s}",)

# A view has no engine but a definition, which is '' if the user may not see it.
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
    """Set the server's and the kernel's limits for waiting.

    ``lock_max_s`` is rounded up to whole seconds, at least 1; None stands for 4 s.
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
    """Raise :class:`ConfigError` if writes to ``table`` can't be rolled back, as with MyISAM.

    For a view whose definition the user may see, the tables behind it are checked.
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


# -- Connections through SQLAlchemy, for URLs that need it. Imported only then -----------------


try:
    import sqlalchemy
    from sqlalchemy.engine import URL
except ImportError:
    raise MissingExtraError("url", "SQLAlchemy", "sql") from None


# The extra of flowctl that provides each driver.
_EXTRAS = {"psycopg": "postgres", "pymysql": "mysql"}
# The package of each driver whose module has another name.
_PACKAGES = {"MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary"}
# The connect() argument for the time-out of each driver that has one.
_WITH_CONNECT_TIMEOUT = ("psycopg", "psycopg2", "pymysql", "mysqldb")


class Engine:
    """Any database that SQLAlchemy has a dialect for.

    SQLAlchemy reads the URL, finds and sets up the driver, quotes names and writes the DDL of our
    own tables.  Rows and ledger go through the driver's own connection.  Connections are not
    pooled: a sink keeps one per thread.  ``connect``, if given, opens connections instead of
    SQLAlchemy.
    """

    def __init__(
        self,
        url: str,
        connect: Callable[[], Any] | None,
        *,
        timeout_s: float | None,
        synchronous: Synchronous,
    ) -> None:
        self.label = without_secrets(url)
        self._url = _parsed(url)
        self._connect = connect
        self._timeout_s = timeout_s
        self._file: SqliteFile | None = None
        if self._url.get_backend_name() == "sqlite":
            self._url, self._file = _sqlite_file(self._url, timeout_s, synchronous)
        self._engine()  # finds a missing driver here, before the run

    def connect(self) -> Opened:
        engine = self._engine()
        if self._file is not None:
            connection = self._file.set_up(lambda: _raw(engine))
        else:
            connection = _raw(engine)
        try:
            if self._file is None:
                refuse_autocommit(connection)
            lock_max_s = self._bound(connection, engine.dialect)
        except BaseException:
            connection.close()
            raise
        return Opened(connection, _dialect_of(engine.dialect), lock_max_s)

    def _bound(self, connection: Any, dialect: sqlalchemy.Dialect) -> float:
        if dialect.name == "postgresql":
            return bound_postgres(connection, self._timeout_s)
        if dialect.name in MYSQL_NAMES:
            is_mariadb = bool(getattr(dialect, "is_mariadb", False))
            bound(connection, lock_max_s=self._timeout_s, is_mariadb=is_mariadb)
        return 0.0  # these databases wait by themselves and name no holder of a lock

    def begin(self, connection: Any) -> None:
        if self._file is not None:
            self._file.begin(connection)

    def check_table(self, cursor: Any, dialect: Dialect, table: str) -> None:
        if self._url.get_backend_name() in MYSQL_NAMES:
            check_engine(cursor, dialect, table)

    def is_refusal(self, error: BaseException, *, connected: bool = True) -> bool:
        if _refusals.is_refusal(error, connected=connected):
            return True
        known = self._url.get_backend_name() in ("sqlite", "postgresql")
        if not connected or known or not isinstance(error, Exception):
            return False
        dialect = self._engine().dialect
        return isinstance(error, dialect.loaded_dbapi.Error) and dialect.is_disconnect(
            error, None, None
        )

    def _engine(self) -> sqlalchemy.Engine:
        options: dict[str, Any] = {"poolclass": sqlalchemy.NullPool}
        driver = self._url.get_driver_name()
        if self._connect is not None:
            options["creator"] = self._connect
        elif driver in _WITH_CONNECT_TIMEOUT and "connect_timeout" not in self._url.query:
            options["connect_args"] = {"connect_timeout": CONNECT_MAX_S}
        try:
            return sqlalchemy.create_engine(self._url, **options)
        except ImportError as error:
            raise _missing(error, driver) from None


def _parsed(url: str) -> URL:
    try:
        parsed = sqlalchemy.make_url(url)
        dialect = parsed.get_dialect()
    except ImportError as error:
        raise _missing(error, "") from None
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        # A ValueError quotes the text that it took for a port, which may be part of the password.
        why = "its port is not a number" if isinstance(error, ValueError) else error
        raise ConfigError(
            "url",
            f"SQLAlchemy can't use {without_secrets(url)!r}: {why}.",
            remedy="Write dialect+driver://user:password@host/database; percent-encode / ? # @"
            " in a password.",
        ) from None
    if dialect.is_async:
        raise ConfigError(
            "url",
            f"{parsed.drivername} is an asynchronous driver, but a bolt writes in its own thread.",
            remedy="Use a synchronous driver, such as postgresql+psycopg or mysql+pymysql.",
        )
    return parsed


def _missing(error: ImportError, driver: str) -> ConfigError:
    missing = error.name or driver
    if missing in _EXTRAS:
        return MissingExtraError("url", missing, _EXTRAS[missing])
    remedy = f"Run: pip install {_PACKAGES.get(missing, missing)}"
    if missing == "MySQLdb":  # the default driver of mysql:// and mariadb://
        remedy = f"Write mysql+pymysql://… (pip install 'flowctl-spark[mysql]'). Or: {remedy[5:]}"
    return ConfigError("url", f"the driver {missing} is not installed.", remedy=remedy)


def _sqlite_file(
    url: URL, timeout_s: float | None, synchronous: Synchronous
) -> tuple[URL, SqliteFile]:
    if url.host:
        raise ConfigError("url", f"{url!r} has a host.", remedy="Use sqlite:///file.db.")
    path = url.database or ""
    if path.startswith("file:") or url.query.get("mode") == "memory":
        raise ConfigError("url", f"{url!r} is not a plain path.", remedy="Use sqlite:///file.db.")
    file = file_at(path, timeout_s, synchronous)
    return url.set(database=file.path), file


def _raw(engine: sqlalchemy.Engine) -> Any:
    """Return a connection of the driver itself, used by nothing else."""
    try:
        proxied = engine.raw_connection()
    except sqlalchemy.exc.DBAPIError as error:
        raise (error.orig or error) from error  # is_refusal recognises the driver's own errors
    proxied.detach()
    return proxied.dbapi_connection


def _dialect_of(dialect: sqlalchemy.Dialect) -> Dialect:
    paramstyle = checked_paramstyle(dialect.paramstyle, dialect.driver)
    quote = dialect.identifier_preparer.quote
    if dialect.name in ("sqlite", "postgresql"):
        return Dialect(dialect.name, paramstyle, quote)
    return PortableDialect(dialect.name, paramstyle, quote, False, ddl=ddl(dialect))
