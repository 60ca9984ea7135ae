"""Create clients of redis-py that never retry: the caller decides when to try again."""

from __future__ import annotations

import re
from typing import Any

from flowctl.errors import ConfigError

_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")


def new_client(url: str, *, timeout_s: float, **options: Any) -> Any:
    """Return a client for ``url`` that never tries again by itself; see :func:`check_options`."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    check_options(url)
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,  # every server since 2.0 supports it
        **options,
    )


def check_options(url: str) -> None:
    """Raise :class:`ConfigError` for options in ``url`` that redis-py can't use; connects nowhere.

    redis-py would raise a TypeError when it connects.
    """
    import redis

    try:
        pool = redis.ConnectionPool.from_url(url)
        pool.connection_class(**pool.connection_kwargs)
        return
    except (TypeError, ValueError, redis.RedisError) as error:
        unknown = _UNKNOWN.search(str(error))
        problem = f"{unknown[1]} is none of them" if unknown else str(error).rstrip(".")
    # Not chained: the frames hold the URL.
    raise ConfigError(
        "redis",
        f"the Redis URL has an option that can't be used: {problem}.",
        remedy="Options are those of redis-py; the ones for TLS need rediss://:"
        " rediss://host:port?ssl_ca_certs=/path/ca.pem.",
    )
