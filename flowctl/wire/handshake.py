"""From a connected socket to a known bolt: TLS, authentication, Hello and Welcome.

Everything here blocks, and returns by its deadline.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Container
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from flowctl.errors import ConfigError, WireError
from flowctl.ports import Endpoint
from flowctl.wire import auth
from flowctl.wire.codec import LENGTH, LENGTH_BYTES, FrameWriter, decode_frame, decoder_of
from flowctl.wire.frames import PROTOCOL_VERSION, Hello, Welcome

if TYPE_CHECKING:
    import ssl

# A handshake takes 1 to 20 ms; on a worker that swaps or starts 60 others at once, a second.
HANDSHAKE_TIMEOUT_S: Final = 5.0
# Names and numbers only; no peer sends more than this before it is authenticated.
_FIRST_FRAME_BYTES_MAX: Final = 4096
# Leaves room for the host's name in the first frame, whatever the alphabet.
NAME_MAX: Final = 200
# Far more threads or coroutines than any worker runs for one bolt.
SLOTS_MAX: Final = 1 << 16

T = TypeVar("T")


class AuthenticatedPeer(NamedTuple):
    """A bolt that proved the key and sent its Hello; ``sock`` belongs to the caller that takes
    this.
    """

    sock: socket.socket
    hello: Hello


def receive_bolt(
    sock: socket.socket,
    key: bytes,
    context: ssl.SSLContext | None,
    *,
    deadline_s: float,
    expected: Container[str] | None = None,
) -> tuple[socket.socket, Hello]:
    """Spout's side: return the socket (wrapped, if TLS) and the bolt's Hello.

    ``expected`` are the names of the run's bolts; None: any. The caller, who knows the epoch, sends
    the Welcome.  Raises :class:`flowctl.errors.AuthenticationError`, :class:`WireError` or OSError,
    with the connection closed.
    """
    try:
        if context is not None:
            from flowctl.wire import tls

            sock = tls.accept(sock, context, timeout_s=HANDSHAKE_TIMEOUT_S)
        auth.prove_as_spout(sock, key, deadline_s=deadline_s)
        (length,) = LENGTH.unpack(auth.receive_exactly(sock, LENGTH_BYTES, deadline_s))
        check_first_length(length)
        hello = decode_hello(auth.receive_exactly(sock, length, deadline_s))
        if hello.version != PROTOCOL_VERSION:
            auth.send_all(sock, OTHER_VERSION_ANSWER, deadline_s)
        check_hello(hello, expected)
    except BaseException:
        sock.close()
        raise
    return sock, hello


def check_first_length(length: int) -> None:
    """Raise :class:`WireError` for a first frame that is longer than any Hello or Welcome."""
    if length > _FIRST_FRAME_BYTES_MAX:
        raise WireError(f"A first frame of {length} bytes was announced.")


def decode_hello(body: bytes) -> Hello:
    """Return the Hello that ``body`` holds; raise :class:`WireError` if it is something else."""
    hello: Hello = decode_frame(_HELLO_DECODER, body)
    return hello


def check_hello(hello: Hello, expected: Container[str] | None) -> None:
    """Raise :class:`WireError` for a bolt of another version, or one that this run did not
    start."""
    if hello.version != PROTOCOL_VERSION:
        raise _other_version("bolt", hello.version, ours=PROTOCOL_VERSION)
    _check(hello, expected)


def _check(hello: Hello, expected: Container[str] | None) -> None:
    """Raise :class:`WireError` for a bolt that this run did not start."""
    name = hello.bolt if len(hello.bolt) <= NAME_MAX else f"{hello.bolt[:20]}…"
    if not 0 < len(hello.bolt) <= NAME_MAX or (expected is not None and hello.bolt not in expected):
        raise WireError(f"A peer calls itself {name!r}, which is not a bolt of this run.")
    if not 0 < hello.slots <= SLOTS_MAX:
        raise WireError(f"Bolt {name!r} says that it has {hello.slots} slots.")


def join_spout(endpoint: Endpoint, hello: Hello) -> tuple[socket.socket, Welcome]:
    """Bolt's side: connect and receive the Welcome.

    Raises :class:`flowctl.errors.AuthenticationError` or :class:`WireError` when a retry can't
    help, OSError when it may.
    """
    deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
    sock = _connected(endpoint)
    try:
        if endpoint.certificate_pem is not None:
            from flowctl.wire import tls

            sock = tls.connect(sock, endpoint.certificate_pem, timeout_s=HANDSHAKE_TIMEOUT_S)
        auth.prove_as_bolt(sock, endpoint.key, deadline_s=deadline_s)
        _send_frame(sock, hello, deadline_s)
        welcome = _receive_frame(sock, Welcome, deadline_s)
        if welcome.version != hello.version:
            raise _other_version("spout", welcome.version, ours=hello.version)
    except BaseException:
        sock.close()
        raise
    return sock, welcome


def _connected(endpoint: Endpoint) -> socket.socket:
    if endpoint.relay is not None:
        return endpoint.relay.connect(timeout_s=HANDSHAKE_TIMEOUT_S)
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout=HANDSHAKE_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def hello_of(bolt: str, slots: int) -> Hello:
    """Return the Hello of this process; ConfigError if the name is too long for a first frame."""
    if not 0 < len(bolt) <= NAME_MAX:
        raise ConfigError(
            "bolt", f"{bolt[:20]!r}… is not a possible name.", remedy="Use 1 to 200 characters."
        )
    return Hello(
        version=PROTOCOL_VERSION,
        bolt=bolt,
        slots=slots,
        pid=os.getpid(),
        host=socket.gethostname(),
    )


def _receive_frame(sock: socket.socket, frame_type: type[T], deadline_s: float) -> T:
    """Read exactly one frame, not a byte more."""
    (length,) = LENGTH.unpack(auth.receive_exactly(sock, LENGTH_BYTES, deadline_s))
    check_first_length(length)
    body = auth.receive_exactly(sock, length, deadline_s)
    frame: T = decode_frame(decoder_of(frame_type), body)
    return frame


def _send_frame(sock: socket.socket, frame: msgspec.Struct, deadline_s: float) -> None:
    auth.send_all(sock, _bytes_of(frame), deadline_s)


def _bytes_of(frame: msgspec.Struct) -> bytes:
    writer = FrameWriter(_FIRST_FRAME_BYTES_MAX)
    writer.append(frame)
    return bytes(writer.outbox)


_HELLO_DECODER: Final = decoder_of(Hello)
# A bolt of another version gets an answer all the same, so that it can show its user both versions.
OTHER_VERSION_ANSWER: Final = _bytes_of(Welcome(version=PROTOCOL_VERSION, epoch=0, job_epoch=0))


def _other_version(peer: str, theirs: int, *, ours: int) -> WireError:
    return WireError(
        f"The {peer} speaks version {theirs} of the protocol, this side speaks {ours}.",
        remedy="Install the same flowctl-spark version on the driver and the workers.",
    )
