"""What is stored of paced targets, for people: list, read, set, reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flowctl.core.pacing.stored import StoredTarget
from flowctl.errors import CheckpointCorruptError, ConfigError, InfrastructureError
from flowctl_redis.clients import new_client
from flowctl_redis.faults import expected, translate
from flowctl_redis.names import to_bytes, to_text
from flowctl_redis.pacing import claim_of, sums_of, target_key
from flowctl_redis.url import checked, is_tls, shown

_T = TypeVar("_T")
_TIMEOUT_S = 5.0  # a person waits
_SCAN_COUNT = 1000  # keys per round trip: below a millisecond of the server's time
# What a target has learned; the sums by job and what was set by hand stay.
_LEARNED = ("limit", "reason", "total", "mark", "mark_at", "mark_before", "mark_before_at")


class RedisTargets:
    """Reads and writes what workers of paced targets share.  Thread-safe as redis-py is.

    All calls raise :class:`flowctl.errors.InfrastructureError` if Redis can't be reached.
    """

    def __init__(self, url: str, *, prefix: str = "flowctl", client: Any = None) -> None:
        self._url = checked(url)
        self._prefix = prefix
        self._client = client

    def names(self) -> list[str]:
        """Return the targets that anybody paced in the last 30 days.  Walks all keys."""
        begin = f"{self._prefix}:target:{{"
        pattern = to_bytes(begin + "*}")
        keys = self._call(
            lambda client: list(client.scan_iter(match=pattern, count=_SCAN_COUNT, _type="HASH"))
        )
        return sorted(to_text(key)[len(begin) : -1] for key in keys)

    def read(self, target: str) -> StoredTarget:
        """Return what is known; :class:`ConfigError` for an unknown target.

        A limit of 0: it was reset, and nobody has paced it since.
        """
        key = target_key(self._prefix, target)
        fields = self._call(lambda client: client.hgetall(key))
        if not fields:
            self._refuse(target)
        now_s = self._call(lambda client: float(client.time()[0]))
        try:
            return _stored(target, fields, now_s)
        except (ValueError, OverflowError) as error:
            raise CheckpointCorruptError(
                f"what is stored for target {target!r} in {to_text(key)} is damaged: {error}.",
                remedy=f"Delete it: redis-cli DEL '{to_text(key)}'; it is learned again.",
            ) from error

    def set(self, target: str, values: Mapping[str, float | None]) -> None:
        """Set ``min``, ``max`` or ``budget`` by hand; None: as the program says again."""
        self._check(target)
        key = target_key(self._prefix, target)
        gone = [f"set:{name}" for name, value in values.items() if value is None]
        new = {f"set:{n}": f"{value:.15g}" for n, value in values.items() if value is not None}
        if gone:
            self._call(lambda client: client.hdel(key, *gone))
        if new:
            self._call(lambda client: client.hset(key, mapping=new))

    def reset(self, target: str) -> None:
        """Forget what was learned: workers begin again with a few calls at once."""
        self._check(target)
        key = target_key(self._prefix, target)
        self._call(lambda client: client.hincrby(key, "resets", 1))  # the leader sees it
        if not self._leads_anybody(key):  # the next leader would begin with what is stored
            self._call(lambda client: client.hdel(key, *_LEARNED))

    def _leads_anybody(self, key: bytes) -> bool:
        until_ms = self._call(lambda client: client.hget(key, "leader_until"))
        return float(until_ms or 0) > 1000 * self._call(lambda client: float(client.time()[0]))

    def _check(self, target: str) -> None:
        key = target_key(self._prefix, target)
        if not self._call(lambda client: client.exists(key)):
            self._refuse(target)

    def _refuse(self, target: str) -> None:
        names = ", ".join(self.names()[:10])
        raise ConfigError(
            "TARGET",
            f"no program has paced {target!r} with this Redis.",
            remedy=f"Known: {names}." if names else "No target was paced with this Redis at all.",
        )

    def _call(self, operation: Callable[[Any], _T]) -> _T:
        fault: InfrastructureError
        try:
            if self._client is None:
                self._client = new_client(self._url, timeout_s=_TIMEOUT_S)
            return operation(self._client)
        except expected() as error:
            fault = translate(
                error,
                address=shown(self._url),
                key=None,
                timeout_s=_TIMEOUT_S,
                ours=False,
                tls=is_tls(self._url),
            )
        raise fault


def _stored(target: str, fields: Mapping[bytes, bytes], now_s: float) -> StoredTarget:
    def number(name: bytes) -> float:
        return float(fields.get(name) or 0)

    total, seen_ms = sums_of(fields.get(b"total", b"")), number(b"seen")
    mark = b"mark_before" if number(b"mark_before_at") else b"mark"
    claims = [
        claim_of(to_text(name[2:]), entry)[0]
        for name, entry in fields.items()
        if name.startswith(b"w:")
    ]
    budget = fields.get(b"set:budget") or fields.get(b"budget")
    return StoredTarget(
        target=target,
        limit=int(number(b"limit")),
        reason=to_text(fields.get(b"reason", b"start" if b"limit" in fields else b"reset")),
        budget=float(budget) if budget else None,
        leased=int(number(b"leased")),
        seen_s=max(0.0, now_s - seen_ms / 1000),
        recent=total.minus(sums_of(fields.get(mark, b""))),
        recent_s=max(0.0, (seen_ms - number(mark + b"_at")) / 1000),
        jobs={
            to_text(name[2:]): sums_of(value)
            for name, value in sorted(fields.items())
            if name.startswith(b"c:")
        },
        claims=tuple(claims),
        operator={
            to_text(name[4:]): float(value)
            for name, value in fields.items()
            if name.startswith(b"set:")
        },
    )
