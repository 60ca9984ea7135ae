"""Where the spout listens, and whether with TLS."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from flowctl.config import ListenSettings
from flowctl.errors import ConfigError

# Bolts that start at once wait here while the loop is busy; the kernel caps it at its own limit.
_BACKLOG: Final = 512


def bind(listen: ListenSettings, host: str) -> socket.socket:
    """Return a listening socket, non-blocking; ``host`` where the settings name none.

    Raises :class:`ConfigError` for a host that isn't ours or a port that is taken.
    """
    wanted = listen.host or host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            wanted, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise _bad_host(wanted, error) from None
    sock = socket.socket(family, kind, protocol)
    try:
        # A run that follows another on a fixed port need not wait for old connections to fade.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if listen.port:
            raise ConfigError(
                "listen.port",
                f"can't listen on {wanted}:{listen.port}: {error.strerror}.",
                remedy="Choose a free port, or 0 for any.",
            ) from None
        raise _bad_host(wanted, error) from None
    sock.setblocking(False)
    return sock


def advertised_host(listen: ListenSettings, host: str) -> str:
    """The name that bolts connect to."""
    if listen.advertise:
        return listen.advertise
    if listen.host and not _is_any(listen.host):
        return listen.host
    return host


def wants_tls(listen: ListenSettings, sock: socket.socket) -> bool:
    """Whether to use TLS: as set, and with "auto" exactly when not on loopback."""
    if listen.tls != "auto":
        return listen.tls == "on"
    return not ipaddress.ip_address(sock.getsockname()[0]).is_loopback


def _is_any(host: str) -> bool:
    """Whether ``host`` means "all addresses", which nobody can connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _bad_host(host: str, error: OSError) -> ConfigError:
    return ConfigError(
        "listen.host",
        f"can't listen on {host}: {error.strerror}.",
        remedy="Use a name or address of this machine; 0.0.0.0 with listen.advertise behind NAT.",
    )
