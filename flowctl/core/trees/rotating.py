"""A map whose entries expire by ticks from outside (S46–S48), and when a tick is due (S79).

It has no clock and no thread: its owner rotates it.  With n buckets an entry is dropped by the n-th
rotation after it was put: it lives longer than n - 1 ticks and n at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from flowctl.errors import ConfigError

K = TypeVar("K")
V = TypeVar("V")

# A spout forgets a tree first (between 1 and 2 ticks).  The acker and the bolts, which hear of a
# tree later than its spout does, keep it between 2 and 3: they never expire it before the spout,
# provided that all tick with the same period.
SPOUT_BUCKETS = 2
ACKER_BUCKETS = 3


class RotatingMap(Generic[K, V]):
    """Entries in ``buckets`` (2 at least) dicts, newest first.  Not thread-safe.

    All is O(buckets); a rotation moves no entry.  :class:`ConfigError` for fewer than 2 buckets:
    with 1 an entry could expire at once.
    """

    __slots__ = ("_buckets",)

    def __init__(self, buckets: int = SPOUT_BUCKETS) -> None:
        if buckets < 2:
            raise ConfigError("buckets", f"{buckets} is too few.", remedy="Give 2 or more.")
        self._buckets: list[dict[K, V]] = [{} for _ in range(buckets)]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def __contains__(self, key: K) -> bool:
        return any(key in bucket for bucket in self._buckets)

    def __iter__(self) -> Iterator[K]:
        for bucket in self._buckets:
            yield from bucket

    def get(self, key: K) -> V | None:
        """Return the value of ``key`` or None.  This does not prolong its life."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket[key]
        return None

    def put(self, key: K, value: V) -> None:
        """Set ``key``; its life restarts if it was there."""
        head = self._buckets[0]
        for bucket in self._buckets:
            if key in bucket:
                if bucket is not head:
                    del bucket[key]
                break
        head[key] = value

    def touch(self, key: K) -> bool:
        """Restart the life of ``key``; False if it is not there (any more)."""
        for bucket in self._buckets:
            if key in bucket:
                self._buckets[0][key] = bucket.pop(key)
                return True
        return False

    def remove(self, key: K) -> V | None:
        """Take ``key`` out and return its value, or None."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket.pop(key)
        return None

    def rotate(self) -> dict[K, V]:
        """Drop the oldest bucket, as a tick came, and return it: the caller reports its entries as
        failed.
        """
        self._buckets.insert(0, {})
        return self._buckets.pop()


class TickTimer:
    """When the owner of a rotating map should tick: looked at on traffic (S79).

    Times in seconds of one clock.  However late it is looked at, it gives one tick, not those that
    were missed: a life is never shorter than promised.  Not thread-safe.
    """

    __slots__ = ("_period_s", "_ticked_at_s")

    def __init__(self, period_s: float, *, now_s: float) -> None:
        if not period_s > 0:
            raise ConfigError(
                "period_s", f"must be greater than 0, got {period_s}.", remedy="Give seconds."
            )
        self._period_s = period_s
        self._ticked_at_s = now_s

    @property
    def due_after_s(self) -> float:
        """The time after which the next tick is due."""
        return self._ticked_at_s + self._period_s

    def take(self, *, now_s: float) -> bool:
        """Return whether a tick is due; if it is, it counts as given."""
        if now_s - self._ticked_at_s > self._period_s:
            self._ticked_at_s = now_s
            return True
        return False
