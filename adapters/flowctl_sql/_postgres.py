"""What PostgreSQL is told of our connections, and what it is asked about others'.

A worker that is frozen or cut off inside a transaction holds the lock of its partition's row, and
the server would wait for it for ever, or for its TCP keepalive (two hours).  So each of our
connections tells the server how long it may be idle in a transaction, and both ends to look
whether the other one is there.  Why these numbers: docs/adr/0004-covered-spans.md.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

from flowctl_sql._dialect import Dialect

# Between two statements of ours there is nothing but Python: some milliseconds.  Long enough for a
# machine that swaps, short enough that the others go on within 10 s of a freeze.
IDLE_MAX_S = 5.0
# Shorter, so that those who wait are told who holds the lock before it is taken away.
LOCK_MAX_S = 4.0
# The server does not count a client as idle that stopped between two messages of a pipeline, which
# psycopg's executemany is: a freeze just there ends with the process (timeout.end_after_s), or
# with this (PostgreSQL 17), far above what a tuple should take.
_TRANSACTION_MAX_S = 300.0
# A peer that answers no probe for this long is gone: 2 s without a word, then one probe a second.
_GONE_S = 5.0
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 2, 1, 3

_NAME_BYTES_MAX = 63  # of an application_name (NAMEDATALEN - 1)

# Those that the server knows and that are not tighter already; 0 stands for "no bound".
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
_HELD_ROW = (
    "SELECT a.application_name, a.pid, a.state, EXTRACT(EPOCH FROM a.xact_start) "
    "FROM flowctl_partitions p JOIN pg_stat_activity a ON a.backend_xid = p.xmax "
    "WHERE p.job = ? AND p.sink = ? AND p.part = ?"
)
# A row that another transaction is about to add can't be seen, nor can the locks on rows of the
# user's tables: then the one who has been there for longest, which is only a guess.
_OLDEST = (
    "SELECT a.application_name, a.pid, a.state, EXTRACT(EPOCH FROM a.xact_start) "
    "FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.granted "
    "AND l.relation IN (to_regclass('flowctl_partitions'), to_regclass(?)) "
    "AND l.mode <> 'AccessShareLock' AND a.pid <> pg_backend_pid() "
    "ORDER BY a.xact_start LIMIT 1"
)


def bound(connection: Any, *, lock_max_s: float) -> None:
    """Tell server and kernel how long to wait for us and for others.  Begins no transaction."""
    wanted = {
        "idle_in_transaction_session_timeout": int(IDLE_MAX_S * 1000),
        "transaction_timeout": int(_TRANSACTION_MAX_S * 1000),
        "lock_timeout": max(1, int(lock_max_s * 1000)),
        "tcp_user_timeout": int(_GONE_S * 1000),
        "tcp_keepalives_idle": _PROBE_AFTER_S,
        "tcp_keepalives_interval": _PROBE_EVERY_S,
        "tcp_keepalives_count": _PROBES,
    }
    values = ", ".join([f"('{name}', '{value}')" for name, value in wanted.items()])
    cursor = connection.cursor()
    try:
        cursor.execute(_BOUND.format(wanted=values))
        connection.commit()
    except Exception as error:
        connection.rollback()  # raises if it is the connection that is broken
        # Something that speaks its protocol and is no PostgreSQL.
        import structlog  # here: a worker pays for every import

        logger = structlog.get_logger("flowctl_sql")
        logger.warning("sink_unbounded", problem=" ".join(str(error).split())[:200])
    finally:
        cursor.close()
    _bound_socket(connection)


def _bound_socket(connection: Any) -> None:
    """The same for our end: a server that is cut off is noticed, where the system can do it."""
    tcp, probes = socket.IPPROTO_TCP, (_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES)
    with (
        contextlib.suppress(Exception),  # no fileno, no TCP, no such option
        socket.socket(fileno=os.dup(connection.fileno())) as sock,
    ):
        if sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT):
            return  # the user's connect has its own idea
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in zip(("KEEPIDLE", "KEEPINTVL", "KEEPCNT"), probes, strict=True):
            sock.setsockopt(tcp, getattr(socket, f"TCP_{option}"), value)
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, int(_GONE_S * 1000))


def name_of(job: str, bolt: str) -> str:
    """Return what our connection calls itself: ``flowctl/job/bolt``, cut in the job."""
    room = _NAME_BYTES_MAX - len(f"flowctl//{bolt}".encode())
    return f"flowctl/{job.encode()[: max(0, room)].decode(errors='ignore')}/{bolt}"


def introduce(connection: Any, dialect: Dialect, name: str) -> None:
    """Call the connection ``name``, unless it has a name of the user's."""
    cursor = connection.cursor()
    try:
        cursor.execute(dialect.fill(_INTRODUCE), (name,))
        connection.commit()
    finally:
        cursor.close()


def holder(
    connection: Any, dialect: Dialect, *, job: str, sink: str, partition: str, table: str
) -> str:
    """Say who holds the lock that could not be had.  To be called outside any transaction."""
    cursor = connection.cursor()
    try:
        cursor.execute(dialect.fill(_HELD_ROW), (job, sink, partition))
        if (found := cursor.fetchone()) is not None:
            return f"is locked by {_described(found)}"
        cursor.execute(dialect.fill(_OLDEST), (dialect.name(table),))
        if (found := cursor.fetchone()) is not None:
            return f"is locked; the longest at work there is {_described(found)}"
    finally:
        connection.rollback()
        cursor.close()
    return "was locked by others, who have gone on"


def _described(found: Any) -> str:
    name, pid, state, since_unix_s = found
    who = name.rpartition("/")[2] if (name or "").startswith("flowctl/") else name
    doing = f", {state}" if state and state != "active" else ""
    since = f" since {time.strftime('%H:%M:%S', time.localtime(float(since_unix_s)))}"
    return f"{who or 'a session without a name'} (backend {pid}{doing}){since}"
