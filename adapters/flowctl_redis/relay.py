"""A relay through Redis, for executors that reach Redis but not the driver.

A bolt's connection becomes two streams (:mod:`flowctl_redis.relay_pump`).  The driver waits at a
third one, the *door*, for the names of new connections, and opens a connection to its own listener
on loopback for each.

The bytes are the same as over TCP: TLS, the proof of the key, frames.  So access to Redis is not
enough to read frames or to pose as a bolt, only to end connections.

Nothing is left behind: entries are deleted once read, and each key expires.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import secrets
import socket
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from flowctl.errors import CheckpointUnavailableError, ConfigError, InfrastructureError
from flowctl_redis.clients import new_client
from flowctl_redis.names import to_bytes
from flowctl_redis.relay_pump import KEY_TTL_S, SOCKET_TIMEOUT_S, Duct, Pump
from flowctl_redis.translated import expected, translate
from flowctl_redis.url import is_tls, shown

# The driver renews a key this often to show that it is alive.  The key expires after a minute,
# which is as long as a bolt waits for Redis itself.
_ALIVE_EVERY_S: Final = 5.0
_ALIVE_TTL_S: Final = 60
# Longest absence of that key while Redis answers: a server that lost its data has no key until the
# driver's next renewal, so this is twice the period.
_MISSING_MAX_S: Final = 2 * _ALIVE_EVERY_S
# A bolt that can't reach Redis ends after this time; Spark, or whoever runs it, starts it again.
_AWAY_MAX_S: Final = 60.0
# Bound of connections, so that strangers with write access to the door can't exhaust memory and
# sockets.
_GUESTS_MAX: Final = 4096
_ACCEPT_TIMEOUT_S: Final = 1.0  # the listener is flowctl's, on loopback
# Seconds between checks of Redis while all bolts are silent: only an answer of Redis shows that the
# silence is the bolts' own.  Less than half of a heartbeat (0.25 s).
_LOOK_EVERY_S: Final = 0.1
_LAST_WORDS_S: Final = 1.0  # a bolt's last message takes two round trips to Redis
_NAME: Final = re.compile(rb"[0-9a-f]{16}")
PUMPS: Final[weakref.WeakSet[Pump]] = weakref.WeakSet()  # those of this process's bolts


class Keys(msgspec.Struct, frozen=True, gc=False):
    """The keys of one run in Redis."""

    base: str

    @property
    def alive(self) -> bytes:
        """The key that exists while the driver is alive."""
        return to_bytes(f"{self.base}:alive")

    @property
    def door(self) -> bytes:
        """The key of the stream with the names of new connections."""
        return to_bytes(f"{self.base}:door")

    def up(self, name: bytes) -> bytes:
        """Return the key of the stream from the bolt to the spout."""
        return to_bytes(self.base) + b":" + name + b":up"

    def down(self, name: bytes) -> bytes:
        """Return the key of the stream from the spout to the bolt."""
        return to_bytes(self.base) + b":" + name + b":down"


class RedisDoor(msgspec.Struct, frozen=True, gc=False):
    """A :class:`flowctl.relay_ports.RelayDoor`.  Holds the URL, which ``repr`` omits."""

    url: str
    keys: Keys

    def __repr__(self) -> str:
        return f"RedisDoor({self.address})"

    @property
    def address(self) -> str:
        """See :class:`flowctl.relay_ports.RelayDoor`."""
        return f"Redis at {shown(self.url)}"

    def connect(self, *, timeout_s: float) -> socket.socket:
        """See :class:`flowctl.relay_ports.RelayDoor`.  Each connection has a new name."""
        expected()  # says what is missing
        name = secrets.token_hex(8).encode()
        client = new_client(self.url, timeout_s=SOCKET_TIMEOUT_S)
        try:
            self._knock(client, name)
        except BaseException:
            client.close()
            raise
        ours, theirs = socket.socketpair()
        ours.settimeout(timeout_s)
        pump = Pump(
            client,
            _Lookout(self.keys),
            name="flowctl-relay",
            away_max_s=_AWAY_MAX_S,
            ends_alone=True,
        )
        pump.add(Duct(theirs, inbound=self.keys.down(name), outbound=self.keys.up(name)))
        pump.start()
        PUMPS.add(pump)
        return ours

    def _knock(self, client: Any, name: bytes) -> None:
        """Announce the connection ``name`` at the door."""
        problem = ""
        try:
            with client.pipeline(transaction=False) as pipe:
                pipe.exists(self.keys.alive)
                pipe.xadd(self.keys.door, {b"name": name}, maxlen=_GUESTS_MAX, approximate=True)
                pipe.expire(self.keys.door, KEY_TTL_S)
                is_alive = pipe.execute()[0]
            if not is_alive:
                problem = "the driver of this run is gone"
        except expected() as error:
            problem = translate(
                error,
                address=shown(self.url),
                key=None,
                timeout_s=SOCKET_TIMEOUT_S,
                tls=is_tls(self.url),
            ).problem
        if problem:
            raise ConnectionRefusedError(None, problem)


class RedisRelay:
    """The driver's side of the relay: a :class:`flowctl.relay_ports.Relay`."""

    def __init__(self, url: str, *, prefix: str, spout: tuple[str, int]) -> None:
        """Raises :class:`flowctl.errors.InfrastructureError` if Redis can't be used."""
        self.door: RedisDoor = RedisDoor(url, Keys(f"{prefix}:relay:{secrets.token_hex(8)}"))
        self._client = new_client(url, timeout_s=SOCKET_TIMEOUT_S)
        watch = _Doorkeeper(self.door.keys, spout)
        self._is_closed = False
        fault: InfrastructureError | None = None
        try:
            watch.say_alive(self._client)
        except expected() as error:
            fault = translate(
                error,
                address=shown(url),
                key=None,
                timeout_s=SOCKET_TIMEOUT_S,
                tls=is_tls(url),
            )
        if fault is not None:  # not chained: its frames hold the URL
            self._client.close()
            raise CheckpointUnavailableError(fault.problem, remedy=fault.remedy)
        self._pump = Pump(
            self._client,
            watch,
            name="flowctl-relay-driver",
            away_max_s=float("inf"),  # the run decides how long it waits
            ends_alone=False,
            block_s=_LOOK_EVERY_S,
        )
        watch.pump = self._pump
        self._pump.start()

    @property
    def is_away(self) -> bool:
        """See :class:`flowctl.relay_ports.Relay`."""
        return self._pump.is_away

    @property
    def heard_until_s(self) -> float:
        """See :class:`flowctl.relay_ports.Relay`."""
        return self._pump.heard_until_s

    def close(self) -> None:
        """See :class:`flowctl.relay_ports.Relay`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pump.close()
        # Unread entries stay until they expire, since the END may be among them.
        with contextlib.suppress(*expected()):
            self._client.delete(self.door.keys.alive, self.door.keys.door)
        self._client.close()


def relay_of(url: str | None, prefix: str, spout: tuple[str, int]) -> RedisRelay:
    """Return a new relay; raise :class:`ConfigError` without a URL to give to bolts."""
    if url is None:
        raise ConfigError(
            "listen.via",
            "the store was given a client, which can't be passed on to bolts.",
            remedy="Give the store the URL of the server.",
        )
    return RedisRelay(url, prefix=prefix, spout=spout)


class _Doorkeeper:
    """Accepts new connections, and renews the key that shows that the driver is alive."""

    def __init__(self, keys: Keys, spout: tuple[str, int]) -> None:
        self._keys = keys
        self._spout = spout
        self._known: dict[bytes, None] = {}  # a name may come twice
        self._said_at_s = float("-inf")
        self.pump: Pump | None = None

    def streams(self) -> Mapping[bytes, bytes]:
        # Read from the stream's beginning: entries are deleted once read, and a server's clock may
        # go back.
        return {self._keys.door: b"0-0"}

    def take(self, entries: list[Any]) -> None:
        for _, fields in entries:
            name = fields.get(b"name", b"")
            pump = self.pump
            if name in self._known or not _NAME.fullmatch(name) or pump is None:
                continue
            if pump.ducts >= _GUESTS_MAX:
                continue  # the bolt tries again
            self._known[name] = None
            if len(self._known) > _GUESTS_MAX:
                del self._known[next(iter(self._known))]
            with contextlib.suppress(OSError):  # the listener is closed, as the run ends
                sock = socket.create_connection(self._spout, timeout=_ACCEPT_TIMEOUT_S)
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pump.add(Duct(sock, inbound=self._keys.up(name), outbound=self._keys.down(name)))

    def look(self, client: Any, *, is_idle: bool) -> bool:
        if time.monotonic() - self._said_at_s >= _ALIVE_EVERY_S:
            self.say_alive(client)
        return True

    def say_alive(self, client: Any) -> None:
        """Say it once."""
        client.set(self._keys.alive, b"1", ex=_ALIVE_TTL_S)
        self._said_at_s = time.monotonic()


class _Lookout:
    """Detects on a worker that the driver is gone."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._missing_since_s: float | None = None

    def streams(self) -> Mapping[bytes, bytes]:
        return {}

    def take(self, entries: list[Any]) -> None:
        """Nothing else is read."""

    def look(self, client: Any, *, is_idle: bool) -> bool:
        if not is_idle or client.exists(self._keys.alive):
            self._missing_since_s = None
            return True
        now_s = time.monotonic()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        return now_s - self._missing_since_s <= _MISSING_MAX_S


@atexit.register
def _say_goodbye() -> None:
    """Send ended bolts' last words: else the driver would notice their end only later."""
    until_s = time.monotonic() + _LAST_WORDS_S
    for pump in list(PUMPS):
        pump.await_end(max(until_s - time.monotonic(), 0.0))
