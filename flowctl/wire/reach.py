"""Whether the other machine still answers: asked of the kernel, not of the process there.

A process that is busy or frozen says nothing, but its kernel goes on answering.  One that is cut
off, or has no power, does neither.  Only Linux tells; elsewhere every machine seems to answer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from typing import Final

#: A connection on which nothing came for so long is probed by the kernel, and then once a second.
PROBE_AFTER_S: Final = 1
# After so many probes without an answer the kernel ends the connection: far later than anything is
# decided by it, so that a bolt that was cut off for a minute goes on where it was.
_PROBES = 120
_INFO_BYTES = 104  # of struct tcp_info, up to and with tcpi_total_retrans
_DATA, _ACK = 11, 12  # tcpi_last_data_recv and tcpi_last_ack_recv [ms], among its 32 bit fields


def probe(sock: socket.socket) -> None:
    """Let the kernel find out whether the other machine is there, while nothing comes from it."""
    options = (("KEEPIDLE", PROBE_AFTER_S), ("KEEPINTVL", 1), ("KEEPCNT", _PROBES))
    with contextlib.suppress(OSError, AttributeError):  # no TCP, or no such option here
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


def unanswered_s(descriptor: int) -> float:
    """Return for how long nothing at all came from the other machine; 0.0 if that is not known."""
    if not sys.platform.startswith("linux"):
        return 0.0
    try:
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        fields: tuple[int, ...] = struct.unpack_from("=8x24I", info)
    except (OSError, struct.error):  # it was just closed, or is no TCP
        return 0.0
    return min(fields[_DATA], fields[_ACK]) / 1000
