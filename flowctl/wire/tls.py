"""One self-signed certificate per run; the bolts accept only this one.

TLS keeps the traffic private; :mod:`flowctl.wire.auth` decides who may take part. The ssl and
cryptography modules are imported only if TLS is on: a worker that connects to a local spout needs
neither.
"""

from __future__ import annotations

import datetime
import pathlib
import socket
import tempfile
from typing import TYPE_CHECKING, Final

from flowctl.errors import AuthenticationError, MissingExtraError

if TYPE_CHECKING:
    import ssl

_NAME: Final = "flowctl run"
# A streaming run may last for months and workers' clocks may be wrong: pinning is what counts, so
# the dates are wide.
_DAYS_BEFORE: Final = 365
_DAYS_AFTER: Final = 3650


def spout_context() -> tuple[ssl.SSLContext, str]:
    """Make a certificate; return the spout's context and the certificate (PEM) to pin.

    Raises :class:`MissingExtraError` if the ``cryptography`` package is missing.
    """
    import ssl

    certificate_pem, key_pem = _make_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # bolts never resume a session; a ticket would be read as the first data
    context.num_tickets = 0
    # ssl loads a key only from a file: this one exists for a moment, readable only by this user.
    with tempfile.TemporaryDirectory(prefix="flowctl-") as directory:
        path = pathlib.Path(directory, "spout.pem")
        path.touch(mode=0o600)
        path.write_bytes(key_pem + certificate_pem.encode())
        context.load_cert_chain(path)
    return context, certificate_pem


def accept(sock: socket.socket, context: ssl.SSLContext, *, timeout_s: float) -> ssl.SSLSocket:
    """Spout's side of the TLS handshake; takes ownership of ``sock``; OSError when it fails."""
    sock.settimeout(timeout_s)
    return context.wrap_socket(sock, server_side=True)


def connect(sock: socket.socket, certificate_pem: str, *, timeout_s: float) -> ssl.SSLSocket:
    """Bolt's side: raise :class:`AuthenticationError` unless the spout has this certificate."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is pinned, whatever the host's name
    context.load_verify_locations(cadata=certificate_pem)
    sock.settimeout(timeout_s)
    try:
        wrapped = context.wrap_socket(sock)
    except ssl.SSLCertVerificationError as error:
        raise _not_pinned(error.verify_message) from None
    if wrapped.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(certificate_pem):
        wrapped.close()
        raise _not_pinned("another certificate")
    return wrapped


def _not_pinned(reason: str) -> AuthenticationError:
    return AuthenticationError(
        f"The spout does not have this run's certificate: {reason}.",
        remedy="Start the bolts from this run, and check for a proxy in between.",
    )


def _make_certificate() -> tuple[str, bytes]:
    """Return a new certificate and its private key, both PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingExtraError(
            "listen.tls",
            "cryptography, which TLS needs,",
            "tls",
            or_else=", or set listen.tls=off in a trusted network.",
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=_DAYS_BEFORE))
        .not_valid_after(now + datetime.timedelta(days=_DAYS_AFTER))
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), key_pem
