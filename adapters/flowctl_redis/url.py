"""Redis URLs: validated without redis-py, shown without secrets."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from flowctl.errors import ConfigError

URL_VARIABLE = "FLOWCTL_REDIS_URL"
_SCHEMES = ("redis", "rediss", "unix")
_DEFAULT_PORT = 6379


def checked(url: str) -> str:
    """Return ``url``; raise :class:`ConfigError`, which never quotes it, as it may hold a
    password."""
    problem = _problem(url)
    if problem:
        raise ConfigError(
            "redis",
            f"not a Redis URL: {problem}.",
            remedy="Write redis://[user:password@]host[:port][/db], rediss://… for TLS, or"
            " unix:///path; percent-encode / ? # @ in a password.",
        )
    return url


def shown(url: str) -> str:
    """Where ``url`` points to, without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return unquote(parts.path)
    return f"{parts.hostname or 'localhost'}:{parts.port or _DEFAULT_PORT}{parts.path.rstrip('/')}"


def is_tls(url: str | None) -> bool:
    """Whether ``url`` asks for TLS."""
    return url is not None and url.startswith("rediss://")


def _problem(url: Any) -> str | None:
    if not isinstance(url, str):
        return f"it is of type {type(url).__name__}"
    parts = urlsplit_or_none(url)
    if parts is None:
        return "the host or port can't be read"
    if parts.scheme not in _SCHEMES:
        return f"it does not begin with one of {', '.join(f'{s}://' for s in _SCHEMES)}"
    if parts.fragment:
        return "there is a # in it"
    if parts.scheme == "unix":
        return None if parts.path else "the socket's path is missing"
    # A raw / or ? in a password ends the host early: parts of the password would be taken for host
    # and path, and shown.
    if "@" in parts.path or "@" in parts.query:
        return "there is an @ after the host"
    if parts.path.strip("/") and not parts.path.strip("/").isdigit():
        return "the database is not a number"
    return None


def urlsplit_or_none(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (parsed on access)
    except ValueError:
        return None
    return parts
