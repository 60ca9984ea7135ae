"""From the arguments of ``SqlSink`` to a database: the lightest way that works."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from flowctl.errors import ConfigError, MissingExtraError, without_secrets
from flowctl_sql._database import Database, Direct, Psycopg, Sqlite
from flowctl_sql._sqlite import Synchronous, file_at

_POSTGRES = ("postgresql", "postgres")


def database_of(
    url: str | None,
    connect: Callable[[], Any] | None,
    *,
    timeout_s: float | None,
    synchronous: Synchronous,
) -> Database:
    """Return where ``url`` and ``connect`` lead to; at least one is given.

    SQLAlchemy is imported for what Python's own ``sqlite3`` and libpq don't read by themselves.
    """
    if url is None:
        if connect is None:
            raise ConfigError("url", "give url or connect.", remedy="See SqlSink.")
        return Direct(connect, timeout_s=timeout_s)
    if not isinstance(url, str):
        raise ConfigError(
            "url",
            f"a {type(url).__name__} is not a URL.",
            remedy="Give a text; that of an SQLAlchemy URL is"
            " url.render_as_string(hide_password=False).",
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigError(
            "url",
            f"{without_secrets(url)!r} is not a URL.",
            remedy="Write sqlite:///file.db, postgresql://host/database, or any URL of SQLAlchemy.",
        )
    if scheme == "sqlite" and connect is None and "?" not in rest:
        return Sqlite(file_at(_path_of(rest), timeout_s, synchronous))
    if scheme in _POSTGRES:
        if connect is None and find_spec("psycopg") is None:
            raise MissingExtraError("url", "psycopg", "postgres")
        return Direct(connect or Psycopg(url), label=without_secrets(url), timeout_s=timeout_s)

    from flowctl_sql._engine import Engine  # takes .5 s

    return Engine(url, connect, timeout_s=timeout_s, synchronous=synchronous)


def _path_of(rest: str) -> str:
    if rest and not rest.startswith("/"):
        host = rest.partition("/")[0]
        raise ConfigError("url", f"it has a host: {host!r}.", remedy="Use sqlite:///file.db.")
    return rest[1:]
