"""Translate redis-py's exceptions into flowctl's errors, which tell who must act, and how.

The original is never chained: its text or its frames may hold the URL.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator

from flowctl.errors import (
    CheckpointCorruptError,
    CheckpointUnavailableError,
    InfrastructureError,
    MissingExtraError,
)
from flowctl_redis.names import clear_command, to_text

# (word, problem, remedy).  A word is the code of the server's reply, or a part of its text:
# redis-py turns some codes into classes and strips them (see _CODES), and servers put other text
# before, around or after an error of a script.  The first match wins.
_NO_RIGHTS = "doesn't give this user the permissions that a checkpoint needs"
_GRANT = (
    "Give the user these permissions: ACL SETUSER name ~flowctl:*"
    " +@read +@write +@scripting +@connection +time -@dangerous."
)
_REPLIES = (
    (
        "WRONGPASS",
        "refuses user or password",
        "Check the user and password in the Redis URL.",
    ),
    ("invalid password", "refuses the password", "Check the password in the Redis URL."),
    (
        "without any password configured",
        "has no password, but the URL gives one",
        "Remove it from the Redis URL, or set one on the server.",
    ),
    (
        "Authentication required",
        "requires a password",
        "Put it into the Redis URL: redis://:PASSWORD@host:port.",
    ),
    (
        "NOPERM",
        _NO_RIGHTS,
        _GRANT,
    ),
    # The error for commands that a script is not allowed to use; the server puts no code before it.
    ("ACL failure in script", _NO_RIGHTS, _GRANT),
    (
        "Too many open files",
        "can't be connected to: this process may open no more files and connections",
        "Raise the limit (ulimit -n), or use fewer bolts.",
    ),
    (
        "DB index is out of range",
        "has no database of the number that the URL gives",
        "Give a smaller number at the end of the Redis URL: redis://host:port/0.",
    ),
    ("LOADING", "is still loading its data", "Wait until it is up."),
    ("READONLY", "is a read-only replica", "Point the Redis URL at the primary."),
    (
        "MASTERDOWN",
        "is a replica that has lost its primary",
        "Point the Redis URL at the primary.",
    ),
    (
        "MISCONF",
        "accepts no writes because it can't save to its disk",
        "See the server's log; free disk space.",
    ),
    ("OOM", "is out of memory", "Raise its maxmemory, or use a server of its own."),
    (
        "CLUSTER",
        "is a node of a cluster",
        "Use a server without cluster mode; a checkpoint is one small hash per job.",
    ),
    ("NOREPLICAS", "lacks the replicas it needs to accept writes", "Bring its replicas up."),
    ("BUSY", "is busy with another script", "Try again; see SCRIPT KILL."),
    ("max number of clients", "has no connection left", "Raise its maxclients."),
)
_ADDRESS = "Check the address in --redis or FLOWCTL_REDIS_URL."
_RIGHT_HOST = "Write the host in the Redis URL as the certificate names it."
_TRUST = (
    "Give the server a valid certificate, or name the one that signed it:"
    " rediss://host:port?ssl_ca_certs=/path/ca.pem."
)
_TLS_OPTIONS = (
    "Check ssl_ca_certs, ssl_certfile and ssl_keyfile in the Redis URL; if this port is not for"
    " TLS, write redis://."
)
_DENIED = re.compile(r"no permissions to (.+? command|access .+? key|.{1,60})")
_CODES = {
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTER",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "CLUSTER",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
}


def expected() -> tuple[type[Exception], ...]:
    """Return redis-py's exception classes for external failures; raise if it isn't installed."""
    try:
        from redis.exceptions import RedisError
    except ModuleNotFoundError as error:
        missing = (error.name or "redis").partition(".")[0]
        what = "redis-py" if missing == "redis" else f"{missing}, which redis-py needs,"
        raise MissingExtraError("redis", what, "redis") from None
    return RedisError, OSError


def translate(
    error: Exception,
    *,
    address: str,
    key: bytes | None,
    timeout_s: float,
    tls: bool = False,
) -> InfrastructureError:
    """Return the error to raise for one of redis-py's; raise it outside the ``except`` block.

    ``tls``: the URL asks for TLS.
    """
    from redis import exceptions

    text = str(error)
    code = next((_CODES[c.__name__] for c in type(error).__mro__ if c.__name__ in _CODES), "")
    if "WRONGTYPE" in text and key is not None:
        return CheckpointCorruptError(
            f"{to_text(key)} in Redis is not a hash: something else uses this name.",
            remedy=f"Give the store another prefix, or clear the key with `{clear_command(key)}`.",
        )
    for word, problem, remedy in _REPLIES:
        if word in text or word == code:
            refused = _DENIED.search(text) if remedy == _GRANT else None
            detail = f" ({refused[1]})" if refused else ""
            return _unavailable(f"Redis at {address} {problem}{detail}.", remedy)
    if isinstance(error, exceptions.AuthenticationError):
        return _unavailable(
            f"Redis at {address} refuses user or password.",
            "Check the user and password in the Redis URL.",
        )
    found = _not_connected(error, tls) or _away(error, timeout_s=timeout_s, tls=tls)
    if found is not None:
        return _unavailable(f"Redis at {address} {found[0]}.", found[1])
    return _unavailable(f"Redis at {address} answered: {text}.", "See the server's log.")


def _not_connected(error: BaseException, tls: bool) -> tuple[str, str] | None:
    """Return problem and remedy if no connection is possible until a mistake is corrected."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            said = cause.verify_message.rstrip(".")
            if "mismatch" in said:
                return f"shows another host's certificate ({said})", _RIGHT_HOST
            return f"shows a certificate that is not trusted ({said})", _TRUST
        if isinstance(cause, ssl.SSLError):
            return f"can't be connected to over TLS ({cause.strerror or cause})", _TLS_OPTIONS
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
            return "can't be reached: its host name is unknown", _ADDRESS
        if tls and isinstance(cause, FileNotFoundError | PermissionError):
            return f"can't be connected to: a file of the URL can't be read ({cause})", _TLS_OPTIONS
    return None


def _away(error: Exception, *, timeout_s: float, tls: bool) -> tuple[str, str] | None:
    """Return problem and remedy if the server is unreachable, or refuses to serve."""
    from redis import exceptions

    if isinstance(error, exceptions.TimeoutError):
        other = ", and that this port is for TLS: if not, write redis://." if tls else "."
        return (
            f"did not answer within {timeout_s:g} s",
            f"Check that it is up and reachable from here{other}",
        )
    if not isinstance(error, (exceptions.ConnectionError, OSError)):
        return None
    if "closed by server" not in str(error):
        return "can't be reached", f"Start it, or c{_ADDRESS[1:]}"
    other = "if this port is for TLS, write rediss://."
    if tls:
        other = "it may ask for your certificate: rediss://…?ssl_certfile=…&ssl_keyfile=…."
    return "closed the connection", f"Start it if it is down; {other}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unavailable(problem: str, remedy: str) -> CheckpointUnavailableError:
    return CheckpointUnavailableError(problem, remedy=remedy)
