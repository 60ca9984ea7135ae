"""Where executors are asked to connect by ``flowctl doctor --spark``, in place of a spout."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import threading
from typing import Final

from flowctl.config import ListenSettings
from flowctl.relay_ports import Relay, RelayingStore
from flowctl.wire import listener
from pyspark_flowctl.jobs import LOOPBACK, SparkJobs
from pyspark_flowctl.probe import LISTENER, Target

_SAID_WITHIN_S: Final = 5.0  # a few bytes, into a buffer
_TOKEN_BYTES: Final = 16  # nobody else says them by chance


class Greeter:
    """Says a token to whoever connects to ``sock``, which it owns.

    ``place``: what executors connect to, for people.  ``targets``: what a task connects to by TCP;
    with a ``relay``, which the greeter owns too, it is ``door``, a pickle, instead.
    """

    def __init__(self, sock: socket.socket, host: str, relay: Relay | None = None) -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._relay = relay
        self.token: bytes = secrets.token_bytes(_TOKEN_BYTES)
        if relay is None:
            port = sock.getsockname()[1]
            self.place: str = f"{host}:{port}"
            self.targets: tuple[Target, ...] = (Target(LISTENER, host, port, self.token),)
            self.door: bytes = b""
        else:
            self.place, self.targets = f"through {relay.door.address}", ()
            self.door = pickle.dumps(relay.door)
        threading.Thread(target=self._greet, name="flowctl-greeter", daemon=True).start()

    def _greet(self) -> None:
        while True:
            try:
                guest, _ = self._sock.accept()
            except OSError:  # closed
                return
            with guest:
                guest.settimeout(_SAID_WITHIN_S)
                try:
                    guest.sendall(self.token)
                except OSError:
                    continue

    def close(self) -> None:
        """Stop to listen."""
        # Wakes the thread, which a close alone does not.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self._relay is not None:
            self._relay.close()


def greeter_of(listen: ListenSettings, jobs: SparkJobs) -> Greeter:
    """Return one that listens where a spout would with these settings."""
    host = jobs.host() if listener.needs_host(listen) else listen.host or ""
    advertised = listener.advertised_host(listen, host)
    return Greeter(listener.bind(listen, jobs.bind_host() or host), advertised)


def relayed_greeter(store: RelayingStore) -> Greeter:
    """Return one that is reached through ``store``'s server, as with ``listen.via=redis``.

    Raises :class:`flowctl.errors.InfrastructureError` if the server can't be reached.
    """
    sock = listener.bind(ListenSettings(host=LOOPBACK), LOOPBACK)
    try:
        return Greeter(sock, LOOPBACK, store.open_relay((LOOPBACK, sock.getsockname()[1])))
    except BaseException:
        sock.close()
        raise
