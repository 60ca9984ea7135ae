"""Whether the other machine still answers: asked of the kernel, not of the process there.

A process that is busy or frozen says nothing, but its kernel goes on answering.  A machine that is
cut off, or has no power, does not answer at all.  Only Linux reports this; elsewhere every machine
seems to answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
from typing import Final, Protocol

#: The kernel probes a connection on which nothing came for this long [s], and then once a second.
PROBE_AFTER_S: Final = 1
# After this many probes without an answer the kernel ends the connection: far later than any
# decision that depends on it, so that a bolt that was cut off for a minute goes on where it was.
_PROBES = 120
# Of struct tcp_info: eight fields of a byte, then of 32 bits; the eleventh and twelfth of these are
# tcpi_last_data_recv and tcpi_last_ack_recv [ms].
_LAST_HEARD: Final = struct.Struct("=II")
_LAST_HEARD_AT: Final = 8 + 11 * 4
_INFO_BYTES: Final = _LAST_HEARD_AT + _LAST_HEARD.size


class Asked(Protocol):
    """A socket, or an object that holds one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def probe(sock: socket.socket) -> None:
    """Let the kernel find out whether the other machine is there, while nothing comes from it."""
    options = (("KEEPIDLE", PROBE_AFTER_S), ("KEEPINTVL", 1), ("KEEPCNT", _PROBES))
    with contextlib.suppress(OSError, AttributeError):  # not TCP, or no such option here
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


def unanswered_s(asked: Asked) -> float:
    """Return how long nothing at all came from the other machine [s]; 0.0 if that is not known.

    Thread-safe, also while another thread closes it: a socket forgets its descriptor first.
    """
    if not sys.platform.startswith("linux"):
        return 0.0
    try:
        info = asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        data_ms, ack_ms = _LAST_HEARD.unpack_from(info, _LAST_HEARD_AT)
    except (OSError, struct.error):  # it was just closed, or is not TCP
        return 0.0
    return float(min(data_ms, ack_ms)) / 1000
