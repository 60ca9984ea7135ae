"""Permits that PostgreSQL holds: a bound on calls that holds even if workers freeze or die.

A lease ends by time, so a worker that was frozen in a call is not counted any more, though its call
may go on.  An advisory lock ends with its session: as long as the server works for it, it counts.
Any connection with psycopg's ``info.transaction_status`` will do (psycopg 3, psycopg2).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from flowctl.errors import ConfigError, RetryLater
from flowctl.pacing.target_settings import Limits

_P = ParamSpec("_P")
_T = TypeVar("_T")

# libpq's: no transaction is open; one has failed; the connection is gone.
_IDLE, _FAILED, _GONE = 0, 3, 4
# The first free place, starting from a random one: sessions that come together don't all wait for
# the same place.
_TAKE: Final = (
    "SELECT (place + %s) %% %s FROM generate_series(0, %s) AS place"
    " WHERE pg_try_advisory_lock(%s, (place + %s) %% %s) LIMIT 1"
)
_GIVE: Final = "SELECT pg_advisory_unlock(%s, %s)"


class HardPermits:
    """The ``most`` places of one target, each an advisory lock (hash of the target, place).

    Immutable, so thread-safe; can be pickled.
    """

    __slots__ = ("_key", "most")

    def __init__(self, target: str, most: int) -> None:
        digest = hashlib.blake2b(target.encode(), digest_size=4).digest()
        self._key = int.from_bytes(digest, "big", signed=True)  # PostgreSQL's is signed
        self.most: int = most

    def run(self, fn: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call ``fn``, whose first argument is the connection, while holding a place.

        Raises :class:`RetryLater` if there is none, and :class:`ConfigError` if the first argument
        is not a connection.
        """
        with self._place(_connection_of(args)):
            return fn(*args, **kwargs)

    @contextmanager
    def _place(self, connection: Any) -> Iterator[None]:
        first = random.randrange(self.most)
        found = _asked(
            connection, _TAKE, (first, self.most, self.most - 1, self._key, first, self.most)
        )
        if found is None:
            raise RetryLater(f"all {self.most} places are taken")
        try:
            yield
        finally:
            self._give(connection, found[0])

    def _give(self, connection: Any, place: int) -> None:
        status = connection.info.transaction_status
        if status == _GONE:
            return  # the server has given the place back with the session
        if status == _FAILED:  # a failed transaction accepts only a rollback
            connection.rollback()
        _asked(connection, _GIVE, (self._key, place))


def hard_permits(target: str, limits: Limits | None) -> HardPermits:
    """Return the permits of ``target``; :class:`ConfigError` without a maximum in ``limits``."""
    if limits is None:
        raise ConfigError(
            "hard",
            "needs the number of calls that must never be exceeded.",
            remedy="Give limits=Limits(in_flight_max=20).",
        )
    return HardPermits(target, limits.in_flight_max)


def _asked(connection: Any, statement: str, values: tuple[int, ...]) -> Any:
    """Return the first row; leave no transaction open that was not open before."""
    was_idle = connection.info.transaction_status == _IDLE
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        row = cursor.fetchone()
    if was_idle and connection.info.transaction_status != _IDLE:
        connection.commit()
    return row


def _connection_of(args: tuple[Any, ...]) -> Any:
    connection = args[0] if args else None
    if not hasattr(getattr(connection, "info", None), "transaction_status"):
        raise ConfigError(
            "hard",
            f"the call's first argument, a {type(connection).__name__}, is not a connection.",
            remedy="Write call.run(fn, connection, …) with a connection of psycopg.",
        )
    return connection
