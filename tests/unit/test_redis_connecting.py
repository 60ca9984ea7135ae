"""Why a Redis URL does not lead to a server: said with what to correct."""

from __future__ import annotations

import re
import socket
import ssl

import pytest
import redis

from flowctl.errors import ConfigError
from flowctl_redis import RedisCheckpointStore
from flowctl_redis.translated import translate


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("rediss://h?ssl_ca_cert=/ca.pem", "ssl_ca_cert is none of them"),
        ("redis://:secret@h?ssl_ca_certs=/ca.pem", "ssl_ca_certs is none of them"),
        ("rediss://h?ssl_cert_reqs=maybe", "maybe"),
        ("redis://h?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_an_option_of_the_url_that_can_not_be_used_is_named(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"redis: .*option.*{says}") as caught:
        RedisCheckpointStore(url).acquire("job")
    assert "secret" not in str(caught.value) and caught.value.__context__ is None


def _cert_error(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_message = message
    return error


@pytest.mark.parametrize(
    ("cause", "tls", "says"),
    [
        (_cert_error("Hostname mismatch"), True, "another host's certificate.*as the certificate"),
        (
            _cert_error("unable to get local issuer"),
            True,
            "not trusted.*local issuer.*ssl_ca_certs",
        ),
        (
            _cert_error("certificate has expired"),
            True,
            "not trusted.*has expired.*valid certificate",
        ),
        (ssl.SSLError(1, "[SSL] wrong version number"), True, "over TLS.*wrong version.*redis://"),
        (FileNotFoundError(2, "No such file"), True, "a file of the URL.*No such.*ssl_ca_certs"),
        (FileNotFoundError(2, "No such file"), False, "can't be reached. Start it"),  # a socket
        (socket.gaierror(socket.EAI_NONAME, "unknown"), False, "host name is unknown.*the address"),
        (socket.gaierror(socket.EAI_AGAIN, "later"), False, "can't be reached. Start it"),
    ],
)
def test_why_no_connection_is_possible(cause: Exception, tls: bool, says: str) -> None:
    error = redis.ConnectionError("Error 1 connecting")
    error.__cause__ = cause
    fault = translate(error, address="h:1", key=None, timeout_s=2, tls=tls)
    assert re.search(says, str(fault))


@pytest.mark.parametrize(
    ("error", "tls", "says"),
    [
        (redis.TimeoutError("Timeout connecting to server"), True, "for TLS: if not, write redis:"),
        (redis.ConnectionError("Connection closed by server."), False, "for TLS, write rediss:"),
        (redis.ConnectionError("Connection closed by server."), True, "ssl_certfile"),
    ],
)
def test_what_may_be_a_port_of_the_other_kind_is_said(
    error: Exception, tls: bool, says: str
) -> None:
    fault = translate(error, address="h:1", key=None, timeout_s=2, tls=tls)
    assert re.search(says, str(fault))
