"""Both sides of a connection prove that they hold the run's key, before any frame is parsed.

Three messages of fixed size, HMAC-SHA256 over both sides' fresh nonces::

    bolt  → spout   magic, bolt's nonce
    spout → bolt    magic, spout's nonce, proof "spout"
    bolt  → spout   proof "bolt"

The proofs carry different labels, so neither side's proof can be sent back to it; fresh nonces make
a recording useless.  The key never goes over the wire.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time
from typing import Final

from flowctl.errors import AuthenticationError

# A run's key, as long as the digest (RFC 2104): guessing it is as hard as guessing the proof.
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = hashlib.sha256().digest_size
# Seven letters and the version of this exchange: a peer that speaks something else is refused after
# eight bytes.
MAGIC: Final = b"flowctl\x01"
GREETING_BYTES: Final = len(MAGIC) + NONCE_BYTES  # the first message of a bolt
_SPOUT: Final = b"flowctl spout proof"
BOLT: Final = b"flowctl bolt proof"
_SAME_KEY: Final = "Start the bolts from this run: each run has its own key."


class Challenge:
    """The spout's side without a socket: send ``answer``, then :meth:`check` the reply."""

    def __init__(self, key: bytes, greeting: bytes) -> None:
        bolt_nonce, spout_nonce = greeting[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
        self.answer: bytes = MAGIC + spout_nonce + proof_of(key, _SPOUT, bolt_nonce, spout_nonce)
        self._expected = proof_of(key, BOLT, bolt_nonce, spout_nonce)

    def check(self, proof: bytes) -> None:
        """Raise :class:`AuthenticationError` unless the peer proved the key."""
        if not hmac.compare_digest(proof, self._expected):
            raise AuthenticationError("A bolt does not hold this run's key.", remedy=_SAME_KEY)


def check_greeting(said: bytes) -> None:
    """Raise :class:`AuthenticationError` if the bytes that a peer has sent so far can't begin a
    bolt's greeting.
    """
    if not MAGIC.startswith(said[: len(MAGIC)]):
        raise AuthenticationError("The peer does not speak flowctl's protocol.", remedy=_SAME_KEY)


def prove_as_spout(sock: socket.socket, key: bytes, *, deadline_s: float) -> None:
    """Authenticate a bolt on a blocking socket until ``deadline_s`` (monotonic).

    Raises :class:`AuthenticationError` when the peer does not prove the key, OSError (also
    TimeoutError) when the connection fails.
    """
    _expect_magic(sock, deadline_s)
    challenge = Challenge(key, MAGIC + receive_exactly(sock, NONCE_BYTES, deadline_s))
    send_all(sock, challenge.answer, deadline_s)
    challenge.check(receive_exactly(sock, PROOF_BYTES, deadline_s))


def prove_as_bolt(sock: socket.socket, key: bytes, *, deadline_s: float) -> None:
    """Authenticate the spout, then ourselves; errors as in :func:`prove_as_spout`."""
    bolt_nonce = secrets.token_bytes(NONCE_BYTES)
    send_all(sock, MAGIC + bolt_nonce, deadline_s)
    _expect_magic(sock, deadline_s)
    spout_nonce = receive_exactly(sock, NONCE_BYTES, deadline_s)
    proof = receive_exactly(sock, PROOF_BYTES, deadline_s)
    if not hmac.compare_digest(proof, proof_of(key, _SPOUT, bolt_nonce, spout_nonce)):
        raise AuthenticationError("The spout does not hold this run's key.", remedy=_SAME_KEY)
    send_all(sock, proof_of(key, BOLT, bolt_nonce, spout_nonce), deadline_s)


def receive_exactly(sock: socket.socket, size: int, deadline_s: float) -> bytes:
    """Return the next ``size`` bytes; OSError at the end of the stream or after the deadline.

    The deadline is for all of them, so a peer gains nothing by sending a byte now and then.
    """
    received = bytearray()
    while len(received) < size:
        sock.settimeout(_left_s(deadline_s))
        chunk = sock.recv(size - len(received))
        if not chunk:
            raise ConnectionResetError("closed by the peer")
        received += chunk
    return bytes(received)


def send_all(sock: socket.socket, data: bytes | bytearray, deadline_s: float) -> None:
    """Send ``data``; OSError after the deadline."""
    sock.settimeout(_left_s(deadline_s))
    sock.sendall(data)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:  # 0 would mean "don't block" to settimeout
        raise TimeoutError("no time left")
    return left_s


def _expect_magic(sock: socket.socket, deadline_s: float) -> None:
    check_greeting(receive_exactly(sock, len(MAGIC), deadline_s))


def proof_of(key: bytes, label: bytes, bolt_nonce: bytes, spout_nonce: bytes) -> bytes:
    return hmac.digest(key, label + bolt_nonce + spout_nonce, "sha256")
