"""Time limits of our PostgreSQL connections, and queries about the holders of locks.

A worker that is frozen or cut off inside a transaction holds the lock of its partition's row, and
the server would keep the transaction open forever, or until TCP keepalive ends it (two hours).  So
each of our connections sets a limit for being idle in a transaction, and both ends check that the
other one is still alive.  Why these numbers: docs/adr/0004-covered-spans.md.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from flowctl.logs import ModuleLogger
from flowctl_sql._bounds import (
    GONE_S,
    IDLE_MAX_S,
    LOCK_LOOK_S,
    PROBE_AFTER_S,
    PROBE_EVERY_S,
    PROBES,
    STALLED_S,
    bound_socket,
)
from flowctl_sql._casts import POSTGRES, TableColumns
from flowctl_sql._dialect import Dialect

# psycopg sends an executemany as a pipeline, and the rows of a COPY as messages; the server does
# not count a client as idle that stops between two of them.  A client that freezes exactly there is
# ended with its process (timeout.end_after_s), or by this limit (PostgreSQL 17), which is far
# longer than a tuple should take.
_TRANSACTION_MAX_S = 300.0

_NAME_BYTES_MAX = 63  # longest application_name (NAMEDATALEN - 1)

# Changes only settings that the server knows and that are not tighter already; 0 means "no limit".
_BOUND = (
    "SELECT set_config(s.name, w.value, false) FROM pg_settings s JOIN (VALUES {wanted}) "
    "AS w (name, value) ON s.name = w.name "
    "WHERE CAST(s.setting AS bigint) = 0 OR CAST(s.setting AS bigint) > CAST(w.value AS bigint)"
)
_INTRODUCE = (
    "SELECT set_config('application_name', ?, false) "
    "WHERE current_setting('application_name') = '' "
    "OR starts_with(current_setting('application_name'), 'flowctl/')"
)
_HOLDER = (
    "FROM flowctl_partitions p JOIN pg_stat_activity a ON a.backend_xid = p.xmax "
    "WHERE p.job = ? AND p.sink = ? AND p.part = ?"
)
_HELD_ROW = f"SELECT a.application_name, a.pid, a.state, EXTRACT(EPOCH FROM a.xact_start) {_HOLDER}"
# Ends only one of our writers, and of this database user: a user may always end their own sessions.
_END_STALLED = (
    f"SELECT a.application_name, pg_terminate_backend(a.pid) {_HOLDER} "
    "AND a.state = 'idle in transaction' AND starts_with(a.application_name, 'flowctl/') "
    "AND a.usename = current_user "
    f"AND a.state_change < clock_timestamp() - interval '{STALLED_S} s'"
)
# 100, 950, 951: the collations "default", "C" and "POSIX", which compare byte by byte whether texts
# are equal; one that a user made may not.
_COLUMNS = (
    "SELECT attname, atttypid IN ('json'::regtype, 'jsonb'::regtype), "
    "atttypid IN ('text'::regtype, 'varchar'::regtype, 'bpchar'::regtype) "
    "AND attcollation IN (100, 950, 951), atttypid = 'timestamptz'::regtype, "
    # that of a domain is of the type below it
    "format_type(COALESCE(NULLIF(t.typbasetype, 0), t.oid), NULL) "
    "FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
    "WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_LOCK_TIMEOUT = "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'"
# Rows that another transaction is about to add can't be seen, nor can the locks on rows of the
# user's table.  So this guesses: it names the session that has been active there longest.
_OLDEST = (
    "SELECT a.application_name, a.pid, a.state, EXTRACT(EPOCH FROM a.xact_start) "
    "FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.granted "
    "AND l.relation IN (to_regclass('flowctl_partitions'), to_regclass(?)) "
    "AND l.mode <> 'AccessShareLock' AND a.pid <> pg_backend_pid() "
    "ORDER BY a.xact_start LIMIT 1"
)


def bound(connection: Any, *, lock_max_s: float) -> float:
    """Set the server's and the kernel's limits for waiting.  Leaves no transaction open.

    Returns how long a write may wait for locks: ``lock_max_s``, or less if the session's own limit
    is less.  A single wait at the server lasts ``LOCK_LOOK_S``.
    """
    wanted = {
        "idle_in_transaction_session_timeout": int(IDLE_MAX_S * 1000),
        "transaction_timeout": int(_TRANSACTION_MAX_S * 1000),
        "lock_timeout": max(1, int(min(lock_max_s, LOCK_LOOK_S) * 1000)),
        "tcp_user_timeout": int(GONE_S * 1000),
        "tcp_keepalives_idle": PROBE_AFTER_S,
        "tcp_keepalives_interval": PROBE_EVERY_S,
        "tcp_keepalives_count": PROBES,
    }
    values = ", ".join([f"('{name}', '{value}')" for name, value in wanted.items()])
    logging.getLogger("psycopg").addFilter(_is_news)  # it is added only once
    cursor = connection.cursor()
    try:
        cursor.execute(_LOCK_TIMEOUT)
        lock_max_s = min(lock_max_s, int(cursor.fetchone()[0]) / 1000 or lock_max_s)
        cursor.execute(_BOUND.format(wanted=values))
        connection.commit()
    except Exception as error:
        connection.rollback()  # raises if the connection itself is broken
        # The server speaks PostgreSQL's protocol but is not PostgreSQL.
        logger = ModuleLogger("flowctl_sql")
        logger.warning("sink_unbounded", problem=" ".join(str(error).split())[:200])
    finally:
        cursor.close()
    bound_socket(connection)
    return lock_max_s


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of psycopg's log tells more than the error that psycopg raises with it."""
    return not str(record.msg).startswith("error ignored terminating")


def name_of(job: str, bolt: str) -> str:
    """Return the name of our connection: ``flowctl/job/bolt``, with the job truncated."""
    room = _NAME_BYTES_MAX - len(f"flowctl//{bolt}".encode())
    return f"flowctl/{job.encode()[: max(0, room)].decode(errors='ignore')}/{bolt}"


def introduce(connection: Any, dialect: Dialect, name: str) -> None:
    """Name the connection ``name``, unless the user has named it."""
    cursor = connection.cursor()
    try:
        cursor.execute(dialect.fill(_INTRODUCE), (name,))
        connection.commit()
    finally:
        cursor.close()


def holder(
    connection: Any, dialect: Dialect, *, job: str, sink: str, partition: str, table: str
) -> str:
    """Return the holder of the lock that our write didn't get.  Call it outside any transaction."""
    cursor = connection.cursor()
    try:
        cursor.execute(dialect.fill(_HELD_ROW), (job, sink, partition))
        if (found := cursor.fetchone()) is not None:
            return f"is locked by {_described(found)}"
        cursor.execute(dialect.fill(_OLDEST), (dialect.quoted(table),))
        if (found := cursor.fetchone()) is not None:
            return f"is locked; active there for longest is {_described(found)}"
    finally:
        connection.rollback()
        cursor.close()
    return "was locked by others, who have finished"


def end_stalled(
    connection: Any, dialect: Dialect, *, job: str, sink: str, partition: str
) -> str | None:
    """End the writer that holds the lock of ``partition`` if it has stalled; return its bolt.

    The writer's transaction is rolled back.  If the writer was only slow, its write is refused and
    it connects again.  Call this outside any transaction.
    """
    cursor = connection.cursor()
    try:
        cursor.execute(dialect.fill(_END_STALLED), (job, sink, partition))
        found = cursor.fetchone()
    finally:
        connection.rollback()
        cursor.close()
    return found[0].rpartition("/")[2] if found is not None and found[1] else None


def _described(found: Any) -> str:
    name, pid, state, since_unix_s = found
    who = name.rpartition("/")[2] if (name or "").startswith("flowctl/") else name
    doing = f", {state}" if state and state != "active" else ""
    since = f" since {time.strftime('%H:%M:%S', time.localtime(float(since_unix_s)))}"
    return f"{who or 'a session without a name'} (backend {pid}{doing}){since}"


def columns_of(cursor: Any, dialect: Dialect, table: str) -> TableColumns:
    """Return what PostgreSQL says about the columns of ``table``."""
    cursor.execute(dialect.fill(_COLUMNS), (dialect.quoted(table),))
    found = cursor.fetchall()
    return TableColumns(
        [name for name, *_ in found],
        frozenset(name for name, is_json, *_ in found if is_json),
        frozenset(name for name, _, is_text, *_ in found if is_text),
        frozenset(name for name, *_, is_zoned, _ in found if is_zoned),
        {name: POSTGRES[kind] for name, *_, kind in found if kind in POSTGRES},
    )
