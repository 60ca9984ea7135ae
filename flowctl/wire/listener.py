"""Where the spout listens, and whether it uses TLS."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

from flowctl.config import ListenSettings
from flowctl.errors import ConfigError

# Bolts that start at once wait in this queue while the loop is busy, and strangers before them; a
# bolt that finds it full tries again after a second.  The kernel caps it at its own limit, usually
# this one.
_BACKLOG: Final = 4096


def bind(listen: ListenSettings, host: str) -> socket.socket:
    """Return a non-blocking listening socket; ``host`` is used if the settings name none.

    The port is the first free one of ``listen.port_range``.  Raises :class:`ConfigError` for a host
    that isn't this machine's or if all these ports are taken.
    """
    wanted = listen.host or host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            wanted, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise _bad_host(wanted, error) from None
    for port in _ports(listen):
        sock = socket.socket(family, kind, protocol)
        try:
            # A run that follows another on a fixed port need not wait for its old connections.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            refused = error
            if error.errno != errno.EADDRINUSE:
                break
        else:
            sock.setblocking(False)
            return sock
    if not listen.port or refused.errno == errno.EADDRNOTAVAIL:
        raise _bad_host(wanted, refused)
    raise ConfigError(
        "listen.port",
        f"can't listen on {wanted}:{_shown(listen)}: {refused.strerror}.",
        remedy="Choose a free port, 0 for any, or a larger listen.port_range.",
    )


def _ports(listen: ListenSettings) -> range:
    if not listen.port:
        return range(1)
    return range(listen.port, min(listen.port + listen.port_range, 65536))


def _shown(listen: ListenSettings) -> str:
    ports = _ports(listen)
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def needs_host(listen: ListenSettings) -> bool:
    """Whether the settings alone leave open where to listen, or the address that bolts connect
    to.
    """
    return not listen.host or (not listen.advertise and is_unspecified(listen.host))


def advertised_host(listen: ListenSettings, host: str) -> str:
    """Return the address that bolts connect to; never one that means "all addresses".

    ``host`` is the driver's address as seen from the bolts.  Raises :class:`ConfigError` if only
    such an address (0.0.0.0, ::) is known.
    """
    if listen.advertise:
        wanted = listen.advertise
    elif listen.host and not is_unspecified(listen.host):
        wanted = listen.host
    else:
        wanted = host
    if not wanted or is_unspecified(wanted):
        raise ConfigError(
            "listen.advertise",
            f"bolts can't connect to {wanted!r}, which means all addresses of a machine.",
            remedy="Set listen.advertise to a name or address of the driver that bolts can reach.",
        )
    return wanted


def wants_tls(listen: ListenSettings, sock: socket.socket) -> bool:
    """Whether to use TLS: as set; "auto" means exactly when not on loopback."""
    if listen.tls != "auto":
        return listen.tls == "on"
    return not ipaddress.ip_address(sock.getsockname()[0]).is_loopback


def is_unspecified(host: str) -> bool:
    """Whether ``host`` means "all addresses", in any notation; such an address can't be connected
    to.
    """
    try:
        # The resolver knows more notations than ipaddress: "0", "0x0", "::%1".
        found = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):  # a host name, so not an address
        return False
    addresses = (str(address[0]).partition("%")[0] for *_, address in found)
    return any(ipaddress.ip_address(address).is_unspecified for address in addresses)


def _bad_host(host: str, error: OSError) -> ConfigError:
    return ConfigError(
        "listen.host",
        f"can't listen on {host}: {error.strerror}.",
        remedy="Use a name or address of this machine; 0.0.0.0 with listen.advertise behind NAT.",
    )
