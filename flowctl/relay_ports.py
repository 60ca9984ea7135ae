"""A relay between bolts and a spout that they can't reach, as protocols.

A relay carries the bytes of a connection, and knows nothing of what they mean: keys, TLS and frames
are the same as over TCP.
"""

from __future__ import annotations

import socket
from typing import Protocol, runtime_checkable


class RelayDoor(Protocol):
    """What a bolt connects through in place of TCP.  Shipped by pickle; thread-safe."""

    @property
    def address(self) -> str:
        """Where the relay is, as text without secrets."""

    def connect(self, *, timeout_s: float) -> socket.socket:
        """Return a connected stream socket, which the caller owns.

        Raises OSError if the relay, or the run, is not there (``timeout_s`` bounds each answer
        [s]), and :class:`flowctl.errors.ConfigError` if a retry can't help.
        """


class Relay(Protocol):
    """The spout's side of a relay; owned by the run.  Used by one thread."""

    @property
    def door(self) -> RelayDoor:
        """The door that bolts are given."""

    @property
    def is_away(self) -> bool:
        """Whether the relay itself does not answer, so that silence of a bolt means nothing."""

    @property
    def heard_until_s(self) -> float:
        """All that bolts had written by then (monotonic) has been handed to the spout."""

    def close(self) -> None:
        """Send what is left, for about a second, then end all connections.  Idempotent."""


@runtime_checkable
class RelayingStore(Protocol):
    """A checkpoint store whose server can also carry connections."""

    def open_relay(self, spout: tuple[str, int]) -> Relay:
        """Start a relay to the address at which the spout listens on this machine.

        Raises :class:`flowctl.errors.InfrastructureError` if the server can't be reached, and
        :class:`flowctl.errors.ConfigError` if it can't be named to the bolts.
        """
