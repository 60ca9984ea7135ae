"""How long others wait for our connections, and we for them, on any server.

Why these numbers: docs/adr/0004-covered-spans.md.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

# Between two statements of ours there is only Python: some milliseconds.  Long enough for a machine
# that swaps, short enough that the others go on within 10 s of a freeze.
IDLE_MAX_S = 5.0
# Shorter, so that those who wait can name the lock's holder before the server ends it.
LOCK_MAX_S = 4.0
# PostgreSQL: how often one that waits for a lock looks at who holds it, and how long that one may
# do nothing between two statements (some milliseconds of Python) before it is ended.  The first is
# shorter: a writer that was cut off while it waited has given up before it could get the lock.
LOCK_LOOK_S = 0.5
STALLED_S = 1.0
# Where all are that slow, they would only end each other.
END_STALLED_EVERY_S = 30.0
# For opening a connection, if the URL does not say: more means that the server is unavailable.
CONNECT_MAX_S = 5
# A peer that answers no probe for this long is gone: 2 s of silence, then one probe a second.
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
