"""Time limits for waiting: others for our connections, and our connections for theirs.

They hold for any server.  Why these numbers: docs/adr/0004-covered-spans.md.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

# Longest pause of a connection inside a transaction.  Between two of our statements only Python
# runs, for milliseconds: 5 s suffice for a machine that swaps, and after a freeze the other writers
# go on within 10 s.
IDLE_MAX_S = 5.0
# Longest wait for a lock: shorter, so that the waiting writer can name the lock's holder before the
# server ends the holder.
LOCK_MAX_S = 4.0
# PostgreSQL: a writer that waits for a lock checks its holder every LOCK_LOOK_S, and ends a holder
# that sent no statement for STALLED_S (usually it takes milliseconds).  The first is shorter: a
# writer that was cut off while it waited has given up before it could get the lock.
LOCK_LOOK_S = 0.5
STALLED_S = 1.0
# Time between two such ends: if all writers are that slow, they would only end each other.
END_STALLED_EVERY_S = 30.0
# Longest time to open a connection, if the URL sets none: beyond it the server counts as
# unavailable.
CONNECT_MAX_S = 5
# A peer that is silent for this long is gone: 2 s without data, then one probe a second.
GONE_S = 5.0
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 2, 1, 3


def bound_socket(connection: Any) -> None:
    """Make the kernel notice a server that is cut off, if the system supports it."""
    tcp, probes = socket.IPPROTO_TCP, (PROBE_AFTER_S, PROBE_EVERY_S, PROBES)
    with (
        contextlib.suppress(Exception),  # no fileno, no TCP, no such option
        socket.socket(fileno=os.dup(_fileno(connection))) as sock,
    ):
        if sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT):
            return  # the user's connect decides for itself
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in zip(("KEEPIDLE", "KEEPINTVL", "KEEPCNT"), probes, strict=True):
            sock.setsockopt(tcp, getattr(socket, f"TCP_{option}"), value)
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, int(GONE_S * 1000))


def _fileno(connection: Any) -> int:
    if hasattr(connection, "fileno"):
        return int(connection.fileno())
    return int(connection._sock.fileno())  # PyMySQL gives no other access to its socket
